"""The commands that use the models of a run: export, predict, adapt-client."""

import html
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fedwca._support.text import escape_unprintable
from fedwca.core.weights import cluster_weights
from fedwca.experiments.model_card import escape_name, format_card
from fedwca.experiments.store import RunFolder
from fedwca.models import ModelDescription, load_model
from tests.cli.conftest import Invoke, assert_error
from tests.conftest import draw_domain
from tests.support.image_folders import write_domain
from tests.support.tiny_settings import OWN_IMAGES

CLASSES = ("<script>alert(1)<b>", "a|b `c` [d](e)", "😀 'q' \"q\"")
SETTINGS = [
    *OWN_IMAGES,
    "--set=data.source_path=source",
    "--set=source.epochs=4",
    "--set=training.lr=0.01",
]
ODD = "<img src=x onerror=alert(1)> |`*"


class World(NamedTuple):
    """A folder with everything, and runs by method."""

    path: Path
    runs: dict[str, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Runs over two sites of one kind and one of another, and a fourth site that is in none."""
    path = tmp_path_factory.mktemp("world")
    for place, (seed, count, ink, classes) in {
        "source": (0, 60, 1.0, CLASSES),
        "sites/yard": (1, 60, 0.9, CLASSES),
        f"sites/{ODD}": (2, 60, 0.9, CLASSES),
        "sites/dim": (3, 60, 0.5, ()),
        "new": (4, 40, 0.5, ()),
        "new-test": (5, 40, 0.5, CLASSES),
    }.items():
        write_domain(path / place, draw_domain(seed, count, ink, 0.1, 0.1), classes)
    recalibrated = ["--method", "fedwca", "--set=training.batch_norm=recalibrate"]
    for chosen in (recalibrated, ["--method", "fedavg", "--method", "local"]):
        fedwca(path, "run", *SETTINGS, *chosen)
    methods = ("fedwca", "fedavg", "local")
    runs = {method: next((path / "runs").glob(f"*-{method}-*")) for method in methods}
    return World(path, runs)


def fedwca(folder: Path, *arguments: str) -> str:
    """Return the output of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "fedwca.cli", *arguments],
        cwd=folder,
        env={**os.environ, "FEDWCA_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cli(world: World, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line, with the runs of the world."""
    monkeypatch.setenv("FEDWCA_RUNS", str(world.path / "runs"))
    monkeypatch.setenv("FEDWCA_CACHE", str(world.path / "cache"))
    return invoke


def put_test_images(world: World, client: str, into: Path) -> None:
    """Copy the client's test images to a place of their own."""
    held = json.loads((world.runs["fedwca"] / "clients.json").read_text())
    for name in held["clients"][client]["test"]:
        target = into / Path(name).relative_to(client)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(world.path / "sites" / name, target)


def score(world: World, client: str) -> dict[str, Any]:
    line = json.loads((world.runs["fedwca"] / "result.json").read_text())
    found: dict[str, Any] = line["clients"][client]
    return found


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize("client", ["yard", ODD], ids=["yard", "odd"])
def test_exported_models_score_as_in_the_run(
    world: World, cli: Invoke, tmp_path: Path, kind: str, client: str
) -> None:
    alone = tmp_path / "alone"
    put_test_images(world, client, alone / "images")
    run = world.runs["fedwca"]
    result = cli("export", run.name, "--client", client, "--format", kind, "-o", str(alone))
    assert result.code == 0, result.err
    (model,) = alone.glob(f"*.{kind}")
    for card in alone.glob("*.md"):
        card.unlink()
    lines = fedwca(alone, "predict", model.name, "images", "--json").splitlines()
    predictions = [json.loads(line) for line in lines]
    expected = score(world, client)
    assert len(predictions) == expected["total"] > 0
    correct = sum(Path(p["path"]).parent.name == p["class"] for p in predictions)
    assert correct == expected["correct"]
    for prediction in predictions:
        probabilities = prediction["probabilities"]
        assert list(probabilities) == list(CLASSES)
        assert probabilities[prediction["class"]] == prediction["confidence"]
        assert prediction["confidence"] == max(probabilities.values())
    confidence = sum(p["confidence"] for p in predictions) / len(predictions)
    assert confidence == pytest.approx(expected["confidence"], abs=1e-5)


def test_a_run_without_its_source_model_is_refused(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    run = tmp_path / world.runs["fedwca"].name
    shutil.copytree(world.runs["fedwca"], run)
    (run / "source.safetensors").unlink()
    assert_error(cli("export", str(run)), "source.safetensors")


def test_all_clients_are_exported_under_safe_names_with_cards(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    result = cli("export", str(world.runs["fedwca"]))
    assert result.code == 0, result.err
    folder = world.runs["fedwca"] / "models"
    names = sorted(os.listdir(folder))
    assert [n for n in names if n.endswith(".md")] == [
        "dim.safetensors.md",
        "img-src-x-onerror-alert-1.safetensors.md",
        "yard.safetensors.md",
    ]
    assert len(names) == 6
    card = (folder / "img-src-x-onerror-alert-1.safetensors.md").read_text()
    assert "<" not in card
    assert "```json" in card
    assert escape_name(ODD) in card
    expected = score(world, ODD)
    assert f"{expected['correct']} of {expected['total']}" in card
    assert "accuracy is unknown" in (folder / "dim.safetensors.md").read_text()
    _, made = load_model(folder / "yard.safetensors")
    assert made.classes == tuple(sorted(CLASSES))
    assert made.made["client"] == "yard"
    assert made.made["method"] == "fedwca"
    assert made.made["source"] == "source"
    assert (made.made["rounds"], made.made["seed"]) == (2, 0)
    assert isinstance(made.made["cluster"], int)


def test_the_script_in_the_card_runs_without_fedwca_or_torch(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    put_test_images(world, "yard", tmp_path / "images")
    result = cli("export", world.runs["fedwca"].name, "--client", "yard", "-o", str(tmp_path))
    assert result.code == 0, result.err
    # From the file alone, as a site would do it with its own model.
    assert cli("export", str(tmp_path / "yard.safetensors"), "--format", "onnx").code == 0
    card = (tmp_path / "yard.onnx.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) <= 12
    forbid = "import sys; sys.modules.update(dict.fromkeys(['fedwca', 'torch', 'safetensors']))\n"
    (tmp_path / "use.py").write_text(forbid + lines)
    files = sorted(map(str, (tmp_path / "images").rglob("*.png")))
    done = subprocess.run(
        [sys.executable, "use.py", *files], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ours = cli("predict", str(tmp_path / "yard.safetensors"), str(tmp_path / "images")).out
    expected = [line.rpartition("\t")[0].replace("\t", " ") for line in ours.splitlines()]
    assert done.stdout.splitlines() == expected
    assert len(expected) == score(world, "yard")["total"]


def test_predict_accepts_files_folders_and_patterns_and_skips_corrupt_ones(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    assert cli("export", world.runs["fedwca"].name, "--client", "yard", "-o", "m").code == 0
    model = "m/yard.safetensors"
    deep = tmp_path / "in" / "a" / "b"
    deep.mkdir(parents=True)
    for name in ("in/x.png", "in/a/y.png", "in/a/b/[1].png", "in/a/b/new\nline.png"):
        shutil.copy(world.path / "new" / "000.png", tmp_path / name)
    (deep / "broken.png").write_bytes(b"")
    (deep / "notes.txt").write_text("no image")
    result = cli("predict", model, "in", "in/a/b/[1].png", "in/**/y.png", "--batch-size", "2")
    assert result.code == 0, result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == [
        "in/x.png",
        "in/a/y.png",
        "in/a/b/[1].png",
        "in/a/b/new\\u000aline.png",
    ]
    assert len({(name, confidence) for _, name, confidence in rows}) == 1
    assert "in/a/b/broken.png is skipped: empty file" in result.err
    assert "notes.txt" not in result.err

    result = cli("predict", model, "in/a/b/broken.png", "in/a/b/notes.txt")
    assert result.code == 2
    assert result.err.count("is skipped") == 2
    assert cli("predict", model, "nowhere/*.png").code == 2
    assert cli("predict", "in/x.png", "in").code == 2
    assert "--batch-size" in cli("predict", model, "in", "--batch-size", "0").err


def test_the_progress_bar_is_separate_from_the_output(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    assert cli("export", world.runs["fedwca"].name, "--client", "yard", "-o", ".").code == 0
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedwca.cli", "predict", "yard.safetensors"]
    with subprocess.Popen(
        [*command, str(world.path / "new")],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        lines, _ = process.communicate(timeout=120)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert process.returncode == 0
    assert len(lines.splitlines()) == 40
    assert "predicting" in seen
    assert "predicting" not in lines


def test_unknown_clients_unfinished_and_deployed_runs(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    run = world.runs["fedwca"]
    assert_error(cli("export", run.name, "--client", "yrad"), "'yard'")

    unfinished = tmp_path / "part"
    shutil.copytree(run, unfinished)
    (unfinished / "result.json").unlink()
    shutil.rmtree(unfinished / "checkpoint-00002")
    result = cli("export", str(unfinished), "--client", "yard")
    assert result.code == 0, result.err
    assert "after 1 of 2 rounds" in result.err
    shutil.rmtree(unfinished / "checkpoint-00001")
    assert_error(cli("export", str(unfinished)), "fedwca resume")

    config = json.loads((run / "config.json").read_text())
    config["settings"]["deploy"] = {}
    deployed = tmp_path / "deployed-x"
    shutil.copytree(run, deployed)
    (deployed / "config.json").write_text(json.dumps(config))
    assert_error(cli("export", str(deployed)), "site")


def test_a_new_site_gets_its_model_and_the_run_is_unchanged(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    run = world.runs["fedwca"]
    before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
    where = ["--data", str(world.path / "new"), "--test", str(world.path / "new-test")]
    result = cli("adapt-client", run.name, *where, "--name", ODD + "/new")
    assert result.code == 0, result.err
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()} == before

    model = tmp_path / "img-src-x-onerror-alert-1-new.safetensors"
    _, about = load_model(model)
    made: Any = about.made
    found = RunFolder(run).load_checkpoint()
    assert found is not None
    state = found.state
    own = made["cluster"]
    alpha, beta = (torch.tensor(made[name], dtype=torch.float64) for name in ("alpha", "beta"))
    v = cluster_weights(alpha, beta, own, state.values["S"])
    assert made["v"] == pytest.approx(v.tolist())
    assert sum(made["v"]) == pytest.approx(1)
    rows = dict(
        re.findall(r"^(source|cluster|f_init|delivered) +[\d.]+ +(\d+/\d+)", result.out, re.M)
    )
    assert list(rows) == ["source", "cluster", "f_init", "delivered"]
    assert rows["delivered"] == f"{made['correct']}/{made['total']}" == f"{made['correct']}/40"
    assert "<img" not in (tmp_path / f"{model.name}.md").read_text()

    predictions = [
        json.loads(line)
        for line in cli(
            "predict", str(model), str(world.path / "new-test"), "--json"
        ).out.splitlines()
    ]
    assert sum(Path(p["path"]).parent.name == p["class"] for p in predictions) == made["correct"]


def test_a_new_site_without_labels_and_as_onnx(world: World, cli: Invoke, tmp_path: Path) -> None:
    result = cli("adapt-client", world.runs["fedwca"].name, "--data", str(world.path / "new"),
              "--output", "here/site.onnx")  # fmt: skip
    assert result.code == 0, result.err
    assert "accuracy" not in result.out
    assert "α" in result.out
    assert sorted(os.listdir(tmp_path / "here")) == ["site.onnx", "site.onnx.md"]
    assert len(cli("predict", "here/site.onnx", str(world.path / "new")).out.splitlines()) == 40


def test_a_new_site_starts_from_the_global_model_where_there_are_no_clusters(
    world: World, cli: Invoke, tmp_path: Path
) -> None:
    where = ["--data", str(world.path / "new"), "--test", str(world.path / "new-test")]
    result = cli("adapt-client", world.runs["fedavg"].name, *where)
    assert result.code == 0, result.err
    rows = re.findall(r"^(\w+) +[\d.]+ +(\d+)/40", result.out, re.MULTILINE)
    assert [who for who, _ in rows] == ["source", "server", "delivered"]
    assert "cluster" not in result.out
    assert (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("local", [], "clients of local"),
        ("fedwca", ["--name", "yard"], "client 'yard'"),
        ("fedwca", ["--output", "m.pth"], "--output m.pth"),
        ("fedwca", ["--test", "nowhere"], "nowhere"),
    ],
)
def test_a_new_site_that_cannot_be_served_is_refused(
    world: World, cli: Invoke, method: str, more: list[str], words: str
) -> None:
    result = cli("adapt-client", world.runs[method].name, "--data", str(world.path / "new"), *more)
    assert_error(result, words)


@pytest.mark.parametrize(
    "name",
    [
        *CLASSES,
        ODD,
        "\u202ertl",
        "# x\n## y",
        "x" * 300,
        "```\n<script>",
        "![i](http://e.com)",
        "&lt;",
    ],
)
def test_a_card_escapes_markup_in_names(name: str) -> None:
    about = ModelDescription(
        backbone="lenet",
        bottleneck=8,
        classifier="linear",
        stride_on="conv2",
        classes=(name, name + "2"),
        image_size=20,
        crop=0,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        made={"client": name, "source": name, "settings": {"method": {"x": name}}},
    )
    card = format_card(about, "m.onnx")
    harmless = format_card(about.model_copy(update={"classes": ("a", "b")}).with_details(
        client="a", source="a", settings={"method": {"x": "a"}}), "m.onnx")  # fmt: skip
    assert card.count("\n") == harmless.count("\n")
    prose = re.sub(r"(`{3,})\w*\n.*?\n\1", "", card, flags=re.DOTALL)
    assert "<" not in prose
    assert not re.search(
        r"(?<!\\)[\[\]`*]", prose.replace("`fedwca predict`", "").replace("`pixels`", "")
    )
    shown = re.search(r"^# Model of (.*)$", card, re.M)
    assert shown
    text = html.unescape(re.sub(r"\\(.)", r"\1", shown[1]))
    assert text[:199] == escape_unprintable(name)[:199]

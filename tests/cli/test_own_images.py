"""Own images, from a folder to a result."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fedwca.models import read_class_names, read_weights
from fedwca.report.runs import find_runs
from tests.cli.conftest import Fedwca, Invoke, assert_error
from tests.conftest import CLASSES, draw_domain
from tests.support.image_folders import write_domain
from tests.support.tiny_settings import OWN_IMAGES


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites without labels, one with, and labeled source images beside them."""
    for seed, name in enumerate(("dock", "gate", "yard"), 1):
        domain = draw_domain(seed, 30, 0.9, 0.1, 0.05 * (1 + seed))
        write_domain(tmp_path / "sites" / name, domain, CLASSES if name == "yard" else ())
    write_domain(tmp_path / "source", draw_domain(0, 60, 0.9, 0.1, 0.05), CLASSES)
    return tmp_path / "sites"


FIRST = ["--set=data.source_path=source", "--method=source_only", "--runs=first"]


def last_line() -> dict[str, Any]:
    (view,), problems = find_runs(Path("runs"))
    assert not problems
    return view.last


def test_a_folder_of_source_images_and_sites_without_labels(fedwca: Fedwca, sites: Path) -> None:
    fedwca("run", *OWN_IMAGES, "--set=data.source_path=source")
    clients = last_line()["clients"]
    assert list(clients) == ["dock", "gate", "yard"]
    assert clients["dock"]["accuracy"] is None
    assert clients["yard"]["accuracy"] is not None
    (run,) = Path("runs").iterdir()
    held = json.loads((run / "clients.json").read_text())
    assert held["classes"] == list(CLASSES)
    assert len(held["clients"]["dock"]["train"]) == 30  # nothing to score, so all is trained on
    assert len(held["clients"]["yard"]["train"]) == 19  # 64 % of 30
    shares = [
        name for part in ("train", "validation", "test") for name in held["clients"]["yard"][part]
    ]
    files = [path.relative_to(sites).as_posix() for path in (sites / "yard").rglob("*.png")]
    assert sorted(shares) == sorted(files)  # by name, so that anybody can tell who got what


def test_a_labeled_site_can_be_the_source(fedwca: Fedwca, sites: Path) -> None:
    fedwca("run", *OWN_IMAGES, "--set=data.source=yard")
    assert list(last_line()["clients"]) == ["dock", "gate"]


def test_just_a_model_with_its_class_names(fedwca: Fedwca, sites: Path, tmp_path: Path) -> None:
    fedwca("run", *OWN_IMAGES, *FIRST)
    (model,) = (tmp_path / "first").rglob("source.safetensors")
    assert read_class_names(model) == CLASSES
    out = fedwca("run", *OWN_IMAGES, f"--set=source.weights={model}", "--method=source_only")
    assert "given source model" in out
    (before,), _ = find_runs(tmp_path / "first")
    assert last_line()["accuracy"] == before.last["accuracy"]

    # A file that carries no names needs them as a setting.
    torch.save(read_weights(model), tmp_path / "model.pth")
    bare = [*OWN_IMAGES, "--set=source.weights=model.pth", "--method=source_only", "--runs=second"]
    fedwca("run", *bare, "--set=data.classes=bar,post,square")
    (view,), _ = find_runs(Path("second"))
    assert view.last["accuracy"] == before.last["accuracy"]


def test_models_that_do_not_fit_are_rejected(invoke: Invoke, sites: Path, tmp_path: Path) -> None:
    assert invoke("run", *OWN_IMAGES, *FIRST).code == 0
    (model,) = (tmp_path / "first").rglob("source.safetensors")
    torch.save(read_weights(model), tmp_path / "model.pth")
    for named, settings in (
        ("data.classes", ["source.weights=model.pth"]),
        ("data.classes", ["source.weights=model.pth", "data.classes=bar"]),
        ("model.pth", ["source.weights=model.pth", "data.classes=a,b"]),
        ("data.classes", ["source.weights=model.pth", "data.classes=a,b,a"]),
        (model.name, [f"source.weights={model}", "data.classes=post,bar,square"]),
        ("data.source", []),
    ):
        assert_error(invoke("run", *OWN_IMAGES, *(f"--set={text}" for text in settings)), named)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("data.source_path", [*OWN_IMAGES, "--set=data.source_path=source"]),
        ("data.benchmark", ["--set=data.path=sites"]),
        ("data.classes", ["--set=data.benchmark=pacs", "--set=data.classes=a,b"]),
        ("data.clients_per_domain", [*OWN_IMAGES, "--set=data.size_dirichlet=1"]),
    ],
)
def test_settings_without_effect_are_rejected(
    invoke: Invoke, sites: Path, named: str, settings: list[str]
) -> None:
    assert_error(invoke("run", *settings, "--set=data.source=yard"), named)


def test_broken_files_are_named_and_counted(fedwca: Fedwca, sites: Path) -> None:
    for number in range(5):
        file = sites / "gate" / f"{number:03d}.png"
        file.write_bytes(file.read_bytes()[:60] if number else b"")
    out = fedwca("run", *OWN_IMAGES, "--set=data.source_path=source")
    assert "gate: 5 of 30 images cannot be read" in out
    assert "gate/000.png (empty file)" in out
    assert "and 2 more" in out
    assert last_line()["clients"]["gate"]["total"] == 0

    out = fedwca("data", "check", "sites")
    assert out.count("broken: gate: gate/00") == 5


def test_a_client_of_broken_files_only_is_skipped(fedwca: Fedwca, sites: Path) -> None:
    for file in (sites / "gate").iterdir():
        file.write_text("not an image")
    out = fedwca("run", *OWN_IMAGES, "--set=data.source_path=source", "--method=source_only")
    assert "gate: 30 of 30 images cannot be read, skipping the domain" in out
    assert list(last_line()["clients"]) == ["dock", "yard"]


def test_names_that_are_not_text_are_escaped(fedwca: Fedwca, sites: Path) -> None:
    (sites / "dock").rename(sites / "do\nck \x1b[31m")
    (sites / "gate").rename(sites / os.fsdecode(b"g\xffte"))
    out = fedwca("run", *OWN_IMAGES, "--set=data.source_path=source", "--method=source_only")
    assert list(last_line()["clients"]) == ["do\\u000ack \\u001b[31m", "g\\udcffte", "yard"]
    out = fedwca("data", "check", "sites")
    out.encode()  # nothing that a strict terminal would refuse


def test_names_stay_as_they_are_written(fedwca: Fedwca, sites: Path) -> None:
    (sites / "yard").rename(sites / "1.50")
    sites.rename(sites.parent / "2024")
    settings = ["--set=data.path=2024", "--set=data.source=1.50", "--method=source_only"]
    fedwca("run", *OWN_IMAGES, *settings)
    assert list(last_line()["clients"]) == ["dock", "gate"]


def test_a_source_of_one_image_leaves_no_run_behind(invoke: Invoke, sites: Path) -> None:
    for file in sorted((sites / "yard").rglob("*.png"))[1:]:
        file.unlink()
    settings = [*OWN_IMAGES, "--set=data.source=yard", "--set=data.classes=bar,post,square"]
    assert_error(invoke("run", *settings), "yard")
    assert not Path("runs").exists()


def test_check_counts_and_prints_the_next_command(invoke: Invoke, sites: Path) -> None:
    (sites / "empty").mkdir()
    code, out, err = invoke("data", "check", "sites")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["dock"] == ["30", "0", "–", "–", "16×16", "0"]
    assert rows["yard"] == ["30", "30", "3", "of", "3", "10", "bar", "16×16", "0"]
    assert rows["all"] == ["90", "30", "0"]
    assert "data.benchmark=images --set data.path=sites --set data.source=yard" in out
    assert "--set model.weights=" in out
    assert "empty" in err


def test_check_and_preview_need_no_labels_at_all(fedwca: Fedwca, sites: Path) -> None:
    for path in (sites / "yard").rglob("*.png"):
        path.unlink()
    out = fedwca("data", "check", "sites")
    assert "no known classes" in out
    assert "--set source.weights=MODEL.safetensors --set data.classes=NAME,NAME,…" in out
    assert "--set data.source_path=FOLDER" in out
    fedwca("data", "preview", "sites", "-o", "sheet.png")
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 100


@pytest.mark.parametrize("command", ["check", "preview"])
def test_missing_and_empty_folders(invoke: Invoke, tmp_path: Path, command: str) -> None:
    (tmp_path / "bare").mkdir()
    assert_error(invoke("data", command, "nowhere"), "nowhere")
    assert_error(invoke("data", command, "bare"), "bare")
    assert_error(invoke("data", command, "bare", "--benchmark", "pacz"), "'pacs'")


def test_the_generated_benchmark_can_be_checked_too(fedwca: Fedwca) -> None:
    out = fedwca("data", "check", "mini-digits")
    assert "handwriting" in out
    assert "fedwca run --set data.benchmark=mini-digits --set data.source=handwriting" in out


def test_skewed_clients_are_saved_with_the_run(invoke: Invoke, sites: Path) -> None:
    skewed = [
        "--set=data.source_path=source",
        "--set=data.clients_per_domain=2",
        "--set=data.size_dirichlet=0.3",
        "--set=data.images_per_client=12",
    ]
    assert invoke("run", *OWN_IMAGES, *skewed, "--method=source_only").code == 0
    (run,) = Path("runs").iterdir()
    clients = json.loads((run / "clients.json").read_text())["clients"]
    assert list(clients) == [f"{site}/{n}" for site in ("dock", "gate", "yard") for n in (0, 1)]
    sizes = [len(held["train"]) for held in clients.values()]
    assert max(sizes) == 12
    assert min(sizes) < 12
    labels = invoke("run", *OWN_IMAGES, *skewed, "--set=data.label_dirichlet=0.5")
    assert_error(labels, "labels")

"""The Python API, compared with the files of a run."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedwca
from fedwca._support.files import add_checksum, verify_checksum, write_lines
from fedwca.data.types import Benchmark
from fedwca.experiments.config import resolve
from fedwca.experiments.inputs import load_data
from tests.conftest import write_npz


def settings(images: Path) -> dict[str, Any]:
    data = {"benchmark": "npz", "path": str(images), "source": "clean", "image_size": 16}
    return {
        "data": {**data, "clients_per_domain": 2},
        "source": {"epochs": 2},
        "training": {"rounds": 3, "epochs": 1, "batch_size": 16},
        "run": {"workers": 1},
    }


@pytest.fixture(scope="module")
def images(tiny_benchmark: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("api") / "images", tiny_benchmark)


@pytest.fixture(scope="module")
def folders(images: Path) -> dict[str, Path]:
    return {"runs": images.parent / "runs", "cache": images.parent / "cache"}


@pytest.fixture(scope="module")
def run(images: Path, folders: dict[str, Path]) -> fedwca.Run:
    """A finished run, for tests that only read it."""
    return fedwca.run(settings(images), **folders)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]


def toml_of(sections: dict[str, Any]) -> str:
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(v)}\n" for key, v in values.items())
        for name, values in sections.items()
    )


def test_a_run_has_what_its_files_hold(run: fedwca.Run, folders: dict[str, Path]) -> None:
    result = json.loads((run.path / "result.json").read_text())
    assert run.done
    assert run.path.parent == folders["runs"]
    assert run.name == run.path.name
    assert run.settings == json.loads((run.path / "config.json").read_text())["settings"]
    assert run.accuracy == result["accuracy"]["mean"]
    assert run.accuracies == {c: s["accuracy"] for c, s in result["clients"].items()}
    assert run.domains == {"dim/0": "dim", "dim/1": "dim", "noisy/0": "noisy", "noisy/1": "noisy"}
    assert run.clusters == {c: result["server"][f"cluster_of/{c}"] for c in run.domains}
    assert run.classes == ("0", "1", "2")
    lines = lines_of(run.path)
    # Round 1 starts from the source model: from then on there are clusters to blend.
    assert run.weights == {
        r: {c: lines[r + 1]["server"][f"v/{c}"] for c in run.domains} for r in (1, 2)
    }
    assert str(run) == f"<Run {run.name}: 3 rounds, done, accuracy {100 * run.accuracy:.1f} %>"


def test_records_are_flat_and_have_the_same_keys(run: fedwca.Run) -> None:
    lines = lines_of(run.path)
    records = run.records()
    assert [(r["round"], r["client"]) for r in records] == [
        (n, c) for n in range(4) for c in run.domains
    ]
    assert len({tuple(r) for r in records}) == 1
    last, line = records[-1], lines[-1]
    health = line["health"]["noisy/1"]
    for name in ("alpha", "beta", "matched", "loss_ce", "loss_im", "separation"):
        assert last[name] == health[name]
    for name, value in line["clients"]["noisy/1"].items():
        assert last[name] == value
    assert last["init_confidence"] == health["confidence"]
    assert last["cluster"] == line["server"]["cluster_of/noisy/1"]
    assert last["weights"] == line["server"]["v/noisy/1"]
    assert records[0]["alpha"] is records[0]["cluster"] is records[0]["loss_ce"] is None


def test_names_of_logged_numbers_never_replace_other_keys(run: fedwca.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    lines = lines_of(copy)
    for line in lines:
        for health in line.get("health", {}).values():
            health.update(round=9, client=7, accuracy=1, weights=5.0, domain=0, cluster=3)
        line.pop("sha256")
    write_lines(copy / "results.jsonl", lines)
    assert fedwca.open_run(copy).records() == run.records()


def test_a_model_predicts_as_in_the_run(images: Path, folders: dict[str, Path]) -> None:
    sections = settings(images)
    run = fedwca.run(sections, overrides={"training.batch_norm": "recalibrate"}, **folders)
    experiment = resolve(sections)
    clients = load_data(experiment, folders["cache"]).clients("clean", experiment.data.partition, 0)
    scores = json.loads((run.path / "result.json").read_text())["clients"]
    for client in clients:
        assert client.test is not None
        test = client.test.images
        pixels = torch.from_numpy(test.pixels[test.index])
        with torch.inference_mode():
            _, logits = run.model(client.name)(run.transform(pixels))
        correct = (logits.argmax(dim=1) == torch.from_numpy(client.test.labels)).sum()
        assert int(correct) == scores[client.name]["correct"]


def test_a_file_and_a_mapping_with_overrides_are_the_same(
    images: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    sections = settings(images)
    sections["training"]["rounds"] = 1
    from_mapping = fedwca.run(sections, **folders)
    file = tmp_path / "run.toml"
    file.write_text(toml_of(settings(images)))
    stamp = (from_mapping.path / "results.jsonl").stat().st_mtime_ns
    from_file = fedwca.run(str(file), overrides={"training.rounds": 1}, **folders)
    assert from_file.path == from_mapping.path
    assert (from_file.path / "results.jsonl").stat().st_mtime_ns == stamp  # nothing ran again
    other = fedwca.run(file, overrides={"training.rounds": 1, "method.name": "fedavg"}, **folders)
    assert other.settings["method"]["name"] == "fedavg"
    assert other.clusters == {}
    assert other.weights == {}


def test_an_unfinished_run_without_labels(run: fedwca.Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (folder / "result.json").unlink()
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    hidden = verify_checksum(json.loads(lines[2]))
    assert hidden is not None
    hidden["accuracy"] = {"mean": None, "domains": {}}
    for score in hidden["clients"].values():
        score.update(accuracy=None, correct=0, total=0)
    (folder / "results.jsonl").write_text(
        "".join(lines[:2]) + json.dumps(add_checksum(hidden)) + '\n{"round":'
    )
    stopped = fedwca.open_run(str(folder))
    assert not stopped.done
    assert stopped.accuracy is None
    assert set(stopped.accuracies.values()) == {None}
    assert str(stopped) == "<Run copy: 2 rounds, unfinished>"
    assert len(stopped.records()) == 3 * 4


def test_freed_memory_is_kept_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("fedwca.api.keep_freed_memory", lambda: calls.append(True))
    with pytest.raises(fedwca.UserError, match="nonsense"):
        fedwca.run({"nonsense": {}})
    assert calls == [True]


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(fedwca.UserError, match=tmp_path.name):
        fedwca.open_run(tmp_path)
    with pytest.raises(fedwca.UserError, match="'rounds'"):
        fedwca.run({"training": {"round": 1}}, runs=tmp_path)
    with pytest.raises(fedwca.UserError, match="rounds"):
        fedwca.run(overrides={"rounds": 1}, runs=tmp_path)
    with pytest.raises(fedwca.UserError, match=r"no\.toml"):
        fedwca.run(tmp_path / "no.toml", runs=tmp_path)


SCRIPT = """
import sys, fedwca
assert not {"torch", "numpy", "fedwca.api"} & {*sys.modules}
print("begun")
run = fedwca.run(%r, runs="runs", cache="cache")
print(run.name)
run = fedwca.open_run(run.path)
"""


OWN_METHOD = """
from dataclasses import dataclass
import fedwca
from fedwca.methods import METHODS
from fedwca.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    pass

if __name__ == "__main__":
    METHODS["mine"] = Mine
    print("begun")
    print(fedwca.run(%r, runs="runs", cache="cache").settings["method"]["name"])
"""


def test_workers_know_a_method_of_the_script(images: Path, tmp_path: Path) -> None:
    sections = two_workers(images, "mine")
    assert printed_by(OWN_METHOD % sections, tmp_path) == ["begun", "mine"]


def two_workers(images: Path, method: str) -> dict[str, Any]:
    sections = settings(images)
    sections["training"]["rounds"] = 1
    return {**sections, "run": {"workers": 2}, "method": {"name": method}}


def printed_by(script: str, folder: Path) -> list[str]:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_script_needs_no_guard_and_the_import_is_cheap(images: Path, tmp_path: Path) -> None:
    sections = two_workers(images, "fedavg")
    assert printed_by(SCRIPT % sections, tmp_path) == ["begun", resolve(sections).name]


def test_everything_in_the_guide_exists() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    named = re.findall(r"`core\.(\w+)\.(\w+)", guide)
    assert len(named) >= 12
    for module, name in named:
        assert callable(getattr(importlib.import_module(f"fedwca.core.{module}"), name))
    section = guide.partition("## What a `Run` offers")[2].partition("\n## ")[0]
    attributes = re.findall(r"`(\w+)", " ".join(re.findall(r"^\| (`.*?) \|", section, re.M)))
    assert len(attributes) >= 12
    assert all(hasattr(fedwca.Run, name) for name in attributes)


def test_its_names_are_public() -> None:
    assert {*fedwca.__all__} == {"Run", "UserError", "open_run", "run"}
    assert all(getattr(fedwca, name) for name in fedwca.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        _ = fedwca.walk

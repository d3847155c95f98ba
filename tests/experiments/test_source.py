"""Where a source model comes from: the run's own copy, the cache, or training."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca.experiments import source
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.runner import run_experiment
from fedwca.models import build_model, read_weights


class Notes:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, title: str, rounds: int, done: int) -> None: ...
    def round(self, line: dict[str, Any]) -> None: ...
    def finish(self) -> None: ...


def experiment(data: Path, **source_settings: Any) -> Experiment:
    model = source_settings.pop("model", {})
    return resolve(
        {
            "data": {"benchmark": "npz", "path": data, "source": "clean", "image_size": 16},
            "model": model,
            "source": {"epochs": 1, **source_settings},
            "method": {"name": "source_only"},
            "run": {"workers": 1},
        }
    )


def told(planned: Experiment, runs: Path, cache: Path) -> str:
    notes = Notes()
    run_experiment(planned, runs, cache, notes)
    return "\n".join(notes.notes)


def backbone_file(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = build_model("lenet", 3, image_size=16)
    torch.save(model.backbone.state_dict(), path)
    return path


def test_the_content_of_the_backbones_weights_decides(npz_folder: Path, tmp_path: Path) -> None:
    cache, weights = tmp_path / "cache", backbone_file(tmp_path / "w.pth", seed=1)
    first = experiment(npz_folder, model={"weights": weights})
    assert "training on" in told(first, tmp_path / "1", cache)
    moved = weights.rename(tmp_path / "moved.pth")
    second = experiment(npz_folder, model={"weights": moved})
    assert "taken from" in told(second, tmp_path / "2", cache)
    backbone_file(moved, seed=2)
    assert "training on" in told(second, tmp_path / "3", cache)


def test_the_seed_of_the_run_and_the_same_one_given_are_one_model(
    npz_folder: Path, tmp_path: Path
) -> None:
    assert "training on" in told(experiment(npz_folder), tmp_path / "1", tmp_path / "cache")
    given = experiment(npz_folder, seed=0)
    assert "taken from" in told(given, tmp_path / "2", tmp_path / "cache")
    other = experiment(npz_folder, seed=1)
    assert "training on" in told(other, tmp_path / "3", tmp_path / "cache")


def test_a_cache_that_cannot_be_written_costs_no_trained_model(
    npz_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = source.save_weights

    def only_in_runs(model: Any, path: Path, *rest: Any, **more: Any) -> None:
        if "cache" in path.parts:
            raise OSError("read-only")
        save(model, path, *rest, **more)

    monkeypatch.setattr(source, "save_weights", only_in_runs)
    said = told(experiment(npz_folder), tmp_path / "runs", tmp_path / "cache")
    assert "cannot be kept for other runs" in said
    (kept,) = (tmp_path / "runs").rglob("source.safetensors")
    assert read_weights(kept)


def test_a_network_other_than_lenet_without_weights_is_warned_of(
    npz_folder: Path, tmp_path: Path
) -> None:
    planned = experiment(npz_folder, model={"backbone": "mobilenet_v2"})
    assert "mobilenet_v2 starts from random weights" in told(
        planned, tmp_path / "runs", tmp_path / "cache"
    )


def test_a_source_model_that_cannot_be_read_now_is_not_replaced(
    npz_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, runs, cache = experiment(npz_folder), tmp_path / "runs", tmp_path / "cache"
    run = run_experiment(planned, runs, cache)
    (run.path / "result.json").unlink()
    opened = source.open_file

    def broken(path: Path) -> Any:
        if path.name == "source.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path)

    monkeypatch.setattr(source, "open_file", broken)
    with pytest.raises(OSError, match="Input/output error"):
        run_experiment(planned, runs, cache)


def test_a_cached_source_model_that_cannot_be_read_is_trained_anew(
    npz_folder: Path, tmp_path: Path
) -> None:
    planned, cache = experiment(npz_folder), tmp_path / "cache"
    assert "training on" in told(planned, tmp_path / "1", cache)
    (kept,) = (cache / "source").iterdir()
    kept.unlink()
    os.mkfifo(kept)  # which would keep us waiting for ever
    said = told(planned, tmp_path / "2", cache)
    assert "cannot be read (it is not a regular file) and is made anew" in said

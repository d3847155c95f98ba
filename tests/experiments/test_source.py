"""Where a source model comes from: the run's own copy, the cache, or training."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca.experiments import source
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.runner import run_experiment
from fedwca.models import build_model, read_weights

RunAndLog = Callable[[Experiment, str], str]


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


@pytest.fixture
def run_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> RunAndLog:
    """Runs an experiment in a run folder of this name, all with one cache; returns the log."""

    def run(planned: Experiment, runs: str) -> str:
        caplog.clear()
        with caplog.at_level("INFO", logger="fedwca"):
            run_experiment(planned, tmp_path / runs, tmp_path / "cache")
        return caplog.text

    return run


def backbone_file(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = build_model("lenet", 3, image_size=16)
    torch.save(model.backbone.state_dict(), path)
    return path


def test_the_cached_model_depends_on_the_content_of_the_backbone_weights(
    npz_folder: Path, tmp_path: Path, run_and_log: RunAndLog
) -> None:
    weights = backbone_file(tmp_path / "w.pth", seed=1)
    first = experiment(npz_folder, model={"weights": weights})
    assert "training on" in run_and_log(first, "1")
    moved = weights.rename(tmp_path / "moved.pth")
    second = experiment(npz_folder, model={"weights": moved})
    assert "loaded from" in run_and_log(second, "2")
    backbone_file(moved, seed=2)
    assert "training on" in run_and_log(second, "3")


def test_the_source_seed_defaults_to_the_seed_of_the_run(
    npz_folder: Path, run_and_log: RunAndLog
) -> None:
    assert "training on" in run_and_log(experiment(npz_folder), "1")
    assert "loaded from" in run_and_log(experiment(npz_folder, seed=0), "2")
    assert "training on" in run_and_log(experiment(npz_folder, seed=1), "3")


def test_a_cache_that_cannot_be_written_loses_no_trained_model(
    npz_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_and_log: RunAndLog,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(source, "save_weights", fail)
    assert "cannot write" in run_and_log(experiment(npz_folder), "runs")
    (copy,) = (tmp_path / "runs").rglob("source.safetensors")
    assert read_weights(copy)


def test_random_weights_of_a_pretrained_backbone_cause_a_warning(
    npz_folder: Path, run_and_log: RunAndLog
) -> None:
    planned = experiment(npz_folder, model={"backbone": "mobilenet_v2"})
    assert "mobilenet_v2 starts from random weights" in run_and_log(planned, "runs")


def test_an_unreadable_source_model_of_a_run_is_not_replaced(
    npz_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, runs, cache = experiment(npz_folder), tmp_path / "runs", tmp_path / "cache"
    run = run_experiment(planned, runs, cache)
    (run.path / "result.json").unlink()
    open_file = source.open_regular_file

    def fail(path: Path) -> Any:
        if path.name == "source.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_file(path)

    monkeypatch.setattr(source, "open_regular_file", fail)
    with pytest.raises(OSError, match="Input/output error"):
        run_experiment(planned, runs, cache)


def test_an_unreadable_cached_source_model_is_trained_again(
    npz_folder: Path, tmp_path: Path, run_and_log: RunAndLog
) -> None:
    planned = experiment(npz_folder)
    assert "training on" in run_and_log(planned, "1")
    (cached,) = (tmp_path / "cache" / "source").iterdir()
    cached.unlink()
    os.mkfifo(cached)  # reading it would block
    assert "training again" in run_and_log(planned, "2")

"""How a run ends: stopped with its last finished round on the disk, or done with nothing left."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedwca.engines.simulator import Simulator
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.progress import Silent
from fedwca.experiments.runner import run_experiment


def experiment(npz_folder: Path, workers: int = 1) -> Experiment:
    data = {"benchmark": "npz", "path": npz_folder, "source": "clean", "image_size": 16}
    return resolve(
        {
            "data": {**data, "clients_per_domain": 1},
            "source": {"epochs": 1},
            "training": {"rounds": 4, "epochs": 1, "batch_size": 16},
            "method": {"name": "local"},
            "run": {"workers": workers, "checkpoint_every": 10},
        }
    )


class Stopped(Silent):
    """Stops the run when it tells of a round."""

    def __init__(self, error: BaseException, round: int) -> None:
        self._error, self._round = error, round

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == self._round:
            raise self._error


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return [{k: v for k, v in one.items() if k not in ("seconds", "sha256")} for one in found]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), UserError("a worker is lost"), BrokenPipeError()]
)
def test_a_stopped_run_loses_no_finished_round_however_rare_checkpoints_are(
    npz_folder: Path, tmp_path: Path, error: BaseException, workers: int
) -> None:
    cache, chosen = tmp_path / "cache", experiment(npz_folder, workers)
    whole = run_experiment(chosen, tmp_path / "whole", cache).path
    with pytest.raises(type(error)):
        run_experiment(chosen, tmp_path / "runs", cache, Stopped(error, 3))
    run = tmp_path / "runs" / whole.name
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-00003"]
    assert not (run / "scratch").exists()
    run_experiment(chosen, tmp_path / "runs", cache)
    assert lines(run) == lines(whole)


def test_the_result_is_written_when_nothing_is_left_behind(
    npz_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / experiment(npz_folder).name
    close = Simulator.close

    def closed(engine: Simulator) -> None:
        assert not (run / "result.json").exists()  # else a kill here would leave scratch for ever
        close(engine)

    monkeypatch.setattr(Simulator, "close", closed)
    run_experiment(experiment(npz_folder), tmp_path / "runs", tmp_path / "cache")
    assert (run / "result.json").exists()
    assert not (run / "scratch").exists()

"""How a run ends: interrupted with its last finished round saved, or complete."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedwca._support.errors import UserError
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.rounds import NoProgress
from fedwca.experiments.runner import prepare_run, run_experiment


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


class Stopped(NoProgress):
    """Stops the run after a round."""

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
def test_an_interrupted_run_saves_its_last_round_however_rare_checkpoints_are(
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


def test_the_result_is_written_after_everything_is_cleaned_up(
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


def test_a_finished_run_is_returned_even_if_its_data_is_gone(
    npz_folder: Path, tmp_path: Path
) -> None:
    chosen, runs, cache = experiment(npz_folder), tmp_path / "runs", tmp_path / "cache"
    first = run_experiment(chosen, runs, cache)
    npz_folder.rename(tmp_path / "elsewhere")
    assert run_experiment(chosen, runs, cache).path == first.path
    with pytest.raises(UserError, match=r"data\.path"):
        run_experiment(chosen, tmp_path / "new", cache)
    assert not (tmp_path / "new").exists()


def test_a_deployed_run_is_prepared_without_clients(npz_folder: Path, tmp_path: Path) -> None:
    chosen = experiment(npz_folder)
    with prepare_run(chosen, tmp_path, tmp_path / "cache", deployed=True) as run:
        assert run is not None
        assert run.folder.path.name == chosen.deployed_name
        assert run.clients == []
        assert "deploy" in run.folder.read_json("config.json")["identity"]
        with (
            pytest.raises(UserError, match=r"(?i)another process"),
            prepare_run(chosen, tmp_path, tmp_path / "cache", deployed=True),
        ):
            pass

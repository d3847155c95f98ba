"""How long runs may take."""

import json
from pathlib import Path

import pytest

from fedwca.data.types import Benchmark
from fedwca.experiments.config import resolve
from fedwca.methods import METHODS
from fedwca.reproduce.estimate import (
    RoundTimes,
    Speed,
    TimeEstimate,
    count_finished,
    estimate_round,
    format_duration,
)
from fedwca.reproduce.plan import TableRequest, plan_cells


def test_a_round_costs_what_its_images_cost(tiny_benchmark: Benchmark) -> None:
    settings = {
        "data": {"benchmark": "npz", "source": "clean", "clients_per_domain": 2},
        "training": {"epochs": 5},
        "run": {"workers": 2},
    }
    # Two domains of 80 images, two clients each: 40 a client, of which it trains on 64 %, 26 of
    # them by rounding, and is scored on 8. With 1 s to train and 0 to infer: 4·26·5 / 2 workers.
    clients = tiny_benchmark.clients("clean", resolve(settings).data.partition, 0)
    trained = sum(len(client.train) for client in clients)
    speed = Speed(train=1.0, train_all_threads=1.0, infer=0.0)
    assert estimate_round(resolve(settings), tiny_benchmark, speed) == trained * 5 / 2
    # four inference passes over its own images and one over the test images
    inferred = 4 * trained + sum(len(c.test) for c in clients if c.test)
    speed = Speed(train=0.0, train_all_threads=0.0, infer=1.0)
    assert estimate_round(resolve(settings), tiny_benchmark, speed) == inferred / 2


def finished_run(root: Path, name: str, seconds: float, method: str, lr: float = 0.01) -> Path:
    experiment = resolve({"training": {"lr": lr}, "method": {"name": method}})
    path = root / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"settings": experiment.settings()}))
    (path / "result.json").write_text(json.dumps({"round": 20, "seconds": seconds}))
    return path


def test_finished_runs_of_the_same_method_come_first(tmp_path: Path) -> None:
    measured = RoundTimes()
    for number, (seconds, method) in enumerate([(2.0, "fedavg"), (4.0, "fedavg"), (9.0, "fedwca")]):
        measured.add(finished_run(tmp_path, str(number), seconds, method))
    other = finished_run(tmp_path, "other", 100.0, "fedavg", lr=0.5)
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "config.json").write_text("{")
    for path in (other, tmp_path / "corrupt", tmp_path / "none"):
        measured.add(path)
    known = {m: measured.mean(resolve({"method": {"name": m}})) for m in METHODS}
    assert known["fedavg"] == 3
    assert known["fedwca"] == 9
    assert known["local"] == 5  # of any on the same data and model
    assert measured.mean(resolve({"training": {"batch_size": 7}})) is None


def test_finished_cells_take_no_time(tmp_path: Path, tiny_benchmark: Benchmark) -> None:
    cells = plan_cells(TableRequest("revised", "tiny", seeds=1, sources=("photo",)))
    for cell in cells:
        (tmp_path / cell.experiment.name).mkdir()
        (tmp_path / cell.experiment.name / "result.json").write_text('{"round": 1}')
    estimate = TimeEstimate(cells, tiny_benchmark, tmp_path, tmp_path)
    assert count_finished(cells, tmp_path) == 2
    assert estimate.seconds() == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a minute"),
        (59.9, "less than a minute"),
        (61, "about 2 min"),
        (25 * 60, "about 25 min"),
        (2.6 * 3600, "about 3 h"),
        (100 * 3600, "about 4 days"),
    ],
)
def test_a_duration_is_formatted(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words

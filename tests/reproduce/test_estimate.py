"""How long runs may take."""

from pathlib import Path

import pytest

from fedwca._support.files import add_checksum
from fedwca.data.types import Benchmark
from fedwca.experiments.config import resolve
from fedwca.reproduce import estimate
from fedwca.reproduce.estimate import (
    Speed,
    TimeEstimate,
    estimate_round,
    format_duration,
    measure_speed,
)
from fedwca.reproduce.plan import Cell, TableRequest, count_finished, plan_cells


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


def finish(cell: Cell, runs: Path, seconds: float) -> None:
    """Write the result of a run whose rounds took so many seconds."""
    folder = cell.folder(runs)
    folder.path.mkdir(parents=True)
    folder.write_json("result.json", add_checksum({"round": 2, "seconds": seconds}))


def test_finished_runs_of_a_row_tell_how_long_the_others_take(
    tmp_path: Path, tiny_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (("source.weights", "source.safetensors"),)  # no source model is trained
    request = TableRequest(
        *("main", "tiny"), seeds=2, sources=("photo",), methods=("local", "fedavg"), overrides=given
    )
    cells = plan_cells(request)
    local, fedavg, other_local, other_fedavg = cells
    monkeypatch.setattr(estimate, "measure_speed", lambda *_: Speed(1.0, 1.0, 1.0))
    monkeypatch.setattr(estimate, "estimate_round", lambda *_: 50.0)
    left = TimeEstimate(cells, tiny_benchmark, tmp_path, tmp_path)
    start, rounds = 4.0, 2  # seconds, and rounds at this scale
    assert left.seconds() == 4 * (start + rounds * 50)
    finish(fedavg, tmp_path, 3.0)
    left.add_finished(fedavg)
    assert left.seconds() == 2 * (start + rounds * 50) + (start + rounds * 3)
    again = TimeEstimate(cells, tiny_benchmark, tmp_path, tmp_path)
    assert again.seconds() == left.seconds()
    for cell in (local, other_local, other_fedavg):
        finish(cell, tmp_path, 3.0)
    assert count_finished(cells, tmp_path) == 4
    assert left.seconds() == 0


def test_the_speed_of_a_network_is_measured(tiny_benchmark: Benchmark) -> None:
    settings = {"data": {"benchmark": "npz", "source": "clean", "image_size": 16}}
    speed = measure_speed(resolve(settings), tiny_benchmark)
    assert 0 < speed.train_all_threads <= speed.train
    assert speed.infer > 0


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

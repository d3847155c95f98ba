"""Which runs a table needs, at which scale, and how long they may take."""

import json
from pathlib import Path
from typing import get_args

import pytest

from fedwca.data.domains import Benchmark
from fedwca.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.experiments.estimate import Estimate, Measured, Speed, in_words, round_seconds
from fedwca.experiments.reproduce import (
    Wanted,
    benchmark_of,
    cells_of,
    chosen_rows,
    chosen_sources,
)
from fedwca.experiments.scales import DOMAINS_OF, SCALES, SEEDS, Scale, check_scale, described
from fedwca.experiments.tables import TABLES
from fedwca.methods import METHODS
from fedwca.report.paper import ACCURACY, CLUSTERS

NAMED = {row.method for table in TABLES.values() for row in table.rows}
READY = [n for n, table in TABLES.items() if {row.method for row in table.rows} <= set(METHODS)]


@pytest.mark.skipif(bool(NAMED - set(METHODS)), reason=f"to come: {NAMED - set(METHODS)}")
def test_every_method_that_a_table_names_exists() -> None:
    assert set(METHODS) >= NAMED


@pytest.mark.parametrize("benchmark", DOMAINS_OF)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", READY)
def test_every_cell_is_a_valid_experiment_of_its_own(
    table: str, scale: Scale, benchmark: str
) -> None:
    path = None if benchmark == "mini-digits" else Path("somewhere")
    cells = cells_of(Wanted(table, scale, benchmark, path, seeds=2))
    assert len({cell.experiment.name for cell in cells}) == len(cells)
    assert {cell.seed for cell in cells} == {0, 1}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_run_at_every_scale(scale: Scale, method: str) -> None:
    assert cells_of(Wanted("all", scale, methods=(method,), seeds=1))


def test_scales_are_complete() -> None:
    assert tuple(SCALES) == tuple(SEEDS) == get_args(Scale)
    assert all(set(by_benchmark) == set(DOMAINS_OF) for by_benchmark in SCALES.values())
    assert check_scale("tiny") == "tiny"
    with pytest.raises(UserError, match="did you mean 'small'"):
        check_scale("smal")


def test_the_paper_s_numbers_have_rows_to_stand_beside() -> None:
    for table, by_benchmark in ACCURACY.items():
        rows = {row.name for row in TABLES[table].rows} or NAMED
        printed = {name for found in by_benchmark.values() for name in found}
        assert rows & printed
        if table not in ("main", "extended-ladd", "other-fl", "all"):
            assert rows == printed
    assert set(CLUSTERS) == {n for n, table in TABLES.items() if table.kind == "clusters"}


def test_paper_scale_is_the_benchmark_s_defaults_in_full() -> None:
    wanted = Wanted("main", "paper", "digit-five", Path("/d"), methods=("fedwca",))
    cells = cells_of(wanted)
    assert len(cells) == 15 * 5
    data, training = cells[0].experiment.data, cells[0].experiment.method.training
    assert (data.clients_per_domain, data.images_per_client, training.rounds) == (8, 0, 100)
    # five source models, three runs with each
    seeds = [(c.seed, c.experiment.source_seed) for c in cells if c.source == "mnist"]
    assert seeds == [(seed, seed // 3) for seed in range(15)]
    # T_a is the source's own
    chosen = {c.source: c.experiment.method.temperature_a for c in cells}
    assert chosen["synth"] == 0.001
    assert chosen["mnist"] == 0.01


def test_small_scale_shares_its_runs_with_those_made_by_hand() -> None:
    wanted = Wanted("main", "small", "digit-five", Path("/d"), 1, ("svhn",), ("fedavg",))
    (cell,) = cells_of(wanted)
    by_hand = resolve(
        {
            "data": {
                "benchmark": "digit-five",
                "source": "svhn",
                "path": "/d",
                "clients_per_domain": 4,
                "images_per_client": 320,
            },
            "training": {"rounds": 12},
            "method": {"name": "fedavg"},
        }
    )
    assert cell.experiment.name == by_hand.name


def test_tables_share_the_runs_that_they_have_in_common() -> None:
    def names(table: str, row: str) -> set[str]:
        return {c.experiment.name for c in cells_of(Wanted(table, methods=(row,)))}

    full = names("main", "fedwca")
    assert full == names("weights", "wca") == names("labels", "pp+fp+tm+mu")
    assert full == names("clustering", "finch")
    assert names("layers", "1") < names("digit-clusters", "1") | names("layers", "1")


def test_seed_by_seed() -> None:
    cells = cells_of(Wanted("revised", seeds=2, sources=("photo", "street")))
    assert [(c.seed, c.source) for c in cells[::2]] == [
        (0, "photo"), (0, "street"), (1, "photo"), (1, "street"),
    ]  # fmt: skip
    assert [c.row for c in cells[:2]] == ["fedwca", "fedwca_u5"]


def test_layers_are_those_of_the_model() -> None:
    resnet = Wanted("layers", "small", "pacs", Path("/d"))
    names = [row.name for row in chosen_rows(resnet)]
    assert names == [*(str(n) for n in range(1, 18)), "all"]
    assert chosen_sources(resnet) == ["art_painting"]
    assert {c.experiment.method.rounds for c in cells_of(resnet)} == {1}
    assert len(cells_of(resnet)) == 18  # one seed: of clusters the paper shows one run
    assert [row.name for row in chosen_rows(Wanted("layers"))] == ["1", "2", "all"]


def test_settings_of_a_method_are_for_the_rows_that_have_them() -> None:
    overrides = (("method.temperature_a", 0.5), ("training.lr", 0.2))
    wanted = Wanted("all", methods=("fedavg", "fedwca"), overrides=overrides, seeds=1)
    for cell in cells_of(wanted):
        assert cell.experiment.method.training.lr == 0.2
        if cell.row == "fedwca":
            assert cell.experiment.method.temperature_a == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sources": ("printd",)}, "did you mean 'printed'"),
        ({"sources": ("mnist",)}, "choose --source of handwriting"),
        ({"methods": ("fedavgg",)}, "did you mean 'fedavg'"),
        ({"seeds": 0}, "--seeds"),
        ({"overrides": (("data.source", "x"),)}, "use --source"),
        ({"overrides": (("run.seed", 3),)}, "use --seeds"),
        ({"overrides": (("method.temprature_a", 3),)}, "did you mean 'temperature_a'"),
        ({"overrides": (("training.epoch", 3),)}, "did you mean 'epochs'"),
        ({"table": "weights", "overrides": (("method.cluster_weights", "wca"),)}, "leave it out"),
        ({"table": "mian"}, "did you mean 'main'"),
    ],
)
def test_bad_wishes_get_a_sentence(change: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"table": "clustering", "methods": (), **change}
    if "fedavg" in words:
        given["table"] = "all"
    with pytest.raises(UserError, match=words):
        cells_of(Wanted(**given))  # type: ignore[arg-type]


def test_which_benchmark(npz_folder: Path) -> None:
    assert benchmark_of(None, None) == "mini-digits"
    with pytest.raises(UserError, match="needs its files"):
        benchmark_of(None, "pacs")
    with pytest.raises(UserError, match="has no files"):
        benchmark_of(npz_folder, "mini-digits")
    with pytest.raises(UserError, match="no table can be made on 'npz'"):
        benchmark_of(npz_folder, None)
    with pytest.raises(UserError, match="did you mean"):
        benchmark_of(npz_folder, "pcas")


def test_a_scale_in_words() -> None:
    small = cells_of(Wanted("revised", "small", "pacs", Path("/d"), seeds=1))[0].experiment
    assert described("small", small, 3) == (
        "Small scale: 3 clients a domain, training on at most 96 images each, 4 rounds of 5 "
        "epochs, images of 74 pixels, resnet18 from random weights, 3 seeds"
    )
    digits = cells_of(Wanted("revised", seeds=1))[0].experiment
    assert "training on all their images, 20 rounds" in described("small", digits, 1)
    assert described("small", digits, 1, ["x"]).endswith("lenet, 1 seed, x")


# --- estimate -----------------------------------------------------------------------------------


def test_a_round_costs_what_its_images_cost(tiny_benchmark: Benchmark) -> None:
    settings = {
        "data": {"benchmark": "npz", "source": "clean", "clients_per_domain": 2},
        "training": {"epochs": 5},
        "run": {"workers": 2},
    }
    # Two domains of 80 images, two clients each: 40 a client, of which it trains on 64 %, 26 of
    # them by rounding, and is scored on 8. With 1 s to train and 0 to look: 4·26·5 / 2 workers.
    clients = tiny_benchmark.clients("clean", resolve(settings).data.partition, 0)
    trained = sum(len(client.train) for client in clients)
    speed = Speed(train=1.0, train_with_all=1.0, look=0.0)
    assert round_seconds(resolve(settings), tiny_benchmark, speed) == trained * 5 / 2
    # four passes over its own images and one over the test images
    looked = 4 * trained + sum(len(c.test) for c in clients if c.test)
    speed = Speed(train=0.0, train_with_all=0.0, look=1.0)
    assert round_seconds(resolve(settings), tiny_benchmark, speed) == looked / 2


def finished_run(root: Path, name: str, seconds: float, method: str, lr: float = 0.01) -> Path:
    experiment = resolve({"training": {"lr": lr}, "method": {"name": method}})
    path = root / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"settings": experiment.settings()}))
    (path / "result.json").write_text(json.dumps({"round": 20, "seconds": seconds}))
    return path


def test_measured_seconds_of_the_same_method_come_first(tmp_path: Path) -> None:
    measured = Measured()
    for number, (seconds, method) in enumerate([(2.0, "fedavg"), (4.0, "fedavg"), (9.0, "fedwca")]):
        measured.add(finished_run(tmp_path, str(number), seconds, method))
    other = finished_run(tmp_path, "other", 100.0, "fedavg", lr=0.5)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    for path in (other, tmp_path / "damaged", tmp_path / "none"):
        measured.add(path)
    known = {m: measured.round_seconds(resolve({"method": {"name": m}})) for m in METHODS}
    assert known["fedavg"] == 3
    assert known["fedwca"] == 9
    assert known["local"] == 5  # of any on the same data and model
    assert measured.round_seconds(resolve({"training": {"batch_size": 7}})) is None


def test_an_estimate_needs_no_probe_for_what_is_done(
    tmp_path: Path, tiny_benchmark: Benchmark
) -> None:
    cells = cells_of(Wanted("revised", "tiny", seeds=1, sources=("photo",)))
    for cell in cells:
        (tmp_path / cell.experiment.name).mkdir()
        (tmp_path / cell.experiment.name / "result.json").write_text('{"round": 1}')
    estimate = Estimate(cells, tiny_benchmark, tmp_path, tmp_path)
    assert estimate.progress() == (2, 2)
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
def test_time_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words

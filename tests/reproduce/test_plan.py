"""Which runs a table needs, at which scale."""

from pathlib import Path
from typing import get_args

import pytest

from fedwca._support.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.methods import METHODS
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.reproduce.paper import ACCURACY, CLUSTERS
from fedwca.reproduce.plan import (
    TableRequest,
    choose_benchmark,
    plan_cells,
    select_rows,
    select_sources,
)
from fedwca.reproduce.tables import DOMAINS_OF, SCALES, SEEDS, TABLES, Scale, check_scale

NAMED = {row.method for table in TABLES.values() for row in table.rows}


def test_every_method_that_a_table_names_exists() -> None:
    assert set(METHODS) >= NAMED


@pytest.mark.parametrize("benchmark", DOMAINS_OF)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_every_cell_is_a_valid_experiment_of_its_own(
    table: str, scale: Scale, benchmark: str
) -> None:
    path = None if benchmark == "mini-digits" else Path("somewhere")
    cells = plan_cells(TableRequest(table, scale, benchmark, path, seeds=2))
    assert len({cell.experiment.name for cell in cells}) == len(cells)
    assert {cell.seed for cell in cells} == {0, 1}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_run_at_every_scale(scale: Scale, method: str) -> None:
    assert plan_cells(TableRequest("all", scale, methods=(method,), seeds=1))


def test_scales_are_complete() -> None:
    assert tuple(SCALES) == tuple(SEEDS) == get_args(Scale)
    assert all(set(by_benchmark) == set(DOMAINS_OF) for by_benchmark in SCALES.values())
    assert check_scale("tiny") == "tiny"
    with pytest.raises(UserError, match="did you mean 'small'"):
        check_scale("smal")


def test_the_papers_numbers_belong_to_rows_of_the_tables() -> None:
    for table, by_benchmark in ACCURACY.items():
        rows = {row.name for row in TABLES[table].rows} or NAMED
        printed = {name for found in by_benchmark.values() for name in found}
        assert rows & printed
        if table not in ("main", "extended-ladd", "other-fl", "all"):
            assert rows == printed
    assert set(CLUSTERS) == {n for n, table in TABLES.items() if table.kind == "clusters"}


def test_the_papers_scale_is_the_defaults_of_the_benchmark() -> None:
    request = TableRequest("main", "paper", "digit-five", Path("/d"), methods=("fedwca",))
    cells = plan_cells(request)
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


def test_a_cell_at_small_scale_is_the_run_of_the_same_settings() -> None:
    request = TableRequest("main", "small", "digit-five", Path("/d"), 1, ("svhn",), ("fedavg",))
    (cell,) = plan_cells(request)
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


def test_tables_share_runs_of_the_same_settings() -> None:
    def names(table: str, row: str) -> set[str]:
        return {c.experiment.name for c in plan_cells(TableRequest(table, methods=(row,)))}

    full = names("main", "fedwca")
    assert full == names("weights", "wca") == names("labels", "pp+fp+tm+mu")
    assert full == names("clustering", "finch")
    assert names("layers", "1") < names("digit-clusters", "1") | names("layers", "1")


def test_controls_train_as_fedwca_plus() -> None:
    request = TableRequest("controls", benchmark="digit-five", data=Path("/d"), seeds=1)
    training = {
        cell.row: cell.experiment.method.training
        for cell in plan_cells(request)
        if cell.source == "mnist"
    }
    assert {t for row, t in training.items() if row != "fedwca"} == {training["fedwca_plus"]}
    assert (training["fedwca"].lr, training["fedwca_plus"].lr) == (0.001, 0.01)


def test_parts_change_one_setting() -> None:
    def settings(row: str) -> tuple[object, ...]:
        request = TableRequest("parts", "small", "digit-five", Path("/d"), 1, ("mnist",), (row,))
        (cell,) = plan_cells(request)
        method = cell.experiment.method
        loop = (method.training.lr, method.training.batch_norm, method.training.consistency)
        if not isinstance(method, FedWCAPlus):
            return type(method), *loop
        return *loop, method.trust, method.momentum, method.deploy

    assert settings("only batch_norm") == (FedAvg, 0.001, "recalibrate", 0.0)
    assert settings("only loop") == (FedAvg, 0.01, "recalibrate", 1.0)
    assert settings("only stability") == (0.001, "blend", 0.0, 1.0, 0.0, "shared")
    assert settings("only clusters") == (0.001, "blend", 0.0, 0.0, 0.0, "cluster")
    assert settings("only loop, momentum") == (0.01, "recalibrate", 1.0, 0.0, 0.5, "shared")
    assert settings("no lr") == (0.001, "recalibrate", 1.0, 1.0, 0.5, "cluster")
    assert settings("no stability") == (0.01, "recalibrate", 1.0, 0.0, 0.5, "cluster")
    # The photo benchmarks have one learning rate, so there is no row without it.
    rows = [row.name for row in select_rows(TableRequest("parts", "small", "pacs", Path("/d")))]
    assert not {"only lr", "no lr"} & set(rows)
    assert {"fedwca", "fedwca_plus", "only consistency"} < set(rows)


def test_cells_come_seed_by_seed() -> None:
    cells = plan_cells(TableRequest("revised", seeds=2, sources=("photo", "street")))
    assert [(c.seed, c.source) for c in cells[::2]] == [
        (0, "photo"), (0, "street"), (1, "photo"), (1, "street"),
    ]  # fmt: skip
    assert [c.row for c in cells[:2]] == ["fedwca", "fedwca_u5"]


def test_layers_are_those_of_the_model() -> None:
    resnet = TableRequest("layers", "small", "pacs", Path("/d"))
    names = [row.name for row in select_rows(resnet)]
    assert names == [*(str(n) for n in range(1, 18)), "all"]
    assert select_sources(resnet) == ["art_painting"]
    assert {c.experiment.method.rounds for c in plan_cells(resnet)} == {1}
    assert len(plan_cells(resnet)) == 18  # one seed: of clusters the paper shows one run
    assert [row.name for row in select_rows(TableRequest("layers"))] == ["1", "2", "all"]


def test_settings_of_a_method_apply_to_the_rows_that_have_them() -> None:
    overrides = (("method.temperature_a", 0.5), ("training.lr", 0.2))
    request = TableRequest("all", methods=("fedavg", "fedwca"), overrides=overrides, seeds=1)
    for cell in plan_cells(request):
        assert cell.experiment.method.training.lr == 0.2
        if cell.row == "fedwca":
            assert cell.experiment.method.temperature_a == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sources": ("printd",)}, "did you mean 'printed'"),
        ({"sources": ("mnist",)}, "--source to one of handwriting"),
        ({"methods": ("fedavgg",)}, "did you mean 'fedavg'"),
        ({"seeds": 0}, "--seeds"),
        ({"overrides": (("data.source", "x"),)}, "use --source"),
        ({"overrides": (("run.seed", 3),)}, "use --seeds"),
        ({"overrides": (("method.temprature_a", 3),)}, "did you mean 'temperature_a'"),
        ({"overrides": (("training.epoch", 3),)}, "did you mean 'epochs'"),
        ({"table": "weights", "overrides": (("method.cluster_weights", "wca"),)}, "omit it"),
        ({"table": "mian"}, "did you mean 'main'"),
    ],
)
def test_an_invalid_request_names_the_option(change: dict[str, object], words: str) -> None:
    request: dict[str, object] = {"table": "clustering", "methods": (), **change}
    if "fedavg" in words:
        request["table"] = "all"
    with pytest.raises(UserError, match=words):
        plan_cells(TableRequest(**request))  # type: ignore[arg-type]


def test_the_benchmark_is_named_or_detected(npz_folder: Path) -> None:
    assert choose_benchmark(None, None) == "mini-digits"
    with pytest.raises(UserError, match="set --data"):
        choose_benchmark(None, "pacs")
    with pytest.raises(UserError, match="--data"):
        choose_benchmark(npz_folder, "mini-digits")
    with pytest.raises(UserError, match="'npz'"):
        choose_benchmark(npz_folder, None)
    with pytest.raises(UserError, match="did you mean"):
        choose_benchmark(npz_folder, "pcas")

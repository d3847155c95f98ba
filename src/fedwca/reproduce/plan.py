"""The runs that a table needs: one cell for each row, source domain and seed."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from fedwca._support.errors import UserError, did_you_mean
from fedwca.core.params import conv_layers
from fedwca.data.benchmarks import BENCHMARKS, check_benchmark, detect_benchmark
from fedwca.experiments.config import resolve
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.store import RunFolder
from fedwca.methods import METHODS
from fedwca.methods.training import Training
from fedwca.models import build_model
from fedwca.reproduce.tables import (
    DOMAINS_OF,
    LOOP,
    ONE_ROUND,
    SCALES,
    SEEDS,
    TABLES,
    Row,
    Scale,
    by_method,
    check_table,
    seed_settings,
)

__all__ = [
    "Cell",
    "TableRequest",
    "choose_benchmark",
    "count_finished",
    "plan_cells",
    "select_rows",
    "select_sources",
]

Override = tuple[str, Any]

_SPEED_ONLY = ("run.workers", "run.device", "run.checkpoint_every")
_MAX_SEEDS = 1000


class Cell(NamedTuple):
    """One run, and its place in the table."""

    row: str
    source: str
    seed: int
    experiment: Experiment

    def folder(self, runs: Path) -> RunFolder:
        """Return the run folder in a folder of runs."""
        return RunFolder(runs / self.experiment.name)


def count_finished(cells: Iterable[Cell], runs: Path) -> int:
    """Return how many runs are finished."""
    return sum(cell.folder(runs).done for cell in cells)


@dataclass(frozen=True)
class TableRequest:
    """A table to reproduce.

    Attributes:
        data: folder of the benchmark, if it has files.
        seeds: number of seeds; None for the scale's.
        sources: source domains; none for all of the table.
        methods: names of rows or methods; none for all of the table.
        overrides: settings that replace the scale's, for all rows that have them.
    """

    table: str
    scale: Scale = "small"
    benchmark: str = "mini-digits"
    data: Path | None = None
    seeds: int | None = None
    sources: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()

    @property
    def seed_range(self) -> range:
        """The seeds to run."""
        return range(self.seeds or self._default_seeds)

    @property
    def _default_seeds(self) -> int:
        """The paper shows a single run of its tables of clusters."""
        return 1 if TABLES[self.table].kind == "clusters" else SEEDS[self.scale]

    @property
    def file_stem(self) -> str:
        """Name of the table's files; a part of a table never overwrites the whole table."""
        whole = f"{self.table}-{self.benchmark}-{self.scale}"
        changes = tuple(change for change in self.overrides if change[0] not in _SPEED_ONLY)
        selection = (len(self.seed_range), self.sources, self.methods, changes)
        if selection == (self._default_seeds, (), (), ()):
            return whole
        return f"{whole}-part-{hashlib.sha256(repr(selection).encode()).hexdigest()[:6]}"


def choose_benchmark(data: Path | None, name: str | None) -> str:
    """Return the named benchmark, or the one in the folder, or mini-digits."""
    if name is not None:
        check_benchmark(name)
    benchmark = name or ("mini-digits" if data is None else detect_benchmark(data))
    if benchmark not in DOMAINS_OF:
        raise UserError(
            f"tables cannot be made for benchmark {benchmark!r}: set --benchmark to one of "
            f"{', '.join(DOMAINS_OF)}, or use `fedwca run`"
        )
    has_files = BENCHMARKS[benchmark].has_files
    if has_files and data is None:
        raise UserError(f"benchmark {benchmark!r} needs its files: set --data to their folder")
    if data is not None and not has_files:
        raise UserError(f"benchmark {benchmark!r} has no files; omit --data")
    return benchmark


def plan_cells(request: TableRequest) -> list[Cell]:
    """Return all runs of the table, seed by seed, so that an interrupted table is comparable."""
    check_table(request.table)
    if request.seeds is not None and not 1 <= request.seeds <= _MAX_SEEDS:
        raise UserError(f"--seeds must be from 1 to {_MAX_SEEDS}")
    rows, sources = select_rows(request), select_sources(request)
    _check_overrides(request.overrides, rows)
    return [
        Cell(row.name, source, seed, _experiment(request, row, source, seed))
        for seed in request.seed_range
        for source in sources
        for row in rows
    ]


def select_sources(request: TableRequest) -> list[str]:
    """Return the requested source domains, or all; for `layers` only the first."""
    known = DOMAINS_OF[request.benchmark]
    for name in request.sources:
        if name not in known:
            choices = f"set --source to one of {', '.join(known)}"
            raise UserError(
                f"{request.benchmark} has no source {name!r}: {did_you_mean(name, known, choices)}"
            )
    if request.sources:
        return list(dict.fromkeys(request.sources))
    return [known[0]] if request.table == "layers" else list(known)


def select_rows(request: TableRequest) -> list[Row]:
    """Return the rows that the request names, by row or by method; all if it names none."""
    rows = _all_rows(request)
    names = list(dict.fromkeys(name for row in rows for name in (row.name, row.method)))
    for name in request.methods:
        if name not in names:
            hint = "the table `all` has it" if name in METHODS else did_you_mean(name, names)
            raise UserError(f"table {request.table!r} has no row {name!r}: {hint}")
    selected = request.methods or names
    return [row for row in rows if row.name in selected or row.method in selected]


def _all_rows(request: TableRequest) -> tuple[Row, ...]:
    if request.table == "all":
        return by_method(*METHODS)
    if request.table == "layers":
        layers = (*range(1, _count_layers(request) + 1), "all")
        return tuple(
            Row(str(layer), "fedwca", (("method.clustering_layer", layer), *ONE_ROUND))
            for layer in layers
        )
    if request.table == "parts":
        return _distinct_rows(request, TABLES["parts"].rows)
    return TABLES[request.table].rows


def _distinct_rows(request: TableRequest, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Leave out rows that repeat an earlier one: fedwca_plus changes the lr of few benchmarks."""
    source = DOMAINS_OF[request.benchmark][0]
    distinct: dict[str, Row] = {}
    for row in rows:
        distinct.setdefault(_experiment(request, row, source, 0).name, row)
    return tuple(distinct.values())


def _count_layers(request: TableRequest) -> int:
    """Return how many convolutions the network has."""
    experiment = _experiment(request, Row("", "fedwca"), DOMAINS_OF[request.benchmark][0], 0)
    backbone, image_size = experiment.model.backbone, experiment.data.image_size
    return len(conv_layers(build_model(backbone, 2, image_size=image_size).feature_weights()))


def _experiment(request: TableRequest, row: Row, source: str, seed: int) -> Experiment:
    settings: list[Override] = [
        ("data.benchmark", request.benchmark),
        ("data.source", source),
        ("method.name", row.method),
        *SCALES[request.scale][request.benchmark].items(),
        *_loop_settings(request.benchmark, source, row),
        *(override for override in request.overrides if _applies(override[0], row)),
        *row.settings,
        *seed_settings(request.scale, seed),
    ]
    if request.data is not None:
        settings.append(("data.path", request.data))
    return resolve({}, settings)


def _loop_settings(benchmark: str, source: str, row: Row) -> list[Override]:
    """Return the settings of local training by the row's `loop`."""
    if row.loop is None:
        return []
    ours, theirs = (_default_training(benchmark, source, m) for m in ("fedwca_plus", "fedwca"))
    return [(f"training.{n}", getattr(ours if n in row.loop else theirs, n)) for n in LOOP]


def _default_training(benchmark: str, source: str, method: str) -> Training:
    settings = {"data": {"benchmark": benchmark, "source": source}, "method": {"name": method}}
    training: Training = resolve(settings).method.training
    return training


def _applies(key: str, row: Row) -> bool:
    """Return whether the row has the setting; only settings of a method may be missing."""
    section, _, name = key.partition(".")
    return section != "method" or name in _method_settings(row.method)


def _method_settings(method: str) -> set[str]:
    return {field.name for field in fields(METHODS[method])} - {"training"}


_OPTIONS = {
    "data.benchmark": "--benchmark",
    "data.path": "--data",
    "data.source": "--source",
    "method.name": "--method",
    "run.seed": "--seeds",
    "source.seed": "--seeds",
}


def _check_overrides(overrides: Sequence[Override], rows: Sequence[Row]) -> None:
    for key, _ in overrides:
        if key in _OPTIONS:
            raise UserError(f"--set {key} would change the table itself: use {_OPTIONS[key]}")
        if any(key == name for row in rows for name, _ in row.settings):
            raise UserError(f"--set {key} conflicts with the rows of this table; omit it")
        if not any(_applies(key, row) for row in rows):
            known = sorted({name for row in rows for name in _method_settings(row.method)})
            hint = did_you_mean(key.partition(".")[2], known)
            raise UserError(f"no row of this table has a setting {key!r}: {hint}")

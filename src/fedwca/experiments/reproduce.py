"""The runs behind a table: one cell for each row, source domain and seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from fedwca.core.params import conv_layers
from fedwca.data.benchmarks import BENCHMARKS, check_benchmark, recognise
from fedwca.errors import UserError, did_you_mean
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.scales import DOMAINS_OF, SEEDS, Scale, scaled, seeded
from fedwca.experiments.tables import ONE_ROUND, TABLES, Row, by_method, check_table
from fedwca.methods import METHODS
from fedwca.models import build_model

__all__ = ["Cell", "Wanted", "benchmark_of", "cells_of", "chosen_rows", "chosen_sources"]

Override = tuple[str, Any]


_ONLY_SPEED = ("run.workers", "run.device", "run.checkpoint_every")


class Cell(NamedTuple):
    """One run, and where it stands in the table."""

    row: str
    source: str
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Wanted:
    """What the user asks for; no sources, methods or seeds mean the table's own.

    Attributes:
        overrides: settings on top of the scale's, for every row that has them.
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
    def trials(self) -> range:
        """The seeds. Of clusters the paper shows one run."""
        return range(self.seeds or self._usual_seeds)

    @property
    def _usual_seeds(self) -> int:
        return 1 if TABLES[self.table].kind == "clusters" else SEEDS[self.scale]

    @property
    def stem(self) -> str:
        """What the files are called: a part of a table never takes the place of the whole."""
        whole = f"{self.table}-{self.benchmark}-{self.scale}"
        changes = tuple(change for change in self.overrides if change[0] not in _ONLY_SPEED)
        asked = (len(self.trials), self.sources, self.methods, changes)
        if asked == (self._usual_seeds, (), (), ()):
            return whole
        return f"{whole}-part-{hashlib.sha256(repr(asked).encode()).hexdigest()[:6]}"


def benchmark_of(data: Path | None, name: str | None) -> str:
    """The benchmark: as named, as its folder looks, or the embedded one."""
    if name is not None:
        check_benchmark(name)
    found = name or ("mini-digits" if data is None else recognise(data))
    if found not in DOMAINS_OF:
        raise UserError(
            f"no table can be made on {found!r}, which has no sources of its own: choose --data or "
            f"--benchmark of {', '.join(DOMAINS_OF)}, or use `fedwca run`"
        )
    has_files = BENCHMARKS[found].looks_like is not None
    if has_files and data is None:
        raise UserError(f"benchmark {found!r} needs its files: give their folder as --data")
    if data is not None and not has_files:
        raise UserError(f"benchmark {found!r} has no files: leave --data out")
    return found


_MOST_SEEDS = 1000


def cells_of(wanted: Wanted) -> list[Cell]:
    """All runs of the table, checked. Seed by seed, so that what is interrupted is comparable."""
    check_table(wanted.table)
    if wanted.seeds is not None and not 1 <= wanted.seeds <= _MOST_SEEDS:
        raise UserError(f"--seeds is the number of seeds: give 1 to {_MOST_SEEDS}")
    rows, sources = chosen_rows(wanted), chosen_sources(wanted)
    _check_overrides(wanted.overrides, rows)
    return [
        Cell(row.name, source, seed, _experiment(wanted, row, source, seed))
        for seed in wanted.trials
        for source in sources
        for row in rows
    ]


def chosen_sources(wanted: Wanted) -> list[str]:
    """The source domains, as given or all; for layers the paper's one, or the benchmark's."""
    known = DOMAINS_OF[wanted.benchmark]
    for name in wanted.sources:
        if name not in known:
            choice = f"choose --source of {', '.join(known)}"
            raise UserError(
                f"{wanted.benchmark} has no source {name!r}: {did_you_mean(name, known, choice)}"
            )
    if wanted.sources:
        return list(dict.fromkeys(wanted.sources))
    return [known[0]] if wanted.table == "layers" else list(known)


def chosen_rows(wanted: Wanted) -> list[Row]:
    """The table's rows, or those of them that the user names, by row or by method."""
    rows = _rows(wanted)
    names = list(dict.fromkeys(name for row in rows for name in (row.name, row.method)))
    for name in wanted.methods:
        if name not in names:
            hint = "the table `all` has it" if name in METHODS else did_you_mean(name, names)
            raise UserError(f"table {wanted.table!r} has no row {name!r}: {hint}")
    picked = wanted.methods or names
    return [row for row in rows if row.name in picked or row.method in picked]


def _rows(wanted: Wanted) -> tuple[Row, ...]:
    if wanted.table == "all":
        return by_method(*METHODS)
    if wanted.table == "layers":
        layers = (*range(1, _layers(wanted) + 1), "all")
        return tuple(
            Row(str(layer), "fedwca", (("method.clustering_layer", layer), *ONE_ROUND))
            for layer in layers
        )
    return TABLES[wanted.table].rows


def _layers(wanted: Wanted) -> int:
    """How many convolutions the model has."""
    experiment = _experiment(wanted, Row("", "fedwca"), DOMAINS_OF[wanted.benchmark][0], 0)
    config = experiment.model
    model = build_model(config.backbone, 2, image_size=experiment.data.image_size)
    return len(conv_layers(model.feature_state()))


def _experiment(wanted: Wanted, row: Row, source: str, seed: int) -> Experiment:
    settings: list[Override] = [
        ("data.benchmark", wanted.benchmark),
        ("data.source", source),
        ("method.name", row.method),
        *scaled(wanted.scale, wanted.benchmark),
        *(o for o in wanted.overrides if _applies(o[0], row)),
        *row.settings,
        *seeded(wanted.scale, seed),
    ]
    if wanted.data is not None:
        settings.append(("data.path", wanted.data))
    return resolve({}, settings)


def _applies(key: str, row: Row) -> bool:
    """Settings of a method are for the rows whose method has them."""
    section, _, name = key.partition(".")
    if section != "method" or row.method not in METHODS:
        return True
    return name in _fields_of(row.method)


def _fields_of(method: str) -> set[str]:
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
        if any(key == own for row in rows for own, _ in row.settings):
            raise UserError(f"--set {key} is set by the rows of this table: leave it out")
        if not any(_applies(key, row) for row in rows):
            known = sorted({n for row in rows for n in _fields_of(row.method)})
            name = key.partition(".")[2]
            raise UserError(
                f"no row of this table has a setting {key!r}: {did_you_mean(name, known)}"
            )

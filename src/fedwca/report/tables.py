"""Tables of results, as rows of text and as rich tables."""

import html
import re
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table

from fedwca.notes import printable
from fedwca.report.clusters import chance_purity, purity
from fedwca.report.runs import RunView

__all__ = [
    "Grid",
    "accuracy_grid",
    "as_markdown",
    "as_table",
    "by_variant",
    "cluster_grid",
    "planned_rounds",
    "run_grid",
    "spread",
]


class Grid(NamedTuple):
    """A table before it is drawn."""

    title: str
    header: list[str]
    rows: list[list[str]]


def as_table(grid: Grid, justify: Literal["left", "right"] = "right") -> Table:
    """For the terminal; the title is left to the caller, since a narrow table would fold it.

    `justify` is for all columns but the first.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for number, name in enumerate(grid.header):
        table.add_column(
            escape(printable(name)), justify="left" if number == 0 else justify, no_wrap=True
        )
    for row in grid.rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    return table


def as_markdown(grid: Grid) -> str:
    """For a document; names are text in it, never markup."""
    lines = [grid.header, ["---"] + ["---:"] * (len(grid.header) - 1), *grid.rows]
    cells = [[_markdown(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _markdown(cell: str) -> str:
    text = html.escape(printable(cell), quote=False)
    return re.sub(r"([|`\[\]\\])", r"\\\1", text)


def accuracy_grid(runs: Sequence[RunView]) -> list[Grid]:
    """Accuracy by method and target domain, one table for each benchmark and source.

    Runs that differ in seed alone make one row: their mean ± sample standard deviation.
    """
    groups: dict[tuple[str, str], list[RunView]] = {}
    for run in runs:
        if run.accuracy is not None:
            data = run.settings["data"]
            groups.setdefault((data["benchmark"], data["source"]), []).append(run)
    return [
        _accuracy(f"{b}, {f'source {s}' if s else 'given source model'}: accuracy (%)", group)
        for (b, s), group in groups.items()
    ]


def _accuracy(title: str, runs: list[RunView]) -> Grid:
    domains = list(dict.fromkeys(d for r in runs for d in r.last["accuracy"]["domains"]))
    rows = []
    for name, same in by_variant(runs):
        by_domain = [[r.last["accuracy"]["domains"].get(d) for r in same] for d in domains]
        cells = [spread(values) for values in (*by_domain, [r.accuracy for r in same])]
        rounds = "/".join(sorted({str(r.rounds) for r in same}))
        rows.append(
            [name, *cells, str(len(same)), rounds if all(r.done for r in same) else f"{rounds}…"]
        )
    return Grid(title, ["method", *domains, "mean", "seeds", "rounds"], rows)


def by_variant(runs: list[RunView]) -> list[tuple[str, list[RunView]]]:
    """Runs grouped by all settings but the seed, variants of a method named by what differs."""
    groups: dict[str, list[RunView]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        groups.setdefault(repr(_flat(run)), []).append(run)
    variants: dict[str, list[dict[str, object]]] = {}
    for same in groups.values():
        variants.setdefault(same[0].method, []).append(_flat(same[0]))
    return [(_variant_name(same[0], variants[same[0].method]), same) for same in groups.values()]


# Settings in which runs of one row may differ.
_FREE = ("run.seed", "run.workers", "run.device", "run.checkpoint_every")


def _flat(run: RunView) -> dict[str, object]:
    """All settings that tell a variant, by their full names."""
    flat = {f"{s}.{key}": v for s, table in run.settings.items() for key, v in table.items()}
    return {name: value for name, value in flat.items() if name not in _FREE}


def _variant_name(run: RunView, variants: list[dict[str, object]]) -> str:
    own = _flat(run)
    different = [key for key in own if any(v.get(key) != own[key] for v in variants)]
    told = [f"{key.split('.', 1)[1]}={own[key]}" for key in different]
    return f"{run.method} ({', '.join(told)})" if told else run.method


def spread(values: Iterable[float | None]) -> str:
    """Shares as percent: mean ± sample standard deviation, a dash if there is none."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.1f}±{stdev(known):.1f}" if len(known) > 1 else f"{fmean(known):.1f}"


def cluster_grid(run: RunView) -> Grid | None:
    """Which client is in which cluster; None if the method has none."""
    clusters, domains = run.clusters, run.domains
    if not clusters:
        return None
    if not any(domains.values()):  # sites, of whose domains nothing is known
        rows = [[site, str(cluster)] for site, cluster in clusters.items()]
        return Grid(f"{run.name}: cluster of each site", ["site", "cluster"], rows)
    by_domain: dict[str, list[str]] = {}
    for client, domain in domains.items():
        by_domain.setdefault(domain, []).append(str(clusters[client]))
    width = max(len(row) for row in by_domain.values())
    rows = [[domain, *row, *[""] * (width - len(row))] for domain, row in by_domain.items()]
    header = ["domain", *(f"client {k}" for k in range(width))]
    found, truth = [clusters[c] for c in domains], list(domains.values())
    quality = f"purity {purity(found, truth):.2f}, by chance {chance_purity(found, truth):.2f}"
    return Grid(f"{run.name}: cluster of each client ({quality})", header, rows)


def run_grid(runs: Sequence[RunView]) -> Grid:
    """One line for each run."""
    rows = [
        [
            run.name,
            f"{run.rounds}/{planned_rounds(run)}",
            "–" if run.accuracy is None else f"{100 * run.accuracy:.1f}",
            "done" if run.done else "unfinished",
        ]
        for run in runs
    ]
    return Grid("runs", ["run", "rounds", "accuracy", "state"], rows)


def planned_rounds(run: RunView) -> int:
    """How many rounds the run has when it is done."""
    is_still = run.settings["method"]["name"] == "source_only"
    return 0 if is_still else int(run.settings["training"]["rounds"])

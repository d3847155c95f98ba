"""Tables of results, as rows of text."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedwca.report.clusters import chance_purity, purity
from fedwca.report.runs import RunView

__all__ = [
    "Table",
    "accuracy_tables",
    "cluster_table",
    "group_by_variant",
    "planned_rounds",
    "run_table",
    "spread",
]

# Settings in which the runs of one row may differ.
_IGNORED_SETTINGS = ("run.seed", "run.workers", "run.device", "run.checkpoint_every")


class Table(NamedTuple):
    """A title, a header and rows of text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def accuracy_tables(runs: Sequence[RunView]) -> list[Table]:
    """Return accuracy by method and target domain, a table for each benchmark and source.

    Runs that differ only in the seed make one row: mean ± sample standard deviation.
    """
    groups: dict[tuple[str, str], list[RunView]] = {}
    for run in runs:
        if run.accuracy is not None:
            data = run.settings["data"]
            groups.setdefault((data["benchmark"], data["source"]), []).append(run)
    tables = []
    for (benchmark, source), group in groups.items():
        source_name = f"source {source}" if source else "given source model"
        tables.append(_accuracy_table(f"{benchmark}, {source_name}: accuracy (%)", group))
    return tables


def _accuracy_table(title: str, runs: list[RunView]) -> Table:
    domains = list(dict.fromkeys(d for r in runs for d in r.last["accuracy"]["domains"]))
    rows = []
    for name, group in group_by_variant(runs):
        by_domain = [[r.last["accuracy"]["domains"].get(d) for r in group] for d in domains]
        cells = [spread(values) for values in (*by_domain, [r.accuracy for r in group])]
        rounds = "/".join(sorted({str(r.rounds) for r in group}))
        if not all(r.done for r in group):
            rounds += "…"
        rows.append([name, *cells, str(len(group)), rounds])
    return Table(title, ["method", *domains, "mean", "seeds", "rounds"], rows)


def group_by_variant(runs: list[RunView]) -> list[tuple[str, list[RunView]]]:
    """Group runs by all settings but the seed; name each group by what makes it different."""
    groups: dict[str, list[RunView]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        groups.setdefault(repr(_flat_settings(run)), []).append(run)
    variants: dict[str, list[dict[str, object]]] = {}
    for group in groups.values():
        variants.setdefault(group[0].method, []).append(_flat_settings(group[0]))
    names = [_variant_name(group[0], variants[group[0].method]) for group in groups.values()]
    return list(zip(names, groups.values(), strict=True))


def _flat_settings(run: RunView) -> dict[str, object]:
    """Return the settings that make a variant, by their full names."""
    flat = {f"{s}.{key}": v for s, values in run.settings.items() for key, v in values.items()}
    return {name: value for name, value in flat.items() if name not in _IGNORED_SETTINGS}


def _variant_name(run: RunView, variants: list[dict[str, object]]) -> str:
    own = _flat_settings(run)
    different = [key for key in own if any(v.get(key) != own[key] for v in variants)]
    details = [f"{key.split('.', 1)[1]}={own[key]}" for key in different]
    return f"{run.method} ({', '.join(details)})" if details else run.method


def spread(values: Iterable[float | None]) -> str:
    """Format shares as percent: mean ± sample standard deviation, or a dash if there is none."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.1f}±{stdev(known):.1f}" if len(known) > 1 else f"{fmean(known):.1f}"


def cluster_table(run: RunView) -> Table | None:
    """Return the cluster of each client; None if the method has no clusters."""
    clusters, domains = run.clusters, run.domains
    if not clusters:
        return None
    if not any(domains.values()):  # sites, whose domains nobody knows
        rows = [[site, str(cluster)] for site, cluster in clusters.items()]
        return Table(f"{run.name}: cluster of each site", ["site", "cluster"], rows)
    by_domain: dict[str, list[str]] = {}
    for client, domain in domains.items():
        by_domain.setdefault(domain, []).append(str(clusters[client]))
    width = max(len(row) for row in by_domain.values())
    rows = [[domain, *row, *[""] * (width - len(row))] for domain, row in by_domain.items()]
    header = ["domain", *(f"client {k}" for k in range(width))]
    assigned, truth = [clusters[client] for client in domains], list(domains.values())
    own, chance = purity(assigned, truth), chance_purity(assigned, truth)
    quality = f"purity {own:.2f}, by chance {chance:.2f}"
    return Table(f"{run.name}: cluster of each client ({quality})", header, rows)


def run_table(runs: Sequence[RunView]) -> Table:
    """Return one row for each run."""
    rows = [
        [
            run.name,
            f"{run.rounds}/{planned_rounds(run)}",
            "–" if run.accuracy is None else f"{100 * run.accuracy:.1f}",
            "done" if run.done else "unfinished",
        ]
        for run in runs
    ]
    return Table("runs", ["run", "rounds", "accuracy", "state"], rows)


def planned_rounds(run: RunView) -> int:
    """Return how many rounds the finished run has."""
    trains_nothing = run.settings["method"]["name"] == "source_only"
    return 0 if trains_nothing else int(run.settings["training"]["rounds"])

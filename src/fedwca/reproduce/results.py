"""The finished runs of a table, as tables of numbers beside the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from fedwca.report.measures import chance_purity, paired_difference, purity, sizes_by_domain
from fedwca.report.runs import RunView
from fedwca.report.tables import Table, spread
from fedwca.reproduce.paper import CLUSTERS, SOURCES, paper_rows

__all__ = [
    "TableResults",
    "accuracy_table",
    "cluster_size_table",
    "compare_with_best",
    "long_table",
]

AVERAGE = "average"
_FEW_SEEDS = 10
_MISSING = "–"


@dataclass(frozen=True)
class TableResults:
    """The finished runs of a requested table.

    Attributes:
        rows: names of all rows, finished or not.
        ours: those of our full methods, which are tested against the others.
        runs: by row, source and seed.
    """

    table: str
    benchmark: str
    rows: tuple[str, ...]
    ours: tuple[str, ...]
    sources: tuple[str, ...]
    seeds: int
    runs: Mapping[tuple[str, str, int], RunView]

    @property
    def columns(self) -> tuple[str, ...]:
        """The source domains, and their average."""
        return (*self.sources, AVERAGE)

    def accuracies(self, row: str, column: str) -> dict[int, float]:
        """Return the mean accuracy over clients (0..1) of each finished seed.

        The average includes only seeds that are finished for all sources.
        """
        if column == AVERAGE:
            by_source = [self.accuracies(row, source) for source in self.sources]
            complete = set.intersection(*(set(values) for values in by_source))
            return {s: fmean(values[s] for values in by_source) for s in sorted(complete)}
        runs = {seed: self.runs.get((row, column, seed)) for seed in range(self.seeds)}
        return {s: run.accuracy for s, run in runs.items() if run and run.accuracy is not None}

    def paper_accuracy(self, row: str, column: str) -> tuple[float, float | None] | None:
        """Return the paper's mean and spread (percent); the average is over the shown sources."""
        paper = paper_rows(self.table, self.benchmark).get(row)
        if paper is None:
            return None
        order = SOURCES[self.benchmark]
        if column == AVERAGE:
            return fmean(paper.means[order.index(source)] for source in self.sources), None
        place = order.index(column)
        return paper.means[place], paper.spreads[place] if paper.spreads else None


def accuracy_table(results: TableResults) -> Table:
    """Return the accuracies by source domain, each left of the paper's if the paper has any."""
    has_paper = bool(paper_rows(results.table, results.benchmark))
    header = ["method"]
    for column in results.columns:
        header += [column, "paper"] if has_paper else [column]
    rows = []
    for row in results.rows:
        cells = [row]
        for column in results.columns:
            values = results.accuracies(row, column)
            cells.append(spread(values.values()) + ("…" if 0 < len(values) < results.seeds else ""))
            if has_paper:
                cells.append(_format_paper(results.paper_accuracy(row, column)))
        rows.append(cells)
    return Table(f"{results.table} on {results.benchmark}", header, rows)


def _format_paper(accuracy: tuple[float, float | None] | None) -> str:
    if accuracy is None:
        return _MISSING
    mean, deviation = accuracy
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f}±{deviation:.1f}"


def long_table(results: TableResults) -> Table:
    """Return the unrounded accuracies, one line for each row and source, for programs."""
    header = ["row", "source", "mean", "std", "seeds", "values", "paper_mean", "paper_std"]
    rows = []
    for row in results.rows:
        for column in results.columns:
            values = [100 * value for value in results.accuracies(row, column).values()]
            paper_mean, paper_std = results.paper_accuracy(row, column) or (None, None)
            rows.append(
                [
                    row,
                    column,
                    _format_number(fmean(values) if values else None),
                    _format_number(stdev(values) if len(values) > 1 else None),
                    str(len(values)),
                    " ".join(map(_format_number, values)),
                    _format_number(paper_mean, digits=2),
                    _format_number(paper_std, digits=2),
                ]
            )
    return Table("", header, rows)


def _format_number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def compare_with_best(results: TableResults) -> tuple[list[Table], list[str]]:
    """Test each of our full methods against the best other method; also return caveats.

    If several methods are ours, each later one is also tested against the first.
    """
    averages = {row: results.accuracies(row, AVERAGE) for row in results.rows}
    means = {row: fmean(values.values()) for row, values in averages.items() if values}
    ours = [row for row in results.ours if row in means]
    others = [row for row in means if row not in results.ours]
    if not ours or not others:
        return [], []
    best = max(others, key=lambda row: means[row])
    description = f"{best}, the best of the others by average"
    tables = [_comparison(results, row, best, description) for row in ours]
    tables += [_comparison(results, row, ours[0], ours[0]) for row in ours[1:]]
    return tables, _caveats(max(int(row[-1]) for table in tables for row in table.rows))


def _comparison(results: TableResults, own: str, other: str, description: str) -> Table:
    rows = [
        [
            column,
            *_difference(results.accuracies(own, column), results.accuracies(other, column)),
        ]
        for column in results.columns
    ]
    title = f"{own} against {description}: paired t-test over seeds"
    return Table(title, ["source", "difference", "95 % interval", "p", "seeds"], rows)


def _difference(own: Mapping[int, float], other: Mapping[int, float]) -> list[str]:
    """Return the cells of a comparison: difference, interval, p, and the number of seeds."""
    seeds = [seed for seed in own if seed in other]
    ours, theirs = ([100 * values[seed] for seed in seeds] for values in (own, other))
    test = paired_difference(ours, theirs)
    if test is not None:
        interval = f"{_format_signed(test.low)} to {_format_signed(test.high)}"
        p = "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
        return [_format_signed(test.mean), interval, p, str(test.pairs)]
    if not seeds:
        return [_MISSING, _MISSING, _MISSING, "0"]
    reason = "one seed: no test" if len(seeds) == 1 else "the same in all seeds: no test"
    mean = fmean(a - b for a, b in zip(ours, theirs, strict=True))
    return [_format_signed(mean), reason, _MISSING, str(len(seeds))]


def _format_signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0: zero never has a minus


def _caveats(seeds: int) -> list[str]:
    if seeds < 2:
        return []
    selection = (
        "the best of the others was selected by these same numbers, and p is not corrected for "
        "multiple tests"
    )
    power = (
        f"with {seeds} seeds a t-test has little power: finding no difference does not show that "
        "there is none"
    )
    return [power, selection] if seeds < _FEW_SEEDS else [selection]


def cluster_size_table(results: TableResults) -> Table:
    """Return the sizes of clusters by domain, one line for each source, row and seed."""
    paper = CLUSTERS.get(results.table, {}).get(results.benchmark, {})
    header = ["source", "layer", "seed", "sizes by domain", "clusters", "purity", "by chance"]
    rows = []
    for source in results.sources:
        for row in results.rows:
            for seed in range(results.seeds):
                cells = _cluster_cells(results.runs.get((row, source, seed)))
                rows.append([source, row, str(seed), *cells])
                if paper:
                    rows[-1].append(paper.get((source, row), _MISSING))
    title = f"{results.table} on {results.benchmark}"
    return Table(title, header + (["sizes in the paper"] if paper else []), rows)


def _cluster_cells(run: RunView | None) -> list[str]:
    if run is None or not run.domains:
        return [_MISSING] * 4
    domains = list(run.domains.values())
    clusters = [run.clusters[client] for client in run.domains]
    return [
        sizes_by_domain(clusters, domains),
        str(len(set(clusters))),
        f"{purity(clusters, domains):.2f}",
        f"{chance_purity(clusters, domains):.2f}",
    ]

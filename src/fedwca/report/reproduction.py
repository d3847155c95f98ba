"""A table of the paper made anew: our numbers, beside them the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from fedwca.report.clusters import chance_purity, purity, sizes_by_domain
from fedwca.report.paper import CLUSTERS, SOURCES, printed
from fedwca.report.runs import RunView
from fedwca.report.significance import paired_difference
from fedwca.report.tables import Grid, spread

__all__ = ["Outcome", "accuracy_table", "cluster_table", "tidy", "versus"]


@dataclass(frozen=True)
class Outcome:
    """What was asked for, and the runs that are finished.

    Attributes:
        rows, ours: all rows, and those of the full method, which is tested against the others.
        runs: by row, source and seed.
    """

    table: str
    benchmark: str
    rows: tuple[str, ...]
    ours: tuple[str, ...]
    sources: tuple[str, ...]
    seeds: int
    runs: Mapping[tuple[str, str, int], RunView]

    def accuracies(self, row: str, source: str) -> dict[int, float]:
        """Mean accuracy over clients (0..1) by seed."""
        found = {s: self.runs.get((row, source, s)) for s in range(self.seeds)}
        return {s: run.accuracy for s, run in found.items() if run and run.accuracy is not None}

    def averages(self, row: str) -> dict[int, float]:
        """Mean over sources by seed, of seeds that have all of them."""
        by_source = [self.accuracies(row, source) for source in self.sources]
        whole = set.intersection(*(set(found) for found in by_source))
        return {seed: fmean(found[seed] for found in by_source) for seed in sorted(whole)}


AVERAGE = "average"


def accuracy_table(outcome: Outcome) -> Grid:
    """Rows by source domain; the paper's number right of ours, where it has one."""
    theirs = printed(outcome.table, outcome.benchmark)
    beside = ["paper"] if theirs else []
    header = ["method"]
    for column in (*outcome.sources, AVERAGE):
        header += [column, *beside]
    rows = []
    for row in outcome.rows:
        cells = [row]
        for column in (*outcome.sources, AVERAGE):
            cells.append(_cell(_values(outcome, row, column), outcome.seeds))
            cells += [_printed_cell(outcome, row, column)] if theirs else []
        rows.append(cells)
    return Grid(f"{outcome.table} on {outcome.benchmark}", header, rows)


def _values(outcome: Outcome, row: str, column: str) -> dict[int, float]:
    return outcome.averages(row) if column == AVERAGE else outcome.accuracies(row, column)


def _cell(values: Mapping[int, float], seeds: int) -> str:
    """Mean ± spread; dots where seeds are missing."""
    return spread(values.values()) + ("…" if 0 < len(values) < seeds else "")


def _paper(outcome: Outcome, row: str, column: str) -> tuple[float, float | None] | None:
    """The paper's mean and spread; the average over those of its sources that are shown."""
    found = printed(outcome.table, outcome.benchmark).get(row)
    if found is None:
        return None
    places = {source: n for n, source in enumerate(SOURCES[outcome.benchmark])}
    if column == AVERAGE:
        return fmean(found.means[places[source]] for source in outcome.sources), None
    place = places[column]
    return found.means[place], found.spreads[place] if found.spreads else None


def _printed_cell(outcome: Outcome, row: str, column: str) -> str:
    found = _paper(outcome, row, column)
    if found is None:
        return "–"
    mean, deviation = found
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f}±{deviation:.1f}"


def tidy(outcome: Outcome) -> Grid:
    """The same unrounded, one line for each number: what a program would read."""
    header = ["row", "source", "mean", "std", "seeds", "values", "paper_mean", "paper_std"]
    rows = []
    for row in outcome.rows:
        for column in (*outcome.sources, AVERAGE):
            ours = [100 * value for value in _values(outcome, row, column).values()]
            mean, deviation = _paper(outcome, row, column) or (None, None)
            numbers = (fmean(ours) if ours else None, stdev(ours) if len(ours) > 1 else None)
            told = " ".join(f"{value:.4f}" for value in ours)
            cells = [*map(_number, numbers), str(len(ours)), told, _number(mean, 2)]
            rows.append([row, column, *cells, _number(deviation, 2)])
    return Grid("", header, rows)


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def versus(outcome: Outcome) -> tuple[list[Grid], list[str]]:
    """Every full method against its best rival, and what to keep in mind about it.

    Where there are several, each later one is compared with the first too.
    """
    known = {row: fmean(found) for row in outcome.rows if (found := outcome.averages(row).values())}
    ours = [row for row in outcome.ours if row in known]
    rivals = [row for row in known if row not in outcome.ours]
    if not ours or not rivals:
        return [], []
    rival = max(rivals, key=known.__getitem__)
    best = f"{rival}, the best of the others by average"
    grids = [_against(outcome, own, rival, best) for own in ours]
    grids += [_against(outcome, own, ours[0], ours[0]) for own in ours[1:]]
    return grids, _cautions(max(int(row[-1]) for grid in grids for row in grid.rows))


def _against(outcome: Outcome, own: str, other: str, called: str) -> Grid:
    rows = [
        [column, *_difference(_values(outcome, own, column), _values(outcome, other, column))]
        for column in (*outcome.sources, AVERAGE)
    ]
    title = f"{own} against {called}: paired t-test over seeds"
    return Grid(title, ["source", "difference", "95 % interval", "p", "seeds"], rows)


_FEW = 10  # seeds


def _cautions(seeds: int) -> list[str]:
    if seeds < 2:
        return []
    power = (
        f"with {seeds} seeds a t-test has little power: that it finds no difference does not mean "
        "that there is none"
    )
    chosen = "the rival was chosen by these very numbers, and no p is corrected for several sources"
    return [power, chosen] if seeds < _FEW else [chosen]


def _difference(own: Mapping[int, float], rival: Mapping[int, float]) -> list[str]:
    both = [seed for seed in own if seed in rival]
    found = paired_difference([100 * own[s] for s in both], [100 * rival[s] for s in both])
    if found is None:
        gaps = [100 * (own[s] - rival[s]) for s in both]
        why = "one seed: no test" if len(gaps) == 1 else "the same in all seeds: no test"
        told = [_signed(fmean(gaps)), why] if gaps else ["–", "–"]
        return [*told, "–", str(len(both))]
    interval = f"{_signed(found.low)} to {_signed(found.high)}"
    p = "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
    return [_signed(found.mean), interval, p, str(found.pairs)]


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # and no minus before a zero


def cluster_table(outcome: Outcome) -> Grid:
    """Sizes of clusters by domain, one line for each source, layer and seed."""
    theirs = CLUSTERS.get(outcome.table, {}).get(outcome.benchmark, {})
    header = ["source", "layer", "seed", "sizes by domain", "clusters", "purity", "by chance"]
    rows = []
    for source in outcome.sources:
        for row in outcome.rows:
            for seed in range(outcome.seeds):
                found = _clusters(outcome.runs.get((row, source, seed)))
                beside = [theirs.get((source, row), "–")] if theirs else []
                rows.append([source, row, str(seed), *found, *beside])
    title = f"{outcome.table} on {outcome.benchmark}"
    return Grid(title, header + (["sizes in the paper"] if theirs else []), rows)


def _clusters(run: RunView | None) -> list[str]:
    if run is None or not run.domains:  # of those alone that have a cluster
        return ["–"] * 4
    truth = list(run.domains.values())
    found = [run.clusters[client] for client in run.domains]
    quality = [f"{measure(found, truth):.2f}" for measure in (purity, chance_purity)]
    return [sizes_by_domain(found, truth), str(len(set(found))), *quality]

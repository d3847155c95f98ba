"""Print the tables of docs/results.md from the runs in this folder.

python results/tables.py results/digit-five results/pacs results/office-31
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NoReturn

from fedwca.report.measures import purity
from fedwca.report.runs import RunView, find_runs
from fedwca.report.tables import Table, spread, to_markdown
from fedwca.reproduce.paper import SOURCES, paper_rows

METHODS = ("source_only", "local", "fedavg", "fedwca")

Rows = dict[str, dict[str, list[RunView]]]  # method → source → its seeds


def by_method_and_source(runs: Iterable[RunView]) -> Rows:
    """Group the runs; `fedwca (recalibrate)` is a method of its own."""
    rows: Rows = {}
    for run in sorted(runs, key=lambda r: (" " in r.method, METHODS.index(r.method.split()[0]))):
        rows.setdefault(run.method, {}).setdefault(run.settings["data"]["source"], []).append(run)
    return rows


def by_source(benchmark: str, rows: Rows) -> Table:
    """Return the mean accuracy of all clients by source, with the paper's rows last."""
    paper = paper_rows("main", benchmark)
    found = {source for sources in rows.values() for source in sources}
    order = SOURCES.get(benchmark, tuple(sorted(found)))
    sources = [s for s in order if s in found]
    lines = []
    for method, runs in rows.items():
        cells = [spread(r.accuracy for r in runs.get(source, [])) for source in sources]
        complete = all(source in runs for source in sources)
        means = [fmean(r.accuracy or 0 for r in runs[s]) for s in sources] if complete else []
        lines.append([method, *cells, f"{100 * fmean(means):.1f}" if means else "–"])
    for method in METHODS if paper else ():
        values = [paper[method].means[order.index(source)] for source in sources]
        lines.append([f"paper: {method}", *(f"{v:.1f}" for v in values), f"{fmean(values):.1f}"])
    return Table(f"{benchmark}: mean accuracy (%) by source", ["method", *sources, "mean"], lines)


def by_target(benchmark: str, rows: Rows) -> Table:
    """Return the accuracy of each target domain, for each source."""
    pairs = {
        (source, target): None
        for sources in rows.values()
        for source, runs in sources.items()
        for target in runs[0].last["accuracy"]["domains"]
    }
    lines = []
    for source, target in pairs:
        cells = [
            spread(r.last["accuracy"]["domains"][target] for r in sources.get(source, []))
            for sources in rows.values()
        ]
        lines.append([f"{source} → {target}", *cells])
    return Table(f"{benchmark}: accuracy (%) by target", ["source → target", *rows], lines)


def weights(benchmark: str, rows: Rows) -> Table:
    """Return FedWCA's weights in the last round: means over the clients of a target domain."""
    lines = []
    for method, sources in rows.items():
        if not method.startswith("fedwca"):
            continue
        for source, runs in sources.items():
            for target in runs[0].last["accuracy"]["domains"]:
                own, beta, matched, init = (
                    fmean(values)
                    for values in zip(
                        *(v for r in runs for v in client_weights(r, target)), strict=True
                    )
                )
                cells = [f"{own:.2f}", f"{beta:.2f}", f"{matched:.2f}", f"{init:.2f}"]
                lines.append([method, f"{source} → {target}", *cells])
    header = ["method", "source → target", "v on own domain", "β₁", "matched", "init won"]
    return Table(f"{benchmark}: weights and labels in the last round", header, lines)


def client_weights(run: RunView, target: str) -> list[tuple[float, float, float, float]]:
    """Return for each client: weight on clusters of its own domain, β₁, shares of labels."""
    last = run.last
    cluster = {c: int(last["server"][f"cluster_of/{c}"]) for c in last["clients"]}
    domain = {c: score["domain"] for c, score in last["clients"].items()}
    own = {cluster[c] for c in cluster if domain[c] == target}
    found = []
    for client in (c for c in domain if domain[c] == target):
        health = last["health"][client]
        trained = run.settings["data"]["images_per_client"]
        mismatched = (1 - health["matched"]) * trained
        won = health["init_won"] / mismatched if mismatched >= 1 else 0.0
        v = last["server"].get(f"v/{client}", [])
        found.append((sum(v[c] for c in own), health["beta"][1], health["matched"], won))
    return found


def clusters(rows: Rows) -> Table:
    """Return how well the clusters agree with the domains."""
    lines = []
    for method, sources in rows.items():
        for source, runs in sources.items() if method.startswith("fedwca") else ():
            for run in runs:
                names = list(run.last["clients"])
                found = [int(run.last["server"][f"cluster_of/{name}"]) for name in names]
                truth = [run.last["clients"][name]["domain"] for name in names]
                sizes = sorted((found.count(c) for c in set(found)), reverse=True)
                lines.append(
                    [f"{method}, {source}, seed {run.seed}", " ".join(map(str, sizes)),
                     f"{purity(found, truth):.2f}"]
                )  # fmt: skip
    return Table("clusters", ["run", "sizes", "purity"], lines)


def fail(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(2)


def read_runs(folder: Path) -> list[RunView]:
    """Return the runs in a folder, whose methods must be those of the tables."""
    runs, problems = find_runs(folder)
    if problems:
        fail("\n".join(problems))
    if not runs:
        fail(f"there are no runs in {folder}; give a folder of runs")
    others = sorted({run.method.split()[0] for run in runs} - {*METHODS})
    if others:
        fail(
            f"{folder} has runs of {', '.join(others)}, but the tables have only "
            f"{', '.join(METHODS)}; print them with `fedwca compare --runs {folder}`"
        )
    return runs


def main() -> None:
    if len(sys.argv) < 2:
        fail("usage: python results/tables.py FOLDER...")
    for folder in map(Path, sys.argv[1:]):
        runs = read_runs(folder)
        rows = by_method_and_source(runs)
        name = runs[0].settings["data"]["benchmark"]
        for table in (
            by_source(name, rows),
            by_target(name, rows),
            weights(name, rows),
            clusters(rows),
        ):
            print(f"\n### {table.title}\n\n{to_markdown(table)}")


if __name__ == "__main__":
    main()

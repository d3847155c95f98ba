"""A reproduced table as a document: caption, tables and notes, saved as Markdown, CSV and LaTeX."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedwca._support.errors import UserError
from fedwca._support.files import write_atomically
from fedwca._support.text import format_count
from fedwca.experiments.experiment import Experiment
from fedwca.report.runs import read_run
from fedwca.report.tables import Table, latex_document, markdown_document, to_csv
from fedwca.reproduce.paper import CLUSTERS, find_contradictions, paper_rows
from fedwca.reproduce.plan import Cell, TableRequest, select_rows
from fedwca.reproduce.results import (
    TableResults,
    accuracy_table,
    cluster_size_table,
    compare_with_best,
    long_table,
)
from fedwca.reproduce.tables import TABLES

__all__ = ["Document", "make_document"]

# Settings that a caption describes.
_SCALE_SETTINGS = (
    "data.clients_per_domain",
    "data.image_size",
    "data.images_per_client",
    "model.backbone",
    "model.weights",
    "training.epochs",
    "training.rounds",
)


class Document(NamedTuple):
    """A table with everything that is printed around it.

    Attributes:
        title, caption: what is compared, and how it was measured.
        table: accuracies or clusters.
        comparisons: our full methods against others.
        notes: caveats, and contradictions in the paper.
        data: the numbers, for programs to read.
    """

    title: str
    caption: str
    table: Table
    comparisons: list[Table]
    notes: list[str]
    data: Table

    def save(self, folder: Path, stem: str) -> None:
        """Write the document as stem.md, stem.csv and stem.tex."""
        heading = f"{self.title}. {self.caption}"
        tables = [self.table, *self.comparisons]
        contents = {
            "md": markdown_document(heading, tables, self.notes),
            "csv": to_csv(self.data),
            "tex": latex_document(heading, stem, tables, self.notes),
        }
        for suffix, text in contents.items():
            write_atomically(folder / f"{stem}.{suffix}", text.encode())


def _load_results(request: TableRequest, cells: Sequence[Cell], runs: Path) -> TableResults:
    """Load the finished runs of a table; ignore those that cannot be read."""
    finished = {}
    for cell in cells:
        try:
            run = read_run(cell.folder(runs).path)
        except UserError:  # reported once all other cells are finished
            continue
        if run.done:
            finished[cell.row, cell.source, cell.seed] = run
    rows = select_rows(request)
    return TableResults(
        table=request.table,
        benchmark=request.benchmark,
        rows=tuple(row.name for row in rows),
        ours=tuple(row.name for row in rows if row.ours),
        sources=tuple(dict.fromkeys(cell.source for cell in cells)),
        seeds=len(request.seed_range),
        runs=finished,
    )


def make_document(request: TableRequest, cells: Sequence[Cell], runs: Path) -> Document:
    """Return the document of a table, with the cells that are finished."""
    results = _load_results(request, cells, runs)
    title = f"{request.table} on {request.benchmark}: {TABLES[request.table].description}"
    caption = _caption(request, cells[0])
    notes = _notes(request, cells, results)
    if TABLES[request.table].kind == "clusters":
        table = cluster_size_table(results)
        return Document(title, caption, table, [], notes, table)
    comparisons, caveats = compare_with_best(results)
    return Document(
        title, caption, accuracy_table(results), comparisons, notes + caveats, long_table(results)
    )


def _caption(request: TableRequest, cell: Cell) -> str:
    scale = _describe_scale(request, cell.experiment)
    if TABLES[request.table].kind == "clusters":
        return (
            "Sizes of the clusters in each target domain. A letter marks a cluster with clients of "
            f"several domains. {scale}."
        )
    measure = "Accuracy (%) by source domain, mean ± sample standard deviation over seeds."
    if paper_rows(request.table, request.benchmark):
        return f"{measure} {scale}. Paper: means of 15 trials at full scale."
    return f"{measure} {scale}."


def _describe_scale(request: TableRequest, experiment: Experiment) -> str:
    """Return a caption about the scale of a table, the number of seeds and other changes."""
    data, training = experiment.data, experiment.method.training
    images = data.images_per_client
    changes = [
        f"{key} = {value}"
        for key, value in request.overrides
        if key not in _SCALE_SETTINGS and not key.startswith("run.")
    ]
    parts = [
        f"{format_count(data.clients_per_domain, 'client')} per domain",
        f"training on at most {images} images each" if images else "training on all their images",
        f"{format_count(training.rounds, 'round')} of {format_count(training.epochs, 'epoch')}",
        f"images of {data.image_size} pixels",
        _network(experiment),
        format_count(len(request.seed_range), "seed"),
        *changes,
    ]
    return f"{request.scale.capitalize()} scale: {', '.join(parts)}"


def _network(experiment: Experiment) -> str:
    model, source_weights = experiment.model, experiment.source.weights
    if source_weights:
        return f"{model.backbone}, source model from {source_weights.name}"
    if model.weights:
        return f"{model.backbone} from {model.weights.name}"
    return "lenet" if model.backbone == "lenet" else f"{model.backbone} from random weights"


def _notes(request: TableRequest, cells: Sequence[Cell], results: TableResults) -> list[str]:
    table, benchmark = request.table, request.benchmark
    notes = find_contradictions(table, benchmark, results.rows, results.sources)
    if not paper_rows(table, benchmark) and benchmark not in CLUSTERS.get(table, {}):
        notes.append(f"the paper has no such table for {benchmark}")
    if request.scale == "paper" and results.seeds > 1:
        notes.append(
            "every three runs share a source model, so seeds are not independent and p is "
            "probably too small"
        )
    if len(results.runs) < len(cells):
        finished = f"{len(results.runs)} of {format_count(len(cells), 'cell')}"
        notes.append(
            f"{finished} are done: – stands for no run, … "
            "for missing seeds; rerun the same command to resume"
        )
    return notes

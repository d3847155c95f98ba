"""`fedwca reproduce`: run the cells of a table, then print and save it."""

from dataclasses import dataclass
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca._support.text import format_count
from fedwca.cli.console import out
from fedwca.cli.progress import show_progress
from fedwca.data.types import Benchmark
from fedwca.experiments.inputs import load_data
from fedwca.experiments.runner import run_experiment
from fedwca.report.runs import RunView, read_run
from fedwca.reproduce.document import make_document
from fedwca.reproduce.estimate import TimeEstimate, format_duration
from fedwca.reproduce.figures import save_figures
from fedwca.reproduce.plan import Cell, TableRequest, count_finished, plan_cells

__all__ = ["Reproduction"]


@dataclass(frozen=True)
class Reproduction:
    """Reproduces one table.

    Attributes:
        runs, cache, output: folders of runs, of decoded images and source models, and of tables.
    """

    request: TableRequest
    runs: Path
    cache: Path
    output: Path

    def run(self, *, dry: bool = False) -> None:
        """Run all unfinished cells; even if interrupted, print and save a table of the others."""
        cells = plan_cells(self.request)
        estimate = self._print_plan(cells)
        if dry:
            return
        # Created now, so that a folder that cannot be created fails before hours of work.
        self.output.mkdir(parents=True, exist_ok=True)
        try:
            for cell in cells:
                self._run_cell(cell, cells, estimate)
        finally:
            if count_finished(cells, self.runs):
                self._print_and_save(cells)
        for cell in cells:
            read_run(self.runs / cell.experiment.name)  # raises for a run that the table omits

    def _print_plan(self, cells: list[Cell]) -> TimeEstimate | None:
        """Check the data and print what will run; return None if all cells are finished."""
        finished = count_finished(cells, self.runs)
        if finished == len(cells):
            out.print_line(f"{format_count(len(cells), 'cell')}, all done")
            return None
        with show_progress(out):
            benchmark = load_data(cells[0].experiment, self.cache)
        self._check_sources(cells, benchmark)
        estimate = TimeEstimate(cells, benchmark, self.runs, self.cache)
        left = format_duration(estimate.seconds())
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        sources = ", ".join(dict.fromkeys(cell.source for cell in cells))
        out.print_line(
            f"{self.request.table} on {self.request.benchmark}, scale {self.request.scale}; "
            f"rows: {rows}; sources: {sources}"
        )
        out.print_line(
            f"{format_count(len(cells), 'cell')}, {finished} done, {left} left (an estimate)"
        )
        return estimate

    def _check_sources(self, cells: list[Cell], benchmark: Benchmark) -> None:
        for cell in cells:
            if cell.source not in benchmark.domains:
                options = " ".join(f"--source {name}" for name in benchmark.domains)
                raise UserError(
                    f"{self.request.data} has no domain {cell.source!r}: add it, or use {options}"
                )

    def _run_cell(self, cell: Cell, cells: list[Cell], estimate: TimeEstimate | None) -> None:
        was_finished = count_finished([cell], self.runs)
        with show_progress(out) as progress:
            run_experiment(cell.experiment, self.runs, self.cache, progress)
        if estimate is None or was_finished:
            return
        estimate.add_finished(cell)
        finished = count_finished(cells, self.runs)
        left = format_duration(estimate.seconds()) if finished < len(cells) else "nothing"
        out.print_line(f"{finished} of {format_count(len(cells), 'cell')} done, {left} left")

    def _print_and_save(self, cells: list[Cell]) -> None:
        document = make_document(self.request, cells, self.runs)
        stem = self.request.file_stem
        document.save(self.output, stem)  # first: printing fails if the output was closed
        out.print_table(document.table._replace(title=document.title))
        out.print_line(f"\n{document.caption}")
        for table in document.comparisons:
            out.print_table(table)
        out.print_line("")
        for note in document.notes:
            out.print_line(f"Note: {note}.")
        out.print_line(f"Saved as {self.output / stem}.md, .csv and .tex.")
        if self.request.table == "figures":
            self._save_figures(cells)

    def _save_figures(self, cells: list[Cell]) -> None:
        """Draw the figures of each source, from the runs that are finished."""
        finished = [cell for cell in cells if cell.folder(self.runs).done]
        for source in dict.fromkeys(cell.source for cell in finished):
            rows: dict[str, list[RunView]] = {}
            for cell in finished:
                if cell.source == source:
                    run = read_run(self.runs / cell.experiment.name)
                    rows.setdefault(cell.row, []).append(run)
            stem = f"{self.request.file_stem}-{source}"
            for path in save_figures(source, rows, self.output, stem):
                out.print_line(f"Saved {path}")

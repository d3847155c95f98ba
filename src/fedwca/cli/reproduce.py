"""`fedwca reproduce`: run the cells of a table, then print and save it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca._support.files import expand_path
from fedwca._support.interrupts import RERUN_TO_RESUME, stop_on_closed_output
from fedwca._support.text import format_count
from fedwca.cli.console import Screen
from fedwca.cli.progress import show_progress
from fedwca.data.types import Benchmark
from fedwca.experiments.config import parse_override
from fedwca.experiments.runner import load_data, run_experiment
from fedwca.report.runs import read_run
from fedwca.reproduce.document import make_document
from fedwca.reproduce.estimate import TimeEstimate, format_duration
from fedwca.reproduce.plan import (
    Cell,
    TableRequest,
    choose_benchmark,
    count_finished,
    plan_cells,
)
from fedwca.reproduce.tables import check_scale, check_table

__all__ = ["Reproduction", "parse_request"]


def parse_request(
    table: str,
    scale: str,
    data: Path | None,
    benchmark: str | None,
    seeds: int | None,
    sources: Sequence[str] | None,
    methods: Sequence[str] | None,
    overrides: Sequence[str] | None,
) -> TableRequest:
    """Return the request that the command's options make; raise UserError for unknown names."""
    check_table(table)
    path = expand_path(data) if data else None
    return TableRequest(
        table=table,
        scale=check_scale(scale),
        benchmark=choose_benchmark(path, benchmark),
        data=path,
        seeds=seeds,
        sources=tuple(sources or ()),
        methods=tuple(methods or ()),
        overrides=tuple(parse_override(text) for text in overrides or ()),
    )


@dataclass(frozen=True)
class Reproduction:
    """Reproduces one table.

    Attributes:
        runs, cache, output: folders of runs, of decoded images and source models, and of tables.
        screen: where progress and the table are printed.
    """

    request: TableRequest
    runs: Path
    cache: Path
    output: Path
    screen: Screen

    def run(self, *, dry: bool = False) -> None:
        """Run all unfinished cells; even if interrupted, print and save a table of the others."""
        cells = plan_cells(self.request)
        estimate = self._print_plan(cells)
        if dry:
            return
        self._check_output()
        with stop_on_closed_output(RERUN_TO_RESUME):
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
            self.screen.print_line(f"{format_count(len(cells), 'cell')}, all done")
            return None
        with show_progress(self.screen):
            benchmark = load_data(cells[0].experiment, self.cache)
        self._check_sources(cells, benchmark)
        estimate = TimeEstimate(cells, benchmark, self.runs, self.cache)
        left = format_duration(estimate.seconds())
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        sources = ", ".join(dict.fromkeys(cell.source for cell in cells))
        self.screen.print_line(
            f"{self.request.table} on {self.request.benchmark}, scale {self.request.scale}; "
            f"rows: {rows}; sources: {sources}"
        )
        self.screen.print_line(
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

    def _check_output(self) -> None:
        """Find out before hours of runs whether the table can be saved."""
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.output, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise UserError(f"cannot write tables into {self.output}: choose another --output")

    def _run_cell(self, cell: Cell, cells: list[Cell], estimate: TimeEstimate | None) -> None:
        was_finished = count_finished([cell], self.runs)
        with show_progress(self.screen) as progress:
            run_experiment(cell.experiment, self.runs, self.cache, progress)
        if estimate is None or was_finished:
            return
        estimate.add_finished(cell)
        finished = count_finished(cells, self.runs)
        left = "nothing"
        if finished < len(cells):
            left = format_duration(estimate.seconds())
        self.screen.print_line(
            f"{finished} of {format_count(len(cells), 'cell')} done, {left} left"
        )

    def _print_and_save(self, cells: list[Cell]) -> None:
        document = make_document(self.request, cells, self.runs)
        stem = self.request.file_stem
        document.save(self.output, stem)  # first: printing fails if the output was closed
        self.screen.print_table(document.table._replace(title=document.title))
        self.screen.print_line(f"\n{document.caption}")
        for table in document.comparisons:
            self.screen.print_table(table)
        self.screen.print_line("")
        for note in document.notes:
            self.screen.print_line(f"Note: {note}.")
        self.screen.print_line(f"Saved as {self.output / stem}.md, .csv and .tex.")

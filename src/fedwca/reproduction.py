"""`fedwca reproduce`: run what a table of the paper needs, then show and save it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwca.data.domains import Benchmark
from fedwca.errors import UserError
from fedwca.experiments.config import parse_override, resolve
from fedwca.experiments.estimate import Estimate, done_of, in_words
from fedwca.experiments.reproduce import Cell, Wanted, benchmark_of, cells_of, chosen_rows
from fedwca.experiments.runner import load_data, run_experiment
from fedwca.experiments.scales import check_scale, described
from fedwca.experiments.tables import TABLES, check_table
from fedwca.files import write_atomically
from fedwca.paths import plain_path
from fedwca.progress_display import display_for
from fedwca.report.documents import as_csv, latex_document, markdown_document
from fedwca.report.paper import CLUSTERS, notes, printed
from fedwca.report.reproduction import Outcome, accuracy_table, cluster_table, tidy, versus
from fedwca.report.runs import RunView, read_run
from fedwca.report.tables import Grid
from fedwca.screen import Screen, show_grid
from fedwca.stopping import GOES_ON, watched

__all__ = ["Reproduction", "wish"]


def wish(
    table: str,
    scale: str,
    data: Path | None,
    benchmark: str | None,
    seeds: int | None,
    sources: Sequence[str] | None,
    methods: Sequence[str] | None,
    overrides: Sequence[str] | None,
) -> Wanted:
    """What the command line asks for, its names checked."""
    check_table(table)
    path = plain_path(data) if data else None
    return Wanted(
        table,
        check_scale(scale),
        benchmark_of(path, benchmark),
        path,
        seeds,
        tuple(sources or ()),
        tuple(methods or ()),
        tuple(parse_override(text) for text in overrides or ()),
    )


@dataclass(frozen=True)
class Reproduction:
    """One table on its way.

    Attributes:
        runs, cache, output: folders of runs, of decoded images and source models, of tables.
        out: where to tell how it goes.
    """

    wanted: Wanted
    runs: Path
    cache: Path
    output: Path
    out: Screen

    def run(self, *, dry: bool = False) -> None:
        """All that is not done yet. Whatever stops it, a table of what is there is made."""
        cells = cells_of(self.wanted)
        estimate = self._planned(cells)
        if dry:
            return
        self._check_output()
        with watched(GOES_ON):
            self._run_all(cells, estimate)
        for cell in cells:
            self._read(cell)  # a damaged one was left out above: say so at last

    def _run_all(self, cells: list[Cell], estimate: Estimate | None) -> None:
        done = 0
        try:
            for cell in cells:
                self._run_cell(cell, estimate)
                done += 1
        finally:
            if done_of(cells, self.runs):
                self._present(cells, whole=done == len(cells))

    def _planned(self, cells: list[Cell]) -> Estimate | None:
        """Check the data, say what is to be done; None if nothing is."""
        done = done_of(cells, self.runs)
        if done == len(cells):
            self._say(f"{_cells(len(cells))}, all done")
            return None
        data = load_data(cells[0].experiment, self.cache, display_for(self.out).note)
        self._check_sources(cells, data)
        estimate = Estimate(cells, data, self.runs, self.cache)
        left = in_words(estimate.seconds())
        self._say(f"{self.wanted.table} on {self.wanted.benchmark}, {self._extent(cells)}")
        self._say(f"{_cells(len(cells))}, {done} done, {left} left (an estimate)")
        return estimate

    def _check_output(self) -> None:
        """Hours of runs must not end in a folder that cannot be written."""
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.output, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise UserError(f"no table can be written into {self.output}: choose another --output")

    def _extent(self, cells: list[Cell]) -> str:
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        sources = ", ".join(dict.fromkeys(cell.source for cell in cells))
        return f"scale {self.wanted.scale}; rows: {rows}; sources: {sources}"

    def _check_sources(self, cells: list[Cell], data: Benchmark) -> None:
        missing = [c.source for c in cells if c.source not in data.domains]
        if missing:
            there = " ".join(f"--source {name}" for name in data.domains)
            raise UserError(
                f"{self.wanted.data} has no domain {missing[0]!r}: add it, or give {there}"
            )

    def _run_cell(self, cell: Cell, estimate: Estimate | None) -> None:
        was_done = done_of([cell], self.runs)
        run_experiment(cell.experiment, self.runs, self.cache, display_for(self.out))
        if estimate is None or was_done:
            return
        estimate.finished(cell)
        done, planned = estimate.progress()
        left = in_words(estimate.seconds()) + " left" if done < planned else "nothing left"
        self._say(f"{done} of {_cells(planned)} done, {left}")

    def _present(self, cells: list[Cell], *, whole: bool) -> None:
        outcome = self._outcome(cells)
        clusters = TABLES[self.wanted.table].kind == "clusters"
        first = cluster_table(outcome) if clusters else accuracy_table(outcome)
        tests, cautions = ([], []) if clusters else versus(outcome)
        remarks = [*self._remarks(outcome, cells, whole), *cautions]
        title, details = self._title(), self._details(cells[0])
        data = first if clusters else tidy(outcome)
        # Saved before it is shown: who reads along may stop reading.
        place = self._save(f"{title}. {details}", [first, *tests], remarks, data)
        show_grid(self.out, first._replace(title=title))
        self._say(f"\n{details}")
        for grid in tests:
            show_grid(self.out, grid)
        self._say("")
        for remark in remarks:
            self._say(f"Note: {remark}.")
        self._say(f"Saved as {place}.md, .csv and .tex.")

    def _outcome(self, cells: list[Cell]) -> Outcome:
        rows = chosen_rows(self.wanted)
        finished = [(cell, run) for cell in cells if (run := self._finished(cell))]
        return Outcome(
            table=self.wanted.table,
            benchmark=self.wanted.benchmark,
            rows=tuple(row.name for row in rows),
            ours=tuple(row.name for row in rows if row.ours),
            sources=tuple(dict.fromkeys(cell.source for cell in cells)),
            seeds=len(self.wanted.trials),
            runs={(cell.row, cell.source, cell.seed): run for cell, run in finished},
        )

    def _finished(self, cell: Cell) -> RunView | None:
        """The run of a cell, if it is done, readable, and of these very settings."""
        try:
            return self._read(cell) if done_of([cell], self.runs) else None
        except UserError:
            return None

    def _read(self, cell: Cell) -> RunView:
        run = read_run(self.runs / cell.experiment.name)
        if resolve(run.settings).name != cell.experiment.name:
            raise UserError(f"{run.path} holds a run of other settings: move it away")
        return run

    def _title(self) -> str:
        return f"{self.wanted.table} on {self.wanted.benchmark}: {TABLES[self.wanted.table].about}"

    def _details(self, cell: Cell) -> str:
        wanted = self.wanted
        changes = [f"{key} = {value}" for key, value in wanted.overrides if not _is_told(key)]
        scale = described(wanted.scale, cell.experiment, len(wanted.trials), changes) + "."
        if TABLES[wanted.table].kind == "clusters":
            letters = "A letter marks a cluster that holds clients of several domains."
            return f"Sizes of clusters, target domain by target domain. {letters} {scale}"
        measure = "Accuracy (%) by source domain, mean ± sample standard deviation over seeds."
        paper = "The paper: means of 15 trials at full scale."
        beside = f" {paper}" if printed(wanted.table, wanted.benchmark) else ""
        return f"{measure} {scale}{beside}"

    def _remarks(self, outcome: Outcome, cells: list[Cell], whole: bool) -> list[str]:
        found = notes(outcome.table, outcome.benchmark, list(outcome.rows), outcome.sources)
        has_paper = printed(outcome.table, outcome.benchmark) or (
            outcome.benchmark in CLUSTERS.get(outcome.table, {})
        )
        if not has_paper:
            found.append(f"the paper has no such table for {outcome.benchmark}")
        if self.wanted.scale == "paper" and outcome.seeds > 1:
            found.append(
                "three runs in a row share a source model, so seeds are not independent and p is "
                "rather too small"
            )
        if not whole or len(outcome.runs) < len(cells):
            found.append(
                f"{len(outcome.runs)} of {_cells(len(cells))} are done; – stands for none, … for "
                "some of the seeds, and the same command goes on"
            )
        return found

    def _save(self, caption: str, grids: list[Grid], remarks: list[str], data: Grid) -> Path:
        stem = self.wanted.stem
        contents = {
            "md": markdown_document(caption, grids, remarks),
            "csv": as_csv(data),
            "tex": latex_document(caption, stem, grids, remarks),
        }
        for suffix, text in contents.items():
            write_atomically(self.output / f"{stem}.{suffix}", text.encode())
        return self.output / stem

    def _say(self, text: str) -> None:
        self.out.say(text)


def _is_told(key: str) -> bool:
    """Settings that the caption tells anyway, or that change nothing but speed."""
    return key in ("model.weights", "model.backbone", *_SCALE) or key.startswith("run.")


_SCALE = (
    *("data.clients_per_domain", "data.images_per_client", "data.image_size"),
    *("training.rounds", "training.epochs"),
)


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"

"""Tables of results as rows of text, and as Markdown, CSV and LaTeX."""

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedwca._support.text import to_single_line
from fedwca.report.measures import chance_purity, purity
from fedwca.report.runs import RunView

__all__ = [
    "Table",
    "accuracy_tables",
    "cluster_table",
    "group_by_source",
    "group_by_variant",
    "latex_document",
    "markdown_document",
    "run_table",
    "spread",
    "to_csv",
    "to_markdown",
]

# Settings in which the runs of one row may differ.
_IGNORED_SETTINGS = (
    "run.seed",
    "run.workers",
    "run.device",
    "run.checkpoint_every",
    "source.seed",
)
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",  # at the start of a row it would begin an option
    "]": "{]}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
}


class Table(NamedTuple):
    """A title, a header and rows of text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def accuracy_tables(runs: Sequence[RunView]) -> list[Table]:
    """Return accuracy by method and target domain, a table for each benchmark and source.

    Runs that differ only in seeds make one row: mean ± sample standard deviation.
    """
    tables = []
    scored = [run for run in runs if run.accuracy is not None]
    for (benchmark, source), group in group_by_source(scored).items():
        source_name = f"source {source}" if source else "given source model"
        tables.append(_accuracy_table(f"{benchmark}, {source_name}: accuracy (%)", group))
    return tables


def _accuracy_table(title: str, runs: list[RunView]) -> Table:
    domains = list(dict.fromkeys(d for r in runs for d in r.domain_accuracies))
    rows = []
    for name, group in group_by_variant(runs):
        by_domain = [[r.domain_accuracies.get(d) for r in group] for d in domains]
        cells = [spread(values) for values in (*by_domain, [r.accuracy for r in group])]
        rounds = "/".join(sorted({str(r.rounds) for r in group}))
        if not all(r.done for r in group):
            rounds += "…"
        rows.append([name, *cells, str(len(group)), rounds])
    return Table(title, ["method", *domains, "mean", "trials", "rounds"], rows)


def group_by_source(runs: Iterable[RunView]) -> dict[tuple[str, str], list[RunView]]:
    """Group runs by benchmark and source."""
    groups: dict[tuple[str, str], list[RunView]] = {}
    for run in runs:
        data = run.settings["data"]
        groups.setdefault((data["benchmark"], data["source"]), []).append(run)
    return groups


def group_by_variant(runs: list[RunView]) -> list[tuple[str, list[RunView]]]:
    """Group runs by all settings but the seeds; name each group by what makes it different."""
    groups: dict[str, list[RunView]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        groups.setdefault(repr(_flat_settings(run)), []).append(run)
    firsts = [group[0] for group in groups.values()]
    return [(_variant_name(group, firsts), group) for group in groups.values()]


def _flat_settings(run: RunView) -> dict[str, object]:
    """Return the settings that make a variant, by their full names."""
    flat = {f"{s}.{key}": v for s, values in run.settings.items() for key, v in values.items()}
    return {name: value for name, value in flat.items() if name not in _IGNORED_SETTINGS}


def _variant_name(group: Sequence[RunView], others: Sequence[RunView]) -> str:
    """Return the method, with the settings in which others of this method differ."""
    run = group[0]
    own = _flat_settings(run)
    variants = [_flat_settings(other) for other in others if other.method == run.method]
    different = [key for key in own if any(v.get(key) != own[key] for v in variants)]
    details = [f"{key.split('.', 1)[1]}={own[key]}" for key in different]
    if all(member.notice for member in group):
        details.append("one cluster")
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
            f"{run.rounds}/{run.planned_rounds}",
            "–" if run.accuracy is None else f"{100 * run.accuracy:.1f}",
            "done" if run.done else "unfinished",
        ]
        for run in runs
    ]
    return Table("runs", ["run", "rounds", "accuracy", "state"], rows)


# --- documents ----------------------------------------------------------------------------------


def markdown_document(caption: str, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Return a caption, tables and notes."""
    first, *others = tables
    parts = [caption, to_markdown(first)]
    for table in others:
        parts += [f"{table.title}:", to_markdown(table)]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def to_markdown(table: Table) -> str:
    """Return a table without its title; names in it are never markup."""
    lines = [table.header, ["---"] + ["---:"] * (len(table.header) - 1), *table.rows]
    cells = [[_escape_markdown(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _escape_markdown(cell: str) -> str:
    text = html.escape(to_single_line(cell), quote=False)
    return re.sub(r"([|`\[\]\\])", r"\\\1", text)


def to_csv(table: Table) -> str:
    """Return comma-separated values with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (table.header, *table.rows):
        writer.writerow([to_single_line(cell) for cell in row])
    return text.getvalue()


def latex_document(caption: str, label: str, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Return a table environment that needs no LaTeX package."""
    lines = [r"\begin{table*}[t]", r"\centering", r"\small"]
    lines.append(rf"\caption{{{_escape_latex(caption)}}}")
    lines.append(rf"\label{{tab:{label}}}")
    for number, table in enumerate(tables):
        if number:
            lines.append(rf"\par\medskip {_escape_latex(table.title)}\par\smallskip")
        lines += _tabular(table)
    if notes:
        lines.append(r"\par\smallskip\footnotesize")
        lines.append(_escape_latex("; ".join(notes)) + ".")
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _tabular(table: Table) -> list[str]:
    columns = "l" + "r" * (len(table.header) - 1)
    header, *rows = (
        " & ".join(_escape_latex(cell) for cell in row) + r" \\"
        for row in (table.header, *table.rows)
    )
    start = rf"\begin{{tabular}}{{{columns}}}\hline"
    return [start, header + r" \hline", *rows, r"\hline", r"\end{tabular}"]


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in to_single_line(text, 2000))

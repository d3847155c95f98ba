"""Tables as Markdown, CSV and LaTeX."""

import csv
import html
import io
import re
from collections.abc import Sequence

from fedwca._support.text import to_single_line
from fedwca.report.tables import Table

__all__ = ["latex_document", "markdown_document", "to_csv", "to_markdown"]

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
        writer.writerow([_escape_formula(cell) for cell in row])
    return text.getvalue()


def _escape_formula(cell: str) -> str:
    """Quote text that a spreadsheet would run as a formula, such as "=1+1"; keep numbers."""
    text = to_single_line(cell)
    is_formula = text[:1] in ("=", "+", "@") or (text[:1] == "-" and not text[1:2].isdigit())
    return f"'{text}" if is_formula and len(text) > 1 else text


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

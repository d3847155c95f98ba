"""Tables as files for a document: Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence

from fedwca.notes import printable
from fedwca.report.tables import Grid, as_markdown

__all__ = ["as_csv", "latex_document", "markdown_document"]


def markdown_document(caption: str, grids: Sequence[Grid], notes: Sequence[str]) -> str:
    """A caption, tables one below the other, then notes."""
    first, *others = grids
    parts = [caption, as_markdown(first)]
    for grid in others:
        parts += [f"{grid.title}:", as_markdown(grid)]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def as_csv(grid: Grid) -> str:
    """Comma-separated, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(cell) for cell in row] for row in (grid.header, *grid.rows))
    return text.getvalue()


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula, as it would "=1+1" or "-x"; numbers stay."""
    shown = printable(text)
    is_formula = shown[:1] in ("=", "+", "@") or (shown[:1] == "-" and not shown[1:2].isdigit())
    return f"'{shown}" if is_formula and len(shown) > 1 else shown


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",  # after a new row it would be an option
    "]": "{]}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
}


def latex_document(caption: str, label: str, grids: Sequence[Grid], notes: Sequence[str]) -> str:
    """A table environment that needs no package; wide ones are for `table*` or a small font."""
    lines = [r"\begin{table*}[t]", r"\centering", r"\small"]
    lines.append(rf"\caption{{{_latex(caption)}}}")
    lines.append(rf"\label{{tab:{label}}}")
    for number, grid in enumerate(grids):
        lines += [rf"\par\medskip {_latex(grid.title)}\par\smallskip"] if number else []
        lines += _tabular(grid)
    if notes:
        lines.append(r"\par\smallskip\footnotesize")
        lines.append(_latex("; ".join(notes)) + ".")
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _tabular(grid: Grid) -> list[str]:
    columns = "l" + "r" * (len(grid.header) - 1)
    header, *rows = (
        " & ".join(_latex(cell) for cell in row) + r" \\" for row in (grid.header, *grid.rows)
    )
    start = rf"\begin{{tabular}}{{{columns}}}\hline"
    return [start, header + r" \hline", *rows, r"\hline", r"\end{tabular}"]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text, 2000))

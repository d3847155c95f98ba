"""The report page: one HTML file that loads nothing else, made from run folders alone."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedwca.report.page_data import comparison_data, run_data
from fedwca.report.runs import RunView

__all__ = ["live_page", "page_data", "report_page"]

_POLL_INTERVAL = 2000  # milliseconds between requests of a page that follows a run


def report_page(runs: Sequence[RunView], *, images: bool = True) -> str:
    """Return the page of one run, or of several side by side."""
    return _fill_template(page_data(runs, images=images), _title(runs), connect="'none'")


def page_data(runs: Sequence[RunView], *, images: bool = True) -> dict[str, Any]:
    """Return the data that the page shows."""
    return run_data(runs[0], images=images) if len(runs) == 1 else comparison_data(runs)


def live_page(runs: Sequence[RunView]) -> str:
    """Return the same page without data, which it requests from its server."""
    return _fill_template({"kind": "live", "every": _POLL_INTERVAL}, _title(runs), connect="'self'")


def _title(runs: Sequence[RunView]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"


def _fill_template(data: dict[str, Any], title: str, connect: str) -> str:
    parts = {
        "title": html.escape(title),
        "connect": connect,
        "style": _read_asset("page.css"),
        "data": _to_safe_json(data),
        "script": _read_asset("charts.js") + _read_asset("page.js"),
    }
    page = _read_asset("page.html")
    for name, text in parts.items():
        before, placeholder, after = page.partition(f"{{{{{name}}}}}")
        assert placeholder, name
        page = before + text + after
    return page


def _to_safe_json(data: dict[str, Any]) -> str:
    """Return JSON that no browser takes for markup, whatever names it contains."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    # Half of a surrogate pair, as in an undecodable file name, has no UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_asset(name: str) -> str:
    return (files("fedwca.report") / "assets" / name).read_text(encoding="utf-8")

"""The report page: one HTML file that needs nothing else, from run folders alone."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedwca.report.page_data import comparison_data, run_data
from fedwca.report.runs import RunView

__all__ = ["live_page", "page_data", "report_page"]

_LOOK_EVERY = 2000  # milliseconds between looks of a page that follows a run


def report_page(views: Sequence[RunView], *, images: bool = True) -> str:
    """The page of one run, or of several side by side."""
    data = page_data(views, images=images)
    return _page(data, _title(views), connect="'none'")


def page_data(views: Sequence[RunView], *, images: bool = True) -> dict[str, Any]:
    """What the page shows."""
    return run_data(views[0], images=images) if len(views) == 1 else comparison_data(views)


def live_page(views: Sequence[RunView]) -> str:
    """The same page without data, which it then asks its server for."""
    return _page({"kind": "live", "every": _LOOK_EVERY}, _title(views), connect="'self'")


def _title(views: Sequence[RunView]) -> str:
    return views[0].name if len(views) == 1 else f"{len(views)} runs compared"


def _page(data: dict[str, Any], title: str, connect: str) -> str:
    parts = {
        "title": html.escape(title),
        "connect": connect,
        "style": _asset("page.css"),
        "data": _harmless(data),
        "script": _asset("charts.js") + _asset("page.js"),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        before, mark, after = page.partition(f"{{{{{name}}}}}")
        assert mark, name
        page = before + text + after
    return page


def _harmless(data: dict[str, Any]) -> str:
    """JSON that no browser takes for markup, whatever names are in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    # Half of a surrogate pair, as a damaged file name has it, cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _asset(name: str) -> str:
    return (files("fedwca.report") / "assets" / name).read_text(encoding="utf-8")

"""The report page: one HTML file that loads nothing else, or served live to this machine."""

import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from fedwca._support.errors import UserError
from fedwca.report.page_data import page_data
from fedwca.report.runs import RunView

__all__ = ["HOST", "WatchServer", "report_page"]

HOST = "127.0.0.1"
_HOST_NAMES = ("127.0.0.1", "localhost")
_POLL_INTERVAL = 2000  # milliseconds between requests of a page that follows a run


def report_page(runs: Sequence[RunView], *, images: bool = True) -> str:
    """Return the page of one run, or of several side by side."""
    return _fill_template(runs, page_data(runs, images=images), connect="'none'")


def _fill_template(runs: Sequence[RunView], data: dict[str, Any], connect: str) -> str:
    parts = {
        "title": html.escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"),
        "connect": connect,
        "style": _read_asset("page.css"),
        "data": _to_safe_json(data),
        "script": _read_asset("charts.js") + _read_asset("page.js"),
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _read_asset("page.html"))


def _read_asset(name: str) -> str:
    return (files("fedwca.report") / "assets" / name).read_text(encoding="utf-8")


def _to_json(data: dict[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half of a surrogate pair, as in an undecodable file name, has no UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _to_safe_json(data: dict[str, Any]) -> str:
    """Return JSON that no browser takes for markup, whatever names it contains."""
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", _to_json(data))


class WatchServer(ThreadingHTTPServer):
    """A web server for this machine alone, whose page follows runs.

    Args:
        read_runs: reads the run folders; called for every request.
        port: 0 chooses a free one.
    """

    daemon_threads = True

    def __init__(self, read_runs: Callable[[], list[RunView]], port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.read_runs = read_runs

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore browsers that close the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        # Another site whose name resolves to this machine must not read the page.
        if (self.headers.get("Host") or "").partition(":")[0] not in _HOST_NAMES:
            return self._send(HTTPStatus.FORBIDDEN, "", "text/plain")
        try:
            if self.path == "/":
                return self._send_page()
            if self.path == "/data.json":
                return self._send_data()
        except UserError as error:  # the run was moved, or is being rewritten
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "text/plain")
        return self._send(HTTPStatus.NOT_FOUND, "", "text/plain")

    def _send_page(self) -> None:
        """Send the page without data, which it requests again and again."""
        live = {"kind": "live", "every": _POLL_INTERVAL}
        page = _fill_template(self.server.read_runs(), live, connect="'self'")
        self._send(HTTPStatus.OK, page, "text/html")

    def _send_data(self) -> None:
        data = _to_json(page_data(self.server.read_runs()))
        tag = f'"{hashlib.sha256(data.encode()).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            return self._send(HTTPStatus.NOT_MODIFIED, "", "application/json", tag)
        return self._send(HTTPStatus.OK, data, "application/json", tag)

    def _send(self, status: HTTPStatus, text: str, kind: str, tag: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests: the terminal belongs to the user."""

"""A web server for this machine alone, whose page follows runs."""

import hashlib
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedwca._support.errors import UserError
from fedwca.report.page import live_page, page_data
from fedwca.report.runs import RunView

__all__ = ["HOST", "watch_server"]

HOST = "127.0.0.1"
_HOST_NAMES = ("127.0.0.1", "localhost")


def watch_server(read: Callable[[], list[RunView]], port: int = 0) -> ThreadingHTTPServer:
    """Return the server, not yet serving.

    Args:
        read: reads the run folders; called for every request.
        port: 0 chooses a free one.
    """

    class Handler(_Handler):
        read_runs = staticmethod(read)

    return _Server((HOST, port), Handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore browsers that close the connection."""


class _Handler(BaseHTTPRequestHandler):
    read_runs: Callable[[], list[RunView]]

    def do_GET(self) -> None:
        # Another site whose name resolves to this machine must not read the page.
        if (self.headers.get("Host") or "").partition(":")[0] not in _HOST_NAMES:
            return self._send(HTTPStatus.FORBIDDEN, b"", "text/plain")
        try:
            if self.path == "/":
                return self._send(HTTPStatus.OK, live_page(self.read_runs()).encode(), "text/html")
            if self.path == "/data.json":
                return self._send_data()
        except UserError as error:  # the run was moved, or is being rewritten
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode(), "text/plain")
        return self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _send_data(self) -> None:
        data = page_data(self.read_runs())
        text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
        tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            return self._send(HTTPStatus.NOT_MODIFIED, b"", "application/json", tag)
        return self._send(HTTPStatus.OK, text, "application/json", tag)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, tag: str = "") -> None:
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

"""A page that follows a run: a small web server on this machine, for this machine alone."""

import hashlib
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedwca.errors import UserError
from fedwca.report.page import live_page, page_data
from fedwca.report.runs import RunView

__all__ = ["watch_server"]

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")  # by which a browser on this machine may call us


def watch_server(read: Callable[[], list[RunView]], port: int = 0) -> ThreadingHTTPServer:
    """The server, not yet serving.

    Args:
        read: reads the run folders anew.
        port: 0 takes a free one.
    """

    class Handler(_Handler):
        views = staticmethod(read)

    return _Server((HOST, port), Handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a browser that has gone is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    views: Callable[[], list[RunView]]

    def do_GET(self) -> None:
        # A page of another site whose name points here must not read along.
        if (self.headers.get("Host") or "").partition(":")[0] not in _NAMES:
            return self._send(HTTPStatus.FORBIDDEN, b"", "text/plain")
        try:
            if self.path == "/":
                return self._send(HTTPStatus.OK, live_page(self.views()).encode(), "text/html")
            if self.path == "/data.json":
                return self._data()
        except UserError as error:  # a run that was moved away, or is being written anew
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode(), "text/plain")
        return self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _data(self) -> None:
        data = page_data(self.views())
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
        """Nothing: the terminal is for the user."""

"""Flower's SuperLink, restricted: other machines reach only the API for SuperNodes.

    python -m fedwca.deploy.superlink [OPTIONS of flower-superlink]

Flower serves all of its APIs on one port, and only the one for SuperNodes checks keys. Anyone
who reaches the others can register keys and start runs, that is, execute code at the server and at
every site. `fedwca deploy` uses them from the server's own machine only.
"""

import sys
from ipaddress import IPv6Address, ip_address
from typing import Any

from flwr.superlink import extensions
from flwr.superlink import main as superlink_main
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

__all__ = ["RestrictToLocalHost", "main"]

_SUPERNODE_API = "/v1/fleet/"


class RestrictToLocalHost:
    """ASGI middleware: reject requests from other machines unless they go to the SuperNode API."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle an ASGI connection."""
        allowed = scope["type"] == "lifespan" or scope["path"].startswith(_SUPERNODE_API)
        if allowed or _is_local(scope):
            await self._app(scope, receive, send)
        else:
            response = PlainTextResponse("only the server's own machine may do this", 403)
            await response(scope, receive, send)


def _is_local(scope: Any) -> bool:
    """Return whether a request comes from a loopback address or from the server's own address."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return False
    try:
        peer = ip_address(client[0])
    except ValueError:
        return False
    if isinstance(peer, IPv6Address) and peer.ipv4_mapped:
        peer = peer.ipv4_mapped
    return peer.is_loopback or client[0] == server[0]


def main() -> None:
    """Install the middleware and run flower-superlink; exit if Flower does not use it."""
    get_middleware = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(RestrictToLocalHost), *get_middleware())
    outermost: object = superlink_main._get_middleware()[0].cls
    if outermost is not RestrictToLocalHost:
        sys.exit(
            "the installed version of Flower cannot be restricted to SuperNodes; "
            "install the version that fedwca requires"
        )
    flower_superlink()


if __name__ == "__main__":
    main()

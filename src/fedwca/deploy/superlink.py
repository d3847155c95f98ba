"""Flower's SuperLink, with a door: from other machines only what sites need can be reached.

    python -m fedwca.deploy.superlink OPTIONS-OF-flower-superlink

Flower serves all on one port. Registering keys, starting and stopping runs and asking who takes
part need no key there, so whoever reaches the port, a site too, could have code of its own run at
the server and at every site. `fedwca deploy` does all that on the server's own machine, and needs
it from nowhere else.
"""

import sys
from ipaddress import IPv6Address, ip_address
from typing import Any

from flwr.superlink import extensions
from flwr.superlink import main as flowers
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

__all__ = ["Door"]

_FOR_SITES = "/v1/fleet/"  # their keys are checked there


class Door:
    """Lets through what comes from this machine, and what sites need from anywhere."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        if scope["type"] == "lifespan" or scope["path"].startswith(_FOR_SITES) or _is_own(scope):
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse("this can be done on the server's own machine only", 403)
            await refusal(scope, receive, send)


def _is_own(scope: Any) -> bool:
    """Whether a request comes from this machine, by loopback or by an address of its own."""
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
    """Start it; not without the door, should another version of Flower ask for none."""
    flowers_own = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Door), *flowers_own())
    outermost: object = flowers._get_middleware()[0].cls
    if outermost is not Door:
        sys.exit("this version of Flower cannot be closed to strangers: install the one we ask for")
    flower_superlink()


if __name__ == "__main__":
    main()

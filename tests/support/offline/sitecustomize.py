"""On a process's path it keeps that process off the network, and notes every try in a file.

Sockets of this machine alone, loopback and Unix, are let through.
"""

import ipaddress
import os
import sys
from typing import Any

LOG = os.environ.get("FEDWCA_CALLS_LOG")


def _stays_here(address: Any) -> bool:
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(address, str | bytes) or host in ("localhost", "", None):  # Unix, or this machine
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        address = (arguments[0],)
    else:
        return
    if not _stays_here(address):
        with open(LOG or os.devnull, "a") as file:
            file.write(f"{event} {address!r}\n")
        raise PermissionError(f"{event} {address!r} would leave this machine")


if LOG:
    sys.addaudithook(_watch)

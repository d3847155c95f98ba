"""Changed files, and things that may be where a file should be; none may block or be endless."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

__all__ = ["ODD", "changed_bytes", "put"]


def _to_a_fifo(path: Path) -> None:
    if not (fifo := path.with_name("fifo")).exists():
        os.mkfifo(fifo)
    path.symlink_to(fifo.name)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ear:
        here = os.getcwd()
        os.chdir(path.parent)  # what is bound must be short
        try:
            ear.bind("s")
            os.rename("s", path.name)
        finally:
            os.chdir(here)


_MAKERS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "link to a fifo": _to_a_fifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("gone.png"),
    "link to its folder": lambda path: path.symlink_to("."),
    "folder": Path.mkdir,
    "socket": _socket,
}
ODD = list(_MAKERS)


def put(path: Path, content: bytes | str) -> None:
    """Write a file, or make an odd one of that kind, replacing whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        _MAKERS[content](path)


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes, head: int = 2000) -> bytes:
    """Return a file truncated or with some bytes changed, most near its start or its end."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(head, len(changed))) | st.integers(0, len(changed)))
        place = draw(st.sampled_from([place, max(0, len(changed) - place)]))
        match draw(st.sampled_from(["cut", "change", "number", "insert", "remove"])):
            case "cut":
                del changed[place:]
            case "change":
                part = draw(st.binary(min_size=1, max_size=8))
                changed[place : place + len(part)] = part
            case "number":
                numbers = [b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\0\0\xff\xff"]
                changed[place : place + 4] = draw(st.sampled_from(numbers))
            case "insert":
                changed[place:place] = draw(st.binary(max_size=40))
            case "remove":
                del changed[place : place + draw(st.integers(1, 20))]
    return bytes(changed)

"""Things that may be where a file should be; none of them may block or be read endlessly."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = ["ODD", "put"]


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

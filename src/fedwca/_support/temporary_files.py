"""Temporary files beside their targets; removal of those that a killed process left."""

import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["remove", "remove_stale_files", "temporary_path", "temporary_target"]

_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_NAME = re.compile(r".+\.([0-9a-f]{8})-(\d{1,9})\.tmp")
_DAY = 24 * 3600.0
_IN_USE = set[str]()  # absolute paths that this process is writing


def temporary_path(path: Path) -> Path:
    """Return the temporary path of this process for a target; `remove_stale_files` knows it."""
    return path.with_name(f"{path.name}.{_MACHINE}-{os.getpid()}.tmp")


@contextmanager
def temporary_target(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write and rename; it is removed at the end if it is still there."""
    temporary = temporary_path(path)
    _IN_USE.add(os.path.abspath(temporary))
    try:
        yield temporary
    finally:
        _IN_USE.discard(os.path.abspath(temporary))
        with suppress(OSError):  # on a disk that has become read-only it stays, stale
            remove(temporary)


def remove_stale_files(folder: Path, *, locked: bool = False) -> None:
    """Remove temporary files of dead processes in a folder and below.

    Whether a process on another machine is alive is unknown: its files count as stale after a day.

    Args:
        folder: others may be writing into it.
        locked: nobody else writes into this very folder, so every temporary file in it is stale.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files) if name.endswith(".tmp")):
            with suppress(OSError):  # it may belong to another user
                if (locked and path.parent == folder) or _is_stale(path):
                    remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_stale(path: Path) -> bool:
    parts = _NAME.fullmatch(path.name)
    if not parts:
        return False
    machine, process = parts[1], int(parts[2])
    if path.lstat().st_mtime < time.time() - _DAY:
        return True
    if machine != _MACHINE:
        return False
    if process == os.getpid():  # or an earlier process with this number, as in a container
        return os.path.abspath(path) not in _IN_USE
    return not _is_alive(process)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # there, os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    return True

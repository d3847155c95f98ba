"""What is being written lies beside its target until it is whole; killed, a process leaves it."""

import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["growing", "remove", "sweep", "temporary"]

_HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # tells machines apart
_NAME = re.compile(r".+\.([0-9a-f]{8})-(\d{1,9})\.tmp")
_DAY = 24 * 3600.0
_GROWING = set[str]()  # what this process writes at the moment


def temporary(path: Path) -> Path:
    """Where this process writes what is to appear at a path; `sweep` knows it by its name."""
    return path.with_name(f"{path.name}.{_HERE}-{os.getpid()}.tmp")


@contextmanager
def growing(path: Path) -> Iterator[Path]:
    """Where to write what is to appear at a path; what is not moved there is removed."""
    place = temporary(path)
    _GROWING.add(os.path.abspath(place))
    try:
        yield place
    finally:
        _GROWING.discard(os.path.abspath(place))
        with suppress(OSError):  # on a disk that now is read-only, it is left to be swept
            remove(place)


def sweep(folder: Path, *, locked: bool = False) -> None:
    """Remove what processes that are gone have left half written in a folder and below.

    Of another machine nobody can tell whether it is gone: what it writes is left for a day.

    Args:
        folder: any, also one in which others are at work.
        locked: nobody else writes into this very folder, so all that is half written there is left.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files) if name.endswith(".tmp")):
            with suppress(OSError):  # it may be somebody else's
                if (locked and path.parent == folder) or _is_left(path):
                    remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    found = _NAME.fullmatch(path.name)
    if not found:
        return False
    written, process = path.lstat().st_mtime, int(found[2])
    if written < time.time() - _DAY:
        return True
    if found[1] != _HERE:
        return False
    if process == os.getpid():  # or of an earlier one with this number, as in a container
        return os.path.abspath(path) not in _GROWING
    return not _is_alive(process)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # where asking by a signal would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True

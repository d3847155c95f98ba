"""A slow disk for processes that have this folder on PYTHONPATH, so that kills fall into writes."""

import os
import time
from typing import Any

_PAUSE = 0.01
_fsync, _unlink = os.fsync, os.unlink


def _slow_fsync(number: int) -> None:
    time.sleep(_PAUSE)
    _fsync(number)


def _slow_unlink(path: Any, *, dir_fd: int | None = None) -> None:
    """Slow where a whole folder is removed, file by file: a checkpoint that has grown old."""
    if dir_fd is not None:
        time.sleep(_PAUSE)
    _unlink(path, dir_fd=dir_fd)


os.fsync, os.unlink = _slow_fsync, _slow_unlink

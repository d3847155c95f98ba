"""Slow down writes in processes with this folder on PYTHONPATH, so that kills hit writes."""

import os
import time
from typing import Any

_PAUSE = 0.01
_fsync, _unlink = os.fsync, os.unlink


def _slow_fsync(number: int) -> None:
    time.sleep(_PAUSE)
    _fsync(number)


def _slow_unlink(path: Any, *, dir_fd: int | None = None) -> None:
    """Slow down the removal of a whole folder, such as an old checkpoint."""
    if dir_fd is not None:
        time.sleep(_PAUSE)
    _unlink(path, dir_fd=dir_fd)


os.fsync, os.unlink = _slow_fsync, _slow_unlink

"""A slow disk for processes that have this folder on PYTHONPATH, so that kills fall into writes."""

import os
import time

_fsync = os.fsync


def _slowly(number: int) -> None:
    time.sleep(0.02)
    _fsync(number)


os.fsync = _slowly

"""Processor cores and memory of this machine."""

import ctypes
import errno
import os
import sys

__all__ = ["count_cores", "is_out_of_memory", "keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's parameters of mallopt
_LARGEST_MMAP_THRESHOLD = 32 << 20  # the most that every glibc accepts
_KEPT_MEMORY = 1 << 30
# How torch, C++ and the system report it where Python has no MemoryError; the last two on loading
# a library and on starting a thread.
_MESSAGES = (
    *("allocate memory", "DefaultCPUAllocator", "bad_alloc", "not enough memory"),
    *("out of memory", "failed to map segment", "can't start new thread"),
)
_ERROR_NUMBERS = (errno.ENOMEM, errno.EAGAIN)  # EAGAIN: a process cannot be started


def count_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Keep up to 1 GiB of freed memory instead of returning it to the system at once.

    Each training step allocates and frees the same megabytes of activations. glibc returns them to
    the kernel each time, which must clear every page again. No effect elsewhere.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    # The second setting alone would do harm: blocks of any size would be mapped again each time.
    if mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD):
        mallopt(_TRIM_THRESHOLD, _KEPT_MEMORY)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error means that memory is exhausted."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number in _ERROR_NUMBERS:
        return True
    # A message with an error number quotes a file name, which may be anything.
    return number is None and any(message in str(error) for message in _MESSAGES)

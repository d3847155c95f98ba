"""What the machine has, and how this process uses it."""

import ctypes
import errno
import os
import sys

__all__ = ["cores", "keep_freed_memory", "lacks_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
_LARGEST = 32 << 20  # what every glibc admits
_KEPT = 1 << 30
# As torch, C++ and the system say it where Python has no MemoryError for it; the last, where a
# library is loaded.
_WANT_OF_MEMORY = (
    *("allocate memory", "DefaultCPUAllocator", "bad_alloc", "not enough memory"),
    *("out of memory", "failed to map segment", "can't start new thread"),
)
_NO_ROOM = (errno.ENOMEM, errno.EAGAIN)  # the second where a process cannot be started


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Keep up to a GiB of freed memory instead of giving it back to the system at once.

    Every step of training allocates and frees the same megabytes of activations; glibc returns
    them to the kernel each time, which has to clear every page anew. Elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    # The second alone would do harm: blocks of any size would be mapped anew each time.
    if mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGEST):
        mallopt(_TRIM_THRESHOLD, _KEPT)


def lacks_memory(error: Exception) -> bool:
    """Whether it was raised for want of memory."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number in _NO_ROOM:
        return True
    # With a number come the system's words and a file's name, which may be anything.
    return number is None and any(words in str(error) for words in _WANT_OF_MEMORY)

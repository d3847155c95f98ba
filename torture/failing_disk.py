"""Simulate a disk that fails from the n-th write on, for one folder of this process."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["Disk", "failing"]

FULL, READ_ONLY = errno.ENOSPC, errno.EROFS
_open, _os_open, _fsync = io.open, os.open, os.fsync


class Disk:
    """Counts writes and fails after `healthy` of them with an error number.

    A full disk writes half of the data and can delete files; a read-only one can do neither.
    """

    def __init__(self, folder: Path, healthy: int, error: int) -> None:
        self.writes, self._healthy, self._error = 0, healthy, error
        self._folder = str(folder)

    def contains(self, path: object) -> bool:
        return str(path).startswith(self._folder)

    def fails(self) -> bool:
        """Count a write and return whether it fails."""
        self.writes += 1
        return self.writes > self._healthy

    def guard(self, call: Callable[..., Any], frees: bool = False) -> Callable[..., Any]:
        """Wrap a function that changes a folder; `frees` if it works on a full disk."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            # Only `rmtree` passes `dir_fd`, and it removes only our folders.
            here = self.contains(args[0]) or kwargs.get("dir_fd") is not None
            if here and self.fails() and not (frees and self._error == FULL):
                raise self.error(args[0])
            return call(*args, **kwargs)

        return guarded

    def error(self, path: object) -> OSError:
        return OSError(self._error, os.strerror(self._error), str(path))

    def fsync(self, number: int) -> None:
        """Replace `os.fsync`, which may be the first to fail on a full disk."""
        path = os.readlink(f"/proc/self/fd/{number}")
        if self._error == FULL and self.contains(path) and self.fails():
            raise self.error(path)
        _fsync(number)

    def os_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Replace `os.open`, which creates locks."""
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and self.contains(path) and self._error == READ_ONLY and self.fails():
            raise self.error(path)
        return _os_open(path, flags, *args, **kwargs)

    def open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Replace `open` and count writes to the file."""
        reads = mode[0] == "r" and "+" not in mode
        if reads or not self.contains(path):
            return _open(path, mode, *args, **kwargs)
        if self._error == READ_ONLY and self.fails():
            raise self.error(path)
        return _File(_open(path, mode, *args, **kwargs), self, path)


class _File:
    """A file on the failing disk."""

    def __init__(self, file: Any, disk: Disk, path: object) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, content: Any) -> int:
        if self._disk.fails():
            self._file.write(content[: len(content) // 2])
            raise self._disk.error(self._path)
        return int(self._file.write(content))

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """Redirect everything that this process writes with Python's own functions to the disk."""
    changes = {"mkdir": False, "rename": False, "replace": False, "unlink": True, "rmdir": True}
    patches = [mock.patch("io.open", disk.open), mock.patch("builtins.open", disk.open)]
    patches += [mock.patch("os.open", disk.os_open), mock.patch("os.fsync", disk.fsync)]
    patches += [
        mock.patch.object(os, name, disk.guard(getattr(os, name), frees))
        for name, frees in changes.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()

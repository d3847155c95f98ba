"""A disk that fails from the n-th write on, which this process makes to a folder."""

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
    """Counts what is written; from `healthy` on it fails with an error number.

    A full disk takes half of what is being written, and lets go of files; a read-only one neither.
    """

    def __init__(self, folder: Path, healthy: int, error: int) -> None:
        self.writes, self._healthy, self._error = 0, healthy, error
        self._folder = str(folder)

    def holds(self, path: object) -> bool:
        return str(path).startswith(self._folder)

    def fails(self) -> bool:
        """Whether one more write fails."""
        self.writes += 1
        return self.writes > self._healthy

    def guarded(self, call: Callable[..., Any], frees: bool = False) -> Callable[..., Any]:
        """A call that changes a folder."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            # Who walks a folder by its number is `rmtree`, and what it walks in is ours.
            here = self.holds(args[0]) or kwargs.get("dir_fd") is not None
            if here and self.fails() and not (frees and self._error == FULL):
                raise self.error(args[0])
            return call(*args, **kwargs)

        return guarded

    def error(self, path: object) -> OSError:
        return OSError(self._error, os.strerror(self._error), str(path))

    def fsync(self, number: int) -> None:
        """As `os.fsync`: a full disk may find only now that what it took does not fit."""
        path = os.readlink(f"/proc/self/fd/{number}")
        if self._error == FULL and self.holds(path) and self.fails():
            raise self.error(path)
        _fsync(number)

    def os_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """As `os.open`, by which locks are made."""
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and self.holds(path) and self._error == READ_ONLY and self.fails():
            raise self.error(path)
        return _os_open(path, flags, *args, **kwargs)

    def open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """As `open`; what is written through the file is counted."""
        reads = mode[0] == "r" and "+" not in mode
        if reads or not self.holds(path):
            return _open(path, mode, *args, **kwargs)
        if self._error == READ_ONLY and self.fails():
            raise self.error(path)
        return _File(_open(path, mode, *args, **kwargs), self, path)


class _File:
    """A file on such a disk."""

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
    """Everything that this process writes by Python's own means goes to the disk."""
    changes = {"mkdir": False, "rename": False, "replace": False, "unlink": True, "rmdir": True}
    patches = [mock.patch("io.open", disk.open), mock.patch("builtins.open", disk.open)]
    patches += [mock.patch("os.open", disk.os_open), mock.patch("os.fsync", disk.fsync)]
    patches += [
        mock.patch.object(os, name, disk.guarded(getattr(os, name), frees))
        for name, frees in changes.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()

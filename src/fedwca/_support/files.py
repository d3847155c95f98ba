"""Atomic writes, temporary files, and JSON files with checksums."""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError
from fedwca._support.text import parse_json

__all__ = [
    "CHECKSUM",
    "add_checksum",
    "append_line",
    "expand_path",
    "file_digest",
    "is_transient",
    "open_regular_file",
    "read_json",
    "read_lines",
    "read_optional_json",
    "read_verified",
    "remove",
    "remove_stale_files",
    "temporary_path",
    "temporary_target",
    "verify_checksum",
    "write_atomically",
    "write_folder_atomically",
    "write_json",
    "write_lines",
    "write_private",
]

CHECKSUM = "sha256"  # name of the entry that holds the checksum of all other entries
# Errors of the disk, the network or the machine that say nothing about the file.
_TRANSIENT_ERRORS = {
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE),
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN),
}
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_TEMPORARY_NAME = re.compile(r".+\.([0-9a-f]{8})-(\d{1,9})\.tmp")
_DAY = 24 * 3600.0


# --- writing ------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a temporary file and rename it; if `durable`, the file survives a power cut."""
    with temporary_target(path) as temporary:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)


def write_json(path: Path, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=1).encode(), durable=durable)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; it replaces `path` at the end."""
    with temporary_target(path) as temporary:
        remove(temporary)
        temporary.mkdir()
        yield temporary
        _sync_folder(temporary)
        remove(path)
        temporary.rename(path)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- temporary files ----------------------------------------------------------------------------


def temporary_path(path: Path) -> Path:
    """Return the temporary path of this process for a target; `remove_stale_files` knows it."""
    return path.with_name(f"{path.name}.{_MACHINE}-{os.getpid()}.tmp")


@contextmanager
def temporary_target(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write and rename; remove it at the end if it still exists."""
    temporary = temporary_path(path)
    try:
        yield temporary
    finally:
        with suppress(OSError):  # on a disk that has become read-only, it stays
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
    parts = _TEMPORARY_NAME.fullmatch(path.name)
    if not parts:
        return False
    if path.lstat().st_mtime < time.time() - _DAY:
        return True
    return parts[1] == _MACHINE and not _is_alive(int(parts[2]))


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


# --- checksums ----------------------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open_regular_file(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def add_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with a checksum of it as one more entry."""
    return {**content, CHECKSUM: hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def verify_checksum(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content without its checksum; None if the checksum is missing or wrong."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    return rest if add_checksum(rest) == content else None


def read_verified(path: Path, *, older: bool = False) -> dict[str, Any] | None:
    """Read a JSON file with a checksum; None if the file is missing or corrupt.

    `older` also accepts a file without a checksum, as older versions wrote them.
    """
    content = read_optional_json(path)
    return content if older and content and CHECKSUM not in content else verify_checksum(content)


# --- results, line by line ----------------------------------------------------------------------


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append a JSON line with its checksum, durably."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(add_checksum(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Replace a file of JSON lines atomically, each with its checksum."""
    text = "".join(json.dumps(add_checksum(line)) + "\n" for line in lines)
    write_atomically(path, text.encode())


def read_lines(path: Path, *, older: bool = True) -> list[dict[str, Any]]:
    """Read JSON lines with checksums; skip those that are truncated or corrupt.

    `older` also accepts lines without a checksum, as older versions wrote them.
    """
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and (CHECKSUM in line or not older):
            line = verify_checksum(line)
        if isinstance(line, dict) and isinstance(line.get("round"), int):
            lines.append(line)
    return lines


# --- reading ------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Read a JSON file; OSError or ValueError if that fails."""
    with open_regular_file(path) as file:
        return parse_json(file.read())


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON file with a mapping; an empty one if it is missing or corrupt."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def open_regular_file(path: str | Path) -> BufferedReader:
    """Open a regular file for reading; OSError for anything else.

    Reading from a pipe waits for its writer, and a device may be endless.
    """
    return open(path, "rb", opener=_open_descriptor)


def _open_descriptor(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # not on Windows
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def is_transient(error: BaseException) -> bool:
    """Return whether reading failed for a reason that says nothing about the file."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRORS


# --- paths --------------------------------------------------------------------------------------


def expand_path(path: str | os.PathLike[str], remedy: str = "write the path out") -> Path:
    """Return a path with "~" expanded; `remedy` says what to do where there is no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"there is no home folder for {path}: {remedy}") from None

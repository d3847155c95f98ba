"""Atomic writes, JSON files with checksums, and safe file names."""

import errno
import hashlib
import json
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError
from fedwca._support.parse import parse_json
from fedwca._support.temporary_files import remove, temporary_target

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
    "safe_file_names",
    "verify_checksum",
    "write_atomically",
    "write_folder_atomically",
    "write_json",
    "write_lines",
    "write_private",
]

CHECKSUM = "sha256"  # name of the entry that holds the checksum of all other entries
_LONGEST_NAME = 40  # characters: with a suffix below 255 bytes in any script
# Errors of the disk, the network or the machine that say nothing about the file.
_TRANSIENT_ERRORS = {
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE),
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN),
}
_UNSAFE_NAME = re.compile(r"(|con|nul|aux|prn|com\d|lpt\d|.*-[0-9a-f]{12})")


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
    try:
        return rest if add_checksum(rest) == content else None
    except RecursionError:  # nested more deeply than anything we write
        return None


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
    """Replace a file of such lines atomically."""
    text = "".join(json.dumps(add_checksum(line)) + "\n" for line in lines)
    write_atomically(path, text.encode())


def read_lines(path: Path, *, older: bool = True) -> list[dict[str, Any]]:
    """Read such lines, without any that a crash cut short or a disk corrupted.

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


def safe_file_names(names: Sequence[str]) -> dict[str, str]:
    """Map foreign names to file names without suffix: safe, readable and unique.

    Letters and digits of any script stay. Where two names would become equal, or one unreadable,
    a digest of the name is added.
    """
    readable = {name: _readable(name) for name in names}
    counts = Counter(text.casefold() for text in readable.values())

    def make_unique(name: str) -> str:
        text = readable[name]
        # A name that looks as if it had a digest gets one, so that it cannot equal another's.
        if counts[text.casefold()] == 1 and not _UNSAFE_NAME.fullmatch(text.casefold()):
            return text
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{text or 'client'}-{digest}"

    return {name: make_unique(name) for name in names}


def _readable(name: str) -> str:
    letters = "".join(c if c.isalnum() else "-" for c in unicodedata.normalize("NFC", name))
    return re.sub("-+", "-", letters)[:_LONGEST_NAME].strip("-")

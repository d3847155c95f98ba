"""Decode every domain once, into a cache entry that is memory-mapped afterwards.

An entry is named by the content of the files it was made from, by image size and by draw. Reading
all files to compute that name would take seconds at every start, so the cache remembers it for
files of unchanged path, size and times (`images/seen/`).
"""

import hashlib
import json
import os
import re
from pathlib import Path

from filelock import FileLock

from fedwca._support.files import expand_path, file_digest, is_transient, write_atomically
from fedwca.data.cache_entry import EntryError, read_entry, size_and_times, write_entry
from fedwca.data.formats.read_errors import transient_read_error
from fedwca.data.types import DataRequest, Domain, RawDomain

__all__ = ["default_cache", "load_domain"]

_UNREADABLE = "unreadable"  # stands for the content of a file that cannot be read
_FORMAT = 3  # of entries; a new number makes all entries be built again


def default_cache() -> Path:
    """Return $FEDWCA_CACHE, or the user's cache folder."""
    if "FEDWCA_CACHE" in os.environ:
        return Path(os.environ["FEDWCA_CACHE"])
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(user_cache) / "fedwca"
    return expand_path("~/.cache/fedwca", "set FEDWCA_CACHE to a folder, or give --cache")


def load_domain(raw: RawDomain, request: DataRequest) -> Domain:
    """Return the decoded domain; decode it only if the cache does not hold it.

    Its images are a read-only memory map. A corrupt entry is rebuilt. A domain of which no image
    can be decoded is returned empty, and has no entry.
    """
    name, complete = _entry_name(raw, request)
    folder = request.cache / "images" / name
    try:
        return read_entry(folder, raw, verify=request.verify)
    except EntryError:
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        try:  # another process may have written it in the meantime
            return read_entry(folder, raw, verify=request.verify)
        except EntryError:
            return write_entry(folder, raw, request, complete)


def _entry_name(raw: RawDomain, request: DataRequest) -> tuple[str, bool]:
    """Return the entry's name, and whether all files could be read to compute it."""
    draw = (request.images_per_domain, request.seed) if request.images_per_domain else None
    rest = [_FORMAT, raw.key, request.image_size, draw]
    state = [[str(file.absolute()), *size_and_times(file)] for file in raw.files]
    seen = request.cache / "images" / "seen" / _hash([state, *rest])
    if seen.is_file():
        name = seen.read_text(encoding="utf-8", errors="replace")
        if re.fullmatch(r"[0-9a-f]{20}", name):  # otherwise the file is corrupt
            return name, True
    contents = [_content_digest(file) for file in raw.files]
    name = _hash([contents, *rest])
    # Unreadable files may be readable the next time, so they are not remembered.
    complete = _UNREADABLE not in contents
    if complete:
        seen.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(seen, name.encode())
    return name, complete


def _content_digest(file: Path) -> str:
    try:
        return file_digest(file)
    except OSError as error:
        if is_transient(error):
            raise transient_read_error(file, error) from error
        return _UNREADABLE  # decoding will report the file


def _hash(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]

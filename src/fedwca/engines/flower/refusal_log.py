"""Replies that were refused, by site."""

from collections import Counter
from pathlib import Path

from fedwca._support.files import append_line, read_lines, write_lines
from fedwca.engines.base import Refusals

__all__ = ["RefusalLog"]


class RefusalLog:
    """The refused replies of all sites: one line each, in a file that outlives the server.

    Args:
        path: the file; created with its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = read_lines(path, older=False)
        if path.is_file():  # a line that a crash cut short would corrupt the next one
            write_lines(path, lines)
        self._counts = Counter(line["site"] for line in lines if "refused" in line)
        self._new: dict[str, list[str]] = {}

    def add(self, site: str, round: int, reason: str) -> None:
        """Record a refused reply."""
        self._counts[site] += 1
        self._new.setdefault(site, []).append(reason)
        append_line(self._path, {"round": round, "site": site, "refused": reason})

    def count(self, site: str) -> int:
        """Return how many replies of the site were refused in this run."""
        return self._counts[site]

    def drain(self) -> Refusals:
        """Return the reasons by site since the last call."""
        new, self._new = self._new, {}
        return new

"""What a server must know of its sites even after it was started again."""

from collections import Counter
from pathlib import Path

from fedwca.files import append_line, read_lines, write_lines

__all__ = ["Ledger"]


class Ledger:
    """Which models sites have sent, and which of their answers were refused: a line each, on disk.

    A round that is done again after a crash may add the same once more; a model keeps the round
    that it was sent in first.

    Args:
        path: the file; made with its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._models: dict[str, dict[str, int]] = {}
        self._refusals: Counter[str] = Counter()
        lines = read_lines(path, older=False)
        if path.is_file():  # what a crash has cut short would spoil the line after it
            write_lines(path, lines)
        for line in lines:
            if "model" in line:
                self.models_of(line["site"]).setdefault(line["model"], line["round"])
            else:
                self._refusals[line["site"]] += 1

    def models_of(self, site: str) -> dict[str, int]:
        """The fingerprints of a site's models, and in which round each was sent first."""
        return self._models.setdefault(site, {})

    def refusals_of(self, site: str) -> int:
        """How many of a site's answers were not taken."""
        return self._refusals[site]

    def add_model(self, site: str, round: int, fingerprint: str) -> None:
        """A model was taken; one that is nobody's own has no fingerprint."""
        models = self.models_of(site)
        if fingerprint and fingerprint not in models:
            models[fingerprint] = round
            append_line(self._path, {"round": round, "site": site, "model": fingerprint})

    def add_refusal(self, site: str, round: int, reason: str) -> None:
        """An answer was not taken."""
        self._refusals[site] += 1
        append_line(self._path, {"round": round, "site": site, "refused": reason})

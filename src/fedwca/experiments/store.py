"""The run folder: settings, one JSON line a round, checkpoints, at last the result.

- config.json         the resolved settings, and digests of what else the run reads
- clients.json        who holds which images
- source.safetensors  the source model
- privacy.json        (ε, δ) of all rounds, where [privacy] adds noise
- results.jsonl       one line for each evaluated round
- checkpoint-N        a folder: server state, client memories, results after N rounds; the last two
- result.json         the final line, written when the run is done

Models, checkpoints and lines of results carry digests: what is damaged is noticed, and made anew.
"""

import re
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca.errors import UserError
from fedwca.experiments.checkpoint import (
    Checkpoint,
    lines_before,
    read_checkpoint,
    write_checkpoint,
)
from fedwca.files import (
    SEAL,
    append_line,
    read_json,
    read_lines,
    read_sealed,
    seal,
    write_json,
    write_lines,
)
from fedwca.leftovers import remove, sweep
from fedwca.models import read_seal
from fedwca.notes import Note, silent
from fedwca.run_content import DAMAGED, check_identity, damaged

__all__ = ["Checkpoint", "KEPT", "RunFolder", "SOURCE"]

Json = dict[str, Any]
SOURCE = "source.safetensors"


KEPT = 2  # checkpoints: should the newest be damaged, the one before it serves


class RunFolder:
    """One run on disk. Every file appears whole or not at all, but for the growing results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)

    @classmethod
    def open(cls, path: Path, settings: Json, identity: Json) -> "RunFolder":
        """Make the folder, or take up the one that is there if it is of the same experiment."""
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        if not (path / "config.json").exists():
            with folder:  # who is at work here removes what others leave half written
                folder.write_json("config.json", {"identity": identity, "settings": settings})
        config = folder.read_json("config.json")
        if config.get("identity") != identity:
            raise UserError(
                f"{path} holds a run of another configuration, or of data that have changed "
                "since: choose another --runs folder, or move this one away"
            )
        try:
            check_identity(config)
        except DAMAGED:
            raise damaged(path) from None
        return folder

    def __enter__(self) -> "RunFolder":
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"another process is at work on {self.path}: wait for it, or stop it first"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def done(self) -> bool:
        """Whether the run has come to its end."""
        return self._final() is not None

    def _final(self) -> Json | None:
        return read_sealed(self.path / "result.json", older=True)

    def read_json(self, name: str) -> Json:
        """A JSON file of the folder."""
        path = self.path / name
        try:
            content = read_json(path)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise UserError(f"{path} is damaged: move {self.path} away and run again")
        return content

    def write_json(self, name: str, content: Json) -> None:
        """Write a JSON file atomically."""
        write_json(self.path / name, content)

    # --- results --------------------------------------------------------------------------------

    def append(self, line: Json) -> None:
        """Add a line to the results."""
        append_line(self._results, line)

    def lines(self) -> list[Json]:
        """All whole lines of results, by round, wherever they are kept.

        The file has them all, unless it is damaged or lost; a checkpoint has those before it, and
        result.json has the last.
        """
        known = [
            line
            for path in self._checkpoints()
            for line in lines_before(path)
            if line["round"] < _rounds(path)
        ]
        known += read_lines(self._results, older=False)
        final = self._final()
        known += [final] if final and isinstance(final.get("round"), int) else []
        by_round = {line["round"]: line for line in known}
        return [by_round[number] for number in sorted(by_round)]

    def rewind(self, rounds: int) -> None:
        """Forget all that is later than a checkpoint: it will be made again from there."""
        write_lines(self._results, (line for line in self.lines() if line["round"] < rounds))
        for path in self._checkpoints():
            if path.is_file() or _rounds(path) > rounds:
                remove(path)

    @property
    def _results(self) -> Path:
        return self.path / "results.jsonl"

    # --- checkpoints ----------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep all that is needed to go on after so many rounds."""
        results = self._results.read_bytes() if self._results.exists() else b""
        path = self._checkpoint(checkpoint.rounds)
        write_checkpoint(path, checkpoint, self._digest(), results)
        for old in self._checkpoints()[:-KEPT]:
            remove(old)

    def load_checkpoint(self, every: int, note: Note = silent) -> Checkpoint | None:
        """The newest checkpoint that is whole and whose results before it are all there.

        Args:
            every: rounds between evaluations, of which each has left a line.
            note: told of every checkpoint that is left aside, and why.
        """
        for path in reversed(self._checkpoints()):
            try:
                found = read_checkpoint(path, self._digest())
            except ValueError as error:
                note(f"{path.name} {error} and is left aside")
                continue
            if {line["round"] for line in self.lines()} >= set(range(0, found.rounds, every)):
                return found
            note(f"{path.name} is left aside: lines before it in results.jsonl are damaged")
        return None

    def _checkpoint(self, rounds: int) -> Path:
        return self.path / f"checkpoint-{rounds:05d}"

    @property
    def scratch(self) -> Path:
        """Where the engine may keep what it needs only while it works."""
        return self.path / "scratch"

    def clean(self) -> None:
        """Remove what an interrupted process may have left behind."""
        remove(self.scratch)  # were it a link, to whatever: the link alone
        sweep(self.path, locked=True)

    def _digest(self) -> str:
        """What tells this run's checkpoints from those of another, or of another source model."""
        identity = self.read_json("config.json").get("identity")
        source = read_seal(self.path / SOURCE)
        return str(seal({"identity": identity, "source": source})[SEAL])

    def _checkpoints(self) -> list[Path]:
        return sorted(filter(_is_checkpoint, self.path.glob("*")), key=_rounds)


_NAME = re.compile(r"checkpoint-(\d+)(\.safetensors)?")  # the latter in older versions


def _is_checkpoint(path: Path) -> bool:
    return _NAME.fullmatch(path.name) is not None


def _rounds(path: Path) -> int:
    """After how many rounds a checkpoint was made, as its name says."""
    return int(path.name.removesuffix(".safetensors").removeprefix("checkpoint-"))

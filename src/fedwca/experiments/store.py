"""The run folder: settings, one JSON line a round, checkpoints, at last the result.

- config.json         the resolved settings, and digests of what else the run reads
- clients.json        who holds which images
- source.safetensors  the source model
- results.jsonl       one line for each evaluated round
- checkpoint-N        server state and client memories after N rounds; the last two
- result.json         the final line, written when the run is done
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from fedwca.engines.records import load_notes, load_records, save_records
from fedwca.errors import UserError
from fedwca.files import append_line, read_lines, write_atomically, write_json
from fedwca.methods.base import Record

__all__ = ["Checkpoint", "RunFolder"]

Json = dict[str, Any]


class Checkpoint(NamedTuple):
    """All that is needed to go on.

    Attributes:
        rounds: how many are done.
        state: the server's.
        memories: of the clients, by name; of those only who cannot keep theirs themselves.
        facts: what the next line of results will say of the last round.
    """

    rounds: int
    state: Record
    memories: dict[str, Record]
    facts: Json


_KEPT = 2  # should the newest be damaged, the one before it serves


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
        config = path / "config.json"
        if config.exists():
            stored = folder.read_json("config.json").get("identity")
            if stored != identity:
                raise UserError(
                    f"{path} holds a run of another configuration, or of data that have changed "
                    "since: choose another --runs folder, or move this one away"
                )
        else:
            folder.write_json("config.json", {"identity": identity, "settings": settings})
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
        return (self.path / "result.json").exists()

    def read_json(self, name: str) -> Json:
        """A JSON file of the folder."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
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
        append_line(self.path / "results.jsonl", line)

    def lines(self) -> list[Json]:
        """All whole lines of the results."""
        return read_lines(self.path / "results.jsonl")

    def rewind(self, rounds: int) -> None:
        """Forget results from a round on: they will be made again from its checkpoint."""
        kept = [line for line in self.lines() if line["round"] < rounds]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.path / "results.jsonl", text.encode())

    # --- checkpoints ----------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep all that is needed to go on after so many rounds."""
        memories = {f"memory/{name}": memory for name, memory in checkpoint.memories.items()}
        groups = {"state": checkpoint.state, **memories}
        save_records(self._checkpoint(checkpoint.rounds), groups, notes=checkpoint.facts)
        for old in self._rounds()[:-_KEPT]:
            self._checkpoint(old).unlink(missing_ok=True)

    def load_checkpoint(self, every: int) -> Checkpoint | None:
        """The newest checkpoint that can be read and whose results before it are all there.

        Args:
            every: rounds between evaluations, of which each has left a line.
        """
        found = {line["round"] for line in self.lines()}
        for rounds in reversed(self._rounds()):
            if not found.issuperset(range(0, rounds, every)):
                continue
            path = self._checkpoint(rounds)
            try:
                groups, facts = load_records(path), load_notes(path)
                state = groups.pop("state")
            except (ValueError, KeyError):
                continue
            memories = {name.removeprefix("memory/"): m for name, m in groups.items()}
            return Checkpoint(rounds, state, memories, facts)
        return None

    @property
    def scratch(self) -> Path:
        """Where the engine may keep what it needs only while it works."""
        return self.path / "scratch"

    def clean(self) -> None:
        """Remove what an interrupted process may have left behind."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for leftover in self.path.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    def _checkpoint(self, rounds: int) -> Path:
        return self.path / f"checkpoint-{rounds:05d}.safetensors"

    def _rounds(self) -> list[int]:
        names = [re.fullmatch(r"checkpoint-(\d+)", p.stem) for p in self.path.glob("*.safetensors")]
        return sorted(int(name[1]) for name in names if name)

"""The run folder: settings, one JSON line per evaluated round, checkpoints, the result.

- config.json         resolved settings, and digests of everything else that the run reads
- clients.json        the images of each client
- source.safetensors  the source model
- privacy.json        (ε, δ) of all rounds, if [privacy] adds noise
- results.jsonl       one line for each evaluated round
- checkpoint-N        a folder: server state, client memories, results after N rounds; the last two
- result.json         the last line, written when the run is finished

Models, checkpoints and lines of results carry checksums. A corrupt one is rebuilt.
"""

import logging
import re
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca._support.errors import UserError
from fedwca._support.files import (
    CHECKSUM,
    add_checksum,
    append_line,
    read_json,
    read_lines,
    read_verified,
    remove,
    remove_stale_files,
    write_json,
    write_lines,
)
from fedwca.engines.base import CHECKPOINT_COUNT
from fedwca.experiments.checkpoint import RESULTS, Checkpoint, read_checkpoint, write_checkpoint
from fedwca.models import read_checksum

__all__ = ["Checkpoint", "RunFolder", "SOURCE_FILE"]

logger = logging.getLogger(__name__)

Json = dict[str, Any]
SOURCE_FILE = "source.safetensors"
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


class RunFolder:
    """One run on disk. Every file but results.jsonl is written atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)
        self._results = path / RESULTS

    @classmethod
    def open(cls, path: Path, settings: Json, identity: Json) -> "RunFolder":
        """Open the folder of an experiment; create it if it is missing."""
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        if not (path / "config.json").exists():
            with folder:  # the process that holds the lock removes stale files
                folder.write_json("config.json", {"identity": identity, "settings": settings})
        if folder.read_json("config.json").get("identity") != identity:
            raise UserError(
                f"{path} holds a run with another configuration, or its data have changed since; "
                "choose another --runs folder or move this one away"
            )
        return folder

    def __enter__(self) -> "RunFolder":
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"another process is working on {self.path}; wait for it or stop it first"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return self._read_result() is not None

    def _read_result(self) -> Json | None:
        return read_verified(self.path / "result.json", older=True)

    def read_json(self, name: str) -> Json:
        """Read a JSON file of the folder."""
        path = self.path / name
        try:
            content = read_json(path)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise UserError(f"{path} is corrupt; move {self.path} away and rerun")
        return content

    def write_json(self, name: str, content: Json) -> None:
        """Write a JSON file of the folder atomically."""
        write_json(self.path / name, content)

    @property
    def scratch(self) -> Path:
        """A folder for what the engine needs only while it works."""
        return self.path / "scratch"

    def clean(self) -> None:
        """Remove files that an interrupted process has left."""
        remove(self.scratch)  # if it is a symbolic link, only the link
        remove_stale_files(self.path, locked=True)

    # --- results --------------------------------------------------------------------------------

    def append(self, line: Json) -> None:
        """Append a line to the results."""
        append_line(self._results, line)

    def lines(self) -> list[Json]:
        """Return all valid lines of results by round.

        results.jsonl has all of them unless it is corrupt or lost; a checkpoint has those before
        it, and result.json has the last.
        """
        files = [*(path / RESULTS for path in self._checkpoints()), self._results]
        lines = [line for file in files for line in read_lines(file, older=False)]
        result = self._read_result()
        lines += [result] if result and isinstance(result.get("round"), int) else []
        by_round = {line["round"]: line for line in lines}
        return [by_round[number] for number in sorted(by_round)]

    def rewind(self, rounds: int) -> None:
        """Remove lines and checkpoints after `rounds` rounds, which will run again."""
        write_lines(self._results, (line for line in self.lines() if line["round"] < rounds))
        for path in self._checkpoints():
            if _rounds_of(path) > rounds:
                remove(path)

    # --- checkpoints ----------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove all but the last two."""
        results = self._results.read_bytes() if self._results.exists() else b""
        path = self.path / f"checkpoint-{checkpoint.rounds:05d}"
        write_checkpoint(path, checkpoint, self._digest(), results)
        for old in self._checkpoints()[:-CHECKPOINT_COUNT]:
            remove(old)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest valid checkpoint."""
        for path in reversed(self._checkpoints()):
            try:
                return read_checkpoint(path, self._digest())
            except ValueError as error:
                logger.warning("Ignoring %s: %s.", path.name, error)
        return None

    def _digest(self) -> str:
        """Return a digest of the run's identity and source model."""
        identity = self.read_json("config.json").get("identity")
        source = read_checksum(self.path / SOURCE_FILE)
        return str(add_checksum({"identity": identity, "source": source})[CHECKSUM])

    def _checkpoints(self) -> list[Path]:
        paths = [path for path in self.path.glob("*") if _CHECKPOINT_NAME.fullmatch(path.name)]
        return sorted(paths, key=_rounds_of)


def _rounds_of(path: Path) -> int:
    """Return the number of rounds in a checkpoint's name."""
    return int(path.name.removeprefix("checkpoint-"))

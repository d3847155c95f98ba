"""What a site keeps of a run between the rounds."""

import re
from pathlib import Path

import safetensors.torch
from filelock import FileLock

from fedwca.deploy.releases import Releases
from fedwca.engines.records import load_records, save_records
from fedwca.engines.wire import Tensors, WireError, read_tensors
from fedwca.experiments.store import KEPT
from fedwca.files import write_atomically
from fedwca.leftovers import sweep
from fedwca.methods.base import Method, Record
from fedwca.notes import Note, silent

__all__ = ["SiteFolder"]

# The server may go back to the oldest of its checkpoints, from a round that was answered here.
_KEPT = KEPT + 1
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


class SiteFolder:
    """What a site keeps of a run; all of it carries digests, by which damage is noticed.

    - memory-N.safetensors  what it remembers after N rounds; the last three
    - shelf.safetensors     the tensors that it and the server both have
    - released.safetensors  with [privacy] on, the last two replies and how many there were
    - model.safetensors     the model to use, with all that is needed to use it
    - sum/, sums.json       see `SiteSums`
    """

    def __init__(self, home: Path, run: str, note: Note = silent) -> None:
        self._note = note
        if not _RUN.fullmatch(run):
            raise WireError(f"{run!r} is no name of a run")
        self.path = home / run
        self.path.mkdir(parents=True, exist_ok=True)

    def lock(self) -> FileLock:
        """One round at a time: a late one must not write into the next."""
        return FileLock(self.path / ".lock")

    def clean(self) -> None:
        """Remove what a process that was killed has left half written."""
        sweep(self.path, locked=True)

    def releases(self, method: Method) -> Releases:
        """What has left under [privacy]."""
        return Releases(self.path, method.rounds)

    def memory_before(self, round: int) -> Record:
        """What the site remembered when so many rounds were done.

        A round that is done again, because the server went back to a checkpoint, must start from
        what was there before its first time.
        """
        known = self._memories()
        for done in reversed(known):
            if done <= round:
                try:
                    return load_records(self._memory(done))[""]
                except (ValueError, KeyError) as error:
                    self._note(f"{error}; what was remembered before it serves")
        if known and round > 0:
            self._note(f"round {round}: what was remembered before it is gone; it begins anew")
        return Record()

    def keep_memory(self, round: int, memory: Record) -> None:
        """Remember for the rounds after this one; those that the server went back by are void."""
        save_records(self._memory(round + 1), {"": memory})
        known = self._memories()
        kept = [done for done in known if done <= round + 1][-_KEPT:]
        for done in set(known) - set(kept):
            self._memory(done).unlink(missing_ok=True)

    def shelf(self) -> Tensors:
        """Tensors by their hashes; none where the file is gone or damaged."""
        try:
            return read_tensors((self.path / "shelf.safetensors").read_bytes())
        except (OSError, WireError):
            return {}

    def keep_shelf(self, tensors: Tensors) -> None:
        """Keep what the server need not send again."""
        write_atomically(self.path / "shelf.safetensors", safetensors.torch.save(tensors))

    def _memory(self, done: int) -> Path:
        return self.path / f"memory-{done:05d}.safetensors"

    def _memories(self) -> list[int]:
        found = [re.fullmatch(r"memory-(\d+)", p.stem) for p in self.path.glob("*.safetensors")]
        return sorted(int(name[1]) for name in found if name)

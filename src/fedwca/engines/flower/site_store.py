"""What a site stores about a run between the rounds."""

import hashlib
import logging
import re
from pathlib import Path

import safetensors.torch
import torch
from filelock import FileLock

from fedwca._support.errors import UserError
from fedwca._support.files import remove_stale_files, write_atomically
from fedwca.engines.base import CHECKPOINT_COUNT
from fedwca.engines.codec import Tensors, WireError, load_records, read_tensors, save_records
from fedwca.engines.flower.messages import Request
from fedwca.methods.base import Record

__all__ = ["ReleasedReplies", "SiteStore"]

logger = logging.getLogger(__name__)

# The server may resume from its oldest checkpoint, from a round that the site has done.
_MEMORY_COUNT = CHECKPOINT_COUNT + 1
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_NEW_RUN = "start a new run with another run.seed"  # the same settings are the same run
_COUNT = "count"  # name of the record with the number of replies


class SiteStore:
    """A site's folder of a run; the files have checksums.

    - memory-N.safetensors  the method's memory after N rounds; the last three
    - tensors.safetensors   the tensors that site and server both have
    - released.safetensors  with [privacy] on: see `ReleasedReplies`
    - model.safetensors     the model that the site uses, described completely
    - sum/, sums.json       see `SiteSums`

    Args:
        home: the folder of all runs.
        run: name of the run, as the server sent it.
    """

    def __init__(self, home: Path, run: str) -> None:
        if not _RUN_NAME.fullmatch(run):
            raise WireError(f"{run!r} is not a valid name of a run")
        self.path = home / run
        self.path.mkdir(parents=True, exist_ok=True)

    def lock(self) -> FileLock:
        """Return the lock that keeps a late round from writing into the next one."""
        return FileLock(self.path / ".lock")

    def remove_stale_files(self) -> None:
        """Remove the temporary files of a killed process."""
        remove_stale_files(self.path, locked=True)

    def released_replies(self, rounds: int) -> "ReleasedReplies":
        """Return the replies sent under [privacy]."""
        return ReleasedReplies(self.path / "released.safetensors", rounds)

    def load_memory(self, round: int) -> Record:
        """Return the memory after so many rounds.

        A round that is repeated, because the server resumed from a checkpoint, must start from the
        memory that it first started from.
        """
        saved = self._saved_rounds()
        for done in reversed(saved):
            if done <= round:
                try:
                    return load_records(self._memory_path(done))[""]
                except (ValueError, KeyError) as error:
                    logger.warning("%s; using the memory before it", error)
        if saved and round > 0:
            logger.warning(
                "round %d: the memory before it is lost; starting with an empty one", round
            )
        return Record()

    def save_memory(self, round: int, memory: Record) -> None:
        """Save the memory after this round; delete later ones, from before a restart."""
        save_records(self._memory_path(round + 1), {"": memory})
        saved = self._saved_rounds()
        valid = [done for done in saved if done <= round + 1][-_MEMORY_COUNT:]
        for done in set(saved) - set(valid):
            self._memory_path(done).unlink(missing_ok=True)

    def load_tensors(self) -> Tensors:
        """Return the tensors that both ends have, by hash; none if the file is corrupt."""
        try:
            return read_tensors((self.path / "tensors.safetensors").read_bytes())
        except (OSError, WireError):
            return {}

    def save_tensors(self, tensors: Tensors) -> None:
        """Save the tensors that need not be sent again."""
        write_atomically(self.path / "tensors.safetensors", safetensors.torch.save(tensors))

    def _memory_path(self, done: int) -> Path:
        return self.path / f"memory-{done:05d}.safetensors"

    def _saved_rounds(self) -> list[int]:
        names = [re.fullmatch(r"memory-(\d+)", p.stem) for p in self.path.glob("*.safetensors")]
        return sorted(int(name[1]) for name in names if name)


class ReleasedReplies:
    """The last replies that a site sent under [privacy], and how many there were.

    A request that is repeated, after a crash or a lost reply, gets exactly the same reply: a new
    one would reveal more of the images. The log holds one reply per checkpoint of the server.

    Args:
        path: the file.
        max_count: the number of replies that the guarantee is for.
    """

    def __init__(self, path: Path, max_count: int) -> None:
        self._path, self._max_count = path, max_count

    def find(self, request: Request) -> Record | None:
        """Return the reply to exactly this request, if any; UserError if no more may be sent."""
        count, replies = self._load()
        if reply := replies.get(_digest(request)):
            return reply
        if count >= self._max_count:
            sentence = f"the site has sent the {self._max_count} replies that its privacy permits"
            raise UserError(f"{sentence}: {_NEW_RUN}", elsewhere=sentence)
        return None

    def add(self, request: Request, reply: Record) -> None:
        """Count a reply before it is sent."""
        if self.find(request) is None:
            count, replies = self._load()
            last = dict([*replies.items(), (_digest(request), reply)][-CHECKPOINT_COUNT:])
            counted = Record(values={"count": torch.tensor(count + 1)})
            save_records(self._path, {**last, _COUNT: counted})

    def _load(self) -> tuple[int, dict[str, Record]]:
        if not self._path.exists():
            return 0, {}
        try:
            records = load_records(self._path)
            return int(records.pop(_COUNT).values["count"]), records
        except (ValueError, KeyError):
            sentence = "the site's record of its replies under [privacy] is corrupt"
            raise UserError(f"{sentence}: {_NEW_RUN}", elsewhere=sentence) from None


def _digest(request: Request) -> str:
    """Return a hash of the request's round and tensors."""
    return hashlib.sha256(f"{request.round} {request.payload.places}".encode()).hexdigest()

"""What a site has let out of a run under [privacy]: never more answers than are accounted for."""

import hashlib
from pathlib import Path

import torch

from fedwca.engines.flower_messages import Request
from fedwca.engines.records import load_records, save_records
from fedwca.errors import UserError
from fedwca.experiments.store import KEPT
from fedwca.methods.base import Record

__all__ = ["Releases"]

_ANEW = "start a new run, with another run.seed"  # the same settings are the same run
_TOLD = "told"  # beside the replies, the record of how many there were


class Releases:
    """The last replies of a site, and how many there were.

    A question that comes again, after a crash or a lost answer, gets the very same reply: made
    anew, it would tell of the images once more. As many are kept as the server has checkpoints to
    go back to.

    Args:
        folder: what the site keeps of the run.
        most: as many replies as the guarantee is for.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._path, self._most = folder / "released.safetensors", most

    def said(self, request: Request) -> Record | None:
        """The reply to this very request, if it was of the last; UserError where none is left."""
        count, replies = self._kept()
        if reply := replies.get(_asked(request)):
            return reply
        if count >= self._most:
            sentence = f"it has given the {self._most} answers that its privacy allows for"
            raise UserError(f"{sentence}: {_ANEW}", elsewhere=sentence)
        return None

    def keep(self, request: Request, reply: Record) -> None:
        """Count a reply before it leaves."""
        if self.said(request) is None:
            count, replies = self._kept()
            last = dict([*replies.items(), (_asked(request), reply)][-KEPT:])
            told = Record(values={"count": torch.tensor(count + 1)})
            save_records(self._path, {**last, _TOLD: told})

    def _kept(self) -> tuple[int, dict[str, Record]]:
        """How many there were, and the last by what they answer."""
        if not self._path.exists():
            return 0, {}
        try:
            records = load_records(self._path)
            return int(records.pop(_TOLD).values["count"]), records
        except (ValueError, KeyError):
            sentence = "it no longer knows how much it has told under [privacy]"
            raise UserError(f"{sentence}: {_ANEW}", elsewhere=sentence) from None


def _asked(request: Request) -> str:
    """The round and, by their hashes, all tensors of the request."""
    return hashlib.sha256(f"{request.round} {request.parcel.places}".encode()).hexdigest()

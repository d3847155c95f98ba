"""What a site has let out of a run under [privacy]: never more answers than are accounted for."""

import hashlib
from pathlib import Path

import torch

from fedwca.engines.flower_messages import Request
from fedwca.engines.records import load_records, save_records
from fedwca.errors import UserError
from fedwca.methods.base import Record

__all__ = ["Releases"]


class Releases:
    """The last reply of a site, and how many there were.

    A question that comes again, after a crash or a lost answer, gets the very same reply: made
    anew, it would tell of the images once more.

    Args:
        folder: what the site keeps of the run.
        most: as many replies as the guarantee is for.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._path, self._most = folder / "released.safetensors", most

    def said(self, request: Request) -> Record | None:
        """The reply to this very request, if it was the last; UserError where none is left."""
        count, asked, reply = self._last()
        if asked == _asked(request):
            return reply
        if count >= self._most:
            sentence = f"it has given the {self._most} answers that its privacy allows for"
            raise UserError(f"{sentence}: start a new run", elsewhere=sentence)
        return None

    def keep(self, request: Request, reply: Record) -> None:
        """Count a reply before it leaves."""
        if self.said(request) is None:
            asked = torch.tensor(list(_asked(request)), dtype=torch.uint8)
            told = Record(values={"count": torch.tensor(self._last()[0] + 1), "asked": asked})
            save_records(self._path, {"reply": reply, "told": told})

    def _last(self) -> tuple[int, bytes, Record]:
        """How many there were, and the last with what it answers."""
        if not self._path.exists():
            return 0, b"", Record()
        try:
            records = load_records(self._path)
            told = records["told"].values
            return int(told["count"]), bytes(told["asked"].tolist()), records["reply"]
        except (ValueError, KeyError):
            sentence = "it no longer knows how much it has told under [privacy]"
            raise UserError(f"{sentence}: start a new run", elsewhere=sentence) from None


def _asked(request: Request) -> bytes:
    """The round and, by their hashes, all tensors of the request."""
    return hashlib.sha256(f"{request.round} {request.parcel.places}".encode()).digest()

"""A site's part of a secure sum: what it keeps between the steps, and what it never does twice.

Flower starts a process for each step, so secrets lie in files meanwhile, for the owner's eyes only.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.fixed_point import encoded
from fedwca.engines.records import load_records, save_records
from fedwca.engines.secure_sum import (
    Keys,
    Member,
    PublicKeys,
    Shares,
    SumError,
    mask,
    new_keys,
    share,
    unmask,
)
from fedwca.engines.withheld import as_bytes, as_tensor
from fedwca.files import read_sealed, seal, write_json, write_private
from fedwca.methods.base import Record

__all__ = ["SiteSums"]


class SiteSums:
    """What lies in a site's folder of a run for its sums.

    - sum/secret.json        keys and shares of the sum under way; gone with its last step
    - sum/local.safetensors  the model to be summed; gone once it was sent under masks
    - sums.json              with whom each round was summed, and a hash of what, for good

    From two sums of a round that is done again, over different sites or of different models, the
    server could take the difference: so a site takes part again only in the very same sum, and in
    none if it does not know over whom the first one was.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self._path, self._site = folder / "sum", site
        self._given = folder / "sums.json"

    def begin(self, round: int, local: State) -> PublicKeys:
        """Keep the model to be summed; the keys are for the other members."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir(mode=0o700)
        keys = new_keys()
        save_records(self._path / "local.safetensors", {"": Record({"local": local})})
        self._keep({"round": round, "next": "share", "keys": _texts(keys)})
        return keys.public()

    def take(self, step: str, round: int, letter: Record, least: int) -> Record:
        """Take a step, once, in its turn."""
        kept = self._kept()
        if (kept.get("round"), kept.get("next")) != (round, step):
            raise SumError(f"it is not at the step {step!r} of a sum of round {round}")
        if step == "share":
            return self._share(kept, letter.values)
        if step == "mask":
            return self._mask(kept, letter.values)
        return self._unmask(kept, letter.values, least)

    def _share(self, kept: dict[str, Any], values: Mapping[str, Tensor]) -> Record:
        keys = Keys(*map(_bytes, kept["keys"]))
        names = _after("mask/", values)
        if values.keys() != {f"{kind}/{name}" for kind in PublicKeys._fields for name in names}:
            raise SumError("the list of keys is not one")
        peers = {
            name: PublicKeys(*(as_bytes(values[f"{kind}/{name}"]) for kind in PublicKeys._fields))
            for name in names
        }
        member, sealed = share(self._site, keys, peers)
        given = self._promised().get(str(kept["round"]), {})
        if "vector" in given and "summed" not in given:
            raise SumError("it has sent its model to a sum of which it does not know the end")
        self._promise(kept["round"], "members", sorted(names))
        self._keep({"round": kept["round"], "next": "mask", "member": _written(member)})
        return Record({}, {peer: as_tensor(box) for peer, box in sealed.items()})

    def _mask(self, kept: dict[str, Any], values: Mapping[str, Tensor]) -> Record:
        counts = [values[name] for name in ("weight", "total") if name in values]
        if len(counts) < 2 or any(count.numel() != 1 for count in counts):
            raise SumError("it is not told how often it counts")
        vector = encoded(self._local(), *map(int, counts))
        boxes = {name: as_bytes(values[f"box/{name}"]) for name in _after("box/", values)}
        member, masked = mask(_read(kept["member"]), boxes, vector)
        self._promise(kept["round"], "vector", hashlib.sha256(vector.data).hexdigest())
        self._keep({"round": kept["round"], "next": "unmask", "member": _written(member)})
        (self._path / "local.safetensors").unlink()
        return Record({}, {"masked": torch.from_numpy(masked.view(np.int64))})

    def _unmask(self, kept: dict[str, Any], values: Mapping[str, Tensor], least: int) -> Record:
        survivors = _after("summed/", values)
        shares = unmask(_read(kept["member"]), survivors, least)
        self._promise(kept["round"], "summed", sorted(survivors))
        shutil.rmtree(self._path)
        return Record({}, {name: as_tensor(content) for name, content in shares.items()})

    def _promise(self, round: int, what: str, told: list[str] | str) -> None:
        """Refuse another sum of the round than the one that was taken part in."""
        given = self._promised()
        if given.setdefault(str(round), {}).setdefault(what, told) != told:
            other = "another model or count" if what == "vector" else "other sites"
            raise SumError(f"it has taken part in a sum of round {round} with {other} already")
        write_json(self._given, seal(given))

    def _promised(self) -> dict[str, dict[str, list[str] | str]]:
        given = read_sealed(self._given) if self._given.exists() else {}
        if given is None:
            raise SumError(
                "it no longer knows with whom it was summed: start a new run, with another run.seed"
            )
        return given

    def _local(self) -> State:
        try:
            return load_records(self._path / "local.safetensors")[""].models["local"]
        except (ValueError, KeyError):
            raise SumError("the model that it kept to be summed is damaged") from None

    def _kept(self) -> dict[str, Any]:
        return read_sealed(self._path / "secret.json") or {}

    def _keep(self, content: dict[str, Any]) -> None:
        write_private(self._path / "secret.json", json.dumps(seal(content)).encode())


def _after(prefix: str, values: Mapping[str, Tensor]) -> list[str]:
    return [name.removeprefix(prefix) for name in values if name.startswith(prefix)]


def _texts(parts: Collection[bytes]) -> list[str]:
    return [base64.b64encode(part).decode() for part in parts]


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _written(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "secrets": _texts([*member.keys, member.seed]),
        "peers": {name: _texts(public) for name, public in member.peers.items()},
        "held": {name: _texts(shares) for name, shares in member.held.items()},
    }


def _read(written: dict[str, Any]) -> Member:
    first, second, seed = map(_bytes, written["secrets"])
    peers = {name: PublicKeys(*map(_bytes, texts)) for name, texts in written["peers"].items()}
    held = {name: Shares(*map(_bytes, texts)) for name, texts in written["held"].items()}
    return Member(written["name"], Keys(first, second), seed, peers, held)

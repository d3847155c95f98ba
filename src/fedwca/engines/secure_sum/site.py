"""A site's part of secure sums: what it stores between the steps, and never does twice.

Flower starts a process for each step, so between steps the secrets are in files that only their
owner can read.
"""

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwca._support.files import add_checksum, read_verified, write_json, write_private
from fedwca.core.params import Weights
from fedwca.engines.codec import load_records, save_records
from fedwca.engines.secure_sum.fixed_point import encode
from fedwca.engines.secure_sum.masked_reply import bytes_to_tensor, tensor_to_bytes
from fedwca.engines.secure_sum.protocol import (
    Member,
    PrivateKeys,
    PublicKeys,
    Shares,
    SumError,
    mask_vector,
    new_keys,
    reveal_shares,
    share_secrets,
)
from fedwca.methods.base import Record

__all__ = ["SiteSums"]


class SiteSums:
    """The secure sums of a run, in the site's folder of the run.

    - sum/secret.json        keys and shares of the current sum; deleted with its last step
    - sum/local.safetensors  the model to be summed; deleted once it is sent, masked
    - sums.json              for each round, the sites of the sum and a hash of the model

    From two sums of a repeated round, over different sites or of different models, the server could
    compute the difference. So a site takes part again only in exactly the same sum, and in none if
    it does not know which sites the first one included.

    Args:
        folder: the site's folder of the run.
        site: its name.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self._folder, self._site = folder / "sum", site
        self._history_path = folder / "sums.json"

    def begin(self, round: int, local: Weights) -> PublicKeys:
        """Store the model to be summed, and return the keys for the other members."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        keys = new_keys()
        save_records(self._folder / "local.safetensors", {"": Record({"local": local})})
        self._save_state({"round": round, "next": "share", "keys": _to_hex(keys)})
        return keys.public()

    def run_step(self, step: str, round: int, message: Record, min_summed: int) -> Record:
        """Do a step, once and in order, and return the reply."""
        state = self._load_state()
        if (state.get("round"), state.get("next")) != (round, step):
            raise SumError(f"the site is not at the step {step!r} of a sum of round {round}")
        if step == "share":
            return self._share(state, message.values)
        if step == "mask":
            return self._mask(state, message.values)
        return self._unmask(state, message.values, min_summed)

    def _share(self, state: dict[str, Any], values: Mapping[str, Tensor]) -> Record:
        keys = PrivateKeys(*map(bytes.fromhex, state["keys"]))
        names = _names_after("mask/", values)
        if values.keys() != {f"{kind}/{name}" for kind in PublicKeys._fields for name in names}:
            raise SumError("the list of keys is not valid")
        peers = {
            name: PublicKeys(
                *(tensor_to_bytes(values[f"{kind}/{name}"]) for kind in PublicKeys._fields)
            )
            for name in names
        }
        member, boxes = share_secrets(self._site, keys, peers)
        before = self._history().get(str(state["round"]), {})
        if "vector" in before and "summed" not in before:
            raise SumError("the site sent its model to a sum whose outcome it does not know")
        self._commit(state["round"], "members", sorted(names))
        self._save_state(
            {"round": state["round"], "next": "mask", "member": _member_to_json(member)}
        )
        return Record({}, {peer: bytes_to_tensor(box) for peer, box in boxes.items()})

    def _mask(self, state: dict[str, Any], values: Mapping[str, Tensor]) -> Record:
        counts = [values[name] for name in ("weight", "total") if name in values]
        if len(counts) < 2 or any(count.numel() != 1 for count in counts):
            raise SumError("the message does not say how often the site counts")
        local = load_records(self._folder / "local.safetensors")[""].models["local"]
        vector = encode(local, *map(int, counts))
        boxes = {n: tensor_to_bytes(values[f"box/{n}"]) for n in _names_after("box/", values)}
        member, masked = mask_vector(_member_from_json(state["member"]), boxes, vector)
        self._commit(state["round"], "vector", hashlib.sha256(vector.data).hexdigest())
        self._save_state(
            {"round": state["round"], "next": "unmask", "member": _member_to_json(member)}
        )
        (self._folder / "local.safetensors").unlink()
        return Record({}, {"masked": torch.from_numpy(masked.view(np.int64))})

    def _unmask(
        self, state: dict[str, Any], values: Mapping[str, Tensor], min_summed: int
    ) -> Record:
        summed = _names_after("summed/", values)
        shares = reveal_shares(_member_from_json(state["member"]), summed, min_summed)
        self._commit(state["round"], "summed", sorted(summed))
        shutil.rmtree(self._folder)
        return Record({}, {name: bytes_to_tensor(content) for name, content in shares.items()})

    def _commit(self, round: int, what: str, value: list[str] | str) -> None:
        """Record a part of the round's sum; SumError if it was another one before."""
        history = self._history()
        if history.setdefault(str(round), {}).setdefault(what, value) != value:
            other = "another model or count" if what == "vector" else "other sites"
            raise SumError(f"the site already took part in a sum of round {round} with {other}")
        write_json(self._history_path, add_checksum(history))

    def _history(self) -> dict[str, dict[str, list[str] | str]]:
        history = read_verified(self._history_path) if self._history_path.exists() else {}
        if history is None:
            raise SumError(
                "the record of earlier sums is corrupt: start a new run with another run.seed"
            )
        return history

    def _load_state(self) -> dict[str, Any]:
        return read_verified(self._folder / "secret.json") or {}

    def _save_state(self, state: dict[str, Any]) -> None:
        write_private(self._folder / "secret.json", json.dumps(add_checksum(state)).encode())


def _names_after(prefix: str, values: Mapping[str, Tensor]) -> list[str]:
    return [name.removeprefix(prefix) for name in values if name.startswith(prefix)]


def _to_hex(parts: Collection[bytes]) -> list[str]:
    return [part.hex() for part in parts]


def _member_to_json(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "secrets": _to_hex([*member.keys, member.seed]),
        "peers": {name: _to_hex(public) for name, public in member.peers.items()},
        "shares": {name: _to_hex(shares) for name, shares in member.shares.items()},
    }


def _member_from_json(member: dict[str, Any]) -> Member:
    first, second, seed = map(bytes.fromhex, member["secrets"])
    peers = {name: PublicKeys(*map(bytes.fromhex, t)) for name, t in member["peers"].items()}
    shares = {name: Shares(*map(bytes.fromhex, t)) for name, t in member["shares"].items()}
    return Member(member["name"], PrivateKeys(first, second), seed, peers, shares)

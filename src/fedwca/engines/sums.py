"""The server's way to the mean of every group's models, of which it sees none."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from fedwca.core.params import State
from fedwca.engines.fixed_point import decoded, length
from fedwca.engines.plausible import check_magnitude
from fedwca.engines.secure_sum import PublicKeys, SumError, Vector, reveal
from fedwca.engines.wire import WireError, check_state
from fedwca.engines.withheld import as_bytes, as_tensor
from fedwca.methods.base import Client, Pooled, Record
from fedwca.notes import Note

__all__ = ["Ask", "Group", "Step", "Take", "means_of"]

Step = Literal["share", "mask", "unmask"]
Take = Callable[[str, Record], None]  # WireError for what cannot be right
# Sends sites a step of the sum, and has taken what those answer who do, in time and well-formed:
# values of these names.
Ask = Callable[[Step, Mapping[str, Record], Callable[[str], Collection[str]], Take], None]


@dataclass
class Group:
    """Clients that are summed together, and how far they have come.

    What comes masked is added up at once: one vector is kept, however many come.
    """

    weights: dict[str, int]
    peers: dict[str, PublicKeys]
    boxes: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by sender, then receiver
    masked: list[str] = field(default_factory=list)  # whose vectors are in the sum
    sum: Vector = field(default_factory=lambda: np.zeros(1, dtype=np.uint64))
    revealed: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How often all members count together."""
        return sum(self.weights.values())


def means_of(
    pooled: Mapping[Client, Pooled],
    keys: Mapping[str, PublicKeys],
    template: State,
    least: int,
    ask: Ask,
    note: Note,
) -> dict[str, State]:
    """The mean of its group for each client that is in it; none where too few came through."""
    groups = _groups(pooled, keys)
    for group in list(groups):
        if len(group.peers) < least:
            note(f"no sum over {_listed(group.peers)}: deploy.least_summed = {least}")
            groups.remove(group)
    _share(groups, ask)
    _mask(groups, ask, length(template))
    _unmask(groups, ask, least)
    means: dict[str, State] = {}
    for group in groups:
        try:
            mean = _mean(group, template)
        except (SumError, WireError) as error:
            note(f"no sum over {_listed(group.peers)}: {error}")
            continue
        if gone := sorted(group.peers.keys() - set(group.masked)):
            note(f"the sum over {_listed(group.peers)} lacks {_listed(gone)}")
        means.update(dict.fromkeys(group.masked, mean))
    return means


def _mean(group: Group, template: State) -> State:
    """Who spoilt a sum cannot be seen, but that it was: no mean of honest models is like that."""
    total = reveal(group.sum, group.masked, group.boxes, group.peers, group.revealed)
    summed = sum(group.weights[name] for name in group.masked)
    mean = decoded(total, summed, group.total, template)
    check_state("mean", mean, template)
    check_magnitude(Record({"mean": mean}), template)
    return mean


def _groups(pooled: Mapping[Client, Pooled], keys: Mapping[str, PublicKeys]) -> list[Group]:
    groups: dict[int, Group] = {}
    for client, (number, weight) in pooled.items():
        group = groups.setdefault(number, Group({}, {}))
        group.weights[client.name] = weight
        group.peers[client.name] = keys[client.name]
    return list(groups.values())


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)


def _share(groups: list[Group], ask: Ask) -> None:
    """Everybody gets everybody's keys, and seals shares of its secrets for each of the others."""
    home = {name: group for group in groups for name in group.peers}
    letters = {}
    for name, group in home.items():
        values = {
            f"{kind}/{peer}": as_tensor(key)
            for peer, public in group.peers.items()
            for kind, key in public._asdict().items()
        }
        letters[name] = Record({}, values)

    def others(name: str) -> list[str]:
        return [peer for peer in home[name].peers if peer != name]

    def take(name: str, reply: Record) -> None:
        boxes = {peer: as_bytes(box) for peer, box in reply.values.items()}
        if not all(boxes.values()):
            raise WireError("it has nothing for another site of the sum")
        home[name].boxes[name] = boxes

    ask("share", letters, others, take)


def _mask(groups: list[Group], ask: Ask, size: int) -> None:
    """Whoever has shared gets the others' shares, and sends its weights under masks."""
    home = {name: group for group in groups for name in group.boxes}
    letters = {}
    for name, group in home.items():
        boxes = {f"box/{p}": as_tensor(box[name]) for p, box in group.boxes.items() if p != name}
        counts = {"weight": group.weights[name], "total": group.total}
        numbers = {kind: torch.tensor(count) for kind, count in counts.items()}
        letters[name] = Record({}, {**boxes, **numbers})

    def take(name: str, reply: Record) -> None:
        vector = reply.values["masked"]
        if vector.dtype != torch.int64 or vector.shape != (size,):
            raise WireError("what it sends under masks is no vector of the model's length")
        home[name].sum = home[name].sum + vector.numpy().view(np.uint64)
        home[name].masked.append(name)

    ask("mask", letters, lambda _: ["masked"], take)


def _unmask(groups: list[Group], ask: Ask, least: int) -> None:
    """Whoever is summed helps to take the masks off the sum."""
    home = {n: group for group in groups if len(group.masked) >= least for n in group.masked}
    letters = {
        name: Record({}, {f"summed/{peer}": torch.tensor(1) for peer in group.masked})
        for name, group in home.items()
    }

    def take(name: str, reply: Record) -> None:
        shares = {peer: as_bytes(share) for peer, share in reply.values.items()}
        home[name].revealed[name] = shares

    ask("unmask", letters, lambda name: home[name].boxes, take)

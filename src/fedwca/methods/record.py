"""What travels between server and clients, and what both store: records of named tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedwca.core.params import Weights

__all__ = [
    "Adaptation",
    "COUNT",
    "Client",
    "Health",
    "MODEL",
    "Model",
    "Numbers",
    "Record",
    "SAMPLES",
    "Schema",
    "by_client",
    "collect_values",
    "log_by_client",
    "round_of",
    "shares",
]

Health = dict[str, float | list[float]]
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """Named models and small tensors: a message, a reply, a server state, a client's memory.

    Attributes:
        models: weights of feature extractors f, buffers included; the classifier never travels.
        values: small tensors: weights α and β, counts, the round.
    """

    models: Mapping[str, Weights] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Return the size of all tensors, which is what a message costs on the wire."""
        tensors = [t for state in self.models.values() for t in state.values()]
        return sum(t.numel() * t.element_size() for t in (*tensors, *self.values.values()))


class Client(NamedTuple):
    """A client by its name. `domain` is known in simulations only, and empty elsewhere."""

    name: str
    domain: str = ""


class Adaptation(NamedTuple):
    """The result of `Method.adapt`.

    Attributes:
        reply: goes to the server.
        memory: stays at the client until its next round.
        health: label-free numbers for the log (losses, matched share, α, β).
    """

    reply: Record
    memory: Record
    health: Health


@dataclass(frozen=True)
class Model:
    """Declares the weights of a feature extractor."""


@dataclass(frozen=True)
class Numbers:
    """Declares a value.

    Attributes:
        dtype: its type.
        sides: its shape; each side a number, or M for the number of classes, q for that of
            features, S for that of a style. Any other letter stands for any size.
        min, max: bounds of every number, both included.
        total: the sum of all numbers.
    """

    dtype: torch.dtype
    sides: tuple[int | str, ...] = ()
    min: float = -math.inf
    max: float = math.inf
    total: float | None = None


def shares(count: int) -> Numbers:
    """Declare the weights of a blend, such as α and β: not negative, with sum 1."""
    return Numbers(torch.float64, (count,), min=0, max=1, total=1)


Schema = Mapping[str, Model | Numbers]  # what a message or reply holds, by name
MODEL = Model()
COUNT = Numbers(torch.int64, min=0)
SAMPLES = Numbers(torch.int64, min=1, max=2**40)


def round_of(record: Record) -> int:
    """Return the communication round of a state or message."""
    return int(record.values["round"])


def by_client(named: Mapping[str, T], kind: str) -> dict[str, T]:
    """Return the models or values named "KIND/CLIENT", by client."""
    prefix = f"{kind}/"
    return {name.removeprefix(prefix): named[name] for name in named if name.startswith(prefix)}


def log_by_client(state: Record, *kinds: str) -> Health:
    """Return the values named "KIND/CLIENT" as plain numbers, for `Method.describe`."""
    prefixes = tuple(f"{kind}/" for kind in kinds)
    return {name: v.tolist() for name, v in state.values.items() if name.startswith(prefixes)}


def collect_values(replies: Mapping[Client, Record], *kinds: str) -> dict[str, Tensor]:
    """Return the values of these names in the replies that have them, named "KIND/CLIENT"."""
    return {
        f"{kind}/{client.name}": reply.values[kind]
        for client, reply in replies.items()
        for kind in kinds
        if kind in reply.values
    }

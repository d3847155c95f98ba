"""The contract: both halves of a federated method in one class.

A method is a frozen dataclass of documented hyper-parameters with six hooks. The server calls
`init`, `send`, `aggregate` and `offered`; the client calls `adapt` and `personal`. `sends` and
`replies` declare what travels between them. State goes in
and comes out, randomness is an argument, and nothing but a `Record` travels or is kept.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.data.images import UnlabeledImages
from fedwca.methods.training import Training
from fedwca.models import DomainModel

__all__ = [
    "Adapted",
    "Client",
    "COUNT",
    "Declared",
    "Health",
    "MODEL",
    "Method",
    "Model",
    "Numbers",
    "Pooled",
    "Record",
    "SAMPLES",
    "round_of",
    "shares",
]

Health = dict[str, float | list[float]]


@dataclass(frozen=True)
class Record:
    """Named models and small named numbers: a message, a reply, a server state, a memory.

    Attributes:
        models: weights of feature extractors f, buffers included; the classifier never travels.
        values: small tensors: weights α and β, counts, the round.
    """

    models: Mapping[str, State] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Size of all tensors: what a message costs on the wire."""
        tensors = [t for state in self.models.values() for t in state.values()]
        return sum(t.numel() * t.element_size() for t in (*tensors, *self.values.values()))


@dataclass(frozen=True)
class Model:
    """Declares weights of a feature extractor."""


@dataclass(frozen=True)
class Numbers:
    """Declares a value.

    Attributes:
        dtype: its type.
        sides: each a number or a letter: M the number of classes, q that of features, S that of
            a style; any other letter may be any size.
        least, most: bounds of every number, both included.
        total: what they sum to.
    """

    dtype: torch.dtype
    sides: tuple[int | str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    total: float | None = None


def shares(count: int) -> Numbers:
    """Declares weights of a blend, such as α and β: none negative, and 1 together."""
    return Numbers(torch.float64, (count,), least=0, most=1, total=1)


Declared = Mapping[str, Model | Numbers]
MODEL = Model()
COUNT = Numbers(torch.int64, least=0)
SAMPLES = Numbers(torch.int64, least=1, most=2**40)


class Client(NamedTuple):
    """Who a client is. `domain` is known in simulations only, and empty elsewhere."""

    name: str
    domain: str = ""


class Pooled(NamedTuple):
    """Of which group a client's model is averaged, and how often it counts there."""

    group: int
    weight: int


class Adapted(NamedTuple):
    """What `adapt` gives back.

    Attributes:
        reply: goes to the server.
        memory: stays at the client until its next round.
        health: label-free numbers for the log (losses, matched share, α, β).
    """

    reply: Record
    memory: Record
    health: Health


@dataclass(frozen=True)
class Method(ABC):
    """What every method of the registry is.

    Attributes:
        training: how clients train.
    """

    training: Training = field(default_factory=Training)

    # What a message may hold; "soft/*" admits any number of them. Nothing else is let through
    # between machines.
    sends: ClassVar[Declared]

    # Settings of [training] that the method is made for; a user's own stand above them.
    training_defaults: ClassVar[Mapping[str, object]] = {}

    @property
    def rounds(self) -> int:
        """How many communication rounds the method takes part in."""
        return self.training.rounds

    @abstractmethod
    def init(self, source: State) -> Record:
        """Server: the first state, from the source model's feature extractor."""

    @abstractmethod
    def send(self, state: Record, client: Client) -> Record:
        """Server: the message to a client."""

    @abstractmethod
    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        """Client: adapt on unlabeled images; `model` holds the frozen classifier."""

    @abstractmethod
    def replies(self, message: Record) -> Declared:
        """Both: what the reply to a message holds, no more and no less."""

    def reference(self, message: Record) -> State:
        """Both: the model of the message that the reply's is an update of; the first, as a rule."""
        return next(iter(message.models.values()))

    def discloses(self) -> dict[str, str]:
        """What replies tell of the images besides weights, with the setting that avoids it.

        "" where none does. With [privacy] on, such a method is refused.
        """
        return {}

    @abstractmethod
    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        """Server: the next state, from whichever replies came.

        A reply's models may lie in files that are gone after this round: each is read when it is
        asked for, so ask for it once, and keep what was read, not the reply.
        """

    @abstractmethod
    def offered(self, state: Record, client: Client) -> State:
        """Server: the weights that it has for the client to use."""

    def personal(self, offered: State, memory: Record) -> State:
        """Client: the weights that it uses, from those offered and what it remembers."""
        return offered

    def deployed(self, state: Record, client: Client, memory: Record) -> State:
        """The weights that the client uses, where state and memory are both at hand."""
        return self.personal(self.offered(state, client), memory)

    def placed(self, state: Record, client: Client, reply: Record) -> Record:
        """Server: the state that knows a newcomer by its first reply, its models as they were.

        The same state, where the server has nothing to know of a client.
        """
        return state

    def in_clear(self, message: Record, weights: State) -> list[str] | None:
        """Both: which of the reply's `weights` the server must see of each client.

        Of the others it needs the mean of each group alone (see `pooled`), so that they can be
        summed under masks. None: it needs every client's model, or it was never thought about.
        """
        return None

    def pooled(self, state: Record, replies: Mapping[Client, Record]) -> dict[Client, Pooled]:
        """Server: whose models are averaged together, by what it sees in clear.

        `aggregate` then gets the replies of those that were summed, with the mean of the group as
        everyone's model and the group's number as the value "group".
        """
        raise NotImplementedError

    def describe(self, state: Record) -> Health:
        """Server: what the log should say of the state, such as each client's cluster."""
        return {}


def round_of(record: Record) -> int:
    """The communication round that a state or message belongs to."""
    return int(record.values["round"])

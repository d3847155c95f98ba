"""The engine contract: one exchange of messages and replies with the clients per round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from fedwca.core.params import Weights
from fedwca.methods.base import Adaptation, Client, Record

__all__ = [
    "CHECKPOINT_COUNT",
    "ClientResult",
    "Engine",
    "Evaluation",
    "Exchange",
    "Job",
    "Refusals",
    "merge_refusals",
]

CHECKPOINT_COUNT = 2  # checkpoints of a run on disk; if the newest is corrupt, the other is used

Refusals = Mapping[str, list[str]]  # by client: why its replies were refused


def merge_refusals(first: Refusals, second: Refusals) -> Refusals:
    """Return the refusals of both, those of `first` before those of `second`."""
    return {name: [*first.get(name, ()), *second.get(name, ())] for name in {**first, **second}}


class Job(NamedTuple):
    """What one client does in an exchange: evaluate the model it uses now, then adapt.

    Attributes:
        message: the method's message; None after the last round, when nobody adapts.
        offered: the weights to evaluate, as the server knows them; None without an evaluation.
        memory: what the client remembers; empty if it stores its memory itself.
    """

    message: Record | None
    offered: Weights | None
    memory: Record


@dataclass(frozen=True)
class Evaluation:
    """How the model that a client uses performs on the client's images.

    Attributes:
        correct: correctly classified test images.
        total: labeled test images; 0 if there are none.
        confidence: mean of the largest class probability; needs no labels.
    """

    correct: int
    total: int
    confidence: float


class ClientResult(NamedTuple):
    """The outcome of a job; None for what the job did not request."""

    adapted: Adaptation | None
    evaluation: Evaluation | None


class Exchange(NamedTuple):
    """The outcome of an exchange.

    Attributes:
        results: of the clients that replied, in the order of the jobs.
        bytes_down: size of all messages.
        bytes_up: size of all replies.
        refused: replies that were refused.
    """

    results: dict[Client, ClientResult]
    bytes_down: int
    bytes_up: int
    refused: Refusals = MappingProxyType({})


class Engine(Protocol):
    """Reaches the clients, wherever they are."""

    def clients(self) -> list[Client]:
        """Return the clients that can be reached now, in a stable order."""
        ...

    def exchange(self, round: int, state: Record, jobs: Iterable[tuple[Client, Job]]) -> Exchange:
        """Let every client do its job and gather the results.

        Args:
            round: number of completed rounds.
            state: the server's state of the method, opaque to the engine.
            jobs: created one by one as the engine iterates. A message may hold a model for one
                client only, so an engine must not keep all jobs in memory.
        """
        ...

    def close(self) -> None:
        """Stop processes and close connections."""
        ...

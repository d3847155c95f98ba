"""What an engine does: one exchange with every client a round, wherever the clients are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from fedwca.core.params import State
from fedwca.methods.base import Adapted, Client, Pooled, Record

__all__ = [
    "Answer",
    "Engine",
    "Evaluation",
    "Exchanged",
    "Job",
    "Refused",
    "Summed",
    "Sums",
    "joined",
]

Refused = Mapping[str, list[str]]  # by client, why answers were not taken


def joined(one: Refused, other: Refused) -> Refused:
    """Both, the first one's reasons first."""
    return {site: [*one.get(site, ()), *other.get(site, ())] for site in {**one, **other}}


class Job(NamedTuple):
    """One client's part of an exchange: first score what it uses now, then adapt.

    Attributes:
        message: what to adapt with; None once all rounds are done.
        offered: the server's weights for it to use and score; None where no evaluation is due.
        memory: what the client remembers; empty where it keeps that itself.
    """

    message: Record | None
    offered: State | None
    memory: Record


@dataclass(frozen=True)
class Evaluation:
    """How a deployed model does at a client.

    Attributes:
        correct, total: on labeled test images; total is 0 where there are none.
        confidence: mean of the largest probability, which needs no labels.
    """

    correct: int
    total: int
    confidence: float


class Answer(NamedTuple):
    """What a job gave; None for what it did not ask for."""

    adapted: Adapted | None
    evaluation: Evaluation | None


class Summed(NamedTuple):
    """The mean of its group for each client that is in it; what that cost; who was refused."""

    means: dict[Client, State]
    bytes_down: int
    bytes_up: int
    refused: Refused = MappingProxyType({})


Sums = Callable[[Mapping[Client, Pooled]], Summed]


class Exchanged(NamedTuple):
    """What came of an exchange.

    Attributes:
        answers: of those who gave one, in the order of the jobs.
        bytes_down, bytes_up: what they cost.
        refused: whose answers were not taken.
        sums: where clients keep their models to themselves, gets the means of groups of them.
    """

    answers: dict[Client, Answer]
    bytes_down: int
    bytes_up: int
    refused: Refused = MappingProxyType({})
    sums: Sums | None = None


class Engine(Protocol):
    """The one verb; the runner knows nothing else of how clients are reached."""

    def clients(self) -> list[Client]:
        """Who can be reached now; the same ones in the same order unless they come and go."""
        ...

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """Let the clients do their jobs."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...

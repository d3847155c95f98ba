"""What an engine does: carry messages to `adapt` and bring the replies back; evaluate weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedwca.core.params import State
from fedwca.methods.base import Adapted, Client, Record

__all__ = ["Deployed", "Engine", "Evaluation", "Job"]


class Job(NamedTuple):
    """One client's work in a round."""

    message: Record
    memory: Record


class Deployed(NamedTuple):
    """The weights that a client uses, with what it remembers."""

    weights: State
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


class Engine(Protocol):
    """The two verbs; the runner knows nothing else of how clients are reached."""

    clients: list[Client]

    def adapt(self, round: int, jobs: Mapping[Client, Job]) -> dict[Client, Adapted]:
        """Let the clients adapt; the answers of those who gave one, in the order of `jobs`."""
        ...

    def evaluate(self, models: Mapping[Client, Deployed]) -> dict[Client, Evaluation]:
        """Score deployed models."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...

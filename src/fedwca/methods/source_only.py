"""Source only: every client uses the source model as it is. No round, no message."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fedwca.core.params import State
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Adapted, Client, Health, Record
from fedwca.methods.training import Training
from fedwca.models import DomainModel

__all__ = ["SourceOnly"]


@dataclass(frozen=True)
class SourceOnly:
    """The lower bound. With `batch_norm = "recalibrate"`, adaptation without any training."""

    training: Training = field(default_factory=Training)

    sends: ClassVar[frozenset[str]] = frozenset()
    replies: ClassVar[frozenset[str]] = frozenset()

    @property
    def rounds(self) -> int:
        """Nothing is ever communicated."""
        return 0

    def init(self, source: State) -> Record:
        return Record(models={"source": source})

    def send(self, state: Record, client: Client) -> Record:
        return Record()

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        return Adapted(Record(), memory, {})

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        return state

    def deployed(self, state: Record, client: Client, memory: Record) -> State:
        return state.models["source"]

    def describe(self, state: Record) -> Health:
        return {}

"""Source only: every client uses the source model as it is. No round, no message."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwca.core.params import State
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Adapted, Client, Declared, Method, Record
from fedwca.models import DomainModel

__all__ = ["SourceOnly"]


@dataclass(frozen=True)
class SourceOnly(Method):
    """The lower bound. With `batch_norm = "recalibrate"`, adaptation without any training."""

    sends: ClassVar[Declared] = {}

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

    def replies(self, message: Record) -> Declared:
        return {}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        return state

    def offered(self, state: Record, client: Client) -> State:
        return state.models["source"]

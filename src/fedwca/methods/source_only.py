"""Source only: every client uses the source model as it is, without any rounds."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Method
from fedwca.methods.record import Adaptation, Client, Record, Schema
from fedwca.models import DomainModel

__all__ = ["SourceOnly"]


@dataclass(frozen=True)
class SourceOnly(Method):
    """The lower bound. With `batch_norm = "recalibrate"`, adaptation without any training."""

    sends: ClassVar[Schema] = {}

    # --- server ---------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Always 0."""
        return 0

    def init(self, source: Weights) -> Record:
        return Record(models={"source": source})

    def send(self, state: Record, client: Client) -> Record:
        return Record()

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        return state

    def offered(self, state: Record, client: Client) -> Weights:
        return state.models["source"]

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        return Adaptation(Record(), memory, {})

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        return {}

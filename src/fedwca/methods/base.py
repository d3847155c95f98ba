"""The contract: both halves of a federated method in one class.

The server calls `init`, `send`, `aggregate` and `offered`; the client calls `adapt` and `personal`.
`sends` and `replies` declare what travels between them. State goes in and comes out, randomness is
an argument, and only a `Record` travels or is stored. What only some methods can do is in
`fedwca.methods.capabilities`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.record import (
    Adaptation,
    Client,
    Health,
    Model,
    Numbers,
    Record,
    Schema,
    round_of,
)
from fedwca.methods.training import Training
from fedwca.models import DomainModel

# Beside the contract, what its callers need to use it; methods import records from where they are.
__all__ = [
    "Adaptation",
    "Client",
    "Health",
    "Method",
    "Model",
    "Numbers",
    "Record",
    "Schema",
    "round_of",
]


@dataclass(frozen=True)
class Method(ABC):
    """A federated method: a frozen dataclass of documented hyper-parameters.

    The shortest useful one, the mean of all clients' models::

        @dataclass(frozen=True)
        class Mean(Method):
            fixed_labels: bool = True
            sends: ClassVar[Schema] = {"source": MODEL, "round": COUNT}

            def send(self, state, client): return state
            def replies(self, message): return {"local": MODEL}
            def adapt(self, model, images, message, memory, rng):
                load(model, message.models["source"], images, self.training.batch_norm)
                local, losses = train_shot(self, model, images, message, rng)
                return Adaptation(Record({"local": local}), memory, losses)
            def aggregate(self, state, replies):
                model = merge_models([*replies.values()], "plain", "mean", state.models["source"])
                return Record({"source": model}, {"round": state.values["round"] + 1})
            def offered(self, state, client): return state.models["source"]

    Attributes:
        training: how clients train.
    """

    training: Training = field(default_factory=Training)

    # What a message may hold; "soft/*" stands for any number of names. Nothing else is sent.
    sends: ClassVar[Schema]

    # Defaults of [training] for this method; the user's settings override them.
    training_defaults: ClassVar[Mapping[str, object]] = {}

    @property
    def rounds(self) -> int:
        """The number of communication rounds."""
        return self.training.rounds

    # --- server ---------------------------------------------------------------------------------

    def init(self, source: Weights) -> Record:
        """Return the first state; by default the source model's feature extractor, and round 0."""
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    @abstractmethod
    def send(self, state: Record, client: Client) -> Record:
        """Return the message to a client.

        With [privacy] on, the reply's model is released as an update of the first model in the
        message: their difference is clipped and gets noise.
        """

    @abstractmethod
    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        """Return the next state, from the replies that arrived, which may be none.

        A reply's models may lie in files that are removed after this round and are read on each
        access: access each once, and store the model, not the reply.
        """

    @abstractmethod
    def offered(self, state: Record, client: Client) -> Weights:
        """Return the weights that the server has for the client to use."""

    def describe(self, state: Record) -> Health:
        """Return what to log of the state, such as each client's cluster."""
        return {}

    # --- client ---------------------------------------------------------------------------------

    @abstractmethod
    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        """Adapt on unlabeled images; `model` holds the frozen classifier."""

    def personal(self, offered: Weights, memory: Record) -> Weights:
        """Return the weights that the client uses, from those offered and its memory."""
        return offered

    # --- both -----------------------------------------------------------------------------------

    @abstractmethod
    def replies(self, message: Record) -> Schema:
        """Declare what the reply to a message holds, no more and no less."""

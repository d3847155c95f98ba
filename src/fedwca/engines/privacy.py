"""What leaves a client when [privacy] is on: one clipped and noised model, and nothing else."""

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import torch

from fedwca.core.privacy import Draw, noised_update
from fedwca.errors import UserError
from fedwca.methods.base import Adapted, Method, Record

__all__ = ["Privacy", "from_system", "noise_from", "protected"]

SAMPLES = "samples"  # the one number that may stand in a reply: it is 1 for everybody
from_system: Draw = os.urandom
_LARGEST = 1e6  # of clip and noise: their product stays far within what a weight can be
_LEAST_NOISE = 1e-6


@dataclass(frozen=True)
class Privacy:
    """Gaussian noise on what clients send, for a guarantee that holds against the server too.

    Attributes:
        clip: C, the length to which a client's update is clipped, over all weights and BatchNorm
            statistics together; 0: off.
        noise_multiplier: z; every number of the update gets noise of standard deviation z·C. With
            0 updates are clipped only, which guarantees nothing.
        delta: δ of the guarantee (ε, δ).
    """

    clip: float = 0.0
    noise_multiplier: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if isinstance(self.clip, bool) or not 0 <= self.clip <= _LARGEST:
            raise ValueError(f"privacy.clip must be a number from 0 to {_LARGEST:g}")
        if self.noise_multiplier != 0 and not _LEAST_NOISE <= self.noise_multiplier <= _LARGEST:
            raise ValueError(
                f"privacy.noise_multiplier must be 0, or a number from {_LEAST_NOISE:g} to "
                f"{_LARGEST:g}: less noise guarantees nothing, and more leaves nothing"
            )
        if self.noise_multiplier > 0 and self.clip == 0:
            raise ValueError("privacy.noise_multiplier is in lengths of privacy.clip: set that too")
        if not 0 < self.delta < 1:
            raise ValueError("privacy.delta must lie between 0 and 1")

    @property
    def on(self) -> bool:
        """Whether anything is done."""
        return self.clip > 0


def noise_from(seed: int, round: int, client: str) -> Draw:
    """Noise of a simulation, which can be repeated: it hides nothing from whoever has the seed."""
    digest = hashlib.sha256(f"noise/{seed}/{round}/{client}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).bytes


def protected(
    adapted: Adapted, method: Method, message: Record, privacy: Privacy, draw: Draw
) -> Adapted:
    """The same with a reply that may leave, and no numbers for the log.

    A model that the client keeps for itself stays as it is.
    """
    models, values = adapted.reply.models, adapted.reply.values
    if len(models) > 1 or values.keys() - {SAMPLES}:
        told = ", ".join((*models, *values))
        sentence = f"with [privacy] on, a reply of {told} may not leave: choose another method"
        raise UserError(sentence, elsewhere=sentence)
    noised = {
        name: noised_update(
            local, method.reference(message), privacy.clip, privacy.noise_multiplier, draw
        )
        for name, local in models.items()
    }
    return Adapted(Record(noised, {name: torch.tensor(1) for name in values}), adapted.memory, {})

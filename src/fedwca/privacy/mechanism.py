"""[privacy]: its settings, and what leaves a client: one clipped and noised model, nothing else."""

import hashlib
import os
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fedwca._support.errors import UserError
from fedwca.core.privacy import Draw, noised_update
from fedwca.methods.base import Adaptation, Record

__all__ = ["Privacy", "draw_from_seed", "draw_from_system", "privatize"]

_MAX = 1e6  # of clip and of noise: their product stays within the range of a weight
_MIN_NOISE = 1e-6
_SAMPLES = "samples"  # the only value that may be in a reply; it becomes 1 for every client
draw_from_system: Draw = os.urandom


@dataclass(frozen=True)
class Privacy:
    """Gaussian noise on what clients send, for a guarantee that holds against the server too.

    Attributes:
        clip: C, the length to which a client's update is clipped, over all weights and BatchNorm
            statistics together; 0: off.
        noise_multiplier: z; every number of the update gets noise of standard deviation z·C. With
            0 updates are only clipped, which guarantees nothing.
        delta: δ of the guarantee (ε, δ).
    """

    clip: Annotated[float, Field(ge=0, le=_MAX, strict=True)] = 0.0
    noise_multiplier: Annotated[float, Field(ge=0, le=_MAX, strict=True)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @model_validator(mode="after")
    def _check_noise(self) -> "Privacy":
        if 0 < self.noise_multiplier < _MIN_NOISE:
            raise ValueError(
                f"privacy.noise_multiplier must be 0 or at least {_MIN_NOISE:g}: less noise "
                "guarantees nothing"
            )
        if self.noise_multiplier > 0 and self.clip == 0:
            raise ValueError("privacy.noise_multiplier is in units of privacy.clip: set both")
        return self

    @property
    def on(self) -> bool:
        """Whether replies are changed at all."""
        return self.clip > 0


def draw_from_seed(seed: int, round: int, client: str) -> Draw:
    """Return repeatable noise for simulations, which does not protect from who has the seed."""
    digest = hashlib.sha256(f"noise/{seed}/{round}/{client}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).bytes


def privatize(adapted: Adaptation, message: Record, privacy: Privacy, draw: Draw) -> Adaptation:
    """Clip and noise the reply, as an update of the message's first model; log no numbers.

    The model in the client's memory does not change.
    """
    models, values = adapted.reply.models, adapted.reply.values
    if len(models) > 1 or values.keys() - {_SAMPLES}:
        names = ", ".join((*models, *values))
        sentence = f"[privacy] does not protect replies with {names}: choose another method"
        raise UserError(sentence, elsewhere=sentence)
    reference = next(iter(message.models.values()), {})
    noised = {
        name: noised_update(local, reference, privacy.clip, privacy.noise_multiplier, draw)
        for name, local in models.items()
    }
    ones = {name: torch.tensor(1) for name in values}
    return Adaptation(Record(noised, ones), adapted.memory, {})

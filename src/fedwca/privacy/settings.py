"""The settings of [privacy]."""

from typing import Annotated

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

__all__ = ["Privacy"]

_MOST = 1e6  # of clip and of noise: their product stays within the range of a weight
_LEAST_NOISE = 1e-6


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

    clip: Annotated[float, Field(ge=0, le=_MOST, strict=True)] = 0.0
    noise_multiplier: Annotated[float, Field(ge=0, le=_MOST, strict=True)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @model_validator(mode="after")
    def _check_noise(self) -> "Privacy":
        if 0 < self.noise_multiplier < _LEAST_NOISE:
            raise ValueError(
                f"privacy.noise_multiplier must be 0 or at least {_LEAST_NOISE:g}: less noise "
                "guarantees nothing"
            )
        if self.noise_multiplier > 0 and self.clip == 0:
            raise ValueError("privacy.noise_multiplier is in units of privacy.clip: set both")
        return self

    @property
    def on(self) -> bool:
        """Whether replies are changed at all."""
        return self.clip > 0

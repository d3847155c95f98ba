"""Types of settings with their bounds, which pydantic checks."""

from typing import Annotated

from pydantic import Field

__all__ = ["Count", "LossWeight", "NonNegative", "Share", "Temperature"]

Count = Annotated[int, Field(ge=0, lt=2**31)]
LossWeight = Annotated[float, Field(ge=0, lt=1e6)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=1e-9, lt=1e9)]

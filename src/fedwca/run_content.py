"""What the JSON files of a run folder say, checked in one place for all who read them.

Anybody may have written them, and those of older versions carry no digests.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from fedwca.errors import UserError

__all__ = ["DAMAGED", "check_facts", "check_identity", "check_line", "damaged", "settings_of"]

# What reading a file raises that is not what we have written.
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Rounds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
# Not finite where training went astray; and a whole number stays one.
Told = Annotated[int, Field(ge=-(2**63), lt=2**63)] | float | list[float]
_BESIDE = ("deploy", "digests")  # parts of an identity that are no settings


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Score(_Strict):
    domain: str
    accuracy: Share | None
    correct: Count = 0
    total: Count = 0
    confidence: float | None = None


class _Accuracy(_Strict):
    mean: Share | None
    domains: dict[str, Share | None]


class _Facts(_Strict):
    bytes_down: Count = 0
    bytes_up: Count = 0
    seconds: float = 0.0
    health: dict[str, dict[str, Told]] = {}
    refused: dict[str, list[str]] = {}


class _Line(_Facts):
    round: Rounds
    accuracy: _Accuracy
    clients: dict[str, _Score]
    server: dict[str, Told] = {}

    @field_validator("server")
    @classmethod
    def _kinds(cls, server: dict[str, Any]) -> dict[str, Any]:
        for name, value in server.items():
            kind = int if name.startswith("cluster_of/") else list
            if name.startswith(("cluster_of/", "v/")) and not isinstance(value, kind):
                raise ValueError(f"{name} is of another kind")
        return server


def check_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """The same; ValueError unless they are what a round leaves for the next line of results."""
    _Facts.model_validate(facts)
    return facts


def check_line(line: dict[str, Any]) -> None:
    """ValueError unless a line of results is as we write them."""
    _Line.model_validate(line)


Setting = None | bool | int | Annotated[float, Field(allow_inf_nan=False)] | str | list[str]
_SETTINGS = TypeAdapter(dict[str, dict[str, Setting]], config=ConfigDict(strict=True))


class _Data(_Strict):
    benchmark: str
    source: str


class _Training(_Strict):
    rounds: Rounds
    batch_norm: str


class _Method(_Strict):
    name: str


class _Run(_Strict):
    seed: Count


class _Needed(_Strict):
    """The settings that reports rely on."""

    data: _Data
    training: _Training
    method: _Method
    run: _Run


def settings_of(config: Any) -> dict[str, Any]:
    """The settings that config.json tells; an error of `DAMAGED` if they are not the run's."""
    settings: dict[str, Any] = config["settings"]
    _SETTINGS.validate_python(settings)
    _Needed.model_validate(settings)
    check_identity(config)
    return settings


def check_identity(config: dict[str, Any]) -> None:
    """An error of `DAMAGED` unless the settings are those that the run has its name and models by.

    config.json carries no digest, but tells all that decides results twice.
    """
    for section, told in config.get("identity", {}).items():
        own = config["settings"].get(section)
        if isinstance(told, dict) and isinstance(own, dict):
            own = {name: own.get(name) for name in told}
        if section not in _BESIDE and own != told:
            raise ValueError(f"{section} is not that of the run")


def damaged(folder: Path) -> UserError:
    """What to do then."""
    return UserError(f"the files in {folder} are damaged: move it away and run again")

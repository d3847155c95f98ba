"""The schema of a run folder's JSON files, validated for all who read them.

The files may be edited by hand, and those of older versions have no checksums.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from fedwca._support.errors import UserError

__all__ = [
    "READ_ERRORS",
    "check_facts",
    "check_identity",
    "check_line",
    "corrupt_run_error",
    "read_settings",
]

# The errors of reading a file that this package did not write.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Rounds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
# Not finite where training diverged; an integer stays one.
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)] | float | list[float]
_NOT_SETTINGS = ("deploy", "digests")  # the other parts of an identity


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
    health: dict[str, dict[str, Number]] = {}
    refused: dict[str, list[str]] = {}


class _Line(_Facts):
    round: Rounds
    accuracy: _Accuracy
    clients: dict[str, _Score]
    server: dict[str, Number] = {}

    @field_validator("server")
    @classmethod
    def _kinds(cls, server: dict[str, Any]) -> dict[str, Any]:
        for name, value in server.items():
            kind = int if name.startswith("cluster_of/") else list
            if name.startswith(("cluster_of/", "v/")) and not isinstance(value, kind):
                raise ValueError(f"{name} has the wrong type")
        return server


def check_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a round; ValueError if they are invalid."""
    _Facts.model_validate(facts)
    return facts


def check_line(line: dict[str, Any]) -> None:
    """Raise ValueError if a line of results is invalid."""
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


class _RequiredSettings(_Strict):
    """The settings that reports need."""

    data: _Data
    training: _Training
    method: _Method
    run: _Run


def read_settings(config: Any) -> dict[str, Any]:
    """Return the settings in config.json; one of `READ_ERRORS` if they are invalid."""
    settings: dict[str, Any] = config["settings"]
    _SETTINGS.validate_python(settings)
    _RequiredSettings.model_validate(settings)
    check_identity(config)
    return settings


def check_identity(config: dict[str, Any]) -> None:
    """Raise one of `READ_ERRORS` if the settings in config.json contradict the run's identity.

    config.json has no checksum, but holds everything that decides results twice.
    """
    for section, expected in config.get("identity", {}).items():
        own = config["settings"].get(section)
        if isinstance(expected, dict) and isinstance(own, dict):
            own = {name: own.get(name) for name in expected}
        if section not in _NOT_SETTINGS and own != expected:
            raise ValueError(f"[{section}] is not that of the run")


def corrupt_run_error(folder: Path) -> UserError:
    """Return the error for a folder whose files cannot be read."""
    return UserError(f"The files in {folder} are corrupt. Move the folder away and rerun.")

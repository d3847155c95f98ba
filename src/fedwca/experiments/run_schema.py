"""The schema of a run folder's JSON files, validated by all who read them.

config.json has no checksum, nor have result lines of older versions.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from fedwca._support.errors import UserError, did_you_mean

__all__ = [
    "READ_ERRORS",
    "check_line",
    "clusters_in",
    "corrupt_run_error",
    "is_deployed",
    "no_run_error",
    "one_cluster_notice",
    "read_settings",
    "weights_in",
]

# What reading a file of foreign content may raise.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Rounds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
# Not finite where training diverged; an integer stays one.
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)] | float | list[float]


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


class _Line(_Strict):
    round: Rounds
    accuracy: _Accuracy
    clients: dict[str, _Score]
    server: dict[str, Number] = {}
    health: dict[str, dict[str, Number]] = {}
    bytes_down: Count = 0
    bytes_up: Count = 0
    seconds: float = 0.0
    refused: dict[str, list[str]] = {}

    @field_validator("server")
    @classmethod
    def _check_types(cls, server: dict[str, Any]) -> dict[str, Any]:
        for name, value in server.items():
            kind = int if name.startswith("cluster_of/") else list
            if name.startswith(("cluster_of/", "v/")) and not isinstance(value, kind):
                raise ValueError(f"{name} has the wrong type")
        return server


def clusters_in(line: dict[str, Any]) -> dict[str, int]:
    """Return the cluster of each client; empty if the method has none."""
    return _entries(line, "cluster_of/")


def weights_in(line: dict[str, Any]) -> dict[str, list[float]]:
    """Return the cluster weights v_k of each client; empty if the method has none."""
    return _entries(line, "v/")


def _entries(line: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the server's numbers whose name has this prefix, by the rest of the name."""
    numbers = line.get("server", {}).items()
    return {name.removeprefix(prefix): n for name, n in numbers if name.startswith(prefix)}


def one_cluster_notice(line: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return a sentence if several clients are all in one cluster; empty otherwise."""
    clusters = clusters_in(line)
    if not len(set(clusters.values())) == 1 < len(clusters):
        return ""
    notice = "All clients are in one cluster and share one model."
    if "clustering" in settings["method"]:
        notice += ' method.clustering = "each" gives every client a cluster of its own.'
    return notice


def check_line(line: dict[str, Any]) -> None:
    """Raise ValueError if a line of results is invalid."""
    _Line.model_validate(line)


_Setting = None | bool | int | Annotated[float, Field(allow_inf_nan=False)] | str | list[str]
_SETTINGS = TypeAdapter(dict[str, dict[str, _Setting]], config=ConfigDict(strict=True))
# What reports need.
_REQUIRED_SETTINGS = (
    ("data", "benchmark", str),
    ("data", "source", str),
    ("training", "rounds", int),
    ("training", "batch_norm", str),
    ("method", "name", str),
    ("run", "seed", int),
)


def read_settings(config: Any) -> dict[str, Any]:
    """Return the settings in config.json; one of `READ_ERRORS` if they are invalid."""
    settings: dict[str, Any] = _SETTINGS.validate_python(config["settings"])
    for section, name, kind in _REQUIRED_SETTINGS:
        if not isinstance(settings[section][name], kind):
            raise ValueError(f"{section}.{name} has the wrong type")
    return settings


def is_deployed(settings: dict[str, Any]) -> bool:
    """Whether these are the settings of a deployed run."""
    return "deploy" in settings


def no_run_error(folder: Path) -> UserError:
    """Return the error for a path that is no run folder."""
    if folder.exists():
        return UserError(f"{folder} is not a run folder: it has no config.json; see `fedwca list`")
    others = [config.parent.name for config in folder.parent.glob("*/config.json")]
    hint = did_you_mean(folder.name, others, "see `fedwca list`")
    return UserError(f"there is no run folder {folder}; {hint}")


def corrupt_run_error(folder: Path) -> UserError:
    """Return the error for a folder whose files cannot be read."""
    return UserError(f"the files in {folder} are corrupt; move the folder away and rerun")

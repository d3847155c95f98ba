"""Validate a section of settings with pydantic; report errors in one sentence."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedwca._support.errors import UserError, did_you_mean

__all__ = ["abbreviate", "validate_settings"]


def validate_settings(kind: Any, section: str, values: Any) -> Any:
    """Return the settings as a `kind`, a dataclass or pydantic model; raise UserError if invalid.

    Errors name the setting as in a config file, such as training.lr.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{section} must be a table of settings, [{section}], not {values!r}")
    known = _field_names(kind)
    for key in values:
        if key not in known:
            choices = [name for name in known if name != "training"]  # a section of its own
            raise UserError(f"{section} has no setting {key!r}: {did_you_mean(key, choices)}")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise UserError(_describe(section, error)) from None


def abbreviate(value: object) -> str:
    """Return the value's repr, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _field_names(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [field.name for field in fields(kind)]


def _describe(section: str, error: ValidationError) -> str:
    first = error.errors()[0]
    if not first["loc"]:  # a rule about several settings, whose message names them
        return _plain(first["msg"])
    key = first["loc"][0]
    # A setting of several types has an error for each type.
    reasons = dict.fromkeys(_plain(e["msg"]) for e in error.errors() if e["loc"][:1] == (key,))
    return f"{section}.{key}: {' or '.join(reasons)} (got {abbreviate(first['input'])})"


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("\n", " ")
    return text[:1].lower() + text[1:]

"""JSON and TOML parsers whose only error is ValueError, whatever the text."""

import json
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["parse_json", "parse_toml"]


def parse_json(text: str | bytes) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML."""
    try:
        content = tomllib.loads(text)
        repr(content)  # ValueError for integers too large to print, even in an error message
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content

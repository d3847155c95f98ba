"""JSON and TOML that anybody may have written: whatever is wrong with it is a ValueError."""

import json
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["parse_json", "parse_toml"]


def parse_json(text: str | bytes) -> Any:
    """What the text says."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_toml(text: str) -> dict[str, Any]:
    """What the text says."""
    try:
        content = tomllib.loads(text)
        repr(content)  # Python does not write out the largest numbers: no complaint could either
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return content

"""Paths as users write them."""

import os
from pathlib import Path

from fedwca.errors import UserError

__all__ = ["plain_path"]


def plain_path(path: str | os.PathLike[str], instead: str = "write the folder out") -> Path:
    """A path with "~" written out; where there is no such home, a sentence with what to do."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"there is no home folder for {path}: {instead}") from None

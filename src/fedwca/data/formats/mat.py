"""Read MATLAB files up to version 7.2."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import scipy

from fedwca._support.errors import UserError
from fedwca._support.files import open_regular_file
from fedwca.data.formats.read_errors import explain_read_errors

__all__ = ["list_mat_arrays", "read_mat_arrays"]


def list_mat_arrays(file: Path) -> set[str]:
    """Return the names of the arrays in a file."""
    return {name for name, _, _ in _read(file, scipy.io.whosmat)}


def read_mat_arrays(file: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return those of the named arrays that the file has."""
    arrays: dict[str, Any] = _read(file, partial(scipy.io.loadmat, variable_names=list(names)))
    return arrays


def _read(file: Path, read: Callable[[BinaryIO], Any]) -> Any:
    with explain_read_errors(file, "is not a readable MATLAB file; download it again"):
        try:
            with open_regular_file(file) as stream:
                return read(stream)
        except NotImplementedError:
            raise UserError(
                f"{file} is a MATLAB 7.3 file; save it with '-v7', or as .npz"
            ) from None

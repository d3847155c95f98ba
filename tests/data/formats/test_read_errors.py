"""Errors while reading a file: transient, out of memory, or corrupt."""

import errno
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.digit_five import _read_idx
from fedwca.data.formats.mat import read_mat_arrays
from fedwca.data.formats.npz import read_npz


def _npz(folder: Path) -> Callable[[], Any]:
    np.savez(folder / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8))
    return lambda: read_npz(folder / "a.npz")


def _mat(folder: Path) -> Callable[[], Any]:
    scipy.io.savemat(folder / "a.mat", {"x": np.zeros(3)})
    return lambda: read_mat_arrays(folder / "a.mat", ["x"])


def _mnist(folder: Path) -> Callable[[], Any]:
    (folder / "a").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])))
    return lambda: _read_idx(folder / "a", 1)


KINDS = [
    (_npz, "formats.npz"),
    (_mat, "formats.mat"),
    (_mnist, "benchmarks.digit_five"),
]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EIO, "Input/output error"), "at the moment"),
        (MemoryError(), "out of memory"),
        (ValueError("bad"), "save it again|download it again"),
    ],
)
@pytest.mark.parametrize(("kind", "module"), KINDS)
def test_read_errors_are_distinguished(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[Path], Callable[[], Any]],
    module: str,
    error: Exception,
    message: str,
) -> None:
    def fail(path: Path) -> None:
        raise error

    read = kind(tmp_path)
    read()
    monkeypatch.setattr(sys.modules[f"fedwca.data.{module}"], "open_regular_file", fail)
    with pytest.raises(UserError, match=message):
        read()

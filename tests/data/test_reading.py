"""A file that cannot be read now is not called damaged, whatever it holds."""

import errno
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedwca.data.digit_five import _idx
from fedwca.data.mat import mat_arrays
from fedwca.data.npz import read_npz
from fedwca.errors import UserError


def _npz(folder: Path) -> Callable[[], Any]:
    np.savez(folder / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8))
    return lambda: read_npz(folder / "a.npz")


def _mat(folder: Path) -> Callable[[], Any]:
    scipy.io.savemat(folder / "a.mat", {"x": np.zeros(3)})
    return lambda: mat_arrays(folder / "a.mat", ["x"])


def _mnist(folder: Path) -> Callable[[], Any]:
    (folder / "a").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])))
    return lambda: _idx(folder / "a", 1)


KINDS = [(_npz, "npz"), (_mat, "mat"), (_mnist, "digit_five")]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EIO, "Input/output error"), "cannot be read for the moment"),
        (MemoryError(), "there is too little memory to read"),
        (ValueError("bad"), "save it anew|download it anew"),
    ],
)
@pytest.mark.parametrize(("kind", "module"), KINDS)
def test_whose_fault_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[Path], Callable[[], Any]],
    module: str,
    error: Exception,
    told: str,
) -> None:
    def fail(path: Path) -> None:
        raise error

    read = kind(tmp_path)
    read()
    monkeypatch.setattr(f"fedwca.data.{module}.open_file", fail)
    with pytest.raises(UserError, match=told):
        read()

"""Arrays of images, and errors while reading their files."""

import errno
import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.digit_five import _read_idx
from fedwca.data.formats.arrays import read_mat, read_npz


def _npz(folder: Path) -> Callable[[], Any]:
    np.savez(folder / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8))
    return lambda: read_npz(folder / "a.npz")


def _mat(folder: Path) -> Callable[[], Any]:
    scipy.io.savemat(folder / "a.mat", {"x": np.zeros(3)})
    return lambda: read_mat(folder / "a.mat", ["x"])


def _mnist(folder: Path) -> Callable[[], Any]:
    (folder / "a").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])))
    return lambda: _read_idx(folder / "a", 1)


def test_an_array_larger_than_its_archive_is_a_corrupt_file(tmp_path: Path) -> None:
    header = io.BytesIO()
    claim = {"descr": "|u1", "fortran_order": False, "shape": (2**40, 32, 32, 3)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(100))
    with pytest.raises(UserError, match=r"a\.npz is not a readable"):
        read_npz(tmp_path / "a.npz")


KINDS = [
    (_npz, "formats.arrays"),
    (_mat, "formats.arrays"),
    (_mnist, "benchmarks.digit_five"),
]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
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


def test_gray_floats_of_another_size_become_rgb_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.full((5, 10, 10), 0.2), labels=np.arange(5))
    stacked = read_npz(tmp_path / "x.npz")
    pictures = list(stacked.decode(np.array([4, 0]), size=16))
    assert [(p.pixels.shape, p.width, p.height) for p in pictures] == [((16, 16, 3), 10, 10)] * 2
    assert all((p.pixels == 51).all() for p in pictures)  # 0.2 · 255
    assert stacked.labels.tolist() == [0, 1, 2, 3, 4]

"""Images on their way into a file, as many as there are."""

import hashlib
import sys
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from fedwca.data.raw import Broken, Picture

__all__ = ["GrowingArray"]


class GrowingArray:
    """A `.npy` file of images written one by one: memory stays flat however many there are."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.good: list[int] = []
        self.broken: list[tuple[int, str]] = []
        self.smallest, self.largest = [sys.maxsize] * 2, [0] * 2
        self._file, self._size = file, size
        self.pixels = hashlib.sha256()

    def take(self, pictures: Iterator[Picture | Broken]) -> None:
        """Write all pictures that can be read, and note those that cannot."""
        self._write_header()  # only its length matters yet
        for place, picture in enumerate(pictures):
            if isinstance(picture, Broken):
                self.broken.append((place, picture.reason))
                continue
            self.good.append(place)
            pixels = picture.pixels.tobytes()
            self._file.write(pixels)
            self.pixels.update(pixels)
            sides = (picture.width, picture.height)
            self.smallest = [min(pair) for pair in zip(self.smallest, sides, strict=True)]
            self.largest = [max(pair) for pair in zip(self.largest, sides, strict=True)]
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        # NumPy leaves room in the header for any number of rows, so that its length is the same.
        shape = (len(self.good), self._size, self._size, 3)
        fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, fields)

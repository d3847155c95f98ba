"""Sets of images as training and evaluation see them.

A client adapts with `UnlabeledImages`, a type without labels, so a method cannot read them.
`LabeledImages` exist for source training and evaluation only.
"""

import mmap
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwca.data.augment import Transform

__all__ = ["UNLABELED", "ClientData", "LabeledImages", "UnlabeledImages"]

UNLABELED = -1  # the label of an image that has none


@cache
def _open_memory_map(path: str) -> NDArray[np.uint8]:
    """Map a file once per process: a second map would count its pages again."""
    mapped: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    return mapped


@dataclass(frozen=True)
class UnlabeledImages:
    """Some rows of an array of images, decoded batch by batch.

    Attributes:
        pixels: uint8 [N, H, W, 3], usually a memory map shared by all clients and processes.
        index: the rows that belong to this set.
        transform: how pixels become network input.
    """

    pixels: NDArray[np.uint8]
    index: NDArray[np.int64]
    transform: Transform

    def __len__(self) -> int:
        return len(self.index)

    def batch(
        self,
        rows: Tensor,
        augment: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Return normalized images, float [B, 3, H, W]; augmented if a generator is given."""
        return self.transform(self._stored(rows), augment, device)

    def raw(self, rows: Tensor) -> Tensor:
        """Return the stored pixels as floats from 0 to 1, [B, 3, H, W], without transform."""
        return self._stored(rows).permute(0, 3, 1, 2) / 255

    def release(self) -> None:
        """Drop the pages read so far from this process's memory; the system may cache them.

        Otherwise a worker would hold the images of every client that it has worked for.
        """
        pages = getattr(self.pixels, "_mmap", None)
        if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)

    def _stored(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.pixels[self.index[rows.numpy()]]))

    def __getstate__(self) -> dict[str, Any]:
        # A memory map is sent to a worker process as the name of its file, not as its bytes.
        state = dict(self.__dict__)
        if isinstance(self.pixels, np.memmap) and self.pixels.filename is not None:
            state["pixels"] = str(self.pixels.filename)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["pixels"], str):
            state["pixels"] = _open_memory_map(state["pixels"])
        self.__dict__.update(state)


@dataclass(frozen=True)
class LabeledImages:
    """Images with their labels [len(images)]: the source domain, or a client's test set."""

    images: UnlabeledImages
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class ClientData:
    """All images of one simulated client. A method only ever gets `train`.

    Attributes:
        name: unique name, "domain/3".
        domain: the true domain; for reports and the hypothetical true clustering.
        train: unlabeled images to adapt on.
        validation: for choosing hyper-parameters only.
        test: for evaluation only; None if the client has no labels.
    """

    name: str
    domain: str
    train: UnlabeledImages
    validation: LabeledImages | None
    test: LabeledImages | None

    def release(self) -> None:
        """Drop the client's images from this process's memory until they are read again."""
        self.train.release()
        if self.test is not None:
            self.test.images.release()

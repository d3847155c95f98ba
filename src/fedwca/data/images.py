"""Image sets as the rest of the program sees them.

A client adapts with `UnlabeledImages`, a type that has no labels: the method cannot read what is
not there. `LabeledImages` exist for source training and for scoring only.
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

__all__ = ["ClientData", "LabeledImages", "UnlabeledImages"]


@cache
def _mapped(path: str) -> NDArray[np.uint8]:
    """One map of a file for all clients of a process: a second would count its pages again."""
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
        """Normalised float images [B, 3, H, W] of the given rows, augmented if a generator is."""
        return self.transform(self._stored(rows), augment, device)

    def raw(self, rows: Tensor) -> Tensor:
        """The stored pixels of the given rows as 0..1, [B, 3, H, W], nothing else done to them."""
        return self._stored(rows).permute(0, 3, 1, 2) / 255

    def let_go(self) -> None:
        """Take the pages that were read out of this process's memory; the system has them still.

        A worker would else hold the images of every client that it has ever worked for.
        """
        pages = getattr(self.pixels, "_mmap", None)
        if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)

    def _stored(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.pixels[self.index[rows.numpy()]]))

    def __getstate__(self) -> dict[str, Any]:
        # A memory map travels to a worker process as its file's name, not as its bytes.
        state = dict(self.__dict__)
        if isinstance(self.pixels, np.memmap) and self.pixels.filename is not None:
            state["pixels"] = str(self.pixels.filename)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["pixels"], str):
            state["pixels"] = _mapped(state["pixels"])
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
    """All that one simulated client holds. Only `train` is ever given to a method.

    Attributes:
        name: unique name, "domain/3".
        domain: the true domain; for reports and the hypothetical true clustering.
        train: unlabeled images to adapt on.
        validation: for choosing hyper-parameters only.
        test: for scoring only; None where the client has no labels.
    """

    name: str
    domain: str
    train: UnlabeledImages
    validation: LabeledImages | None
    test: LabeledImages | None

    def let_go(self) -> None:
        """Take its images out of this process's memory until they are asked for again."""
        self.train.let_go()
        if self.test is not None:
            self.test.images.let_go()

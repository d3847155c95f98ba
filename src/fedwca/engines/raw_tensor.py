"""A tensor of any type as plain bytes, for a pipe between processes."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["RawTensor"]


class RawTensor(NamedTuple):
    """What a tensor is made of: torch would send it by a file descriptor of its own."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, value: Tensor) -> "RawTensor":
        own = value.detach().cpu().contiguous()
        return cls(value.dtype, tuple(value.shape), _bytes_of(own).tobytes())

    def tensor(self) -> Tensor:
        """The same again, in memory of its own."""
        value = torch.empty(self.shape, dtype=self.dtype)
        _bytes_of(value)[:] = np.frombuffer(self.content, np.uint8)
        return value


def _bytes_of(value: Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor; NumPy does not know all of torch's types."""
    return value.reshape(-1).view(torch.uint8).numpy()

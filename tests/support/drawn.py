"""Inputs of tests: drawn, but the same each time, or exact."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 10_000)


def for_all(*inputs: Any, examples: int = 15, **named: Any) -> Callable[[Any], Any]:
    """Call the test with some drawn inputs."""
    fixed = settings(max_examples=examples, deadline=None, derandomize=True)
    return lambda test: fixed(given(*inputs, **named)(test))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normally distributed numbers."""
    return torch.randn(*shape, generator=rng(seed), dtype=dtype)


def exact(*rows: object) -> Tensor:
    """Return the numbers in double precision."""
    return torch.tensor(rows, dtype=torch.float64)

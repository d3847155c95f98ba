"""Who holds which image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwca.data.benchmarks import Benchmark
from fedwca.data.partition import split_domain
from fedwca.errors import UserError


@pytest.mark.parametrize(
    ("images", "clients", "sizes"),
    [
        # the paper's: 34,000 and 9,298 images over eight clients, facts.md §10
        (34_000, 8, (2720, 680, 850)),
        (9_298, 8, (744, 186, 232)),
        (1, 1, (1, 0, 0)),
        (3, 1, (2, 0, 1)),
    ],
)
def test_sizes(images: int, clients: int, sizes: tuple[int, int, int]) -> None:
    last = split_domain("x", images, clients, (0,))[-1]
    assert tuple(len(part) for part in last) == sizes


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 5))
def test_every_image_is_held_exactly_once(images: int, clients: int, seed: int) -> None:
    if images < clients:
        with pytest.raises(UserError, match="at most"):
            split_domain("x", images, clients, (seed,))
        return
    splits = split_domain("x", images, clients, (seed,))
    rows = np.concatenate([part for split in splits for part in split])
    assert sorted(rows.tolist()) == list(range(images))
    assert all(len(split.train) >= 1 for split in splits)


def test_the_seed_decides_and_domains_differ(tiny_benchmark: Benchmark) -> None:
    def rows(seed: int) -> list[list[int]]:
        return [c.train.index.tolist() for c in tiny_benchmark.clients("clean", 2, seed)]

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)
    assert rows(0)[0] != rows(0)[2]


def test_the_source_domain_has_no_client(tiny_benchmark: Benchmark) -> None:
    clients = tiny_benchmark.clients("dim", 2, 0)
    assert {c.domain for c in clients} == {"clean", "noisy"}
    assert len({c.name for c in clients}) == 4
    alone = Benchmark(
        "b", ("0", "1"), {"a": tiny_benchmark.domains["dim"]}, tiny_benchmark.transform
    )
    with pytest.raises(UserError, match="add at least one target domain"):
        alone.clients("a", 1, 0)

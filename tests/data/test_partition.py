"""Splitting domains into clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwca._support.errors import UserError
from fedwca.data.partition import Partition, split_domain
from fedwca.data.types import Benchmark


def labels(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count) % classes


def held(plan: Partition, count: int = 1000, seed: int = 0) -> list[np.ndarray]:
    """All rows of each client."""
    return [np.concatenate(split) for split in split_domain("x", labels(count), plan, (seed,))]


@pytest.mark.parametrize(
    ("images", "clients", "sizes"),
    [
        # the paper's: 34,000 and 9,298 images over eight clients
        (34_000, 8, (2720, 680, 850)),
        (9_298, 8, (744, 186, 232)),
        (1, 1, (1, 0, 0)),
        (3, 1, (2, 0, 1)),
    ],
)
def test_sizes(images: int, clients: int, sizes: tuple[int, int, int]) -> None:
    last = split_domain("x", labels(images), Partition(clients), (0,))[-1]
    assert tuple(len(part) for part in last) == sizes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 200),
    st.integers(1, 12),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.01, 0.5, 100.0]),
    st.sampled_from([0.0, 0.01, 0.5, 100.0]),
)
def test_every_image_has_exactly_one_client_and_no_client_is_empty(
    images: int, clients: int, seed: int, label_dirichlet: float, size_dirichlet: float
) -> None:
    plan = Partition(clients, label_dirichlet, size_dirichlet)
    if images < clients:
        with pytest.raises(UserError, match="at most"):
            split_domain("x", labels(images), plan, (seed,))
        return
    splits = split_domain("x", labels(images), plan, (seed,))
    rows = np.concatenate([part for split in splits for part in split])
    assert sorted(rows.tolist()) == list(range(images))
    assert all(len(split.train) >= 1 for split in splits)


def skew(parts: list[np.ndarray]) -> float:
    """Mean over clients of the share of their most frequent class; 0.1 is the least of ten."""
    shares = [np.bincount(part % 10, minlength=10) / len(part) for part in parts]
    return float(np.mean([share.max() for share in shares]))


def test_a_small_dirichlet_number_is_a_strong_label_skew() -> None:
    even, weak, strong = (
        np.mean([skew(held(Partition(4, label_dirichlet=a), seed=s)) for s in range(10)])
        for a in (0.0, 5.0, 0.1)
    )
    assert even < 0.14 < weak < 0.3 < strong
    # An infinite concentration is the i.i.d. case: every client holds every class alike.
    limit = held(Partition(4, label_dirichlet=1e9))
    assert [np.bincount(part % 10).tolist() for part in limit] == [[25] * 10] * 4


def test_sizes_can_differ_without_any_label_skew() -> None:
    parts = held(Partition(4, size_dirichlet=0.5), count=10_000)
    sizes = sorted(len(part) for part in parts)
    assert sizes[-1] > 2 * sizes[0]
    assert skew([max(parts, key=len)]) < 0.13
    equal = [len(part) for part in held(Partition(4, size_dirichlet=1e9), count=10_000)]
    assert max(equal) - min(equal) <= 4


def test_both_skews_can_be_combined() -> None:
    # With labels spread evenly, the sizes are those of the size skew alone.
    sizes = [len(part) for part in held(Partition(4, size_dirichlet=0.5), count=10_000)]
    both = [len(part) for part in held(Partition(4, 1e9, 0.5), count=10_000)]
    assert max(abs(a - b) for a, b in zip(sizes, both, strict=True)) <= 10


def test_limiting_training_images_keeps_the_test_set() -> None:
    whole = split_domain("x", labels(1000), Partition(4), (0,))
    capped = split_domain("x", labels(1000), Partition(4, images_per_client=50), (0,))
    for many, few in zip(whole, capped, strict=True):
        assert few.train.tolist() == many.train[:50].tolist()
        assert few.validation.tolist() == many.validation.tolist()
        assert few.test.tolist() == many.test.tolist()


def test_without_labels_all_images_are_for_training() -> None:
    nothing = np.full(40, -1)
    train, validation, test = split_domain("x", nothing, Partition(2), (0,))[0]
    assert (len(train), len(validation), len(test)) == (20, 0, 0)
    with pytest.raises(UserError, match="no labels to skew"):
        split_domain("x", nothing, Partition(2, label_dirichlet=1.0), (0,))


def test_the_seed_decides_and_domains_differ(tiny_benchmark: Benchmark) -> None:
    def rows(seed: int) -> list[list[int]]:
        clients = tiny_benchmark.clients("clean", Partition(2), seed)
        return [c.train.index.tolist() for c in clients]

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)
    assert rows(0)[0] != rows(0)[2]


def test_the_source_domain_has_no_client(tiny_benchmark: Benchmark) -> None:
    clients = tiny_benchmark.clients("dim", Partition(2), 0)
    assert {c.domain for c in clients} == {"clean", "noisy"}
    assert len({c.name for c in clients}) == 4
    alone = Benchmark(
        "b", ("0", "1"), {"a": tiny_benchmark.domains["dim"]}, tiny_benchmark.transform
    )
    with pytest.raises(UserError, match="add at least one target domain"):
        alone.clients("a", Partition(1), 0)


def test_without_a_source_domain_all_domains_become_clients(
    tiny_benchmark: Benchmark,
) -> None:
    clients = tiny_benchmark.clients("", Partition(1), 0)
    assert [c.name for c in clients] == ["clean", "dim", "noisy"]

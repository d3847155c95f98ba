"""Soft neighborhood density: values that follow from the definition."""

import math

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core import soft_neighborhood_density as snd
from tests.support.drawn import for_all, normal, rng, seeds


def one_hot(count: int, classes: int) -> Tensor:
    """Sample i is of class i mod M, without doubt."""
    return torch.eye(classes)[torch.arange(count) % classes]


def predictions(count: int, classes: int, seed: int) -> Tensor:
    return (3 * normal(count, classes, seed=seed)).softmax(dim=1)


def plain_loop(probabilities: Tensor, temperature: float) -> float:
    """The definition, one number at a time."""
    rows = probabilities.double().tolist()
    total = 0.0
    for i, a in enumerate(rows):
        weights = []
        for j, b in enumerate(rows):
            if i != j:
                dot = sum(x * y for x, y in zip(a, b, strict=True))
                weights.append(math.exp(dot / math.hypot(*a) / math.hypot(*b) / temperature))
        shares = [w / sum(weights) for w in weights]
        total -= sum(p * math.log(p) for p in shares)
    return total / len(rows)


@for_all(st.integers(2, 12), st.integers(2, 5), seeds, st.sampled_from([0.05, 0.2, 1.0]))
def test_density_is_that_of_a_plain_loop(n: int, m: int, seed: int, temperature: float) -> None:
    p = predictions(n, m, seed)
    assert snd(p, temperature) == pytest.approx(plain_loop(p, temperature), abs=1e-12)


@pytest.mark.parametrize(("count", "landmark"), [(340, 3.4965), (743, 4.2946), (2720, 5.6021)])
def test_perfect_balanced_predictions_reach_the_landmarks(count: int, landmark: float) -> None:
    density = snd(one_hot(count, 10))
    assert round(density, 4) == landmark
    # N/M - 1 others of the own class, all alike; another class has weight e^(-1/T) = e^-20
    assert density == pytest.approx(math.log(count / 10 - 1), abs=5e-5)


def test_perfect_predictions_to_the_last_digit() -> None:
    # 33 scores of 1/T = 20 and 306 of 0: H = log Z - 33·e^20·20/Z, Z = 33·e^20 + 306
    total = 33 * math.exp(20) + 306
    exact = math.log(total) - 33 * math.exp(20) * 20 / total
    assert snd(one_hot(340, 10)) == pytest.approx(exact, abs=1e-12)


def test_no_epsilon_stands_in_the_logarithm() -> None:
    # -Σ P log(P + 1e-5) with P = 1/2719 each falls short of log 2719 by log(1 + 2719e-5) = .0268
    assert math.log1p(2719e-5) > 0.026
    assert snd(one_hot(2720, 1)) == pytest.approx(math.log(2719), abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 17, 340])
def test_collapsed_and_uniform_predictions_reach_the_maximum(count: int) -> None:
    collapsed = torch.eye(10)[torch.zeros(count, dtype=torch.int64)]
    uniform = torch.full((count, 10), 0.1)
    assert snd(collapsed) == pytest.approx(math.log(count - 1), abs=1e-12)
    assert snd(uniform) == pytest.approx(math.log(count - 1), abs=1e-12)


def test_one_sample_has_no_neighbour_and_two_have_no_choice() -> None:
    assert snd(predictions(1, 10, 0)) == 0.0
    assert snd(predictions(2, 10, 0)) == 0.0  # log(2 - 1)
    assert snd(predictions(0, 10, 0)) == 0.0


@for_all(st.integers(2, 60), st.integers(1, 6), seeds)
def test_density_stays_within_its_bounds(n: int, m: int, seed: int) -> None:
    assert 0 <= snd(predictions(n, m, seed)) <= math.log(n - 1)


@for_all(st.integers(3, 40), seeds, st.integers(1, 50))
def test_the_block_size_is_irrelevant(n: int, seed: int, block: int) -> None:
    p = predictions(n, 4, seed)
    assert snd(p, block=block) == pytest.approx(snd(p, block=n), abs=1e-12)


@for_all(st.integers(3, 40), seeds)
def test_the_order_of_samples_and_of_classes_is_irrelevant(n: int, seed: int) -> None:
    p = predictions(n, 5, seed)
    samples, classes = torch.randperm(n, generator=rng(seed)), [3, 0, 4, 2, 1]
    assert snd(p[samples][:, classes]) == pytest.approx(snd(p), abs=1e-12)


@for_all(st.integers(3, 40), seeds)
def test_at_a_high_temperature_all_neighbours_are_equal(n: int, seed: int) -> None:
    assert snd(predictions(n, 5, seed), 1e9) == pytest.approx(math.log(n - 1), abs=1e-12)


def test_at_a_low_temperature_only_the_nearest_counts() -> None:
    # Angles 0, 10, 30 degrees: every sample has one nearest other, the rest weigh nothing.
    angle = torch.deg2rad(torch.tensor([0.0, 10.0, 30.0]))
    p = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert snd(p, 0.002) == pytest.approx(0, abs=1e-6)


def test_a_temperature_at_which_numbers_vanish_is_refused() -> None:
    strangers = torch.eye(3)  # each unlike all others: exp(-1/T) must not become zero
    assert snd(strangers, 0.002) == pytest.approx(math.log(2), abs=1e-9)
    with pytest.raises(ValueError, match=r"at least 0\.002"):
        snd(strangers, 0.001)


def test_the_input_is_left_alone() -> None:
    p = predictions(5, 3, 0)
    before = p.clone()
    snd(p)
    assert torch.equal(p, before)

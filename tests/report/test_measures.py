"""Purity and the paired test, against numbers derived by hand."""

import math

import pytest

from fedwca.report.measures import chance_purity, paired_difference, purity


def test_purity_by_hand() -> None:
    # cluster 0 holds a, a, b and cluster 1 holds b: 2 + 1 of 4 are with their like
    assert purity([0, 0, 0, 1], ["a", "a", "b", "b"]) == 0.75
    assert purity([0, 1], ["a", "b"]) == 1.0


def test_chance_purity_of_two_pairs() -> None:
    # a a b b in two pairs: of the 3 ways to pair, 1 is pure (1.0) and 2 are mixed (0.5): 2/3
    assert chance_purity([0, 0, 1, 1], ["a", "a", "b", "b"]) == pytest.approx(2 / 3, abs=0.02)


def test_differences_of_one_two_three() -> None:
    # mean 2, s = 1, error 1/√3: t = 2√3 = 3.4641 with 2 degrees of freedom. For these the
    # distribution has a closed form: p = 1 - t/√(2 + t²) = 1 - √(12/14) = 0.0742, and the
    # quantile for 0.975 is 0.95·√(2/(1 - 0.95²)) = 4.3027.
    found = paired_difference([11, 22, 33], [10, 20, 30])
    assert found is not None
    assert found.mean == 2
    assert found.pairs == 3
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    reach = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert found.low == pytest.approx(2 - reach)
    assert found.high == pytest.approx(2 + reach)


def test_two_pairs_follow_a_cauchy_distribution() -> None:
    # differences 0 and 2: mean 1, s = √2, error 1, t = 1; one degree of freedom: p = 1/2
    found = paired_difference([1, 4], [1, 2])
    assert found is not None
    assert found.p == pytest.approx(0.5)


def test_the_sides_can_be_swapped() -> None:
    a, b = [1.0, 5.0, 2.0, 7.0], [2.0, 3.0, 2.5, 4.0]
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert one is not None
    assert other is not None
    assert one.p == pytest.approx(other.p)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


def test_differences_without_spread_allow_no_test() -> None:
    assert paired_difference([1, 2], [1, 2]) is None
    assert paired_difference([2, 3], [1, 2]) is None
    # 0.1 + 0.2 is not 0.3: the same gap but for rounding
    assert paired_difference([0.1 + 0.2, 0.5], [0.0, 0.2]) is None


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_pairs_allow_no_test(values: list[float]) -> None:
    assert paired_difference(values, values) is None

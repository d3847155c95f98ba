"""Median, trimmed mean and clipping: numbers by hand, and how far one liar of eight gets."""

import math
from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core.params import Weights, mix
from fedwca.core.robust import clipped_mean, coordinate_median, trimmed_mean
from tests.support.drawn import for_all, rng, seeds

ATTACKS = ["scaled", "flipped", "random", "huge"]
few = partial(for_all, examples=40)
attacks = st.sampled_from(ATTACKS)
finite = st.floats(-(2.0**100), 2.0**100, width=32)


def models(*rows: list[float]) -> list[Weights]:
    """A tensor of some numbers, and a counter that says which model it is of."""
    return [{"w": torch.tensor(row), "n": torch.tensor(k)} for k, row in enumerate(rows)]


def values(model: Weights) -> list[float]:
    return model["w"].tolist()


def test_the_median_by_hand() -> None:
    three = models([1.0, 5.0], [3.0, -9.0], [100.0, 4.0])
    assert values(coordinate_median(three)) == [3.0, 4.0]
    four = models([1.0, 5.0], [3.0, -9.0], [100.0, 4.0], [4.0, 8.0])
    assert values(coordinate_median(four)) == [3.5, 4.5]  # (3 + 4)/2, (4 + 5)/2
    assert values(coordinate_median(four[:2])) == [2.0, -2.0]  # of two, their mean
    assert values(coordinate_median(four[:1])) == [1.0, 5.0]


def test_the_trimmed_mean_by_hand() -> None:
    five = models([10.0], [1.0], [2.0], [6.0], [-50.0])
    assert values(trimmed_mean(five, 0.2)) == [3.0]  # without -50 and 10: (1 + 2 + 6)/3
    assert values(trimmed_mean(five, 0.21)) == [2.0]  # two at either end: 1.05 is rounded up
    assert values(trimmed_mean(five, 0.0)) == pytest.approx([-31 / 5])
    assert values(trimmed_mean(five[:2], 0.2)) == [5.5]  # of two, none can go
    with pytest.raises(ValueError, match="between 0 and"):
        trimmed_mean(five, 0.6)


def test_the_clipped_mean_by_hand() -> None:
    reference = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor(7)}
    # Updates (3, 4), (0, 1), (0, 30) of lengths 5, 1 and 30: the last becomes (0, 5).
    three = models([4.0, 5.0], [1.0, 2.0], [1.0, 31.0])
    plain = clipped_mean(three, [1 / 3] * 3, reference)
    assert values(plain) == pytest.approx([1 + 3 / 3, 1 + (4 + 1 + 5) / 3])
    weighed = clipped_mean(three, [0.5, 0.25, 0.25], reference)
    assert values(weighed) == pytest.approx([1 + 1.5, 1 + 2 + 0.25 + 1.25])
    # Of two, the shorter one's length holds, so that neither can outdo the other.
    assert values(clipped_mean(three[::2], [0.5, 0.5], reference)) == pytest.approx([2.5, 5.5])


def test_every_tensor_is_clipped_by_its_own_length() -> None:
    reference = {"weight": torch.zeros(1), "running_var": torch.zeros(1)}
    honest: Weights = {"weight": torch.tensor([0.1]), "running_var": torch.tensor([50.0])}
    liar: Weights = {"weight": torch.tensor([50.0]), "running_var": torch.tensor([50.0])}
    made = clipped_mean([honest, honest, liar], [1 / 3] * 3, reference)
    assert float(made["weight"]) == pytest.approx(0.1)
    assert float(made["running_var"]) == pytest.approx(50)


def test_nobody_who_moved_is_no_division_by_zero() -> None:
    reference = models([2.0, 3.0])[0]
    still = models([2.0, 3.0], [2.0, 3.0], [2.0, 9.0])
    assert values(clipped_mean(still, [1 / 3] * 3, reference)) == [2.0, 3.0]


def all_aggregates(rows: list[Weights], reference: Weights) -> list[Weights]:
    equal = [1 / len(rows)] * len(rows)
    clipped = clipped_mean(rows, equal, reference)
    return [coordinate_median(rows), trimmed_mean(rows, 0.2), clipped]


def test_shapes_types_and_the_least_counter_are_kept() -> None:
    def kinds(model: Weights) -> dict[str, object]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}

    numbers = [torch.tensor(float(k)) for k in range(3)]
    rows = [{"w": k.expand(2, 3, 1), "s": k, "n": 9 - k.long()} for k in numbers]
    for made in all_aggregates(rows, rows[0]):
        assert kinds(made) == kinds(rows[0])
        assert int(made["n"]) == 7
    for nobody in (coordinate_median, lambda none: clipped_mean(none, [], {})):
        with pytest.raises(ValueError, match="at least one"):
            nobody([])


def eight(seed: int, attack: str) -> tuple[list[Weights], Weights]:
    """Seven honest models near a common one, and a liar's."""
    generator = rng(seed)
    common = torch.randn(20, generator=generator)
    honest = [{"w": common + 0.1 * torch.randn(20, generator=generator)} for _ in range(7)]
    common = honest[0]["w"]
    liar = {
        "scaled": 1e3 * common,
        "flipped": -common,
        "random": 10 * torch.randn(20, generator=generator),
        "huge": torch.full((20,), 1e30) * torch.randn(20, generator=generator).sign(),
    }[attack]
    return honest, {"w": liar}


def between(made: Tensor, honest: list[Weights]) -> bool:
    rows = torch.stack([model["w"] for model in honest])
    return bool(((made >= rows.amin(dim=0)) & (made <= rows.amax(dim=0))).all())


@few(seed=seeds, attack=attacks, place=st.integers(0, 7))
def test_one_liar_of_eight_cannot_leave_what_the_honest_say(
    seed: int, attack: str, place: int
) -> None:
    honest, liar = eight(seed, attack)
    everybody = [*honest[:place], liar, *honest[place:]]
    assert between(coordinate_median(everybody)["w"], honest)
    assert between(trimmed_mean(everybody, 0.2)["w"], honest)


@few(st.lists(st.lists(finite, min_size=3, max_size=3), min_size=8, max_size=8))
def test_nor_whatever_numbers_they_are(rows: list[list[float]]) -> None:
    everybody = models(*rows)
    for liar in range(8):
        honest = everybody[:liar] + everybody[liar + 1 :]
        assert between(coordinate_median(everybody)["w"], honest)
        assert between(trimmed_mean(everybody, 1 / 8)["w"], honest)


@few(seed=seeds, attack=attacks)
def test_a_clipped_liar_moves_the_mean_by_two_eighths_of_the_threshold(
    seed: int, attack: str
) -> None:
    honest, liar = eight(seed, attack)
    reference = {"w": torch.stack([s["w"] for s in honest]).mean(dim=0) - 0.05}
    made = clipped_mean([*honest, liar], [1 / 8] * 8, reference)["w"].double()
    start = reference["w"].double()
    updates = [s["w"].double() - start for s in honest]
    lengths = sorted(float(u.norm()) for u in [*updates, liar["w"].double() - start])
    threshold = lengths[3]  # the fourth of eight, which an honest one reaches
    assert threshold <= max(float(u.norm()) for u in updates)
    clipped = [u * min(1.0, threshold / float(u.norm())) for u in updates]
    without = start + torch.stack(clipped).mean(dim=0)
    assert float((made - without).norm()) <= 2 / 8 * threshold * (1 + 1e-4)


@pytest.mark.parametrize("attack", ATTACKS[:3])
def test_plain_averaging_suffers_beside_them(attack: str) -> None:
    honest, liar = eight(0, attack)
    wanted, everybody = mix(honest, [1 / 7] * 7)["w"], [*honest, liar]
    aggregates = [coordinate_median(everybody), trimmed_mean(everybody, 0.2)]
    plain = float((mix(everybody, [1 / 8] * 8)["w"] - wanted).norm())
    assert math.isfinite(plain)
    assert all(float((made["w"] - wanted).norm()) < plain / 3 for made in aggregates)


@few(seed=seeds, attack=st.sampled_from([0.0, 0.3, 1.0, 1e6]), places=st.integers(0, 7))
def test_however_long_or_short_a_clipped_lie_is_nothing_leaves_what_honest_updates_reach(
    seed: int, attack: float, places: int
) -> None:
    generator = rng(seed)
    reference = {"w": torch.randn(20, generator=generator)}
    directions = torch.randn(7, 20, generator=generator)
    honest = [{"w": reference["w"] + d * s} for s, d in enumerate(directions, start=1)]
    liar = {"w": reference["w"] - attack * directions[0]}
    everybody = [*honest[:places], liar, *honest[places:]]
    made = clipped_mean(everybody, [1 / 8] * 8, reference)["w"]
    reach = max(float((s["w"] - reference["w"]).norm()) for s in honest)
    assert float((made - reference["w"]).norm()) <= reach * (1 + 1e-4)


@pytest.mark.parametrize("place", [0, 3])
def test_a_counter_cannot_be_driven_up_for_the_others(place: int) -> None:
    everybody = [{"w": torch.tensor([1.0]), "steps": torch.tensor(7 + n)} for n in range(4)]
    everybody[place]["steps"] = torch.tensor(2**40)
    least = min(int(model["steps"]) for model in everybody)
    for made in all_aggregates(everybody, everybody[1]):
        assert int(made["steps"]) == least

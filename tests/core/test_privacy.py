"""The Gaussian mechanism: lengths and noise that are known beforehand."""

import math

import numpy as np
import pytest
import torch

from fedwca.core.params import Weights, flatten
from fedwca.core.privacy import clip_factor, noised_update, standard_normal


def never(count: int) -> bytes:
    raise AssertionError("no noise is due")


def seeded(seed: int = 0):
    return np.random.default_rng(seed).bytes


def model(weight: list[float], variance: float = 1.0, steps: int = 7) -> Weights:
    return {
        "w.weight": torch.tensor(weight),
        "n.running_var": torch.tensor([variance]),
        "n.num_batches_tracked": torch.tensor(steps),
    }


def test_random_bytes_become_the_normal_numbers_of_box_and_muller() -> None:
    # u = (2⁵² + ½)/2⁵³ ≈ ½ and v = (2⁵¹ + ½)/2⁵³ ≈ ¼: the radius is √(2 ln 2), the angle π/2.
    half, quarter = (1 << 63).to_bytes(8, "little"), (1 << 62).to_bytes(8, "little")
    found = standard_normal(2, lambda count: half + quarter)
    expected = torch.tensor([0.0, math.sqrt(2 * math.log(2))], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("worst", [b"\x00", b"\xff"])
def test_no_byte_gives_an_infinite_number(worst: bytes) -> None:
    assert bool(standard_normal(9, lambda count: worst * count).isfinite().all())


def test_normal_numbers_are_as_many_and_as_spread_as_they_must_be() -> None:
    found = standard_normal(100_001, seeded())
    assert found.shape == (100_001,)
    # Standard errors: 0.0032 of the mean, 0.0045 of the variance, 0.0155 of the fourth moment.
    assert abs(float(found.mean())) < 0.013
    assert abs(float(found.square().mean()) - 1) < 0.018
    assert abs(float(found.pow(4).mean()) - 3) < 0.13
    assert abs(float((found[:50_000] * found[-50_000:]).mean())) < 0.018


@pytest.mark.parametrize(("length", "factor"), [(0.0, 1.0), (1.9, 1.0), (2.0, 1.0), (8.0, 0.25)])
def test_only_what_is_too_long_is_clipped(length: float, factor: float) -> None:
    assert clip_factor(torch.tensor([length, 0.0]), 2.0) == factor


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_what_has_no_length_cannot_be_clipped(odd: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        clip_factor(torch.tensor([1.0, odd]), 2.0)


def test_weights_and_variances_are_clipped_together_and_the_counter_is_the_reference_s() -> None:
    # The update (3, 0, 4) has length 5 and is to have 1.
    found = noised_update(model([4.0, 2.0], 5.0, 99), model([1.0, 2.0], 1.0), 1.0, 0.0, never)
    assert list(found) == ["w.weight", "n.running_var", "n.num_batches_tracked"]
    torch.testing.assert_close(found["w.weight"], torch.tensor([1.6, 2.0]))
    torch.testing.assert_close(found["n.running_var"], torch.tensor([1.8]))
    assert int(found["n.num_batches_tracked"]) == 7


def test_noise_is_z_times_c_on_every_number() -> None:
    start = {"w": torch.zeros(3, 1000), "b": torch.ones(50)}
    local = {"w": torch.full((3, 1000), 9.0), "b": torch.ones(50)}
    plain = noised_update(local, start, 0.5, 0.0, never)
    found = noised_update(local, start, 0.5, 4.0, seeded())
    moved = flatten(found, ["w", "b"]) - flatten(plain, ["w", "b"])
    torch.testing.assert_close(moved, 2 * standard_normal(3050, seeded()), atol=1e-5, rtol=1e-5)
    assert {name: t.dtype for name, t in found.items()} == dict.fromkeys(local, torch.float32)


def test_two_clients_are_at_most_twice_c_apart_before_noise() -> None:
    start = {"w": torch.zeros(2)}
    one, other = ({"w": torch.tensor([sign * 1e6, 0.0])} for sign in (1, -1))
    a, b = (noised_update(local, start, 0.5, 0.0, never)["w"] for local in (one, other))
    assert float((a - b).norm()) == 1.0


def test_a_variance_stays_one() -> None:
    start = {"n.running_var": torch.full((1000,), 1e-3)}
    found = noised_update(start, start, 1.0, 5.0, seeded())["n.running_var"]
    assert float(found.min()) == 0.0
    assert 0.4 < float((found > 0).double().mean()) < 0.6

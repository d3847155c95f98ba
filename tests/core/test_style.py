"""LADD's styles: amplitudes of plain images are known, and so are obvious groups."""

import math

import pytest
import torch
from torch import Tensor

from fedwca.core import amplitude_style, style_clusters
from tests.support.drawn import rng


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=rng(seed), dtype=torch.float64)


# --- amplitudes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 33), (32, 48)])
def test_a_constant_image_has_zero_frequency_only(height: int, width: int) -> None:
    image = torch.tensor([0.5, -1.0, 0.25])[None, :, None, None].expand(1, 3, height, width)
    style = amplitude_style(image).reshape(3, 3, 3)
    expected = torch.zeros(3, 3, 3, dtype=torch.float64)
    # Σ over pixels = H·W·value; the amplitude is its modulus
    expected[:, 1, 1] = height * width * torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(style, expected, atol=1e-9, rtol=0)


def test_one_wave_across_the_image_has_two_frequencies() -> None:
    wave = torch.cos(2 * math.pi * torch.arange(32, dtype=torch.float64) / 32)
    style = amplitude_style(wave.expand(1, 3, 32, 32)).reshape(3, 3, 3)
    expected = torch.zeros(3, 3, 3, dtype=torch.float64)
    # cos = (e^i + e^-i)/2: half of 32·32 at column frequencies -1 and +1, row frequency 0
    expected[:, 1, 0] = expected[:, 1, 2] = 512
    torch.testing.assert_close(style, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (32, 32, 27),  # .05·32 = 1.6, so 1 frequency to either side: 3·3²
        (224, 224, 1587),  # .05·224 = 11.2: 3·23²
        (224, 32, 27),  # the shorter side counts
        (8, 8, 27),  # .05·8 = .4, but at least 1
    ],
)
def test_size_of_a_style(height: int, width: int, size: int) -> None:
    style = amplitude_style(noise(1, 3, height, width))
    assert style.shape == (size,)
    assert style.dtype == torch.float64


def test_a_wider_band_sees_more() -> None:
    image = noise(1, 3, 32, 32)
    narrow = amplitude_style(image).reshape(3, 3, 3)
    wide = amplitude_style(image, band=0.1).reshape(3, 7, 7)  # .1·32 = 3.2: 3 to either side
    torch.testing.assert_close(wide[:, 2:5, 2:5], narrow)  # the same centre


def test_a_circular_shift_changes_no_amplitude() -> None:
    images = noise(4, 3, 32, 32)
    shifted = images.roll((5, -9), dims=(2, 3))
    torch.testing.assert_close(amplitude_style(shifted), amplitude_style(images))


def test_a_style_is_the_mean_of_amplitudes_and_not_the_amplitude_of_the_mean() -> None:
    image = noise(1, 3, 32, 32)
    both = amplitude_style(torch.cat([image, -3 * image]))  # the mean image would weigh |1 - 3|/2
    torch.testing.assert_close(both, 2 * amplitude_style(image))  # (1 + 3)/2


# --- clusters -------------------------------------------------------------------------------


def groups(centres: list[float], labels: list[int]) -> Tensor:
    """Styles of 27 numbers near a value per group."""
    return torch.tensor(centres)[labels][:, None] + 0.01 * noise(len(labels), 27)


def test_obvious_groups_are_found_and_numbered_by_their_first_client() -> None:
    two = [0, 1, 1, 0, 1, 0]
    assert style_clusters(groups([5.0, 0.0], two)).tolist() == two
    three = [0, 0, 1, 2, 1, 2, 0, 1, 2]
    assert style_clusters(groups([9.0, 1.0, 50.0], three)).tolist() == three


@pytest.mark.parametrize(
    ("styles", "labels"),
    [
        # A silhouette needs at least one cluster of two and one other.
        (noise(1, 27), [0]),
        (noise(2, 27), [0, 0]),
        (groups([0.0, 5.0], [0, 1, 0]), [0, 1, 0]),  # of three clients the odd one stands alone
        (noise(1, 27).repeat(6, 1), [0] * 6),  # identical styles are one cluster
        (noise(2, 27).repeat(4, 1), [0, 1] * 4),  # no more clusters than styles
    ],
)
def test_clusters_of_few_styles(styles: Tensor, labels: list[int]) -> None:
    found = style_clusters(styles)
    assert found.tolist() == labels
    assert found.dtype == torch.int64


def test_the_search_ends_at_nineteen_clusters() -> None:
    labels = style_clusters(torch.arange(20.0)[:, None].repeat_interleave(2, dim=0))
    # Twenty styles, two clients each: with 19 clusters one holds two styles.
    assert len(labels.unique()) == 19
    assert sorted(labels.bincount().tolist()) == [2] * 18 + [4]
    assert torch.equal(labels[::2], labels[1::2])


def test_the_same_seed_gives_the_same_clusters() -> None:
    styles = noise(6, 27)
    assert torch.equal(style_clusters(styles, seed=3), style_clusters(styles, seed=3))

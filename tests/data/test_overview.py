"""The contact sheet: its size, its captions, and whatever a folder's name may hold."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedwca.data import overview
from fedwca.data.augment import DIGITS
from fedwca.data.overview import draw_contact_sheet
from fedwca.data.types import Benchmark, Domain

HOSTILE = [
    "x" * 300,
    "two\nlines\r\n\tand a tab",
    "🦊" * 40,
    "\u202eשלום עולם مرحبا" * 10,
    "nul\x00 and bell\x07",
    "lone surrogate \udcff",
    "e" + "\u0301" * 200,
    "\n\n",
    "",
    "%s {0} <b>&amp;</b>",
]


def noise(count: int, side: int = 32) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def sheet(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    per_class: int = 8,
    domains: tuple[str, ...] = ("a",),
) -> Image.Image:
    """The contact sheet of domains that all hold these images."""
    held = {name: Domain(images, labels) for name in domains}
    return draw_contact_sheet(Benchmark("x", classes, held, DIGITS), per_class)


def test_size_follows_from_what_is_shown() -> None:
    labels, classes = np.arange(40) % 4, ("0", "1", "2", "3")
    one = sheet(noise(40), labels, classes, per_class=5)
    assert one.mode == "RGB"
    assert one.height == 16 + (44 + 4 * 50) + 16
    for count, across, down in ((3, 3, 1), (25, 3, 9)):
        names = tuple(f"client {place}" for place in range(count))
        many = sheet(noise(40), labels, classes, per_class=5, domains=names)
        assert many.width - 16 == across * (one.width - 16)
        assert many.height - 16 == down * (one.height - 16)


def test_rows_hold_their_own_class() -> None:
    images = np.zeros((20, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    images[labels == 1] = (200, 10, 10)
    red = (np.asarray(sheet(images, labels, ("0", "1"), per_class=4)) == (200, 10, 10)).all(axis=2)
    rows = np.flatnonzero(red.any(axis=1))
    assert red.sum() == 4 * 48 * 48
    assert (rows[0], rows[-1]) == (16 + 44 + 50, 16 + 44 + 50 + 47)


@pytest.mark.parametrize("classes", [("0", "1"), ()])
def test_an_unlabeled_domain_is_a_plain_grid(classes: tuple[str, ...]) -> None:
    images = np.full((4, 8, 8, 3), 9, dtype=np.uint8)
    drawn = sheet(images, np.full(4, -1), classes, per_class=4)
    assert (np.asarray(drawn) == 9).all(axis=2).sum() == 4 * 48 * 48


def test_classes_without_images_and_images_without_labels_are_left_out() -> None:
    assert sheet(noise(3), np.array([-1, 2, 0]), ("0", "1", "2")).height == 16 + 44 + 150 + 16


def test_many_classes_are_cut_off() -> None:
    names = tuple(f"class number {place}" for place in range(65))
    assert sheet(noise(65), np.arange(65), names).height == 16 + 44 + 20 * 50 + 16


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_domains_and_classes(name: str) -> None:
    drawn = sheet(noise(6), np.arange(6) % 2, (name, "b"), per_class=3, domains=(name,))
    assert drawn.width <= 400
    font = overview._font(18)
    line = overview._truncate(name, font, 200)
    assert font.getlength(line) <= 200
    assert "\n" not in line


def test_a_long_name_ends_in_an_ellipsis() -> None:
    font = overview._font(18)
    assert overview._truncate("x" * 300, font, 200).endswith("x…")
    assert overview._truncate("short", font, 200) == "short"

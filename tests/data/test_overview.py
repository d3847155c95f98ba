"""The contact sheet: its size, its captions, and whatever a folder's name may hold."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedwca._support.errors import UserError
from fedwca.data import preview
from fedwca.data.preview import draw_contact_sheet

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


def plain(count: int, height: int = 32, width: int = 32) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_size_follows_from_what_is_shown() -> None:
    labels = np.arange(40) % 4
    one = draw_contact_sheet({"a": (plain(40), labels)}, ["0", "1", "2", "3"], per_class=5, tile=32)
    three = draw_contact_sheet(
        {name: (plain(40), labels) for name in "abc"}, ["0", "1", "2", "3"], per_class=5, tile=32
    )
    assert one.mode == "RGB"
    assert one.height == 16 + (44 + 4 * 34) + 16
    assert three.height == one.height
    assert three.width - 16 == 3 * (one.width - 16)


def test_many_domains_wrap() -> None:
    domains = {f"client {place}": (plain(6), np.arange(6) % 3) for place in range(25)}
    sheet = draw_contact_sheet(domains, ["a", "b", "c"], per_class=2, columns=5, tile=24)
    single = draw_contact_sheet(
        {"a": (plain(6), np.arange(6) % 3)}, ["a", "b", "c"], per_class=2, tile=24
    )
    assert sheet.height - 16 == 5 * (single.height - 16)
    assert sheet.width - 16 == 5 * (single.width - 16)


def test_same_data_same_sheet() -> None:
    domains = {"a": (plain(50), np.arange(50) % 10)}
    classes = [str(digit) for digit in range(10)]
    assert (
        draw_contact_sheet(domains, classes).tobytes()
        == draw_contact_sheet(domains, classes).tobytes()
    )


def test_rows_hold_their_own_class() -> None:
    images = np.zeros((20, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    images[labels == 1] = (200, 10, 10)
    sheet = np.asarray(
        draw_contact_sheet({"a": (images, labels)}, ["0", "1"], per_class=4, tile=16)
    )
    red = (sheet == (200, 10, 10)).all(axis=2)
    rows = np.flatnonzero(red.any(axis=1))
    assert red.sum() == 4 * 16 * 16
    assert (rows[0], rows[-1]) == (16 + 44 + 18, 16 + 44 + 18 + 15)


def test_unlabeled_domain_is_a_plain_grid() -> None:
    images = np.full((7, 8, 8, 3), 9, dtype=np.uint8)
    sheet = np.asarray(draw_contact_sheet({"a": (images, None)}, ["0", "1"], per_class=4, tile=16))
    assert (sheet == 9).all(axis=2).sum() == 7 * 16 * 16


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (7, 90), (300, 20), (224, 224)])
def test_any_image_size_fits_its_tile(shape: tuple[int, int]) -> None:
    sheet = draw_contact_sheet({"a": (plain(4, *shape), np.arange(4) % 2)}, ["0", "1"], tile=40)
    assert (
        sheet.size
        == draw_contact_sheet({"a": (plain(4), np.arange(4) % 2)}, ["0", "1"], tile=40).size
    )
    assert max(preview._fit(plain(1, *shape)[0], 40).size) == 40


def test_gaps_do_not_crash() -> None:
    empty = np.zeros((0, 32, 32, 3), dtype=np.uint8)
    domains = {
        "empty": (empty, np.zeros(0, dtype=np.int64)),
        "empty, unlabeled": (empty, None),
        "unknown labels": (plain(3), np.array([-1, 7, 0])),
    }
    assert isinstance(draw_contact_sheet(domains, ["0", "1", "2"]), Image.Image)
    assert isinstance(draw_contact_sheet({"a": (plain(3), None)}, []), Image.Image)


def test_many_classes_are_cut_off() -> None:
    names = [f"class number {place}" for place in range(65)]
    sheet = draw_contact_sheet({"a": (plain(65), np.arange(65))}, names, tile=16, max_classes=12)
    assert sheet.height == 16 + 44 + 12 * 18 + 16


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_domains_and_classes(name: str) -> None:
    labels = np.arange(6) % 2
    sheet = draw_contact_sheet({name: (plain(6), labels)}, [name, "b"], per_class=3, tile=24)
    assert sheet.width <= 400
    font = preview._font(18)
    line = preview._truncate(name, font, 200)
    assert font.getlength(line) <= 200
    assert "\n" not in line
    assert line


def test_a_long_name_ends_in_an_ellipsis() -> None:
    font = preview._font(18)
    assert preview._truncate("x" * 300, font, 200).endswith("x…")
    assert preview._truncate("short", font, 200) == "short"
    assert preview._truncate("\n", font, 200) == "(no name)"


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 8, 8), dtype=np.uint8), None),
        (np.zeros((2, 8, 8, 1), dtype=np.uint8), None),
        (np.zeros((2, 8, 8, 3), dtype=np.float32), None),
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), np.zeros(3, dtype=np.int64)),
    ],
)
def test_wrong_arrays_are_a_user_error(images: NDArray[np.uint8], labels: object) -> None:
    with pytest.raises(UserError, match="'a'"):
        draw_contact_sheet({"a": (images, labels)}, ["0"])  # type: ignore[dict-item]


def test_nothing_to_show_is_a_user_error() -> None:
    with pytest.raises(UserError, match="at least one domain"):
        draw_contact_sheet({}, ["0"])
    with pytest.raises(UserError, match="at least 1"):
        draw_contact_sheet({"a": (plain(1), None)}, ["0"], per_class=0)

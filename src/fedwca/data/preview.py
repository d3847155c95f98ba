"""A contact sheet: every domain at a glance, before anything is trained on it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwca.errors import UserError

__all__ = ["Domain", "contact_sheet"]

Domain = tuple[NDArray[np.uint8], "NDArray[Any] | None"]

_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (120, 120, 120)
_MARGIN, _GAP, _HEADER, _GUTTER = 16, 2, 44, 110
_NAME_LIMIT = 300  # no caption shows more; measuring a megabyte-long name would only cost time


def contact_sheet(
    domains: Mapping[str, Domain],
    classes: Sequence[str],
    *,
    per_class: int = 8,
    tile: int = 48,
    columns: int = 3,
    max_classes: int = 20,
) -> Image.Image:
    """Draw one block per domain: its name, its size, and `per_class` images of each class.

    A domain without labels is a plain grid of as many tiles.  Samples are taken evenly from the
    domain's own order, so that the same data always give the same sheet.  No more than
    `max_classes` classes are drawn, and no more than `columns` blocks stand side by side.
    """
    if not domains:
        raise UserError("A contact sheet needs at least one domain.")
    if min(per_class, tile, columns, max_classes) < 1:
        raise UserError("per_class, tile, columns and max_classes must each be at least 1.")
    for name, (images, labels) in domains.items():
        _check(name, images, labels)
    blocks = [
        _block(name, domain, classes, per_class, tile, max_classes)
        for name, domain in domains.items()
    ]
    return _pasted(blocks, min(columns, len(blocks)))


def _block(
    name: str, domain: Domain, classes: Sequence[str], per_class: int, tile: int, limit: int
) -> Image.Image:
    images, labels = domain
    shown = classes[:limit]
    rows = max(1, len(shown))
    gutter = _gutter(shown)
    size = (max(gutter + per_class * (tile + _GAP), 160), _HEADER + rows * (tile + _GAP))
    block = Image.new("RGB", size, _PAPER)
    _header(block, name, images, labels, shown=rows, known=len(classes))
    _tiles(block, images, _picks(images, labels, rows, per_class), gutter, tile)
    if labels is not None:
        _row_captions(block, shown, gutter, tile)
    return block


def _pasted(blocks: list[Image.Image], across: int) -> Image.Image:
    """Blocks of one size side by side, in as many rows as they need."""
    width, height = blocks[0].width + _MARGIN, blocks[0].height + _MARGIN
    down = math.ceil(len(blocks) / across)
    sheet = Image.new("RGB", (_MARGIN + across * width, _MARGIN + down * height), _PAPER)
    for place, block in enumerate(blocks):
        row, column = divmod(place, across)
        sheet.paste(block, (_MARGIN + column * width, _MARGIN + row * height))
    return sheet


def _check(name: str, images: NDArray[np.uint8], labels: NDArray[Any] | None) -> None:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise UserError(
            f"The images of domain {_plain(name)[:60]!r} must be uint8 of shape [N, H, W, 3],"
            f" not {images.dtype} of shape {list(images.shape)}."
        )
    if labels is not None and labels.shape != images.shape[:1]:
        raise UserError(
            f"Domain {_plain(name)[:60]!r} has {len(images)} images"
            f" but labels of shape {list(labels.shape)}."
        )


def _picks(
    images: NDArray[np.uint8], labels: NDArray[Any] | None, rows: int, per_class: int
) -> list[list[int]]:
    """Which images stand in each row of a block."""
    if labels is None:
        chosen = _evenly(np.arange(len(images)), rows * per_class)
        return [chosen[start : start + per_class] for start in range(0, len(chosen), per_class)]
    return [_evenly(np.flatnonzero(labels == index), per_class) for index in range(rows)]


def _evenly(indices: NDArray[Any], count: int) -> list[int]:
    if len(indices) <= count:
        return [int(index) for index in indices]
    return [int(indices[place * len(indices) // count]) for place in range(count)]


def _tiles(
    block: Image.Image,
    images: NDArray[np.uint8],
    picks: list[list[int]],
    gutter: int,
    tile: int,
) -> None:
    for row, chosen in enumerate(picks):
        for column, index in enumerate(chosen):
            picture = _fit(images[index], tile)
            left = gutter + column * (tile + _GAP) + (tile - picture.width) // 2
            top = _HEADER + row * (tile + _GAP) + (tile - picture.height) // 2
            block.paste(picture, (left, top))


def _fit(image: NDArray[np.uint8], tile: int) -> Image.Image:
    """The image scaled into a tile with its shape kept; one without pixels becomes a dot."""
    height, width = image.shape[:2]
    if not height or not width:
        return Image.new("RGB", (1, 1), _FAINT)
    scale = tile / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BICUBIC)


def _header(
    block: Image.Image,
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[Any] | None,
    *,
    shown: int,
    known: int,
) -> None:
    draw = ImageDraw.Draw(block)
    draw.text((0, 0), _cut(name, _font(18), block.width), fill=_INK, font=_font(18))
    height, width = images.shape[1:3]
    facts = f"{len(images):,} images, {width} × {height}"
    if labels is None:
        facts += ", no labels"
    elif shown < known:
        facts += f", first {shown} of {known} classes"
    draw.text((0, 23), _cut(facts, _font(13), block.width), fill=_FAINT, font=_font(13))


def _row_captions(block: Image.Image, classes: Sequence[str], gutter: int, tile: int) -> None:
    draw, font = ImageDraw.Draw(block), _font(13)
    for row, name in enumerate(classes):
        middle = _HEADER + row * (tile + _GAP) + tile // 2
        draw.text((0, middle), _cut(name, font, gutter - 8), fill=_INK, font=font, anchor="lm")


def _gutter(classes: Sequence[str]) -> int:
    """Room for the widest class name, within reason."""
    widest = max((_font(13).getlength(_plain(name)) for name in classes), default=0.0)
    return min(_GUTTER, math.ceil(widest) + 10)


def _plain(text: str) -> str:
    """One line of characters that have a shape: no newline, no direction mark, no surrogate."""
    shaped = (
        " " if unicodedata.category(mark)[0] in "CZ" else mark for mark in text[: 4 * _NAME_LIMIT]
    )
    return " ".join("".join(shaped).split())[:_NAME_LIMIT] or "(no name)"


def _cut(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """The text, or as much of its beginning as fits `width` followed by an ellipsis."""
    line = _plain(text)
    if font.getlength(line) <= width and len(line) < _NAME_LIMIT:
        return line
    while line and font.getlength(line + "…") > width:
        line = line[:-1]
    return line + "…"


def _font(size: int) -> ImageFont.FreeTypeFont:
    # Matplotlib's own face, laid out by Pillow alone: the same on every machine, whatever fonts
    # and shaping libraries that machine has.
    import matplotlib  # here, since it takes a while and few need it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)

"""Draw a contact sheet: sample images of every domain and class."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwca._support.errors import UserError
from fedwca.data.fonts import load_font

__all__ = ["ImagesAndLabels", "draw_contact_sheet"]

ImagesAndLabels = tuple[NDArray[np.uint8], "NDArray[Any] | None"]

_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (120, 120, 120)
_MARGIN, _GAP, _HEADER, _GUTTER = 16, 2, 44, 110
_NAME_LIMIT = 300  # characters; no caption shows more


def draw_contact_sheet(
    domains: Mapping[str, ImagesAndLabels],
    classes: Sequence[str],
    *,
    per_class: int = 8,
    tile: int = 48,
    columns: int = 3,
    max_classes: int = 20,
) -> Image.Image:
    """Draw one block per domain: its name, its size, and `per_class` images of each class.

    A domain without labels becomes a grid of as many tiles. Samples are evenly spaced in the
    domain's order, so that the same data always give the same sheet. At most `max_classes` classes
    are drawn, and at most `columns` blocks side by side.
    """
    if not domains:
        raise UserError("a contact sheet needs at least one domain")
    if min(per_class, tile, columns, max_classes) < 1:
        raise UserError("per_class, tile, columns and max_classes must be at least 1")
    for name, (images, labels) in domains.items():
        _check(name, images, labels)
    blocks = [
        _draw_block(name, domain, classes, per_class, tile, max_classes)
        for name, domain in domains.items()
    ]
    return _paste_blocks(blocks, min(columns, len(blocks)))


def _draw_block(
    name: str,
    domain: ImagesAndLabels,
    classes: Sequence[str],
    per_class: int,
    tile: int,
    limit: int,
) -> Image.Image:
    images, labels = domain
    shown = classes[:limit]
    rows = max(1, len(shown))
    gutter = _gutter_width(shown)
    size = (max(gutter + per_class * (tile + _GAP), 160), _HEADER + rows * (tile + _GAP))
    block = Image.new("RGB", size, _PAPER)
    _draw_header(block, name, images, labels, shown=rows, known=len(classes))
    _paste_tiles(block, images, _sample_rows(images, labels, rows, per_class), gutter, tile)
    if labels is not None:
        _draw_class_names(block, shown, gutter, tile)
    return block


def _paste_blocks(blocks: list[Image.Image], across: int) -> Image.Image:
    """Arrange blocks of one size side by side, in as many rows as necessary."""
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
            f"images of domain {_single_line(name)[:60]!r} must be uint8 of shape [N, H, W, 3], "
            f"not {images.dtype} of shape {list(images.shape)}"
        )
    if labels is not None and labels.shape != images.shape[:1]:
        raise UserError(
            f"domain {_single_line(name)[:60]!r} has {len(images)} images, "
            f"but labels of shape {list(labels.shape)}"
        )


def _sample_rows(
    images: NDArray[np.uint8], labels: NDArray[Any] | None, rows: int, per_class: int
) -> list[list[int]]:
    """Return the images in each row of a block."""
    if labels is None:
        chosen = _pick_evenly(np.arange(len(images)), rows * per_class)
        return [chosen[start : start + per_class] for start in range(0, len(chosen), per_class)]
    return [_pick_evenly(np.flatnonzero(labels == index), per_class) for index in range(rows)]


def _pick_evenly(indices: NDArray[Any], count: int) -> list[int]:
    if len(indices) <= count:
        return [int(index) for index in indices]
    return [int(indices[place * len(indices) // count]) for place in range(count)]


def _paste_tiles(
    block: Image.Image,
    images: NDArray[np.uint8],
    rows: list[list[int]],
    gutter: int,
    tile: int,
) -> None:
    for row, chosen in enumerate(rows):
        for column, index in enumerate(chosen):
            picture = _fit(images[index], tile)
            left = gutter + column * (tile + _GAP) + (tile - picture.width) // 2
            top = _HEADER + row * (tile + _GAP) + (tile - picture.height) // 2
            block.paste(picture, (left, top))


def _fit(image: NDArray[np.uint8], tile: int) -> Image.Image:
    """Scale an image into a tile, keeping its proportions; one without pixels becomes a dot."""
    height, width = image.shape[:2]
    if not height or not width:
        return Image.new("RGB", (1, 1), _FAINT)
    scale = tile / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BICUBIC)


def _draw_header(
    block: Image.Image,
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[Any] | None,
    *,
    shown: int,
    known: int,
) -> None:
    draw = ImageDraw.Draw(block)
    draw.text((0, 0), _truncate(name, _font(18), block.width), fill=_INK, font=_font(18))
    height, width = images.shape[1:3]
    facts = f"{len(images):,} images, {width} × {height}"
    if labels is None:
        facts += ", no labels"
    elif shown < known:
        facts += f", first {shown} of {known} classes"
    draw.text((0, 23), _truncate(facts, _font(13), block.width), fill=_FAINT, font=_font(13))


def _draw_class_names(block: Image.Image, classes: Sequence[str], gutter: int, tile: int) -> None:
    draw, font = ImageDraw.Draw(block), _font(13)
    for row, name in enumerate(classes):
        middle = _HEADER + row * (tile + _GAP) + tile // 2
        draw.text((0, middle), _truncate(name, font, gutter - 8), fill=_INK, font=font, anchor="lm")


def _gutter_width(classes: Sequence[str]) -> int:
    """Return the width of the widest class name, within a limit."""
    widest = max((_font(13).getlength(_single_line(name)) for name in classes), default=0.0)
    return min(_GUTTER, math.ceil(widest) + 10)


def _single_line(text: str) -> str:
    """Return one line of visible characters: no newlines, direction marks or surrogates."""
    shaped = (
        " " if unicodedata.category(mark)[0] in "CZ" else mark for mark in text[: 4 * _NAME_LIMIT]
    )
    return " ".join("".join(shaped).split())[:_NAME_LIMIT] or "(no name)"


def _truncate(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return the text; if it is wider than `width`, its beginning and an ellipsis."""
    line = _single_line(text)
    if font.getlength(line) <= width and len(line) < _NAME_LIMIT:
        return line
    while line and font.getlength(line + "…") > width:
        line = line[:-1]
    return line + "…"


def _font(size: int) -> ImageFont.FreeTypeFont:
    return load_font("DejaVuSans", size)

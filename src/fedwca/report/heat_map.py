"""Cluster weights as a picture: a row for each client, a column for each cluster."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

__all__ = ["colour", "heat_map"]

# Viridis, by its stops: even steps look even, to the colour-blind and in grey too.
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_CELL = 20  # pixels
_GAP = 1
_NAME = 24  # letters shown of a client's name
_FONT = 12


def colour(share: float) -> tuple[int, int, int]:
    """Of a weight from 0, dark, to 1, light."""
    place = min(max(share, 0.0), 1.0) * (len(_STOPS) - 1)
    number = min(int(place), len(_STOPS) - 2)
    low, high = list(pairwise(_STOPS))[number]
    red, green, blue = (
        round(a + (b - a) * (place - number)) for a, b in zip(low, high, strict=True)
    )
    return red, green, blue


def heat_map(weights: Mapping[str, Sequence[float]]) -> Image.Image:
    """The weights of each client, whose names must be printable."""
    font = ImageFont.load_default(_FONT)
    names = {name: name if len(name) <= _NAME else name[: _NAME - 1] + "…" for name in weights}
    left = 8 + max(int(font.getlength(shown)) for shown in names.values())
    columns = max(len(row) for row in weights.values())
    size = (left + columns * _CELL, (1 + len(weights)) * _CELL)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for c in range(columns):
        draw.text((left + (c + 0.5) * _CELL, _CELL / 2), str(c), "black", font, anchor="mm")
    for k, (name, row) in enumerate(weights.items(), start=1):
        draw.text((4, (k + 0.5) * _CELL), names[name], "black", font, anchor="lm")
        for c, share in enumerate(row):
            x, y = left + c * _CELL, k * _CELL
            draw.rectangle((x, y, x + _CELL - 1 - _GAP, y + _CELL - 1 - _GAP), colour(share))
    return image

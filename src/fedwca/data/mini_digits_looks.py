"""What the looks of `mini-digits` are made of: pen and print, ground and colour, light and blur.

Every picture is float in [0, 1] until it is done; every random number comes from the caller.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwca.errors import UserError

__all__ = ["BOLD_FONTS", "FONTS", "SIDE", "Picture", "Rng"]
__all__ += ["pen", "placed", "glyphs", "with_neighbours", "line"]
__all__ += ["ground", "wall", "ramp", "colour", "dusty", "apart", "soft", "grey"]

Picture = NDArray[np.float64]
Rng = np.random.Generator

SIDE = 32
_FINE = 64  # strokes are shaped at twice the final size, so that their edges come out smooth

# Named, not listed from the folder, which holds more in some versions of Matplotlib than in others.
# Left out: symbol faces without digits or with brackets in their place, the "last resort" face
# that draws one box for all, and cmmi10, whose digits are old-style and hang below the line.
BOLD_FONTS: tuple[str, ...] = (
    "DejaVuSans-Bold",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif-Bold",
    "DejaVuSerif-BoldItalic",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "cmb10",
)
FONTS: tuple[str, ...] = (
    *BOLD_FONTS,
    "DejaVuSans",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralItalic",
    "cmr10",
    "cmss10",
    "cmti10",
    "cmtt10",
)


def glyphs(font: str, text: str, centre: int) -> tuple[Picture, float]:
    """`text` as ink, and the column where the middle of its letter number `centre` lies."""
    face = _face(font)
    start, end = face.getlength(text[:centre]), face.getlength(text[: centre + 1])
    left, top, right, bottom = face.getbbox(text)
    canvas = Image.new("L", (int(right - left) + 8, int(bottom - top) + 8))
    ImageDraw.Draw(canvas).text((4 - left, 4 - top), text, fill=255, font=face)
    ink = np.asarray(canvas, dtype=np.float64) / 255
    return ink, (start + end) / 2 - left + 4


@cache
def _face(font: str) -> ImageFont.FreeTypeFont:
    import matplotlib  # here, since it takes a while and few need it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    if not path.is_file():
        raise UserError(f"Matplotlib's font {path} is missing: reinstall matplotlib.")
    # Pillow's own layout: what a machine's shaping library would do must not change the bytes.
    return ImageFont.truetype(str(path), 64, layout_engine=ImageFont.Layout.BASIC)


def pen(scan: Picture, level: float) -> Picture:
    """The pen's outline, finely drawn, behind an 8 x 8 scan of ink counts.

    Each count says how much of a 4 x 4 cell is ink, so the stroke's edge is a level line of the
    smooth surface through the counts; a lower level makes a thicker stroke.
    """
    framed = np.pad(scan / 16, 1)  # room for strokes that touch the border
    # Faint strokes are thin, not absent: judged against the ink around them they stay whole,
    # while the eyes of 6, 8 and 9, light amid dark, stay open.
    around = scipy.ndimage.gaussian_filter(scipy.ndimage.maximum_filter(framed, 3), 0.7)
    framed = framed / np.maximum(around, 0.45)
    surface = scipy.ndimage.zoom(framed, 8, order=3, mode="grid-constant", grid_mode=True)
    return np.asarray(np.clip((surface - level) / 0.16 + 0.5, 0, 1))


def _box(ink: Picture) -> tuple[float, float, float, float]:
    """Middle row, middle column, height and width of what is inked."""
    rows = np.flatnonzero(ink.max(axis=1) > 0.5)
    columns = np.flatnonzero(ink.max(axis=0) > 0.5)
    if not len(rows) or not len(columns):
        return ink.shape[0] / 2, ink.shape[1] / 2, float(ink.shape[0]), float(ink.shape[1])
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    return (top + bottom) / 2, (left + right) / 2, float(bottom - top), float(right - left)


def placed(
    ink: Picture, height: float, width: float, *, turn: float = 0.0, slant: float = 0.0
) -> Picture:
    """The ink's bounding box, `height` high and `width` wide, in the picture's middle."""
    middle_row, middle_column, tall, wide = _box(ink)
    # A bare stroke, such as most ones, keeps its shape: widened, it would be a block.
    across = min(height / tall, width / wide) if wide < tall / 2 else width / wide
    scale = (height / tall, across)
    return _warp(ink, (middle_row, middle_column), scale, (turn, slant, 0.0, 0.0), np.zeros(2))


def line(
    ink: Picture,
    middle: float,
    height: float,
    bend: tuple[float, float, float, float],
    shift: NDArray[np.float64],
) -> Picture:
    """A line of print, `height` high, with `middle` brought to the picture's middle."""
    middle_row, _, tall, _ = _box(ink)
    return _warp(ink, (middle_row, middle), (height / tall, height / tall), bend, shift)


def _warp(
    ink: Picture,
    middle: tuple[float, float],
    scale: tuple[float, float],
    bend: tuple[float, float, float, float],
    shift: NDArray[np.float64],
) -> Picture:
    """The ink around `middle`, scaled, turned, slanted and seen in perspective, at 32 x 32."""
    turn, slant, tilt_row, tilt_column = bend
    grid = (np.arange(_FINE) + 0.5) * SIDE / _FINE - SIDE / 2
    row, column = grid[:, None] - shift[0], grid[None, :] - shift[1]
    depth = 1 + tilt_row * row + tilt_column * column
    turned_row = (row * np.cos(turn) - column * np.sin(turn)) / depth
    turned_column = (row * np.sin(turn) + column * np.cos(turn)) / depth + slant * turned_row
    places = [
        middle[0] + turned_row / scale[0] - 0.5,
        middle[1] + turned_column / scale[1] - 0.5,
    ]
    # Large print must be smoothed before it is thinned out to 64 x 64.
    smooth = scipy.ndimage.gaussian_filter(ink, max(0.0, 0.25 / min(scale) - 0.2))
    fine = scipy.ndimage.map_coordinates(smooth, places, order=1, mode="constant")
    return np.asarray(fine.reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3)))


def with_neighbours(digit: int, rng: Rng, *, chance: float) -> tuple[str, int]:
    """The digit with a random one at its left, its right, or both; and where it stands."""
    left, right = (str(rng.integers(10)) if rng.random() < chance else "" for _ in range(2))
    return f"{left}{digit}{right}", len(left)


def ramp(rng: Rng) -> Picture:
    """From 0 to 1 across the picture in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    grid = np.linspace(-0.5, 0.5, SIDE)
    slope = grid[:, None] * np.sin(angle) + grid[None, :] * np.cos(angle)
    return np.asarray((slope - slope.min()) / np.ptp(slope))


def ground(rng: Rng) -> Picture:
    """A flat, shaded or mottled ground in a soft colour."""
    first = colour(rng, rng.choice([0.12, 0.55, 0.85]), 0.16)
    shown = np.broadcast_to(first, (SIDE, SIDE, 3))
    kind = rng.integers(3)
    if kind == 1:
        other = np.clip(first + rng.normal(0, 0.12, 3), 0, 1)
        shown = shown + ramp(rng)[..., None] * (other - first)
    elif kind == 2:
        shown = shown + 0.4 * _mottle(rng, 2.0)
    return np.clip(shown, 0, 1)


def wall(rng: Rng) -> Picture:
    """A wall or a plate: a muted colour, uneven, sometimes with an edge running across it."""
    shown = dusty(rng, rng.uniform(0.2, 0.75)) + 0.6 * _mottle(rng, 3.0)
    if rng.random() < 0.4:
        edge = ramp(rng) > rng.choice([rng.uniform(0.05, 0.2), rng.uniform(0.8, 0.95)])
        shown = shown + edge[..., None] * rng.normal(0, 0.12)
    return np.clip(shown, 0.02, 0.98)


def _mottle(rng: Rng, size: float) -> Picture:
    """Grey clouds about `size` pixels wide, with a spread of about 0.1."""
    clouds = scipy.ndimage.gaussian_filter(rng.normal(0, 1, (SIDE, SIDE)), size, mode="wrap")
    return np.asarray(0.1 * clouds / (clouds.std() + 1e-9))[..., None]


def colour(rng: Rng, light: float, spread: float) -> NDArray[np.float64]:
    """A colour of about that lightness; `spread` says how far from grey it may be."""
    tint = rng.uniform(-1, 1, 3)
    return np.asarray(np.clip(light + spread * (tint - tint.mean()) + rng.normal(0, 0.05), 0, 1))


def dusty(rng: Rng, light: float) -> NDArray[np.float64]:
    """Grey, brick or slate: outdoors, colours lie between warm and blue, seldom green or pink."""
    warmth = rng.normal(0, 0.07)
    tint = np.array([warmth, rng.normal(0, 0.012), -warmth])
    return np.clip(light + tint, 0.02, 0.98)


def apart(light: float, rng: Rng, least: float, most: float) -> float:
    """A lightness that differs from `light` by at least `least`, so that print can be read."""
    step = rng.uniform(least, most)
    upwards = rng.random() < 0.5
    if not 0 <= light + (least if upwards else -least) <= 1:
        upwards = not upwards
    return float(np.clip(light + (step if upwards else -step), 0, 1))


def soft(picture: Picture, blur: float, rng: Rng, *, grain: float) -> Picture:
    """Out of focus, then the sensor's grain."""
    blurred = scipy.ndimage.gaussian_filter(picture, (blur, blur, 0), mode="nearest")
    return np.asarray(np.clip(blurred + rng.normal(0, grain, picture.shape), 0, 1))


def grey(ink: Picture) -> Picture:
    return np.repeat(np.clip(ink, 0, 1)[..., None], 3, axis=2)

"""Drawing primitives of `mini-digits`: pen and print, backgrounds and colors, light and blur.

All pictures are floats in [0, 1]; every random number comes from the caller's generator.
"""

from functools import cache
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Picture = NDArray[np.float64]
Rng = np.random.Generator

SIDE = 32
_FINE = 64  # strokes are shaped at twice the final size, so that their edges are smooth

# Listed here because the folder's content differs between versions of Matplotlib. Not listed:
# symbol fonts without digits or with brackets in their place, the "last resort" font that draws a
# box for every character, and cmmi10, whose old-style digits hang below the line.
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


@cache
def load_font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return one of Matplotlib's typefaces, which are the same on every machine."""
    import matplotlib  # here because the import is slow and few need it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    # Pillow's basic layout does not depend on shaping libraries of the machine.
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def draw_text(font: str, text: str, center: int) -> tuple[Picture, float]:
    """Return `text` as ink, and the middle column of its character number `center`."""
    face = load_font(font, 64)
    start, end = face.getlength(text[:center]), face.getlength(text[: center + 1])
    left, top, right, bottom = face.getbbox(text)
    canvas = Image.new("L", (int(right - left) + 8, int(bottom - top) + 8))
    ImageDraw.Draw(canvas).text((4 - left, 4 - top), text, fill=255, font=face)
    ink = np.asarray(canvas, dtype=np.float64) / 255
    return ink, (start + end) / 2 - left + 4


def trace_pen(scan: Picture, level: float) -> Picture:
    """Return the pen's outline in high resolution from an 8 x 8 scan of ink counts.

    Each count is the inked share of a 4 x 4 cell, so the stroke's edge is a level line of the
    smooth surface through the counts; a lower level makes a thicker stroke.
    """
    framed = np.pad(scan / 16, 1)  # room for strokes that touch the border
    # Faint strokes are thin, not absent: relative to the ink around them they stay connected,
    # while the holes of 6, 8 and 9 stay open.
    around = scipy.ndimage.gaussian_filter(scipy.ndimage.maximum_filter(framed, 3), 0.7)
    framed = framed / np.maximum(around, 0.45)
    surface = scipy.ndimage.zoom(framed, 8, order=3, mode="grid-constant", grid_mode=True)
    return np.asarray(np.clip((surface - level) / 0.16 + 0.5, 0, 1))


def _bounding_box(ink: Picture) -> tuple[float, float, float, float]:
    """Return middle row, middle column, height and width of the ink."""
    rows = np.flatnonzero(ink.max(axis=1) > 0.5)
    columns = np.flatnonzero(ink.max(axis=0) > 0.5)
    if not len(rows) or not len(columns):
        return ink.shape[0] / 2, ink.shape[1] / 2, float(ink.shape[0]), float(ink.shape[1])
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    return (top + bottom) / 2, (left + right) / 2, float(bottom - top), float(right - left)


def fit_to_picture(
    ink: Picture, height: float, width: float, *, turn: float = 0.0, slant: float = 0.0
) -> Picture:
    """Scale the ink's bounding box to `height` and `width`, in the middle of the picture."""
    middle_row, middle_column, tall, wide = _bounding_box(ink)
    # A single stroke, such as most ones, keeps its shape: widened, it would be a block.
    across = min(height / tall, width / wide) if wide < tall / 2 else width / wide
    scale = (height / tall, across)
    return _warp(ink, (middle_row, middle_column), scale, (turn, slant, 0.0, 0.0), np.zeros(2))


def fit_line(
    ink: Picture,
    middle: float,
    height: float,
    bend: tuple[float, float, float, float],
    shift: NDArray[np.float64],
) -> Picture:
    """Scale a line of print to `height`, with its column `middle` in the middle of the picture."""
    middle_row, _, tall, _ = _bounding_box(ink)
    return _warp(ink, (middle_row, middle), (height / tall, height / tall), bend, shift)


def _warp(
    ink: Picture,
    middle: tuple[float, float],
    scale: tuple[float, float],
    bend: tuple[float, float, float, float],
    shift: NDArray[np.float64],
) -> Picture:
    """Return the ink around `middle` scaled, rotated, slanted and in perspective, at 32 x 32."""
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
    # Large print must be smoothed before it is sampled at 64 x 64.
    smooth = scipy.ndimage.gaussian_filter(ink, max(0.0, 0.25 / min(scale) - 0.2))
    fine = scipy.ndimage.map_coordinates(smooth, places, order=1, mode="constant")
    return np.asarray(fine.reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3)))


def add_neighbors(digit: int, rng: Rng, *, chance: float) -> tuple[str, int]:
    """Return the digit with random ones beside it at some chance, and the digit's position."""
    left, right = (str(rng.integers(10)) if rng.random() < chance else "" for _ in range(2))
    return f"{left}{digit}{right}", len(left)


def make_gradient(rng: Rng) -> Picture:
    """Return a gradient from 0 to 1 across the picture in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    grid = np.linspace(-0.5, 0.5, SIDE)
    slope = grid[:, None] * np.sin(angle) + grid[None, :] * np.cos(angle)
    return np.asarray((slope - slope.min()) / np.ptp(slope))


def make_background(rng: Rng) -> Picture:
    """Return a flat, shaded or mottled background in a soft color."""
    first = pick_color(rng, rng.choice([0.12, 0.55, 0.85]), 0.16)
    shown = np.broadcast_to(first, (SIDE, SIDE, 3))
    kind = rng.integers(3)
    if kind == 1:
        other = np.clip(first + rng.normal(0, 0.12, 3), 0, 1)
        shown = shown + make_gradient(rng)[..., None] * (other - first)
    elif kind == 2:
        shown = shown + 0.4 * _make_clouds(rng, 2.0)
    return np.clip(shown, 0, 1)


def make_wall(rng: Rng) -> Picture:
    """Return a wall or plate: a muted, uneven color, sometimes with an edge across it."""
    shown = pick_muted_color(rng, rng.uniform(0.2, 0.75)) + 0.6 * _make_clouds(rng, 3.0)
    if rng.random() < 0.4:
        edge = make_gradient(rng) > rng.choice([rng.uniform(0.05, 0.2), rng.uniform(0.8, 0.95)])
        shown = shown + edge[..., None] * rng.normal(0, 0.12)
    return np.clip(shown, 0.02, 0.98)


def _make_clouds(rng: Rng, size: float) -> Picture:
    """Return gray clouds about `size` pixels wide, with a standard deviation of about 0.1."""
    clouds = scipy.ndimage.gaussian_filter(rng.normal(0, 1, (SIDE, SIDE)), size, mode="wrap")
    return np.asarray(0.1 * clouds / (clouds.std() + 1e-9))[..., None]


def pick_color(rng: Rng, light: float, spread: float) -> NDArray[np.float64]:
    """Return a color of about that lightness; `spread` limits how far from gray it is."""
    tint = rng.uniform(-1, 1, 3)
    return np.asarray(np.clip(light + spread * (tint - tint.mean()) + rng.normal(0, 0.05), 0, 1))


def pick_muted_color(rng: Rng, light: float) -> NDArray[np.float64]:
    """Return gray, brick or slate: outdoor colors are rarely green or pink."""
    warmth = rng.normal(0, 0.07)
    tint = np.array([warmth, rng.normal(0, 0.012), -warmth])
    return np.clip(light + tint, 0.02, 0.98)


def pick_lightness(light: float, rng: Rng, least: float, most: float) -> float:
    """Return a lightness that differs from `light` by at least `least`, so print is readable."""
    step = rng.uniform(least, most)
    upwards = rng.random() < 0.5
    if not 0 <= light + (least if upwards else -least) <= 1:
        upwards = not upwards
    return float(np.clip(light + (step if upwards else -step), 0, 1))


def blur_and_add_noise(picture: Picture, blur: float, rng: Rng, *, grain: float) -> Picture:
    """Return the picture out of focus, with sensor noise of strength `grain`."""
    blurred = scipy.ndimage.gaussian_filter(picture, (blur, blur, 0), mode="nearest")
    return np.asarray(np.clip(blurred + rng.normal(0, grain, picture.shape), 0, 1))


def to_gray_rgb(ink: Picture) -> Picture:
    """Return the ink as an RGB picture in shades of gray."""
    return np.repeat(np.clip(ink, 0, 1)[..., None], 3, axis=2)

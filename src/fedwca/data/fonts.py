"""Matplotlib's typefaces: the same on every machine, whatever fonts are installed there."""

from functools import cache
from pathlib import Path

from PIL import ImageFont

from fedwca._support.errors import UserError

__all__ = ["load_font"]


@cache
def load_font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a typeface, such as DejaVuSans, in a size in pixels."""
    import matplotlib  # here because the import is slow and few need it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    if not path.is_file():
        raise UserError(f"Matplotlib's font {path} is missing; reinstall matplotlib")
    # Pillow's basic layout does not depend on shaping libraries of the machine.
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)

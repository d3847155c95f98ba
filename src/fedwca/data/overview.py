"""Show what a benchmark holds: a table of counts, the next command, a picture of samples."""

import math
import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwca._support.text import to_single_line
from fedwca.data.benchmarks.mini_digits_styles import load_font
from fedwca.data.images import UNLABELED
from fedwca.data.types import Benchmark, Domain

__all__ = ["draw_contact_sheet", "next_command", "summarize"]

_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (120, 120, 120)
# Sizes of a contact sheet in pixels.
_TILE, _GAP, _MARGIN, _HEADER, _WIDEST_NAME = 48, 2, 16, 44, 110
_CELL = _TILE + _GAP
_COLUMNS, _MAX_CLASSES = 3, 20


# --- text ---------------------------------------------------------------------------------------


def summarize(benchmark: Benchmark) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table: a row per domain, and one for all."""
    header = ["domain", "images", "labeled", "classes", "smallest class", "size", "broken"]
    rows = [_row(name, domain, benchmark) for name, domain in benchmark.domains.items()]
    counts = [_counts(domain) for domain in benchmark.domains.values()]
    images, labeled, broken = (sum(column) for column in zip(*counts, strict=True))
    return header, [*rows, ["all", f"{images:,}", f"{labeled:,}", "", "", "", str(broken)]]


def _counts(domain: Domain) -> tuple[int, int, int]:
    return len(domain), int((domain.labels != UNLABELED).sum()), len(domain.broken)


def _row(name: str, domain: Domain, benchmark: Benchmark) -> list[str]:
    images, labeled, broken = _counts(domain)
    per_class = np.bincount(
        domain.labels[domain.labels != UNLABELED], minlength=len(benchmark.classes)
    )
    classes = smallest = "–"
    if labeled:
        classes = f"{np.count_nonzero(per_class)} of {len(benchmark.classes)}"
        rarest = int(per_class.argmin())
        smallest = f"{per_class[rarest]:,} {benchmark.classes[rarest]}"
    return [name, f"{images:,}", f"{labeled:,}", classes, smallest, _sizes(domain), str(broken)]


def _sizes(domain: Domain) -> str:
    """Return width × height before resizing, as ranges where they differ."""
    sides = [
        str(least) if least == most else f"{least}–{most}"
        for least, most in zip(domain.smallest, domain.largest, strict=True)
    ]
    return "×".join(sides)


def next_command(benchmark: Benchmark, path: Path | None) -> str:
    """Return the command that runs on this data, or what the data still need."""
    data = f"fedwca run --set data.benchmark={benchmark.name}"
    if path is not None:
        data += f" --set data.path={shlex.quote(str(path))}"
    counts = {
        name: len({*domain.labels.tolist()} - {UNLABELED})  # classes that it has images of
        for name, domain in benchmark.domains.items()
    }
    source = max(counts, key=lambda name: counts[name])
    if counts[source] < 2:
        model = "--set source.weights=MODEL.safetensors --set data.classes=NAME,NAME,…"
        commands = f"Run on it with a source model: {data} {model}"
        if benchmark.name == "images":
            images = f"{data} --set data.source_path=FOLDER"
            commands += f"\nor with labeled source images (FOLDER/CLASS/*.jpg): {images}"
        return commands
    if len(counts) < 2:
        return "To run on it, add at least one more domain: one is the source, others are clients."
    weights = " --set model.weights=IMAGENET.safetensors" if benchmark.transform.crop else ""
    return f"Run on it: {data} --set data.source={shlex.quote(source)}{weights}"


# --- contact sheet ------------------------------------------------------------------------------


def draw_contact_sheet(benchmark: Benchmark, per_class: int) -> Image.Image:
    """Draw one block per domain: its name, its size, and `per_class` images of each class.

    A domain without labels becomes a grid of as many tiles. Samples are evenly spaced in the
    domain's order, so that the same data always give the same sheet.
    """
    blocks = [
        _draw_block(name, domain, benchmark.classes, per_class)
        for name, domain in benchmark.domains.items()
    ]
    across = min(_COLUMNS, len(blocks))
    width, height = blocks[0].width + _MARGIN, blocks[0].height + _MARGIN
    down = math.ceil(len(blocks) / across)
    sheet = Image.new("RGB", (_MARGIN + across * width, _MARGIN + down * height), _PAPER)
    for place, block in enumerate(blocks):
        row, column = divmod(place, across)
        sheet.paste(block, (_MARGIN + column * width, _MARGIN + row * height))
    return sheet


def _draw_block(name: str, domain: Domain, classes: tuple[str, ...], per_class: int) -> Image.Image:
    shown = classes[:_MAX_CLASSES]
    rows = max(1, len(shown))
    widest = max((_font(13).getlength(to_single_line(name)) for name in shown), default=0.0)
    left = min(_WIDEST_NAME, math.ceil(widest) + 10)
    size = (max(left + per_class * _CELL, 160), _HEADER + rows * _CELL)
    block = Image.new("RGB", size, _PAPER)
    has_labels = bool((domain.labels != UNLABELED).any())
    _draw_header(block, name, domain, has_labels, len(classes))
    for row, chosen in enumerate(_sample_rows(domain, has_labels, rows, per_class)):
        for column, index in enumerate(chosen):
            image = Image.fromarray(np.ascontiguousarray(domain.images[index]))
            tile = image.resize((_TILE, _TILE), Image.Resampling.BICUBIC)
            block.paste(tile, (left + column * _CELL, _HEADER + row * _CELL))
    if has_labels:
        draw, font = ImageDraw.Draw(block), _font(13)
        for row, text in enumerate(shown):
            middle = _HEADER + row * _CELL + _TILE // 2
            text = _truncate(text, font, left - 8)
            draw.text((0, middle), text, fill=_INK, font=font, anchor="lm")
    return block


def _draw_header(
    block: Image.Image, name: str, domain: Domain, has_labels: bool, classes: int
) -> None:
    draw = ImageDraw.Draw(block)
    draw.text((0, 0), _truncate(name, _font(18), block.width), fill=_INK, font=_font(18))
    height, width = domain.images.shape[1:3]
    facts = f"{len(domain):,} images, {width} × {height}"
    if not has_labels:
        facts += ", no labels"
    elif classes > _MAX_CLASSES:
        facts += f", first {_MAX_CLASSES} of {classes} classes"
    draw.text((0, 23), _truncate(facts, _font(13), block.width), fill=_FAINT, font=_font(13))


def _sample_rows(domain: Domain, has_labels: bool, rows: int, per_class: int) -> list[list[int]]:
    """Return the images in each row of a block."""
    if has_labels:
        of_class = (np.flatnonzero(domain.labels == label) for label in range(rows))
        return [_pick_evenly(images, per_class) for images in of_class]
    chosen = _pick_evenly(np.arange(len(domain)), rows * per_class)
    return [chosen[start : start + per_class] for start in range(0, len(chosen), per_class)]


def _pick_evenly(indices: NDArray[np.int64], count: int) -> list[int]:
    count = min(count, len(indices))
    return [int(indices[place * len(indices) // count]) for place in range(count)]


def _truncate(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return the text in one line; if it is wider than `width`, its beginning and an ellipsis."""
    text = to_single_line(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _font(size: int) -> ImageFont.FreeTypeFont:
    return load_font("DejaVuSans", size)

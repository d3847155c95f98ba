"""Image files from broken disks, unusual programs and attackers."""

import functools
import io
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from fedwca.data.formats.decode import BrokenImageError, decode_image
from tests.fuzz.harness import Sandbox, fails_with
from tests.fuzz.odd_files import ODD, changed_bytes, put

_PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 20, 3), np.uint8))


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _frames(kind: str) -> bytes:
    frames = [_PHOTO.rotate(90 * k) for k in range(3)]
    return _saved(frames[0], kind, save_all=True, append_images=frames[1:])


@functools.cache
def good_files() -> dict[str, bytes]:
    """Return files that must decode, of every format, mode and depth."""
    exif = Image.Exif()
    exif[274] = 6
    grey = Image.fromarray((np.arange(480).reshape(24, 20) * 100).astype(np.uint16))
    return {
        "photo.jpg": _saved(_PHOTO, "JPEG"),
        "rotated.jpg": _saved(_PHOTO, "JPEG", exif=exif),
        "corrupt-exif.jpg": _saved(_PHOTO, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
        "cmyk.jpg": _saved(_PHOTO.convert("CMYK"), "JPEG"),
        "photo.png": _saved(_PHOTO, "PNG"),
        "one-bit.png": _saved(_PHOTO.convert("1"), "PNG"),
        "palette.png": _saved(_PHOTO.convert("P"), "PNG", transparency=3),
        "transparent.png": _saved(_PHOTO.convert("RGBA"), "PNG"),
        "sixteen.png": _saved(grey, "PNG"),
        "float.tif": _saved(Image.fromarray(np.ones((24, 20), np.float32) / 2), "TIFF"),
        "packed.tif": _saved(_PHOTO, "TIFF", compression="tiff_lzw"),
        "photo.bmp": _saved(_PHOTO, "BMP"),
        "photo.webp": _saved(_PHOTO, "WEBP"),
        "animated.gif": _frames("GIF"),
        "animated.webp": _frames("WEBP"),
        "animated.png": _frames("PNG"),
        "png-content.jpg": _saved(_PHOTO, "PNG"),
    }


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, body: bytes = b"", *more: bytes) -> bytes:
    """Return a PNG that claims a size, whatever its body holds."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = [header, *more, _chunk(b"IDAT", body), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _tiff(width: int, height: int) -> bytes:
    tags = [
        *((256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1)),
        *((273, 4, 8), (277, 3, 1), (278, 4, height), (279, 4, width * height % 2**32)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


_SIDES = (60_000, 60_000)
BOMBS = {
    "bomb.png": png(*_SIDES, zlib.compress(bytes(1 << 20))),
    "line.png": png(2**31 - 1, 1),
    "bomb.gif": b"GIF89a%b,%b\x02\x02\x4c\x01\0;"
    % (struct.pack("<HHBBB", *_SIDES, 0, 0, 0), struct.pack("<HHHHB", 0, 0, *_SIDES, 0)),
    "bomb.tif": _tiff(*_SIDES),
    "bomb.bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, *_SIDES, 1, 24, *[0] * 6),
}


@functools.cache
def bad_files() -> dict[str, bytes]:
    """Return files that must not decode, each of which must be named."""
    text = zlib.compress(bytes(80 << 20))
    found = {
        **BOMBS,
        "empty.png": b"",
        "zeros.jpg": bytes(500),
        "text.png": b"<html>404</html>",
        "no-pixels.png": png(0, 0),
        "ztxt.png": png(4, 4, b"", _chunk(b"zTXt", b"note\0\0" + text)),
        "icc.png": png(4, 4, b"", _chunk(b"iCCP", b"icc\0\0" + text)),
    }
    for name, content in good_files().items():
        if name.split(".")[0] in ("photo", "packed", "animated"):
            found[f"cut-{name}"] = content[: len(content) // 3]
            found[f"head-{name}"] = content[:12]
    return found


def make_odd_files(folder: Path) -> list[Path]:
    """Put pipes, links and sockets where images should be; none of them may block."""
    names = ("fifo", "to-fifo", "endless", "loop", "nowhere", "round", "folder", "socket")
    for name, kind in zip(names, ODD, strict=True):
        put(folder / f"{name}.png", kind)
    return sorted(folder.iterdir())


NAMES = [
    *("new\nline.png", "tab\t.png", "\x1b[31mred.png", "\u202eright.png", "  .png", "-rf.png"),
    *("[red]x[red].png", "%s.png", "é" * 120 + ".png", "\udcff\udcfe.png", "<b>.png", "a'b\"c.png"),
]


broken_images = st.sampled_from([*good_files().values(), *BOMBS.values()]).flatmap(changed_bytes)


def check_image_file(sandbox: Sandbox, content: bytes | str) -> None:
    """An image file decodes to the requested size, or is broken."""
    file = sandbox.work / "x.png"
    put(file, content)

    def decode() -> None:
        pixels = decode_image(file, 8).pixels
        assert pixels.shape == (8, 8, 3)
        assert pixels.dtype == np.uint8

    fails_with(BrokenImageError, decode)


def check_image_folder(sandbox: Sandbox, files: dict[str, bytes | str]) -> None:
    """Run `data check` and `data preview` on a folder with these files."""
    shutil.rmtree(sandbox.work / "data", ignore_errors=True)
    for name, content in files.items():
        put(sandbox.work / "data" / "site" / "class" / name, content)
    sandbox.fedwca("data", "check", "data")
    sandbox.fedwca("data", "preview", "data", "-o", "made/sheet.png")


folders = st.dictionaries(
    st.sampled_from(NAMES) | st.integers(0, 99).map("{}.jpg".format),
    broken_images | st.sampled_from(ODD),
    max_size=4,
)
_GOOD = good_files()["photo.png"]  # in each, so that the folder has something to show
ODD_FOLDERS: list[dict[str, bytes | str]] = [
    *({"good.png": _GOOD, "x.png": kind} for kind in ODD),
    {"good.png": _GOOD, **BOMBS},
    *(
        {"good.png": _GOOD, **{name.format(n): "link to its folder" for n in range(9)}}
        for name in ("{}.png", "../{}", "../../{}")
    ),
]

"""Image files of every format and mode, intact and broken."""

import errno
import io
import logging
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fedwca._support.errors import UserError
from fedwca.data.formats.decode import (
    _LARGE_IMAGE_LOCK,
    BrokenImageError,
    decode_image,
    make_file_domain,
)
from fedwca.data.formats.folders import join_names, list_folder, normalize_name
from fedwca.data.types import BrokenImage, DecodedImage
from tests.fuzz.harness import within_bounds
from tests.fuzz.image_files import bad_files, make_odd_files
from tests.support.image_folders import decoded, put_images

COLOR = (200, 60, 20)
GRAY = (90, 90, 90)
WHITE = (255, 255, 255)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def single_color(picture: DecodedImage) -> NDArray[np.int64]:
    """The colour of an image that has one colour."""
    colours = np.unique(picture.pixels.reshape(-1, 3), axis=0)
    assert len(colours) == 1
    return colours[0].astype(np.int64)


def ramp(values: NDArray[np.generic], path: Path) -> list[int]:
    """Grey values of an image of one row of pixels, after decoding at a size that keeps them."""
    side = len(values)
    Image.fromarray(np.repeat(values[None], side, axis=0)).save(path)
    picture = decode_image(path, side)
    assert (picture.pixels == picture.pixels[:1, :, :1]).all()  # grey, and every row the same
    return picture.pixels[0, :, 0].tolist()


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "TIFF", "jpg", "JPEG", "webp"])
def test_every_format_keeps_its_color(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"x.{suffix}", Image.new("RGB", (20, 10), COLOR))
    picture = decode_image(path, 16)
    assert picture.pixels.shape == (16, 16, 3)
    assert picture.pixels.dtype == np.uint8
    assert (picture.width, picture.height) == (20, 10)
    lossy = suffix in ("jpg", "JPEG", "webp")
    assert np.abs(picture.pixels.astype(int) - COLOR).max() <= (4 if lossy else 0)


@pytest.mark.parametrize(
    ("mode", "stored", "seen"),
    [
        ("1", 1, WHITE),
        ("1", 0, (0, 0, 0)),
        ("L", 90, GRAY),
        ("LA", (90, 255), GRAY),
        ("LA", (90, 0), WHITE),
        ("RGBA", (*COLOR, 255), COLOR),
        ("RGBA", (*COLOR, 0), WHITE),
        ("RGBA", (*COLOR, 51), (244, 216, 208)),  # a fifth of it, four fifths of 255
    ],
)
def test_every_mode_becomes_its_visible_color(
    tmp_path: Path, mode: str, stored: int | tuple[int, ...], seen: tuple[int, ...]
) -> None:
    path = save(tmp_path / "x.png", Image.new(mode, (5, 4), stored))
    assert single_color(decode_image(path, 6)).tolist() == list(seen)


@pytest.mark.parametrize("transparency", [None, 1, bytes([255, 0])])
def test_palettes_with_and_without_a_transparent_entry(
    tmp_path: Path, transparency: int | bytes | None
) -> None:
    image = Image.new("P", (2, 2))
    image.putpalette([*COLOR, *GRAY])
    image.putdata([0, 1, 0, 1])
    options = {} if transparency is None else {"transparency": transparency}
    pixels = decode_image(save(tmp_path / "x.png", image, **options), 2).pixels
    right = GRAY if transparency is None else WHITE
    assert pixels.tolist() == [[list(COLOR), list(right)]] * 2


def test_a_color_declared_transparent_is_white(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png", Image.new("RGB", (4, 4), COLOR), transparency=COLOR)
    assert single_color(decode_image(path, 4)).tolist() == list(WHITE)


def test_hidden_colors_do_not_bleed_into_their_surroundings(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)  # transparent black …
    pixels[:, 4:] = (*WHITE, 255)  # … beside opaque white
    path = save(tmp_path / "x.png", Image.fromarray(pixels))
    assert single_color(decode_image(path, 3)).tolist() == list(WHITE)


def test_cmyk_is_converted_to_rgb(tmp_path: Path) -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow ink make red
    red = [255, 0, 0]
    assert single_color(decode_image(save(tmp_path / "x.tif", image), 8)).tolist() == red
    # as a JPEG, Pillow writes and reads inks inverted, as Adobe does
    jpeg = save(tmp_path / "x.jpg", image)
    assert b"Adobe" in jpeg.read_bytes()
    assert np.abs(single_color(decode_image(jpeg, 8)) - red).max() <= 3


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("kind", ["<u2", ">u2"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, suffix: str, kind: str) -> None:
    values = np.array([0, 128, 129, 257, 25700, 32767, 65535], kind)
    # over 257: 0, 0.498, 0.502, 1, 100, 127.498, 255
    assert ramp(values, tmp_path / f"x.{suffix}") == [0, 0, 1, 1, 100, 127, 255]
    assert ramp(np.array([0, 200, 255], kind), tmp_path / f"dark.{suffix}") == [0, 1, 1]


@pytest.mark.parametrize(
    ("values", "greys"),
    [
        ([0, 7, 255], [0, 7, 255]),
        ([0, 257, 65535], [0, 1, 255]),
        ([0, 2**30, 2**31 - 1], [0, 128, 255]),
        ([-5, 0, 255], [0, 0, 255]),
    ],
)
def test_whole_numbers_are_scaled_by_the_type_they_fit(
    tmp_path: Path, values: list[int], greys: list[int]
) -> None:
    assert ramp(np.array(values, np.int32), tmp_path / "x.tif") == greys


def test_floats_are_0_to_1_or_0_to_255(tmp_path: Path) -> None:
    assert ramp(np.array([-1, 0.2, 1], np.float32), tmp_path / "x.tif") == [0, 51, 255]
    assert ramp(np.array([0, 51.4, 300], np.float32), tmp_path / "y.tif") == [0, 51, 255]
    with pytest.raises(BrokenImageError, match="NaN"):
        ramp(np.array([0, np.nan], np.float32), tmp_path / "z.tif")


def test_images_are_resized_to_a_square_without_cropping(tmp_path: Path) -> None:
    stripes = np.zeros((2, 64, 3), np.uint8)
    stripes[:, 1::2] = 255
    path = save(tmp_path / "x.png", Image.fromarray(stripes))
    pixels = decode_image(path, 4).pixels
    assert pixels.shape == (4, 4, 3)
    assert np.abs(pixels.astype(int) - 127).max() <= 4  # 16 stripes to a pixel: all grey


def as_camera_stores(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Row and column 0 of the file lie where EXIF says they do in the upright picture."""
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),  # row 0 is the left side, column 0 the top
        6: upright.transpose(1, 0, 2)[::-1],  # row 0 is the right side, column 0 the top
        7: upright.transpose(1, 0, 2)[::-1, ::-1],  # row 0 is the right, column 0 the bottom
        8: upright.transpose(1, 0, 2)[:, ::-1],  # row 0 is the left side, column 0 the bottom
    }
    return np.ascontiguousarray(stored[orientation])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str, orientation: int) -> None:
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :24] = (255, 0, 0)
    upright[:16, 24:] = (0, 255, 0)
    upright[16:, :24] = (0, 0, 255)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image = Image.fromarray(as_camera_stores(upright, orientation))
    path = save(tmp_path / f"x.{suffix}", image, exif=exif)
    picture = decode_image(path, 32)
    assert (picture.width, picture.height) == (48, 32)
    corners = picture.pixels[4:29:24, 4:29:24].astype(int)
    expected = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [0, 0, 0]]]
    assert np.abs(corners - expected).max() <= 12


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_large_jpegs_are_decoded_small_and_look_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int
) -> None:
    y, x = np.mgrid[0:600, 0:801]
    waves = 128 + 100 * np.sin(x / 30) * np.cos(y / 40)
    pixels = np.stack([x * 255 / 801, y * 255 / 600, waves], axis=-1).astype(np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = save(tmp_path / "x.jpg", Image.fromarray(pixels).convert(mode), exif=exif, quality=95)
    with Image.open(path) as image:
        upright = image.convert("RGB")
    if orientation == 6:
        upright = upright.transpose(Image.Transpose.ROTATE_270)
    expected = np.asarray(upright.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)

    resized = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, *rest: resized.append(self.size) or resize(self, *rest)
    )
    picture = decode_image(path, 32)
    assert resized[0] == (101, 75)  # an eighth, rounded up
    assert (picture.width, picture.height) == upright.size
    assert sorted(upright.size) == [600, 801]
    assert np.abs(picture.pixels - expected).max() <= 4


def test_the_content_decides_the_format_not_the_suffix(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), (255, 0, 0))
    for kind in ("PNG", "GIF", "BMP"):
        path = save(tmp_path / f"{kind}.jpg", image, format=kind)
        assert single_color(decode_image(path, 4)).tolist() == [255, 0, 0]


def noise(side: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))


def broken_files(folder: Path) -> dict[str, str]:
    """Files of every kind of damage, and what is to be said about each."""
    reasons = {"empty.jpg": "empty file", "text.png": "not an image of a known format"}
    (folder / "empty.jpg").touch()
    (folder / "text.png").write_text("<html>404 not found</html>")
    for suffix in ("jpg", "png", "bmp", "tif"):
        path = save(folder / f"cut.{suffix}", noise())
        path.write_bytes(path.read_bytes()[:2000])
        reasons[path.name] = "truncated"
    (folder / "folder.jpg").mkdir()
    reasons["folder.jpg"] = "cannot be read (it is not a regular file)"
    (folder / "link.jpg").symlink_to(folder / "nowhere")
    reasons["link.jpg"] = "cannot be read (No such file or directory)"
    (folder / "bomb.bmp").write_bytes(bitmap_header(20_000, 20_000))
    reasons["bomb.bmp"] = "too many pixels to decode safely"
    (folder / "long.bmp").write_bytes(bitmap_header(90_000_000, 1))
    reasons["long.bmp"] = "too many pixels to decode safely"
    damaged = bytearray(save(folder / "damaged.png", noise()).read_bytes())
    damaged[60:400] = bytes(340)
    (folder / "damaged.png").write_bytes(damaged)
    reasons["damaged.png"] = "corrupt"
    return reasons


def bitmap_header(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (1, 1)).save(stream, "BMP")
    header = bytearray(stream.getvalue())
    header[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    return bytes(header)


def test_broken_files_get_a_reason_and_the_others_are_decoded(tmp_path: Path) -> None:
    reasons = broken_files(tmp_path)
    files = []
    for number, name in enumerate(reasons):
        good = save(tmp_path / f"good{number}.png", Image.new("RGB", (2, 2), (number, 0, 0)))
        files += [(good, number), (tmp_path / name, number)]
    domain = make_file_domain("x", files, tmp_path.parent)
    outcome = decoded(domain)
    assert domain.names[1::2] == tuple(f"{tmp_path.name}/{name}" for name in reasons)
    assert [item.reason for item in outcome[1::2] if isinstance(item, BrokenImage)] == [
        *reasons.values()
    ]
    reds = [single_color(item)[0] for item in outcome[::2] if isinstance(item, DecodedImage)]
    assert reds == list(range(len(reasons)))


def test_a_file_without_permission_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:  # as root, who runs tests in containers, may all
        raise PermissionError(errno.EACCES, "Permission denied")

    path = put_images(tmp_path, "x.jpg") / "x.jpg"
    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(BrokenImageError, match=r"cannot be read \(Permission denied\)"):
        decode_image(path, 4)


class Failing(io.BufferedReader):
    """A file of which reading fails with that error, once as many bytes were read."""

    def __init__(self, path: Path, error: Exception, after: int = 0) -> None:
        super().__init__(io.FileIO(path))
        self.error, self.left = error, after

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.left -= len(found)
        if self.left < 0:
            raise self.error
        return found


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT])
@pytest.mark.parametrize("after", [0, 2000])
def test_transient_read_errors_do_not_make_a_file_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int
) -> None:
    path = save(tmp_path / "x.png", noise())
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(
        "fedwca.data.formats.decode.open_regular_file", lambda path: Failing(path, error, after)
    )
    with pytest.raises(UserError, match=r"x\.png cannot be read at the moment"):
        decode_image(path, 4)


def test_corrupt_exif_is_ignored_without_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    head = b"Exif\0\0MM\0*\0\0\0\x08\0\x01"  # one entry follows
    spoilt = (
        b"x",
        b"Exif\0\0rubbish",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",  # 65,535 entries, and none of them there
        head + b"\x01\x12\0\x02\0\0\0\x04up!\0\0\0\0\0",  # the orientation as a word
    )
    for number, exif in enumerate(spoilt):
        for suffix in ("jpg", "png", "webp"):
            image = Image.new("RGB", (8, 6), COLOR)
            save(tmp_path / f"{number}.{suffix}", image, exif=exif)
    files = [(file, 0) for file in list_folder(tmp_path).images]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = decoded(make_file_domain("x", files, tmp_path))
    sizes = [(item.width, item.height) for item in outcome if isinstance(item, DecodedImage)]
    assert sizes == [(8, 6)] * 12
    assert caught == []
    assert capfd.readouterr() == ("", "")


def test_pillow_warnings_about_large_images_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "x.png", Image.new("RGB", (40, 30), COLOR))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.warns(Image.DecompressionBombWarning), Image.open(path):
        pass
    (outcome,) = decoded(make_file_domain("x", [(path, 0)], tmp_path))
    assert isinstance(outcome, DecodedImage)
    assert single_color(outcome).tolist() == list(COLOR)


def test_pillow_logs_about_broken_files_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # those of pytest, which users do not have
    path = save(tmp_path / "x.tif", noise(8))
    content = path.read_bytes()
    samples = (277).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    assert content.count(samples) == 1
    many = content.replace(samples + b"\x03", samples + b"\x63")  # 99 samples a pixel
    path.write_bytes(many)
    (outcome,) = decoded(make_file_domain("x", [(path, 0)], tmp_path))
    assert isinstance(outcome, BrokenImage)
    assert capfd.readouterr() == ("", "")


def test_rows_are_decoded_in_the_requested_order_and_warning_filters_are_restored(
    tmp_path: Path,
) -> None:
    files = [
        (save(tmp_path / f"{n:03}.png", Image.new("RGB", (2, 2), (n, 0, 0))), n) for n in range(200)
    ]
    pictures = make_file_domain("x", files, tmp_path).open()
    rows = np.random.default_rng(0).permutation(200)[:150]  # more than one chunk
    filters = list(warnings.filters)
    reds = []
    for item in pictures.decode(rows, 2):
        assert warnings.filters == filters
        assert isinstance(item, DecodedImage)
        reds.append(item.pixels[0, 0, 0])
    assert reds == rows.tolist()
    assert pictures.labels.tolist() == list(range(200))


def test_stopping_early_leaves_no_threads_behind(tmp_path: Path) -> None:
    put_images(tmp_path, *(f"{n}.jpg" for n in range(5)))
    before = threading.active_count()
    pictures = make_file_domain(
        "x", [(file, 0) for file in list_folder(tmp_path).images], tmp_path
    ).open()
    images = pictures.decode(np.arange(5), 4)
    next(images)
    images.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_the_key_of_a_domain_depends_on_labels_not_on_location(tmp_path: Path) -> None:
    domains = []
    for place in ("here", "there"):
        folder = put_images(tmp_path / place, "a.jpg", "b.jpg")
        domains.append(
            make_file_domain("x", [(f, 3) for f in list_folder(folder).images], tmp_path)
        )
    assert domains[0].key == domains[1].key == {"loader": "image files", "labels": [3, 3]}
    assert [file.name for file in domains[0].files] == ["a.jpg", "b.jpg"]


def test_names_are_compared_by_letters_and_digits() -> None:
    assert (
        len({normalize_name(n) for n in ("Real World", "Real_World", "RealWorld", "real-world")})
        == 1
    )
    assert normalize_name("Café") == normalize_name("Cafe\u0301".upper())  # two ways to store an é
    assert len({normalize_name(n) for n in ("猫", "狗", "+", "-", "a1", "a2")}) == 6


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError("out of memory error when reading image file")]
)
def test_out_of_memory_does_not_make_a_file_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    (tmp_path / "x.jpg").touch()
    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(UserError, match=r"out of memory .*x\.jpg"):
        decode_image(tmp_path / "x.jpg", 4)


def test_a_folder_named_out_of_memory_is_no_memory_error(tmp_path: Path) -> None:
    folder = put_images(tmp_path / "out of memory", "x.jpg")
    (folder / "x.jpg").write_text("no image")
    (folder / "y.jpg").symlink_to("nowhere")
    for name, reason in (("x.jpg", "not an image"), ("y.jpg", "cannot be read")):
        with pytest.raises(BrokenImageError, match=reason):
            decode_image(folder / name, 4)


def test_long_lists_are_abbreviated() -> None:
    assert join_names(["a"]) == "a"
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"


@pytest.mark.parametrize("name", list(bad_files()))
def test_bad_files_are_broken_within_bounded_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bad_files()[name])
    with within_bounds(200 << 20), pytest.raises(BrokenImageError):
        decode_image(tmp_path / name, 8)


def test_large_images_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.data.formats.decode._LARGE_IMAGE", 0)
    put_images(tmp_path, "x.jpg")
    with _LARGE_IMAGE_LOCK:
        worker = threading.Thread(target=decode_image, args=(tmp_path / "x.jpg", 8))
        worker.start()
        worker.join(0.2)
        assert worker.is_alive()
    worker.join()


def test_pipes_devices_and_loops_are_broken_images_and_do_not_block(tmp_path: Path) -> None:
    make_odd_files(tmp_path / "a")
    files = list_folder(tmp_path / "a").images
    assert "fifo.png" in [file.name for file in files]
    for file in files:
        with within_bounds(seconds=10), pytest.raises(BrokenImageError, match="cannot be read"):
            decode_image(file, 8)

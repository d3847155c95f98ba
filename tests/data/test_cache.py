"""The image cache: entries named by content, corrupt entries rebuilt, memory bounded."""

import errno
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwca._support import files as files_module
from fedwca._support.errors import UserError
from fedwca.data import cache as cache_module
from fedwca.data.cache import default_cache, load_domain
from fedwca.data.formats.decode import make_file_domain
from fedwca.data.formats.folders import list_folder
from fedwca.data.types import BrokenImage, DataRequest, DecodedImage, RawDomain
from tests.support.image_folders import put_images


@dataclass
class Made:
    """Images that are all of the value of their row; some of them broken."""

    count: int
    broken: tuple[int, ...] = ()
    decoded: list[int] = field(default_factory=list)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.arange(self.count) % 7

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[DecodedImage | BrokenImage]:
        for row in rows.tolist():
            self.decoded.append(row)
            if row in self.broken:
                yield BrokenImage("cut short")
            else:
                pixels = np.full((size, size, 3), row % 251, np.uint8)
                yield DecodedImage(pixels, 10 + row, 20 + row)


@pytest.fixture
def data_request(tmp_path: Path) -> DataRequest:
    return DataRequest(None, tmp_path / "cache", image_size=4)


def domain(made: Made, *files: Path, key: object = "made", suffix: str = ".jpg") -> RawDomain:
    names = tuple(f"{row}{suffix}" for row in range(made.count))
    return RawDomain("a/b", files, key, lambda: made, names)


def test_the_second_start_does_not_decode(data_request: DataRequest) -> None:
    made = Made(5)
    for _ in range(2):
        found = load_domain(domain(made), data_request)
        assert isinstance(found.images, np.memmap)
        assert found.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
        assert found.labels.tolist() == [0, 1, 2, 3, 4]
        assert (found.smallest, found.largest) == ((10, 20), (14, 24))
    assert made.decoded == [0, 1, 2, 3, 4]


def test_size_draw_and_key_each_have_their_own_entry(data_request: DataRequest) -> None:
    made = Made(9)
    load_domain(domain(made), data_request)
    for other in (
        replace(data_request, image_size=5),
        replace(data_request, images_per_domain=3),
        replace(data_request, images_per_domain=3, seed=1),
    ):
        before = len(made.decoded)
        load_domain(domain(made), other)
        assert len(made.decoded) > before
    before = len(made.decoded)
    load_domain(domain(made), replace(data_request, seed=1))  # without a draw the seed is nothing
    assert len(made.decoded) == before
    load_domain(domain(made, key="other"), data_request)
    assert len(made.decoded) == before + 9


def test_a_draw_is_random_and_only_it_is_decoded(data_request: DataRequest) -> None:
    made = Made(100)
    found = load_domain(domain(made), replace(data_request, images_per_domain=10))
    assert found.images[:, 0, 0, 0].tolist() == made.decoded == sorted(set(made.decoded))
    assert len(made.decoded) == 10
    assert made.decoded != list(range(10))
    assert found.labels.tolist() == [row % 7 for row in made.decoded]


def test_the_entry_depends_on_content_not_on_path_or_time(
    data_request: DataRequest, tmp_path: Path
) -> None:
    made = Made(3)
    file, copy = tmp_path / "x.bin", tmp_path / "elsewhere.bin"
    file.write_bytes(b"one")
    first = load_domain(domain(made, file), data_request)
    copy.write_bytes(b"one")
    os.utime(copy, ns=(5, 5))
    assert load_domain(domain(made, copy), data_request).digest == first.digest
    assert len(made.decoded) == 3  # known by its content
    file.write_bytes(b"two")
    load_domain(domain(made, file), data_request)
    assert len(made.decoded) == 6


def test_broken_images_are_skipped_and_remembered(data_request: DataRequest) -> None:
    made = Made(6, broken=(0, 3))
    for _ in range(2):
        found = load_domain(domain(made), data_request)
        assert found.images[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
        assert found.labels.tolist() == [1, 2, 4, 5]
        assert found.broken == (("0.jpg", "cut short"), ("3.jpg", "cut short"))
        assert found.files == ("1.jpg", "2.jpg", "4.jpg", "5.jpg")
    renamed = load_domain(domain(made, suffix=".png"), data_request)
    assert renamed.broken[0] == ("0.png", "cut short")
    assert renamed.files[0] == "1.png"
    assert len(made.decoded) == 6


def test_a_domain_of_broken_images_only_is_empty_and_retried(
    data_request: DataRequest,
) -> None:
    found = load_domain(domain(Made(2, broken=(0, 1))), data_request)
    assert found.images.shape == (0, 4, 4, 3)
    assert found.broken == (("0.jpg", "cut short"), ("1.jpg", "cut short"))
    assert len(load_domain(domain(Made(2)), data_request)) == 2


def test_an_unreadable_file_is_read_once_it_is_readable(
    data_request: DataRequest, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "later")
    made = Made(3)
    load_domain(domain(made, link), data_request)
    (tmp_path / "later").write_bytes(b"there now")
    load_domain(domain(made, link), data_request)
    assert len(made.decoded) == 6


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("where", ["data.formats.decode", "_support.files"])
def test_a_transient_read_error_is_not_cached(
    data_request: DataRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    number: int,
) -> None:
    files = [(file, 0) for file in list_folder(put_images(tmp_path, "1.png", "2.png")).images]
    raw = make_file_domain("x", files, tmp_path)
    whole = files_module.open_regular_file

    def fails(path: Path) -> object:
        if Path(path).name == "2.png":
            raise OSError(number, os.strerror(number))
        return whole(path)

    monkeypatch.setattr(f"fedwca.{where}.open_regular_file", fails)
    with pytest.raises(UserError, match=r"2\.png cannot be read at the moment"):
        load_domain(raw, data_request)
    monkeypatch.undo()
    assert load_domain(raw, data_request).files == ("1.png", "2.png")


def test_a_file_that_disappears_before_decoding_is_not_cached_as_broken(
    data_request: DataRequest, tmp_path: Path
) -> None:
    folder = put_images(tmp_path / "a", "1.png", "2.png")
    raw = make_file_domain("x", [(file, 0) for file in list_folder(folder).images], folder)
    gone = replace(raw, open=lambda: (folder / "2.png").rename(tmp_path / "2.png") and raw.open())
    with pytest.raises(UserError, match="rerun"):
        load_domain(gone, data_request)
    (tmp_path / "2.png").rename(folder / "2.png")
    assert load_domain(raw, data_request).files == ("1.png", "2.png")


def test_a_change_is_noticed_even_if_the_modification_time_is_set_back(
    data_request: DataRequest, tmp_path: Path
) -> None:
    file, made = tmp_path / "x.bin", Made(3)
    file.write_bytes(b"one")
    os.utime(file, ns=(5, 5))
    load_domain(domain(made, file), data_request)
    file.write_bytes(b"two")
    os.utime(file, ns=(5, 5))
    load_domain(domain(made, file), data_request)
    assert len(made.decoded) == 6


@pytest.mark.parametrize("name", ["index.json", "images.npy"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
def test_a_corrupt_entry_is_rebuilt(data_request: DataRequest, name: str, how: str) -> None:
    made = Made(5)
    load_domain(domain(made), data_request)
    (file,) = data_request.cache.rglob(name)
    content = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes(b"" if how == "empty" else content[:-7])
    found = load_domain(domain(made), data_request)
    assert found.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert len(made.decoded) == 10


@pytest.mark.parametrize("name", ["index.json", "images.npy"])
def test_a_flipped_bit_in_an_entry_is_detected(data_request: DataRequest, name: str) -> None:
    made = Made(5)
    load_domain(domain(made), data_request)
    (file,) = data_request.cache.rglob(name)
    content = bytearray(file.read_bytes())
    content[-8] ^= 4
    file.write_bytes(content)
    found = load_domain(domain(made), data_request)
    assert found.images[:, 0, 0, 0].tolist() == found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.files == tuple(f"{row}.jpg" for row in range(5))
    assert len(made.decoded) == 10


def test_silently_changed_pixels_are_detected_with_verify(
    data_request: DataRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.data.cache._file_state", lambda file: (1, 2, 3))
    made = Made(5)
    load_domain(domain(made), data_request)
    (file,) = data_request.cache.rglob("images.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    load_domain(domain(made), data_request)
    assert len(made.decoded) == 5
    assert load_domain(domain(made), replace(data_request, verify=True)).images[-1].max() == 4
    assert len(made.decoded) == 10


def test_a_copied_cache_is_verified_once(
    data_request: DataRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, hashed = Made(5), []
    load_domain(domain(made), data_request)
    copy = replace(data_request, cache=tmp_path / "copy")
    shutil.copytree(data_request.cache, copy.cache)
    digest = cache_module._digest
    monkeypatch.setattr(cache_module, "_digest", lambda *a: hashed.append(1) or digest(*a))
    for _ in range(3):
        assert len(load_domain(domain(made), copy)) == 5
    assert (len(made.decoded), len(hashed)) == (5, 1)


def test_a_failure_while_decoding_leaves_no_entry_behind(data_request: DataRequest) -> None:
    class Fails(Made):
        def decode(
            self, rows: NDArray[np.int64], size: int
        ) -> Iterator[DecodedImage | BrokenImage]:
            yield from super().decode(rows[:2], size)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        load_domain(domain(Fails(5)), data_request)
    assert not list(data_request.cache.rglob("*.tmp"))
    assert len(load_domain(domain(Made(5)), data_request)) == 5


def test_stale_files_of_an_entry_are_removed_when_it_is_rebuilt(
    data_request: DataRequest,
) -> None:
    load_domain(domain(Made(5)), data_request)
    (index,) = data_request.cache.rglob("index.json")
    index.unlink()
    for name in ("images.npy", "index.json"):  # written on a machine that is no more
        (index.parent / f"{name}.0123abcd-7.tmp").write_bytes(b"half")
    load_domain(domain(Made(5)), data_request)
    assert not list(data_request.cache.rglob("*.tmp"))


def test_digests_depend_on_content_only(data_request: DataRequest) -> None:
    first = load_domain(domain(Made(5)), data_request).digest
    assert load_domain(domain(Made(5), key="again"), data_request).digest == first
    assert load_domain(domain(Made(6), key="more"), data_request).digest != first

    class Relabeled(Made):
        @property
        def labels(self) -> NDArray[np.int64]:
            return np.zeros(self.count, np.int64)

    assert load_domain(domain(Relabeled(5), key="labels"), data_request).digest != first


def test_memory_does_not_grow_with_the_number_of_images(data_request: DataRequest) -> None:
    large = replace(data_request, image_size=64)
    peaks = []
    for count in (50, 1000):
        tracemalloc.start()
        load_domain(domain(Made(count), key=count), large)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 950 more images of 12 kB are 11.7 MB; row numbers and labels of them are a few kB.
    assert peaks[1] - peaks[0] < 500_000


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWCA_CACHE", "/x")
    assert default_cache() == Path("/x")
    monkeypatch.delenv("FEDWCA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/y")
    assert default_cache() == Path("/y/fedwca")


def test_decoding_is_logged(
    data_request: DataRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedwca._support.text.SECONDS_BETWEEN", -1)
    with caplog.at_level("INFO", logger="fedwca"):
        load_domain(domain(Made(3)), data_request)
    assert "1 of 3 images" in caplog.text

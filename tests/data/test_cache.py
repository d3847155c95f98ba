"""Decode once: entries by content, damaged ones made anew, memory that does not grow."""

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

from fedwca import files as files_module
from fedwca.data import cache
from fedwca.data.benchmarks import load_benchmark
from fedwca.data.cache import default_cache, stored_domain
from fedwca.data.folders import look_into
from fedwca.data.image_files import image_domain
from fedwca.data.npz import read_npz
from fedwca.data.raw import Broken, Picture, RawDomain, Request
from fedwca.errors import UserError
from image_folders import put_images


@dataclass
class Made:
    """Images that are all of the value of their row; some of them broken."""

    count: int
    broken: tuple[int, ...] = ()
    decoded: list[int] = field(default_factory=list)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.arange(self.count) % 7

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[Picture | Broken]:
        for row in rows.tolist():
            self.decoded.append(row)
            if row in self.broken:
                yield Broken("cut short")
            else:
                pixels = np.full((size, size, 3), row % 251, np.uint8)
                yield Picture(pixels, 10 + row, 20 + row)


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(None, tmp_path / "cache", image_size=4)


def domain(made: Made, *files: Path, key: object = "made", suffix: str = ".jpg") -> RawDomain:
    names = tuple(f"{row}{suffix}" for row in range(made.count))
    return RawDomain("a/b", files, key, lambda: made, names)


def test_the_second_start_does_not_decode(request_: Request) -> None:
    made = Made(5)
    for _ in range(2):
        found = stored_domain(domain(made), request_)
        assert isinstance(found.images, np.memmap)
        assert found.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
        assert found.labels.tolist() == [0, 1, 2, 3, 4]
        assert (found.smallest, found.largest) == ((10, 20), (14, 24))
    assert made.decoded == [0, 1, 2, 3, 4]


def test_size_draw_and_key_each_have_their_own_entry(request_: Request) -> None:
    made = Made(9)
    stored_domain(domain(made), request_)
    for other in (
        replace(request_, image_size=5),
        replace(request_, images_per_domain=3),
        replace(request_, images_per_domain=3, seed=1),
    ):
        before = len(made.decoded)
        stored_domain(domain(made), other)
        assert len(made.decoded) > before
    before = len(made.decoded)
    stored_domain(domain(made), replace(request_, seed=1))  # without a draw the seed is nothing
    assert len(made.decoded) == before
    stored_domain(domain(made, key="other"), request_)
    assert len(made.decoded) == before + 9


def test_a_draw_is_random_and_only_it_is_decoded(request_: Request) -> None:
    made = Made(100)
    found = stored_domain(domain(made), replace(request_, images_per_domain=10))
    assert found.images[:, 0, 0, 0].tolist() == made.decoded == sorted(set(made.decoded))
    assert len(made.decoded) == 10
    assert made.decoded != list(range(10))
    assert found.labels.tolist() == [row % 7 for row in made.decoded]


def test_content_decides_and_not_where_or_when(request_: Request, tmp_path: Path) -> None:
    made = Made(3)
    file, copy = tmp_path / "x.bin", tmp_path / "elsewhere.bin"
    file.write_bytes(b"one")
    first = stored_domain(domain(made, file), request_)
    copy.write_bytes(b"one")
    os.utime(copy, ns=(5, 5))
    assert stored_domain(domain(made, copy), request_).digest == first.digest
    assert len(made.decoded) == 3  # known by its content
    file.write_bytes(b"two")
    stored_domain(domain(made, file), request_)
    assert len(made.decoded) == 6


@pytest.mark.parametrize("note", ["", "[]", "0123", "../../../x", "\udcff"])
def test_a_damaged_note_of_the_content_is_written_anew(
    request_: Request, tmp_path: Path, note: str
) -> None:
    first, second = tmp_path / "1.bin", tmp_path / "2.bin"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    for _ in range(2):
        assert len(stored_domain(domain(Made(3), first), request_)) == 3
        assert len(stored_domain(domain(Made(4), second), request_)) == 4
        for seen in (request_.cache / "images" / "seen").iterdir():
            seen.write_text(note, errors="surrogateescape")


def test_broken_images_are_left_out_and_kept_in_mind(request_: Request) -> None:
    made = Made(6, broken=(0, 3))
    for _ in range(2):
        found = stored_domain(domain(made), request_)
        assert found.images[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
        assert found.labels.tolist() == [1, 2, 4, 5]
        assert found.broken == (("0.jpg", "cut short"), ("3.jpg", "cut short"))
        assert found.files == ("1.jpg", "2.jpg", "4.jpg", "5.jpg")
    renamed = stored_domain(domain(made, suffix=".png"), request_)
    assert renamed.broken[0] == ("0.png", "cut short")
    assert renamed.files[0] == "1.png"
    assert len(made.decoded) == 6


def test_a_domain_of_broken_images_alone_comes_back_empty_and_is_tried_again(
    request_: Request,
) -> None:
    found = stored_domain(domain(Made(2, broken=(0, 1))), request_)
    assert found.images.shape == (0, 4, 4, 3)
    assert found.broken == (("0.jpg", "cut short"), ("1.jpg", "cut short"))
    assert len(stored_domain(domain(Made(2)), request_)) == 2


def test_a_file_that_cannot_be_read_now_is_read_when_it_can(
    request_: Request, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "later")
    made = Made(3)
    stored_domain(domain(made, link), request_)
    (tmp_path / "later").write_bytes(b"there now")
    stored_domain(domain(made, link), request_)
    assert len(made.decoded) == 6


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("where", ["decode", "files"])
def test_a_passing_fault_costs_no_image_of_later_runs(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    files = [(file, 0) for file in look_into(put_images(tmp_path, "1.png", "2.png")).images]
    raw = image_domain("x", files, tmp_path)
    whole = files_module.open_file

    def fails(path: Path) -> object:
        if Path(path).name == "2.png":
            raise OSError(number, os.strerror(number))
        return whole(path)

    monkeypatch.setattr(
        f"fedwca.{'data.decode' if where == 'decode' else 'files'}.open_file", fails
    )
    with pytest.raises(UserError, match=r"2\.png cannot be read for the moment"):
        stored_domain(raw, request_)
    monkeypatch.undo()
    assert stored_domain(raw, request_).files == ("1.png", "2.png")


def test_a_file_that_goes_between_its_name_and_its_pixels_costs_no_image_of_later_runs(
    request_: Request, tmp_path: Path
) -> None:
    folder = put_images(tmp_path / "a", "1.png", "2.png")
    raw = image_domain("x", [(file, 0) for file in look_into(folder).images], folder)
    gone = replace(raw, open=lambda: (folder / "2.png").rename(tmp_path / "2.png") and raw.open())
    with pytest.raises(UserError, match=r"^2\.png is not used, for it cannot be read \(No such"):
        stored_domain(gone, request_)
    (tmp_path / "2.png").rename(folder / "2.png")
    assert stored_domain(raw, request_).files == ("1.png", "2.png")


def test_setting_back_a_files_time_hides_no_change(request_: Request, tmp_path: Path) -> None:
    file, made = tmp_path / "x.bin", Made(3)
    file.write_bytes(b"one")
    os.utime(file, ns=(5, 5))
    stored_domain(domain(made, file), request_)
    file.write_bytes(b"two")
    os.utime(file, ns=(5, 5))
    stored_domain(domain(made, file), request_)
    assert len(made.decoded) == 6


@pytest.mark.parametrize("name", ["index.json", "images.npy", "labels.npy", "rows.npy"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
def test_a_damaged_entry_is_made_anew(request_: Request, name: str, how: str) -> None:
    made = Made(5)
    stored_domain(domain(made), request_)
    (file,) = request_.cache.rglob(name)
    content = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes(b"" if how == "empty" else content[:-7])
    found = stored_domain(domain(made), request_)
    assert found.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert len(made.decoded) == 10


@pytest.mark.parametrize("name", ["index.json", "images.npy", "labels.npy", "rows.npy"])
def test_a_flipped_bit_in_an_entry_is_noticed(request_: Request, name: str) -> None:
    made = Made(5)
    stored_domain(domain(made), request_)
    (file,) = request_.cache.rglob(name)
    content = bytearray(file.read_bytes())
    content[-8] ^= 4
    file.write_bytes(content)
    found = stored_domain(domain(made), request_)
    assert found.images[:, 0, 0, 0].tolist() == found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.files == tuple(f"{row}.jpg" for row in range(5))
    assert len(made.decoded) == 10


def test_pixels_that_a_disk_changed_in_silence_are_noticed_by_a_thorough_look(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.data.cache._size_and_times", lambda file: (1, 2, 3))
    made = Made(5)
    stored_domain(domain(made), request_)
    (file,) = request_.cache.rglob("images.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    stored_domain(domain(made), request_)
    assert len(made.decoded) == 5
    assert stored_domain(domain(made), replace(request_, thorough=True)).images[-1].max() == 4
    assert len(made.decoded) == 10


def test_a_cache_that_was_copied_is_read_whole_but_once(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, hashed = Made(5), []
    stored_domain(domain(made), request_)
    copy = replace(request_, cache=tmp_path / "copy")
    shutil.copytree(request_.cache, copy.cache)
    digest = cache._content_digest
    monkeypatch.setattr(cache, "_content_digest", lambda *a: hashed.append(1) or digest(*a))
    for _ in range(3):
        assert len(stored_domain(domain(made), copy)) == 5
    assert (len(made.decoded), len(hashed)) == (5, 1)


def test_a_failure_while_decoding_leaves_no_entry_behind(request_: Request) -> None:
    class Fails(Made):
        def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[Picture | Broken]:
            yield from super().decode(rows[:2], size)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        stored_domain(domain(Fails(5)), request_)
    assert not list(request_.cache.rglob("*.tmp"))
    assert len(stored_domain(domain(Made(5)), request_)) == 5


def test_what_a_killed_process_left_of_an_entry_goes_when_it_is_made_anew(
    request_: Request,
) -> None:
    stored_domain(domain(Made(5)), request_)
    (index,) = request_.cache.rglob("index.json")
    index.unlink()
    for name in ("images.npy", "labels.npy"):  # written on a machine that is no more
        (index.parent / f"{name}.0123abcd-7.tmp").write_bytes(b"half")
    stored_domain(domain(Made(5)), request_)
    assert not list(request_.cache.rglob("*.tmp"))


def test_digests_tell_content(request_: Request) -> None:
    first = stored_domain(domain(Made(5)), request_).digest
    assert stored_domain(domain(Made(5), key="again"), request_).digest == first
    assert stored_domain(domain(Made(6), key="more"), request_).digest != first

    class Relabeled(Made):
        @property
        def labels(self) -> NDArray[np.int64]:
            return np.zeros(self.count, np.int64)

    assert stored_domain(domain(Relabeled(5), key="labels"), request_).digest != first


def test_memory_does_not_grow_with_the_number_of_images(request_: Request) -> None:
    large = replace(request_, image_size=64)
    peaks = []
    for count in (50, 1000):
        tracemalloc.start()
        stored_domain(domain(Made(count), key=count), large)
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


def test_changed_files_are_read_again(npz_folder: Path, tmp_path: Path) -> None:
    request = Request(npz_folder, tmp_path / "cache", image_size=16)
    before = load_benchmark("npz", request).domains["dim"].images[0].copy()
    images = np.full((80, 16, 16, 3), 7, np.uint8)
    np.savez(npz_folder / "dim.npz", images=images, labels=np.arange(80) % 3)
    after = load_benchmark("npz", request).domains["dim"].images[0]
    assert not np.array_equal(before, after)
    assert (after == 7).all()


def test_grey_floats_of_another_size_become_rgb_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.full((5, 10, 10), 0.2), labels=np.arange(5))
    stacked = read_npz(tmp_path / "x.npz")
    pictures = list(stacked.decode(np.array([4, 0]), size=16))
    assert [(p.pixels.shape, p.width, p.height) for p in pictures] == [((16, 16, 3), 10, 10)] * 2
    assert all((p.pixels == 51).all() for p in pictures)  # 0.2 · 255
    assert stacked.labels.tolist() == [0, 1, 2, 3, 4]

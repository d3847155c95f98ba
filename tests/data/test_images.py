"""Images on their way to the network: transforms, memory maps, the decode-once cache."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwca.data.arrays import read_npz
from fedwca.data.augment import DIGITS, Transform
from fedwca.data.benchmarks import Request, load_benchmark
from fedwca.data.cache import Arrays, cached_arrays, default_cache
from fedwca.data.images import UnlabeledImages


def test_pixels_are_normalised_and_channels_go_first() -> None:
    pixels = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    # (0 - .5)/.5 = -1, (1 - .5)/.5 = 1, (.2 - .5)/.5 = -.6
    torch.testing.assert_close(DIGITS(pixels), torch.tensor([[[[-1.0]], [[1.0]], [[-0.6]]]]))


def test_batches_are_channels_last_in_memory() -> None:
    batch = DIGITS(torch.zeros(2, 8, 8, 3, dtype=torch.uint8))
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_evaluation_crops_the_centre_and_never_flips() -> None:
    pixels = torch.arange(6 * 6, dtype=torch.uint8).reshape(1, 6, 6, 1).repeat(1, 1, 1, 3)
    transform = Transform((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), crop=2, flip=True)
    expected = torch.tensor([[14.0, 15.0], [20.0, 21.0]])  # rows and columns 2 and 3 of 6
    torch.testing.assert_close(transform(pixels)[0, 0], expected)


def test_training_crops_and_flips_at_random_within_the_image() -> None:
    pixels = torch.arange(36, dtype=torch.uint8).reshape(1, 6, 6, 1).repeat(200, 1, 1, 3)
    transform = Transform((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), crop=4, flip=True)
    out = transform(pixels, torch.Generator().manual_seed(0))[:, 0].round()
    corners = {tuple(sorted((int(i[0, 0]), int(i[0, -1])))) for i in out}
    lefts = {low for low, _ in corners}
    assert lefts == {0, 1, 2, 6, 7, 8, 12, 13, 14}  # every place that a 4-crop of 6 can have
    flipped = sum(int(i[0, 0]) > int(i[0, -1]) for i in out)
    assert 60 < flipped < 140
    again = transform(pixels, torch.Generator().manual_seed(0))[:, 0].round()
    assert torch.equal(out, again)


def test_a_memory_map_travels_as_its_files_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000 * 4 * 4 * 3, dtype=np.uint8).reshape(-1, 4, 4, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    images = UnlabeledImages(mapped, np.array([3, 1]), DIGITS)
    blob = pickle.dumps(images)
    assert len(blob) < 2000
    back = pickle.loads(blob)
    rows = torch.arange(2)
    assert torch.equal(back.batch(rows), images.batch(rows))
    in_memory = UnlabeledImages(np.asarray(mapped), np.array([3, 1]), DIGITS)
    assert torch.equal(pickle.loads(pickle.dumps(in_memory)).batch(rows), images.batch(rows))


def arrays() -> Arrays:
    return {"a/b": (np.ones((2, 4, 4, 3), np.uint8), np.array([0, 1]))}


def test_the_cache_decodes_once(tmp_path: Path) -> None:
    made = []

    def make() -> Arrays:
        made.append(1)
        return arrays()

    for _ in range(2):
        found = cached_arrays(tmp_path, {"k": 1}, make).arrays
        assert isinstance(found["a/b"][0], np.memmap)
        assert np.array_equal(found["a/b"][0], arrays()["a/b"][0])
    assert len(made) == 1
    cached_arrays(tmp_path, {"k": 2}, make)
    assert len(made) == 2


def test_a_cache_entry_cut_short_is_made_anew(tmp_path: Path) -> None:
    cached_arrays(tmp_path, {"k": 1}, arrays)
    (index,) = tmp_path.rglob("index.json")
    index.unlink()
    (images,) = tmp_path.rglob("*.images.npy")
    images.write_bytes(b"")
    assert len(cached_arrays(tmp_path, {"k": 1}, arrays).arrays["a/b"][1]) == 2


def test_digests_tell_content(tmp_path: Path) -> None:
    first = cached_arrays(tmp_path, {"k": 1}, arrays).digests
    assert first == cached_arrays(tmp_path, {"k": 2}, arrays).digests

    def changed() -> Arrays:
        made = arrays()
        made["a/b"][0][1, 3, 3, 2] = 0
        return made

    assert first != cached_arrays(tmp_path, {"k": 3}, changed).digests


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWCA_CACHE", "/x")
    assert default_cache() == Path("/x")
    monkeypatch.delenv("FEDWCA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/y")
    assert default_cache() == Path("/y/fedwca")


def test_changed_files_are_read_again(npz_folder: Path, tmp_path: Path) -> None:
    request = Request(npz_folder, tmp_path / "cache", image_size=16)
    before = load_benchmark("npz", request).domains["dim"][0][0].copy()
    images = np.full((80, 16, 16, 3), 7, np.uint8)
    np.savez(npz_folder / "dim.npz", images=images, labels=np.arange(80) % 3)
    after = load_benchmark("npz", request).domains["dim"][0][0]
    assert not np.array_equal(before, after)
    assert (after == 7).all()


def test_grey_floats_of_another_size_become_rgb_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.full((5, 10, 10), 0.2), labels=np.arange(5))
    images, labels = read_npz(tmp_path / "x.npz", size=16, limit=3)
    assert images.shape == (3, 16, 16, 3)
    assert (images == 51).all()  # 0.2 · 255
    assert len(set(labels.tolist())) == 3

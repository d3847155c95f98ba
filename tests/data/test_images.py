"""Transforms and memory maps of image sets."""

import pickle
from pathlib import Path

import numpy as np
import torch

from fedwca.data.augment import DIGITS, OBJECTS, Transform, digit_transform, object_transform
from fedwca.data.images import UnlabeledImages


def test_pixels_are_normalized_and_channels_go_first() -> None:
    pixels = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    # (0 - .5)/.5 = -1, (1 - .5)/.5 = 1, (.2 - .5)/.5 = -.6
    torch.testing.assert_close(DIGITS(pixels), torch.tensor([[[[-1.0]], [[1.0]], [[-0.6]]]]))


def test_normalizing_by_rows_equals_the_plain_formula() -> None:
    pixels = torch.randint(0, 256, (3, 8, 6, 3), dtype=torch.uint8)
    plain = Transform(OBJECTS.mean, OBJECTS.std)
    mean, std = torch.tensor(OBJECTS.mean), torch.tensor(OBJECTS.std)
    expected = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
    assert torch.equal(plain(pixels), expected)
    assert torch.equal(plain(pixels[:, 1:5, 2:6]), expected[:, :, 1:5, 2:6])


def test_batches_are_channels_last_in_memory() -> None:
    batch = DIGITS(torch.zeros(2, 8, 8, 3, dtype=torch.uint8))
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_evaluation_crops_the_center_and_never_flips() -> None:
    pixels = torch.arange(6 * 6, dtype=torch.uint8).reshape(1, 6, 6, 1).repeat(1, 1, 1, 3)
    transform = Transform((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), crop=2, flip=True)
    expected = torch.tensor([[14.0, 15.0], [20.0, 21.0]])  # rows and columns 2 and 3 of 6
    torch.testing.assert_close(transform(pixels)[0, 0], expected)


def test_digits_are_not_cropped_and_objects_to_seven_eighths() -> None:
    assert digit_transform(32) is DIGITS
    assert object_transform(256) == OBJECTS
    assert object_transform(64).crop == 56


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


def test_a_memory_map_is_pickled_as_its_file_name(tmp_path: Path) -> None:
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


def test_released_images_take_no_memory_and_read_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (200, 32, 32, 3), np.uint8))
    images = UnlabeledImages(np.load(path, mmap_mode="r"), np.arange(200), DIGITS)
    first = images.batch(torch.arange(200))
    if (maps := Path("/proc/self/smaps")).exists():
        assert resident(maps, path) >= 600
        images.release()
        assert resident(maps, path) == 0
    images.release()
    assert torch.equal(images.batch(torch.arange(200)), first)
    UnlabeledImages(np.zeros((1, 2, 2, 3), np.uint8), np.arange(1), DIGITS).release()  # no map


def resident(maps: Path, path: Path) -> int:
    """KiB of a mapped file in this process's memory."""
    _, _, after = maps.read_text().partition(f"{path}\n")
    return int(after.partition("Rss:")[2].split()[0])

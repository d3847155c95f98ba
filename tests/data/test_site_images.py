"""Loading the images of a site."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwca._support.files import temporary_path
from fedwca.data.augment import DIGITS
from fedwca.data.site_images import SitePaths, load_site_images
from tests.support.image_folders import put_images


def test_stale_files_in_the_cache_of_a_site_are_removed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "images" / "0.png")
    left = temporary_path(tmp_path / "cache" / "images" / "entry" / "labels.npy")
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (10**9, 10**9))  # of a process that is gone, which had our number
    load_site_images(
        "mill", SitePaths(tmp_path / "images", None, tmp_path / "cache"), (), 8, DIGITS
    )
    assert not list(tmp_path.rglob("*.tmp"))


def test_unknown_class_folders_of_a_site_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_images(tmp_path / "images", "0.png")
    put_images(tmp_path / "test", "bolt/0.png", "dog/0.png")
    paths = SitePaths(tmp_path / "images", tmp_path / "test", tmp_path / "cache")
    with caplog.at_level("INFO", logger="fedwca"):
        data = load_site_images("mill", paths, ("bolt", "nut"), 8, DIGITS)
    assert data.test is not None
    assert data.test.labels.tolist() == [0]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(": dog")

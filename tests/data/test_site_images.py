"""A site's images: what a killed process left of their cache does not stay."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from fedwca.data.augment import DIGITS
from fedwca.data.site_images import SitePaths, site_images
from fedwca.leftovers import temporary


def test_what_was_left_half_written_at_a_site_is_swept(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "images" / "0.png")
    left = temporary(tmp_path / "cache" / "images" / "entry" / "labels.npy")
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (10**9, 10**9))  # of a process that is gone, which had our number
    site_images("mill", SitePaths(tmp_path / "images", None, tmp_path / "cache"), (), 8, DIGITS)
    assert not list(tmp_path.rglob("*.tmp"))

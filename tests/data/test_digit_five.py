"""Digit-Five from files: made here in the same layout, and the real ones where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedwca.data.benchmarks import DIGIT_FIVE, Request, load_benchmark


def test_five_domains_of_any_size_and_colour(tmp_path: Path) -> None:
    shapes = {"usps": (16, 16), "mnist": (28, 28)}
    labels = np.arange(12, dtype=np.uint8) % 10
    for name in DIGIT_FIVE:
        shape = shapes.get(name, (32, 32, 3))
        images = np.stack([np.full(shape, label, np.uint8) for label in labels])
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
        if name in ("svhn", "synth"):
            labels_there = np.where(labels == 0, 10, labels)  # as their files have it
            np.savez(tmp_path / f"{name}.npz", images=images, labels=labels_there)
    benchmark = load_benchmark("digit-five", Request(tmp_path, tmp_path / "c", images_per_domain=9))
    assert tuple(benchmark.domains) == DIGIT_FIVE
    for images, kept in benchmark.domains.values():
        assert images.shape == (9, 32, 32, 3)
        assert (images == kept[:, None, None, None]).all()  # each with its own label
        assert kept.tolist() != labels[:9].tolist()  # drawn at random, not the first nine


def test_the_real_files(tmp_path: Path) -> None:
    data = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data"))
    if not (data / "digit-five" / "usps.npz").exists():
        pytest.skip("no real Digit-Five: set FEDWCA_TEST_DATA to a folder with digit-five/*.npz")
    request = Request(data / "digit-five", tmp_path, images_per_domain=200)
    benchmark = load_benchmark("digit-five", request)
    for images, labels in benchmark.domains.values():
        assert images.shape == (200, 32, 32, 3)
        assert set(labels.tolist()) == set(range(10))

"""Real images through the whole program, at a size that takes minutes."""

import os
from pathlib import Path

import pytest

from fedwca.experiments.config import resolve
from fedwca.experiments.runner import run_experiment

DATA = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data"))

pytestmark = pytest.mark.slow


def real(*parts: str) -> str:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no real {parts[0]}: set FEDWCA_TEST_DATA to a folder with {'/'.join(parts)}")
    return str(path)


def test_digits_learn_from_each_other(tmp_path: Path) -> None:
    settings = {
        "data": {
            "benchmark": "digit-five",
            "path": real("digit-five"),
            "source": "mnist",
            "images_per_domain": 4000,
            "clients_per_domain": 3,
            "images_per_client": 256,
        },
        "source": {"epochs": 10, "lr": 0.01},
        "training": {"rounds": 3},
    }
    lines = run_experiment(resolve(settings), tmp_path / "runs", tmp_path / "cache").lines()
    assert lines[-1]["round"] == 3
    before, after = (line["accuracy"]["domains"]["usps"] for line in (lines[0], lines[-1]))
    assert before > 0.5  # MNIST's own shapes
    assert after > before + 0.05  # and USPS is what adaptation helps most


def test_pacs_from_imagenet_weights(tmp_path: Path) -> None:
    settings = {
        "data": {
            "benchmark": "pacs",
            "path": real("PACS"),
            "source": "photo",
            "image_size": 48,
            "images_per_domain": 300,
        },
        "model": {"weights": real("weights", "resnet18_imagenet.safetensors")},
        "source": {"epochs": 8},
        "training": {"rounds": 1, "epochs": 1},
    }
    lines = run_experiment(resolve(settings), tmp_path / "runs", tmp_path / "cache").lines()
    assert lines[-1]["round"] == 1
    assert lines[0]["accuracy"]["mean"] > 2 / 7  # twice chance, from 300 tiny photos

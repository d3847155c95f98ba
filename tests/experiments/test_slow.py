"""Whole experiments that take minutes, some on real images: `make test-slow`."""

import os
from pathlib import Path
from statistics import fmean

import pytest

from fedwca.experiments.config import resolve
from fedwca.experiments.runner import run_experiment
from fedwca.report.measures import chance_purity, purity
from fedwca.report.runs import RunView, read_run

SEEDS = (0, 1, 2)
DATA = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data"))
EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(method: str, seed: int, place: Path) -> RunView:
    experiment = resolve({"method": {"name": method}, "run": {"seed": seed}})
    return read_run(run_experiment(experiment, place / "runs", place / "cache").path)


def test_a_real_shift_that_fedwca_repairs_with_clusters_better_than_chance(tmp_path: Path) -> None:
    """The README's numbers for mini-digits."""
    source_only = [run("source_only", seed, tmp_path).accuracy or 0 for seed in SEEDS]
    runs = [run("fedwca", seed, tmp_path) for seed in SEEDS]
    assert fmean(source_only) < 0.70
    assert fmean(r.accuracy or 0 for r in runs) >= fmean(source_only) + 0.10
    for r in runs:
        clusters, domains = [r.clusters[name] for name in r.domains], list(r.domains.values())
        assert purity(clusters, domains) > chance_purity(clusters, domains)


def test_a_new_site_does_better_than_the_source_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import new_site

    rows = new_site.run_trial(tmp_path, seed=0, rounds=10, method="fedwca")
    assert list(rows) == ["photo", "printed", "street", "postal"]
    source, *_, delivered = (sum(column) / 4 for column in zip(*rows.values(), strict=True))
    assert delivered > source


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
            "image_size": 64,
            "images_per_domain": 600,
        },
        "model": {"weights": real("weights", "resnet18_imagenet.safetensors")},
        "source": {"epochs": 8, "lr": 0.01},  # few steps, hence a larger rate than the paper's
        "training": {"rounds": 1, "epochs": 1},
    }
    lines = run_experiment(resolve(settings), tmp_path / "runs", tmp_path / "cache").lines()
    assert lines[-1]["round"] == 1
    assert lines[0]["accuracy"]["mean"] > 1.5 / 7  # well above chance, from 600 small photos

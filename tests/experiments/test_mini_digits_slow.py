"""The README's numbers for mini-digits, measured again: `make test-slow`."""

from pathlib import Path
from statistics import fmean

import pytest

from fedwca.experiments.config import resolve
from fedwca.experiments.runner import run_experiment
from fedwca.report.measures import chance_purity, purity
from fedwca.report.runs import RunView, read_run

SEEDS = (0, 1, 2)


def run(method: str, seed: int, place: Path) -> RunView:
    experiment = resolve({"method": {"name": method}, "run": {"seed": seed}})
    return read_run(run_experiment(experiment, place / "runs", place / "cache").path)


@pytest.mark.slow
def test_a_real_shift_that_fedwca_repairs_with_clusters_better_than_chance(tmp_path: Path) -> None:
    source_only = [run("source_only", seed, tmp_path).accuracy or 0 for seed in SEEDS]
    runs = [run("fedwca", seed, tmp_path) for seed in SEEDS]
    assert fmean(source_only) < 0.70
    assert fmean(r.accuracy or 0 for r in runs) >= fmean(source_only) + 0.10
    for r in runs:
        names = list(r.last["clients"])
        clusters = [int(r.last["server"][f"cluster_of/{name}"]) for name in names]
        domains = [r.last["clients"][name]["domain"] for name in names]
        assert purity(clusters, domains) > chance_purity(clusters, domains)

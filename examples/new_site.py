"""Measure the model of a site that did not take part in the run.

Mini-digits is written to folders: three sites of each target domain take part in a FedWCA run, a
fourth one does not. After the run each of these new sites gets a model as from `fedwca
adapt-client`, from its unlabeled images alone. The table shows the accuracy on its test images of

- source: the source model;
- its domain: the cluster model of the sites of its own domain, which is unknown in practice;
- its cluster: the cluster model that it was assigned, by its first layer;
- f_init: the blend of all cluster models by its own α and β;
- delivered: f_init, adapted to its images.

    python examples/new_site.py --seed 0 --rounds 10
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
from PIL import Image

from fedwca.data.benchmarks.mini_digits import DOMAINS, make_domain
from fedwca.data.site_images import SitePaths
from fedwca.experiments.config import resolve
from fedwca.experiments.export import export_run
from fedwca.experiments.newcomer import adapt_newcomer
from fedwca.experiments.predict import Predictor, find_images
from fedwca.experiments.runner import run_experiment
from fedwca.report.runs import read_run

SOURCE, *TARGETS = DOMAINS
SITES, IMAGES = 3, 110  # of each domain; the new site has as many, and all others to test
COLUMNS = ("source", "its domain", "its cluster", "f_init", "delivered")


def write(folder: Path, domain: str, seed: int, start: int, end: int, labeled: bool) -> None:
    """Write images of a domain as files, in class folders if labeled."""
    images, labels = make_domain(domain, seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    for row in order[start:end]:
        place = folder / str(labels[row]) if labeled else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[row]).save(place / f"{row:04d}.png")


def write_world(world: Path, seed: int) -> None:
    write(world / "source", SOURCE, seed, 0, 10_000, labeled=True)
    for domain in TARGETS:
        for site in range(SITES):
            place = world / "sites" / f"{domain}-{site}"
            write(place, domain, seed, site * IMAGES, (site + 1) * IMAGES, labeled=False)
        end = (SITES + 1) * IMAGES
        write(world / "new" / domain, domain, seed, SITES * IMAGES, end, labeled=False)
        write(world / "test" / domain, domain, seed, end, 10_000, labeled=True)


def train(world: Path, seed: int, rounds: int, method: str) -> Path:
    folders = {"path": world / "sites", "source_path": world / "source"}
    settings = {
        "data": {"benchmark": "images", **folders, "image_size": 36},  # cropped to 31
        "model": {"backbone": "lenet"},
        "source": {"lr": 0.01, "epochs": 60},  # the defaults of mini-digits
        "training": {"lr": 0.01, "ce_weight": 0.1, "rounds": rounds},
        "method": {"name": method},
        "run": {"seed": seed, "evaluate_every": rounds},
    }
    return run_experiment(resolve(settings), world / "runs", world / "cache").path


def domain_accuracy(world: Path, run: Path, domain: str) -> float:
    """Return the accuracy of the model of the cluster with most sites of a domain."""
    clusters = {c: k for c, k in read_run(run).clusters.items() if c.startswith(f"{domain}-")}
    (most, _), *_ = Counter(clusters.values()).most_common(1)
    member = next(client for client, cluster in clusters.items() if cluster == most)
    (file, _) = next(export_run(run, member, "safetensors", world / "models", world / "cache"))
    predictions = Predictor(file).predict(find_images([str(world / "test" / domain)]))
    return fmean(prediction.class_name == prediction.path.parent.name for prediction in predictions)


def run_trial(world: Path, seed: int, rounds: int, method: str) -> dict[str, list[float]]:
    """Return the accuracies of each domain's new site, in the order of COLUMNS."""
    write_world(world, seed)
    run = train(world, seed, rounds, method)
    rows = {}
    for domain in TARGETS:
        paths = SitePaths(world / "new" / domain, world / "test" / domain, world / "cache")
        found = adapt_newcomer(run, f"new {domain}", paths)
        score = {who: s.correct / s.total for who, s in found.scores.items()}
        own = domain_accuracy(world, run, domain)
        rows[domain] = [score["source"], own, *(score[c] for c in ("cluster", *COLUMNS[3:]))]
    return rows


def print_row(name: str, values: list[float]) -> None:
    print(f"{name:16}" + "".join(f"{100 * value:13.1f}" for value in values), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, action="append", help="repeatable (0)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--method", default="fedwca", help="fedwca or fedwca_plus")
    options = parser.parse_args()
    print(f"{'accuracy (%)':16}" + "".join(f"{column:>13}" for column in COLUMNS))
    all_rows: list[list[float]] = []
    for seed in options.seed or [0]:
        with tempfile.TemporaryDirectory() as world:
            rows = run_trial(Path(world), seed, options.rounds, options.method)
        for domain, values in rows.items():
            print_row(f"{domain}, seed {seed}", values)
        all_rows += rows.values()
    print_row("mean", [fmean(column) for column in zip(*all_rows, strict=True)])


if __name__ == "__main__":
    main()

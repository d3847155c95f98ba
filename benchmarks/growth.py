"""How time and memory grow: with clients, with clusters, with a client's images; the server's work.

Each size is measured in a process of its own, since memory that was once used is not given back:

    python benchmarks/growth.py WHAT SIZE FOLDER
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import Row, in_a_process, memory_now, peak_memory, row, seconds
from workload import World, simulator, with_epochs

from fedwca.core.finch import first_neighbor_clusters
from fedwca.core.params import clone
from fedwca.core.snd import soft_neighborhood_density
from fedwca.engines.simulator import Simulator
from fedwca.experiments.runner import federate
from fedwca.experiments.store import Checkpoint
from fedwca.machine import cores, keep_freed_memory
from fedwca.methods.fedwca import FedWCA

IMAGES = 64  # of a client, where clients are counted


def clients(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Two rounds of FedWCA in four clusters, 64 images a client, all cores."""
    rows: list[Row] = []
    sizes = (8, 32, 128) if quick else (8, 32, 128, 512, 2048)
    found = {size: _measured("clients", size, folder) for size in sizes}
    for size, facts in found.items():
        rows.append(row(f"{size} clients of {IMAGES} images: a round", [facts["seconds"]], "s"))
        rows.append(row("  seconds a client and core", [facts["seconds"] * cores() / size], "s"))
        rows.append(row("  peak memory, server", [facts["server"]], "MiB"))
        rows.append(row("  peak memory, largest worker", [facts["worker"]], "MiB"))
    few, many = sizes[1], sizes[-1]
    more = (found[many]["server"] - found[few]["server"]) / (many - few) * 1024
    data = IMAGES * 32 * 32 * 3 / 1024
    rows.append(row(f"a client's data, {IMAGES} images", [data], "KiB"))
    rows.append(row("  the server grows with each client by", [more], "KiB", f"≤ {data:.0f}"))
    return rows


def clusters(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """A round with more clusters: C + 3 passes over each client's images."""
    sizes = (2, 4) if quick else (2, 4, 8, 16)
    found = {size: _measured("clusters", size, folder) for size in sizes}
    return [
        r
        for size, facts in found.items()
        for r in (
            row(f"{size} clusters, 16 clients of 272 images: a round", [facts["seconds"]], "s"),
            row("  peak memory, server", [facts["server"]], "MiB"),
        )
    ]


def images(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """One client with more images: its round of FedWCA in two clusters."""
    sizes = (500, 2000) if quick else (500, 2000, 8000, 20000)
    found = {size: _measured("images", size, folder) for size in sizes}
    return [
        r
        for size, facts in found.items()
        for r in (
            row(f"a client of {size:,} images: its round", [facts["seconds"]], "s"),
            row("  milliseconds an image", [1000 * facts["seconds"] / size], "ms"),
            row("  memory beyond the program itself", [facts["more"]], "MiB"),
        )
    ]


def server(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """What has to hold for thousands of clients, and for large ones."""
    many, large = (1000, 2000) if quick else (10_000, 20_000)
    finch = _measured("finch", many, folder)
    snd = _measured("density", large, folder)
    return [
        row(f"clustering {many:,} clients on LeNet's first layer", [finch["seconds"]], "s", "< 10"),
        row("  memory, the clients' vectors included", [finch["more"]], "MiB", "< 2048"),
        row(f"density of {large:,} images × 65 classes", [snd["seconds"]], "s"),
        row("  memory", [snd["more"]], "MiB", "< 1024"),
    ]


def _measured(what: str, size: int, folder: Path) -> dict[str, float]:
    print(f"    {what} {size}", file=sys.stderr, flush=True)
    facts: dict[str, float] = in_a_process(__file__, what, size, folder, environment=os.environ)
    return facts


# --- in a process of its own ----------------------------------------------------------------------


def _federation(count: int, size: int, domains: int, folder: Path) -> dict[str, float]:
    """The second round: the first one clusters. What clients score is scored in it, too."""
    world = World(folder)
    model = world.model()
    method = FedWCA(with_epochs(1, rounds=2), clustering="domain")
    took: list[float] = []
    start = Checkpoint(0, method.init(clone(model.feature_state())), {}, {})
    with simulator(model, method, world.clients([size] * count, domains=domains), cores()) as work:
        federate(
            method, work, start, lambda line: None, lambda at: took.append(at.facts["seconds"])
        )
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": took[-1], "server": peak_memory(), "worker": worker}


def _clients(size: int, folder: Path) -> dict[str, float]:
    return _federation(size, IMAGES, 4, folder)


def _clusters(size: int, folder: Path) -> dict[str, float]:
    return _federation(16, 272, size, folder)


def _images(size: int, folder: Path) -> dict[str, float]:
    """Two clients, of which one is small, so that there is a second cluster."""
    world = World(folder)
    model = world.model()
    method = FedWCA(with_epochs(1, rounds=2), clustering="domain")
    took: list[float] = []
    start = Checkpoint(0, method.init(clone(model.feature_state())), {}, {})
    with tempfile.TemporaryDirectory() as scratch:
        people = world.clients([size, 16], domains=2)
        engine = Simulator(model, method, people, 0, Path(scratch) / "scratch", 1)
        before = memory_now()
        federate(
            method, engine, start, lambda line: None, lambda at: took.append(at.facts["seconds"])
        )
        engine.close()
    return {"seconds": took[-1], "more": peak_memory() - before}


def _finch(size: int, folder: Path) -> dict[str, float]:
    before = memory_now()
    state = torch.randn(20 * 3 * 25 + 20, dtype=torch.float64)
    drawn = torch.randn(size, len(state), dtype=torch.float64)
    vectors = drawn.mul_(1e-3).add_(state)
    took = seconds(lambda: first_neighbor_clusters(vectors))
    return {"seconds": took, "more": peak_memory() - before}


def _density(size: int, folder: Path) -> dict[str, float]:
    probabilities = (torch.randn(size, 65) * 3).softmax(dim=1)
    torch.set_num_threads(1)  # as at a client
    before = memory_now()
    took = seconds(lambda: soft_neighborhood_density(probabilities))
    return {"seconds": took, "more": peak_memory() - before}


WHAT: dict[str, Any] = {
    "clients": _clients,
    "clusters": _clusters,
    "images": _images,
    "finch": _finch,
    "density": _density,
}

if __name__ == "__main__":
    keep_freed_memory()
    what, number, place = sys.argv[1:]
    print(json.dumps(WHAT[what](int(number), Path(place))))

"""Measure how time and memory grow with clients, clusters and images; and the server's work.

Each size is measured in a new process, because a process does not return all memory:

    python benchmarks/growth.py WHAT SIZE FOLDER
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measure import Row, in_a_process, memory_now, peak_memory, row, seconds
from workload import World, simulator, with_epochs

from fedwca._support.machine import count_cores, keep_freed_memory
from fedwca.core.finch import first_neighbor_clusters
from fedwca.core.params import clone
from fedwca.core.snd import soft_neighborhood_density
from fedwca.data.images import ClientData
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.rounds import federate
from fedwca.experiments.store import Checkpoint
from fedwca.methods.base import Method
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.local import Local
from fedwca.models import DomainModel

IMAGES = 64  # of a client, where clients are counted
LONG = 120.0  # seconds; what takes longer is measured once

Measured = dict[int, dict[str, list[float]]]  # by size, by what was measured


def clients(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure two rounds in four clusters with 64 images for each client, on all cores."""
    sizes = (8, 32, 128) if quick else (8, 32, 128, 512, 2048)
    rows: list[Row] = []
    for what, method in (("clients", "FedWCA"), ("memories", "Local")):
        found = _measured(what, sizes, folder, repeats)
        for size, facts in found.items():
            each = [took * count_cores() / size for took in facts["seconds"]]
            name = f"{method}, {size} clients of {IMAGES}: a round"
            rows.append(row(name, facts["seconds"], "s"))
            rows.append(row("  core-seconds per client", each, "s"))
            rows.append(row("  peak memory, server", facts["server"], "MiB"))
            rows.append(row("  peak memory, largest worker", facts["worker"], "MiB"))
        rows += [_growth(found, part) for part in ("server", "worker")]
    return rows


def _growth(found: Measured, part: str) -> Row:
    """Return what each further client adds to the peak, from the second size to the last."""
    few, many = list(found)[1], list(found)[-1]
    more = (min(found[many][part]) - min(found[few][part])) / (many - few) * 1024
    data = IMAGES * 32 * 32 * 3 / 1024
    name = f"  {part}: a further client ({data:.0f} KiB of data) adds"
    return row(name, [more], "KiB", f"≤ {data:.0f}")


def clusters(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure a round with more clusters: C + 3 passes over each client's images."""
    sizes, rows = (2, 4) if quick else (2, 4, 8, 16), list[Row]()
    for size, facts in _measured("clusters", sizes, folder, repeats).items():
        name = f"{size} clusters, 16 clients of 272 images: a round"
        rows.append(row(name, facts["seconds"], "s"))
        rows.append(row("  peak memory, server", facts["server"], "MiB"))
    return rows


def images(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure a round of FedWCA for one client with more images, in two clusters."""
    sizes, rows = (500, 2000) if quick else (500, 2000, 8000, 20000), list[Row]()
    for size, facts in _measured("images", sizes, folder, repeats).items():
        each = [1000 * s / size for s in facts["seconds"]]
        rows.append(row(f"a client of {size:,} images: its round", facts["seconds"], "s"))
        rows.append(row("  milliseconds per image", each, "ms"))
        rows.append(row("  memory beyond the program itself", facts["more"], "MiB"))
    return rows


def server(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure the server's work for thousands of clients, and densities of large clients."""
    many, large = (1000, 2000) if quick else (10_000, 20_000)
    finch = _measured("finch", (many,), folder, repeats)[many]
    snd = _measured("density", (large,), folder, repeats)[large]
    return [
        row(f"clustering {many:,} clients on LeNet's first layer", finch["seconds"], "s", "< 10"),
        row("  memory, the clients' vectors included", finch["more"], "MiB", "< 2048"),
        row(f"density of {large:,} images × 65 classes", snd["seconds"], "s"),
        row("  memory", snd["more"], "MiB", "< 1024"),
    ]


def _measured(what: str, sizes: Sequence[int], folder: Path, repeats: int) -> Measured:
    """Measure the sizes in turn; one that takes minutes is measured once."""
    found: Measured = {size: defaultdict(list) for size in sizes}
    took = dict.fromkeys(sizes, 0.0)
    for repeat in range(repeats):
        for size in sizes:
            if took[size] > LONG:
                continue
            print(f"    {repeat + 1}/{repeats} {what} {size}", file=sys.stderr, flush=True)
            started = time.perf_counter()
            facts = in_a_process(__file__, what, size, folder, environment=os.environ)
            took[size] = time.perf_counter() - started
            for name, value in facts.items():
                found[size][name].append(value)
    return found


# --- in a new process -----------------------------------------------------------------------------


def _federation(world: World, method: Method, clients: list[ClientData]) -> dict[str, float]:
    """Measure the second round, evaluation included; the first one clusters."""
    model = world.model()
    memory_now()  # do not count the memory for writing images
    with simulator(model, method, clients, count_cores()) as engine:
        took = _last_round(model, method, engine)
        worker = max(peak_memory(p.pid or 0) for p in multiprocessing.active_children())
    return {"seconds": took, "server": peak_memory(), "worker": worker}


def _last_round(model: DomainModel, method: Method, engine: Simulator) -> float:
    """Run all rounds; return the seconds of the last one."""
    start = Checkpoint(0, method.init(clone(model.feature_weights())), {}, {})
    checkpoints = [x for x in federate(method, engine, start) if isinstance(x, Checkpoint)]
    return float(checkpoints[-1].facts["seconds"])


def _in_clusters() -> FedWCA:
    return FedWCA(with_epochs(1, rounds=2), clustering="domain")


def _clients(size: int, folder: Path, method: Method | None = None) -> dict[str, float]:
    world = World(folder)
    apart = world.apart(world.clients([IMAGES] * size))
    return _federation(world, method or _in_clusters(), apart)


def _memories(size: int, folder: Path) -> dict[str, float]:
    """Run clients that each keep a model of their own."""
    return _clients(size, folder, Local(with_epochs(1, rounds=2)))


def _clusters(size: int, folder: Path) -> dict[str, float]:
    world = World(folder)
    return _federation(world, _in_clusters(), world.clients([272] * 16, domains=size))


def _images(size: int, folder: Path) -> dict[str, float]:
    """Measure a client; a second, small one provides a second cluster."""
    world = World(folder)
    model, method = world.model(), _in_clusters()
    with tempfile.TemporaryDirectory() as scratch:
        data = world.apart(world.clients([size, 16], domains=2))
        engine = Simulator(model, method, data, 0, Path(scratch) / "scratch", 1)
        before = memory_now()
        took = _last_round(model, method, engine)
        engine.close()
    return {"seconds": took, "more": peak_memory() - before}


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


MEASUREMENTS: dict[str, Any] = {
    "clients": _clients,
    "memories": _memories,
    "clusters": _clusters,
    "images": _images,
    "finch": _finch,
    "density": _density,
}

if __name__ == "__main__":
    keep_freed_memory()
    what, number, place = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[what](int(number), Path(place))))

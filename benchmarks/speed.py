"""Speed of local adaptation against the machine's limit and against other implementations.

    python benchmarks/speed.py FOLDER SIZES

runs from process start to the end of the first round, which a user waits for.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import peers
import torch
from measure import Row, in_a_process, interleaved, matrix_limit, ratio, row, seconds
from workload import DIGIT_FIVE, World, flops, one_round, simulator, with_epochs

from fedwca._support.machine import count_cores
from fedwca.core.params import clone
from fedwca.methods.fedavg import FedAvg

Ways = dict[str, Callable[[], float]]


def adaptation(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Time a FedAvg round: LeNet, 32 clients of Digit-Five's sizes, one epoch."""
    world = World(folder)
    sizes = [size // 8 if quick else size for size in DIGIT_FIVE]
    with ExitStack() as stack:
        ways: Ways = {"limit": matrix_limit, **_ours(world, sizes, stack)}
        ways |= _peers(world, sizes, folder)
        found = interleaved(ways, repeats)
    work = _work(world, sizes)
    ours = found["ours"]
    achieved = [work / took for took in ours]
    rows = [
        row("the machine's limit: matrix product on all cores", _giga(found["limit"]), "GFLOP/s"),
        row(f"LeNet, 32 clients, {sum(sizes):,} images in all", _giga(achieved), "GFLOP/s"),
        ratio("  share of the limit", achieved, found["limit"], "", "≥ 0.60"),
        ratio(
            f"  {count_cores()} workers against one", found["ours, one worker"], ours, "×", "≥ 1.8"
        ),
    ]
    return rows + _against(found, ours, {"a plain loop": "≥ 1.5", FLOWER: "≥ 1"})


def small_clients(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Time 32 clients of 64 images, one epoch, where the overhead for each client dominates."""
    world = World(folder)
    sizes = [64] * 32
    with ExitStack() as stack:
        ways = {**_ours(world, sizes, stack), **_peers(world, sizes, folder)}
        found = interleaved(ways, repeats)
    rows = [row("32 clients of 64 images: a round", found["ours"], "s")]
    rows += _against(found, found["ours"], {FLOWER: "≥ 5"})
    return rows + _first_rounds(folder, sizes, repeats)


def _first_rounds(folder: Path, sizes: list[int], repeats: int) -> list[Row]:
    """Time the same from process start to the end of the first round."""
    ways: Ways = {"ours": lambda: seconds(lambda: _script("speed.py", folder, sizes))}
    if importlib.util.find_spec("ray"):
        ways[FLOWER] = lambda: seconds(lambda: _script(FLOWER_SCRIPT, folder, sizes, 1, 1))
    found = interleaved(ways, repeats)
    rows = [row("  from process start to the end of the first round", found["ours"], "s")]
    return rows + _against(found, found["ours"], {})


def resnet(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Time ResNet-18 at 64 pixels."""
    world = World(folder, "resnet18", 64)
    sizes = [64 if quick else 256] * 4
    with ExitStack() as stack:
        ours = _ours(world, sizes, stack)
        found = interleaved({"limit": matrix_limit, "ours": ours["ours"]}, repeats)
    achieved = [_work(world, sizes) / took for took in found["ours"]]
    return [
        row(f"ResNet-18 at 64 px, 4 clients of {sizes[0]} images", _giga(achieved), "GFLOP/s"),
        ratio("  share of the limit", achieved, found["limit"], "", "≥ 0.50"),
    ]


FLOWER_SCRIPT = "flower_simulation.py"
FLOWER = "Flower's simulation, one CPU per client"
FLOWER_DEFAULTS = "Flower's simulation, with its defaults"


def _ours(world: World, sizes: list[int], stack: ExitStack) -> Ways:
    """Return our engine with all cores, and with one worker, which is this process."""
    method = FedAvg(with_epochs(1))
    clients = world.clients(sizes)
    ways: Ways = {}
    for name, workers in (("ours", count_cores()), ("ours, one worker", 1)):
        model = world.model()
        state = method.init(clone(model.feature_weights()))
        engine = stack.enter_context(simulator(model, method, clients, workers))
        one_round(engine, method, state, 0)  # the first call takes longer
        ways[name] = lambda e=engine, s=state: _best(sizes, lambda: one_round(e, method, s, 0))
    return ways


def _peers(world: World, sizes: list[int], folder: Path) -> Ways:
    training = with_epochs(1)
    clients = world.clients(sizes)
    model = world.model().to(memory_format=torch.contiguous_format)
    pfllib = peers.LikePFLlib(model, clients, folder)
    ways: Ways = {
        "a plain loop": lambda: _best(sizes, lambda: peers.plain(model, clients, training)),
        "a loop like PFLlib's": lambda: _best(sizes, lambda: pfllib.round(model, training)),
        "a loop like pfl-research's": lambda: _best(
            sizes, lambda: peers.like_pfl_research(model, clients, training)
        ),
    }
    if importlib.util.find_spec("ray"):
        ways[FLOWER] = lambda: _flower(folder, sizes, 1)
        ways[FLOWER_DEFAULTS] = lambda: _flower(folder, sizes, 2)
    return ways


def _flower(folder: Path, sizes: list[int], cpus: int) -> float:
    """Time a round on Flower after its start-up."""
    took: list[float] = _script(FLOWER_SCRIPT, folder, sizes, cpus, _times(sizes) + 1)
    return min(took[1:])  # the first call takes longer


def run_one_round(folder: Path, sizes: list[int]) -> None:
    world = World(folder)
    model, method = world.model(), FedAvg(with_epochs(1))
    state = method.init(clone(model.feature_weights()))
    with simulator(model, method, world.clients(sizes), count_cores()) as engine:
        one_round(engine, method, state, 0)


def _script(name: str, folder: Path, sizes: list[int], *numbers: int) -> Any:
    script = Path(__file__).with_name(name)
    path = os.pathsep.join([str(script.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    return in_a_process(str(script), folder, json.dumps(sizes), *numbers, environment=environment)


def _times(sizes: list[int]) -> int:
    """Return how often to repeat a round; the best of several short ones counts."""
    return 6 if sum(sizes) < 10_000 else 1


def _best(sizes: list[int], round_: Callable[[], object]) -> float:
    return min(seconds(round_) for _ in range(_times(sizes)))


def _against(
    found: dict[str, list[float]], ours: list[float], targets: dict[str, str]
) -> list[Row]:
    others = [name for name in found if not name.startswith(("ours", "limit"))]
    return [ratio(f"  against {n}", found[n], ours, "×", targets.get(n, "")) for n in others]


def _work(world: World, sizes: list[int]) -> float:
    """Return the FLOP of a round: one pass over every image for its label, then training."""
    forward, train = flops(world.model(), world.clients([16])[0].train)
    return sum(sizes) * (forward + train)


def _giga(values: list[float]) -> list[float]:
    return [value / 1e9 for value in values]


if __name__ == "__main__":
    run_one_round(Path(sys.argv[1]), json.loads(sys.argv[2]))
    print("{}")

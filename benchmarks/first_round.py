"""Run from process start to the end of the first round, which a user waits for.

python benchmarks/first_round.py FOLDER SIZES EPOCHS
"""

import json
import sys
from pathlib import Path

from workload import World, one_round, simulator, with_epochs

from fedwca._support.machine import count_cores
from fedwca.core.params import clone
from fedwca.methods.fedavg import FedAvg


def main(folder: Path, sizes: list[int], epochs: int) -> None:
    world = World(folder)
    model, method = world.model(), FedAvg(with_epochs(epochs))
    state = method.init(clone(model.feature_state()))
    with simulator(model, method, world.clients(sizes), count_cores()) as engine:
        one_round(engine, method, state, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
    print("{}")

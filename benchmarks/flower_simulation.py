"""The same round on Flower's simulation engine: Ray runs the clients, each a `ClientRuntime`.

    python benchmarks/flower_simulation.py FOLDER SIZES CPUS ROUNDS

prints the seconds of each round as JSON, and logs those of the start. A client's process keeps its
model and data between messages, which is more than most Flower apps do; every round's message and
reply are plain ArrayRecords of the model's tensors. With one CPU per client there are as many
processes as cores, with one thread each; Flower's own default gives a client two CPUs.
"""

import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0"
)

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parent))

from workload import World, with_epochs

from fedwca._support.machine import keep_freed_memory
from fedwca.core.params import Weights
from fedwca.engines.client_runtime import ClientRuntime
from fedwca.methods.base import Client, Record
from fedwca.methods.fedavg import FedAvg


@cache
def site_of(folder: str, sizes: str, cpus: int) -> ClientRuntime:
    """Return the clients of a process, built once for all messages."""
    torch.set_num_threads(cpus)
    keep_freed_memory()  # as our workers do
    world = World(Path(folder))
    clients = {c.name: c for c in world.clients(json.loads(sizes))}
    return ClientRuntime(world.model(), FedAvg(with_epochs(1)), clients, 0)


def federation(folder: str, sizes: str, cpus: int, rounds: int) -> None:
    client_app, server_app = ClientApp(), ServerApp()
    count = len(json.loads(sizes))

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        site = site_of(folder, sizes, cpus)
        name = list(site.clients)[int(context.node_config["partition-id"])]
        content = RecordDict()
        if "arrays" in message.content:
            state: Weights = dict(message.content["arrays"].to_torch_state_dict())
            round_ = int(message.content["config"]["round"])
            order = Record({"global": state}, {"round": torch.tensor(round_)})
            adapted = site.adapt(name, round_, order, Record())
            content["arrays"] = ArrayRecord(adapted.reply.models["local"])
            content["metrics"] = MetricRecord({"samples": int(adapted.reply.values["samples"])})
        return Message(content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        started = time.perf_counter()
        method = FedAvg(with_epochs(1))
        state = method.init(World(Path(folder)).model().feature_weights())
        while len(list(grid.get_node_ids())) < count:
            time.sleep(0.1)
        nodes = list(grid.get_node_ids())
        list(grid.send_and_receive([Message(RecordDict(), n, "train") for n in nodes]))
        print(f"up after {time.perf_counter() - started:.1f} s", file=sys.stderr)
        took = []
        for number in range(rounds):
            started = time.perf_counter()
            state = _round(grid, nodes, method, state, number)
            took.append(time.perf_counter() - started)
        Path(folder, f"flower-{os.getpid()}.json").write_text(json.dumps(took))

    options: dict[str, Any] = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=count, backend_config=options)


def _round(grid: Grid, nodes: list[int], method: FedAvg, state: Record, number: int) -> Record:
    content = {
        "arrays": ArrayRecord(state.models["global"]),
        "config": ConfigRecord({"round": number}),
    }
    sent = [Message(RecordDict(content), node, "train") for node in nodes]
    replies: dict[Client, Record] = {}
    for reply in grid.send_and_receive(sent):
        if reply.has_error():
            raise RuntimeError(f"a client failed: {reply.error.reason}")
        local = dict(reply.content["arrays"].to_torch_state_dict())
        samples = int(reply.content["metrics"]["samples"])
        who = Client(str(reply.metadata.src_node_id))
        replies[who] = Record({"local": local}, {"samples": torch.tensor(samples)})
    return method.aggregate(state, replies)


if __name__ == "__main__":
    import flower_simulation  # by the name under which clients' processes find it

    folder, sizes, *numbers = sys.argv[1:]
    flower_simulation.federation(folder, sizes, *map(int, numbers))
    print(Path(folder, f"flower-{os.getpid()}.json").read_text())

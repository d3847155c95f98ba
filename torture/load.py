"""Load: thousands of simulated clients and large replies of many sites, within memory limits.

Each size is measured in a new process, which can be started by hand:

    python -m torture.load clients COUNT FOLDER
    python -m torture.load replies COUNT FOLDER
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.supercore.task_identity import TaskIdentity

from fedwca.core.params import Weights, clone
from fedwca.data.augment import DIGITS
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import pack
from fedwca.engines.flower.engine import Rules
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.config import resolve
from fedwca.experiments.rounds import federate
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.methods.base import Record
from fedwca.models import build_model
from tests.support.sites import engine_for, run_rounds, settings
from tests.support.superlink import SuperLink, reply_of
from torture.attack import Attack, check
from torture.memory import read_memory, run_module, watch_children

IMAGES, SIDE, ROUNDS, DOMAINS = 8, 16, 3, 4
# MiB for one more client: its images, name, rows, labels, α and β, result line and message.
# Measured from 32 to 512 clients: 29 KiB at the server and 17 KiB at a worker.
A_CLIENT = (IMAGES * SIDE * SIDE * 3 + 42_000) / 2**20
A_WORKER = (IMAGES * SIDE * SIDE * 3 + 18_000) / 2**20
REPLY = 50_000_000  # bytes
# Models that the server may hold in memory; sums are in double precision. Measured: 11.6 with 64
# sites, including the SuperLink's copies of one reply.
MODELS = 13
FEW, MANY = 32, 2048  # clients
REPLIES = 64


def many_clients(folder: Path, number: int) -> None:
    """Check that memory grows by at most the limit for each client."""
    few = run_module("torture.load", "clients", FEW, folder / "few", timeout=300)
    many = run_module("torture.load", "clients", MANY, folder / "many", timeout=1200)
    for who, each in (("server", A_CLIENT), ("worker", A_WORKER)):
        bound = few[who] + (MANY - FEW) * each
        check(many[who] <= bound, f"the {who} used {many[who]:.0f} MiB; limit {bound:.0f}")
    check(many["lines"] == ROUNDS + 1, f"{many['lines']} lines of results")
    check(not many["remaining"], f"files remain: {many['remaining']}")


def large_replies(folder: Path, number: int) -> int:
    """Check that the memory for all replies of a round is that of a few."""
    facts = run_module("torture.load", "replies", REPLIES, folder, timeout=1200)
    check(facts["answered"] == REPLIES, f"{facts['answered']} of {REPLIES} replies were accepted")
    bound = MODELS * facts["model"]
    check(facts["more"] <= bound, f"the server used {facts['more']:.0f} MiB; limit {bound:.0f}")
    check(not facts["remaining"], f"files remain: {facts['remaining']}")
    return REPLIES


# --- in a new process -----------------------------------------------------------------------------


def clients(count: int, folder: Path) -> dict[str, Any]:
    """Run three rounds of tiny clients on two workers, with results and checkpoints on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    data = create_clients(count, folder / "pixels.npy")
    torch.manual_seed(0)
    model = build_model("lenet", 10, image_size=SIDE, bottleneck=16)
    model.freeze_classifier()
    settings_ = {
        "data": {"benchmark": "npz", "source": "0", "image_size": SIDE, "path": "/nowhere"},
        "method": {"name": "fedwca", "clustering": "domain"},
        "training": {"rounds": ROUNDS, "epochs": 1, "batch_size": IMAGES},
    }
    chosen = resolve(settings_).method
    run = RunFolder.open(folder / "run", {}, {})
    engine = Simulator(model.eval(), chosen, data, 0, run.scratch, workers=2)
    start = Checkpoint(0, chosen.init(clone(model.feature_weights())), {}, {})
    with watch_children() as workers:
        try:
            for result in federate(chosen, engine, start):
                if isinstance(result, Checkpoint):
                    run.save_checkpoint(result)
                else:
                    run.append(result)
        finally:
            engine.close()
    remaining = [p.name for p in run.path.iterdir() if p.name == "scratch" or p.suffix == ".tmp"]
    return {
        "server": read_memory("VmHWM"),
        "worker": max(workers.values()),
        "lines": len(run.lines()),
        "remaining": remaining,
    }


def create_clients(count: int, path: Path) -> list[ClientData]:
    """Return clients with different images, in a memory map as in any run."""
    shape = (count * IMAGES, SIDE, SIDE, 3)
    drawn = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.save(path, drawn)
    del drawn
    pixels = np.load(path, mmap_mode="r")

    def one(number: int) -> ClientData:
        rows = np.arange(IMAGES, dtype=np.int64) + number * IMAGES
        domain = str(number * DOMAINS // count)
        test = LabeledImages(UnlabeledImages(pixels, rows[:2], DIGITS), rows[:2] % 10)
        train = UnlabeledImages(pixels, rows, DIGITS)
        return ClientData(f"{domain}/{number}", domain, train, None, test)

    return [one(number) for number in range(count)]


class Grid:
    """Flower's grid with any number of sites that all reply at once, the highest possible load."""

    def __init__(self, count: int, features: Weights, folder: Path) -> None:
        self._folder = folder
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower would
        self._count, self._features = count, features
        self._requests: dict[str, tuple[int, Request]] = {}
        self._pushed = 0

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=n, public_key=b"") for n in range(self._count)]

    def push_message(self, message: Any) -> str:
        self._pushed += 1
        request = Request.from_records(message.content)
        name = f"message-{self._pushed}"
        # Keep only the names of what is requested, in place of the plan.
        light = Request(request.kind, request.run, request.payload.places, request.round)
        self._requests[name] = (message.metadata.dst_node_id, light)
        return name

    def pull_reply(self, message_id: str) -> Any:
        if message_id not in self._requests:
            return None
        node, request = self._requests.pop(message_id)
        superlink = SuperLink()  # so that the reply is parsed as Flower parses it
        reply = reply_of(self._reply(node, request).to_records(), message_id)
        superlink.take(reply, message_id)
        return superlink.grid(self._folder).pull_reply(message_id)

    def _reply(self, node: int, request: Request) -> Reply:
        scores = Evaluation(0, 0, 0.5) if '"offered"' in request.plan else None
        site = f"site-{node}"
        reply = Reply(site, request.run, request.round, images=IMAGES, evaluation=scores)
        if '"message"' in request.plan:
            step = (1000 * request.round + node + 1) * 1e-5
            state = {n: t + step if t.is_floating_point() else t for n, t in self._features.items()}
            values = {"samples": torch.tensor(IMAGES)}
            payload, _ = pack({"reply": Record({"local": state}, values)})
            reply = replace(reply, adapted=True, payload=payload)
        return reply


def replies(count: int, folder: Path) -> dict[str, Any]:
    """Run a round and the final evaluation with many sites and a large network."""
    torch.manual_seed(0)
    model = build_model("resnet18", 10, image_size=64, bottleneck=2600)
    model.freeze_classifier()
    features = clone(model.feature_weights())
    grid = Grid(count, features, folder)
    experiment = settings("fedavg", rounds=1)
    names = {f"site-{n}": "" for n in range(count)}
    rules = Rules(least_sites=count, start_seconds=60, round_seconds=600)
    engine, log = engine_for(grid, experiment, model, tuple("0123456789"), names, rules=rules)
    model_bytes = sum(t.numel() * t.element_size() for t in features.values())
    assert model_bytes >= REPLY
    before = read_memory("VmRSS")
    run_rounds(engine, experiment.method, features, log)
    answered = sum(facts["answered"] == 1 for facts in log.sites.values())
    return {
        "model": model_bytes / 2**20,
        "more": read_memory("VmHWM") - before,
        "answered": answered,
        "remaining": [str(p) for p in engine._scratch.glob("*")],
    }


ATTACKS = [
    Attack("2,048 simulated clients for 3 rounds", many_clients, 1, short_times=0, alone=True),
    Attack("64 Flower replies of 50 MB in a round", large_replies, 1, short_times=0, alone=True),
]

if __name__ == "__main__":
    what, count, place = sys.argv[1:]
    work = {"clients": clients, "replies": replies}[what]
    print(json.dumps(work(int(count), Path(place))))

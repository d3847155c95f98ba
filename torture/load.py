"""Load: thousands of simulated clients, and large replies of many sites, within stated memory.

Each size is measured in a process of its own, which can be started by hand:

    python torture/load.py clients COUNT METHOD FOLDER
    python torture/load.py replies COUNT METHOD FOLDER
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from flwr.supercore.task_identity import TaskIdentity

from attack import Attack, held
from fedwca.core.params import State, clone
from fedwca.data.augment import DIGITS
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.engines.base import Evaluation
from fedwca.engines.flower import Rules
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.simulator import Simulator
from fedwca.engines.wire import pack
from fedwca.experiments.config import resolve
from fedwca.experiments.runner import federate
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.methods.base import Record
from fedwca.models import build_model
from memory import in_a_process, memory, watched_children
from sites import engine_for, run_rounds, settings
from superlink import SuperLink, reply_of

IMAGES, SIDE, ROUNDS, DOMAINS = 8, 16, 3, 4
# What one more client may take: its images, and what it takes to know of it: name, rows, labels, α
# and β, its line of results, the letter on its way. From 32 to 512 clients it was 29 KiB at the
# server and 17 KiB at a worker.
A_CLIENT = (IMAGES * SIDE * SIDE * 3 + 42_000) / 2**20
A_WORKER = (IMAGES * SIDE * SIDE * 3 + 18_000) / 2**20
REPLY = 50_000_000  # bytes
# So many models the server may hold beside its program: sums are in double precision. It was 12.7
# with 8 sites and 15.3 with 64; the SuperLink's copies of one reply are in there, too.
MODELS = 16
FEW = 32


def many_clients(count: int, method: str = "fedwca") -> Any:
    def attempt(folder: Path, number: int) -> None:
        """Memory grows with clients by no more than what is stated of each."""
        few = in_a_process(__file__, "clients", FEW, method, folder / "few", timeout=300)
        many = in_a_process(__file__, "clients", count, method, folder / "many", timeout=1200)
        for who, each in (("server", A_CLIENT), ("worker", A_WORKER)):
            bound = few[who] + (count - FEW) * each
            held(many[who] <= bound, f"the {who} took {many[who]:.0f} MiB, not {bound:.0f}")
        held(many["lines"] == ROUNDS + 1, f"{many['lines']} lines of results")
        held(not many["left"], f"left behind: {many['left']}")

    return attempt


def large_replies(count: int, method: str = "fedavg") -> Any:
    def attempt(folder: Path, number: int) -> int:
        """All replies of a round, in the memory of a few."""
        facts = in_a_process(__file__, "replies", count, method, folder, timeout=1200)
        held(facts["answered"] == count, f"{facts['answered']} of {count} replies were taken")
        bound = MODELS * facts["model"]
        held(facts["more"] <= bound, f"it took {facts['more']:.0f} MiB, not {bound:.0f}")
        held(not facts["left"], f"left behind: {facts['left']}")
        return count

    return attempt


# --- in a process of its own ----------------------------------------------------------------------


def clients(count: int, method: str, folder: Path) -> dict[str, Any]:
    """Three rounds of tiny clients on two workers, with results and checkpoints on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    people = people_of(count, folder / "pixels.npy")
    torch.manual_seed(0)
    model = build_model("lenet", 10, image_size=SIDE, bottleneck=16)
    model.freeze_classifier()
    given = {
        "data": {"benchmark": "npz", "source": "0", "image_size": SIDE, "path": "/nowhere"},
        "method": {"name": method, **({"clustering": "domain"} if method == "fedwca" else {})},
        "training": {"rounds": ROUNDS, "epochs": 1, "batch_size": IMAGES},
    }
    chosen = resolve(given).method
    run = RunFolder.open(folder / "run", {}, {})
    engine = Simulator(model.eval(), chosen, people, 0, run.scratch, workers=2)
    start = Checkpoint(0, chosen.init(clone(model.feature_state())), {}, {})
    with watched_children() as workers:
        try:
            federate(chosen, engine, start, run.append, run.save_checkpoint)
        finally:
            engine.close()
    left = [p.name for p in run.path.iterdir() if p.name == "scratch" or p.suffix == ".tmp"]
    return {
        "server": memory("VmHWM"),
        "worker": max(workers.values()),
        "lines": len(run.lines()),
        "left": left,
    }


def people_of(count: int, path: Path) -> list[ClientData]:
    """Each client's images are its own, in a memory map as those of any run."""
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
    """Flower's grid with as many sites as one likes, whose replies are made when they are pulled.

    All have answered at once, which is the most that a server can be handed.
    """

    def __init__(self, count: int, features: State, folder: Path) -> None:
        self._folder = folder
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower would
        self._count, self._features = count, features
        self._due: dict[str, tuple[int, Request]] = {}
        self._pushed = 0

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=n, public_key=b"") for n in range(self._count)]

    def push_messages(self, messages: list[Any]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Any) -> str:
        self._pushed += 1
        request = Request.read(message.content)
        name = f"message-{self._pushed}"
        # In place of its plan what is asked for by name; its tensors are let go of.
        light = Request(request.kind, request.run, request.parcel.places, request.round)
        self._due[name] = (message.metadata.dst_node_id, light)
        return name

    def fetch(self, number: str) -> Any:
        if number not in self._due:
            return None
        node, request = self._due.pop(number)
        superlink = SuperLink()  # so that all is read as Flower reads it
        superlink.take(reply_of(self._reply(node, request).content(), number), number)
        return superlink.grid(self._folder).fetch(number)

    def _reply(self, node: int, request: Request) -> Reply:
        scores = Evaluation(0, 0, 0.5) if '"offered"' in request.plan else None
        told = (f"site-{node}", request.run, request.round)
        reply = Reply(*told, images=IMAGES, evaluation=scores)
        if '"message"' in request.plan:
            step = (1000 * request.round + node + 1) * 1e-5
            state = {n: t + step if t.is_floating_point() else t for n, t in self._features.items()}
            values = {"samples": torch.tensor(IMAGES)}
            parcel, _ = pack({"reply": Record({"local": state}, values)})
            reply = Reply(*told, adapted=True, parcel=parcel, evaluation=scores)
        return reply


def replies(count: int, method: str, folder: Path) -> dict[str, Any]:
    """A round with many sites of a large network, and the final scoring."""
    torch.manual_seed(0)
    model = build_model("resnet18", 10, image_size=64, bottleneck=2600)
    model.freeze_classifier()
    features = clone(model.feature_state())
    grid = Grid(count, features, folder)
    experiment = settings(method, rounds=1)
    names = {f"site-{n}": "" for n in range(count)}
    rules = Rules(least_sites=count, start_seconds=60, round_seconds=600)
    engine, told = engine_for(grid, experiment, model, tuple("0123456789"), names, rules=rules)  # type: ignore[arg-type]
    model_bytes = sum(t.numel() * t.element_size() for t in features.values())
    assert model_bytes >= REPLY
    before = memory("VmRSS")
    run_rounds(engine, experiment.method, features, told)
    answered = sum(facts["answered"] == 1 for facts in told.sites.values())
    return {
        "model": model_bytes / 2**20,
        "before": before,
        "more": memory("VmHWM") - before,
        "answered": answered,
        "left": [str(p) for p in engine._scratch.glob("*")],
    }


ATTACKS = [
    Attack(
        "2,048 simulated clients for 3 rounds", many_clients(2048), times=1, short=0, alone=True
    ),
    Attack(
        "64 Flower replies of 50 MB in a round", large_replies(64), times=1, short=0, alone=True
    ),
]

if __name__ == "__main__":
    what, number, method, place = sys.argv[1:]
    work = {"clients": clients, "replies": replies}[what]
    print(json.dumps(work(int(number), method, Path(place))))

"""Sites in this process: Flower's grid without Flower's processes, and folders of images."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from fedwca.core.params import Weights, clone
from fedwca.data.augment import DIGITS, Transform
from fedwca.data.images import ClientData
from fedwca.data.site_images import SitePaths, load_site_images
from fedwca.data.types import Benchmark
from fedwca.deploy.server import make_plan
from fedwca.engines.codec import Wire
from fedwca.engines.flower.engine import FlowerEngine, Rules
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.flower.plan import RunPlan, create_deployed_run
from fedwca.engines.flower.site import SiteConfig, handle_request
from fedwca.engines.flower.site_registry import RefusalLedger, SiteStatus
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.rounds import federate
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Method
from fedwca.models import DomainModel
from tests.support.federation import copy_record

QUICK = Rules(least_sites=1, start_seconds=0.2, round_seconds=5.0, return_seconds=0.2)


def write_images(folder: Path, benchmark: Benchmark, count: int = 40, test: int = 20) -> list[str]:
    """Write images/SITE/*.png and test/SITE/CLASS/*.png of each target domain; return the sites."""
    names = [name for name in benchmark.domains if name != "clean"]
    for name in names:
        domain = benchmark.domains[name]
        for row in range(count + test):
            label = benchmark.classes[domain.labels[row]]
            place = folder / "images" / name if row < count else folder / "test" / name / label
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(domain.images[row]).save(place / f"{row:04d}.png")
    return names


def paths_of(folder: Path, site: str, *, test: bool = True) -> SitePaths:
    return SitePaths(
        folder / "images" / site, folder / "test" / site if test else None, folder / "cache"
    )


def load_site(folder: Path, site: str, benchmark: Benchmark) -> ClientData:
    """Return the data that a site loads from its folder."""
    size = next(iter(benchmark.domains.values())).images.shape[1]
    return load_site_images(site, paths_of(folder, site), benchmark.classes, size, DIGITS)


def settings(method: str, **training: Any) -> Experiment:
    """Return an experiment on the tiny problem."""
    data = {"benchmark": "npz", "source": "clean", "image_size": 16, "path": "/nowhere"}
    quick = {"rounds": 3, "epochs": 1, "lr": 0.01, "batch_size": 16, **training}
    model, method_ = {"bottleneck": 16}, {"name": method}
    return resolve({"data": data, "model": model, "method": method_, "training": quick})


def plan_for(
    experiment: Experiment, classes: tuple[str, ...], transform: Transform = DIGITS
) -> RunPlan:
    return make_plan(experiment, experiment.network(classes, transform))


@dataclass
class FakeGrid:
    """Flower's grid: nodes that reply at once.

    Attributes:
        sites: the program of each node; a node that is not in it is offline.
        keys: public keys by node.
        asleep: nodes that accept messages and never reply.
        sent: every request, with its node.
    """

    sites: dict[int, Callable[[Request], Reply]]
    keys: dict[int, bytes] = field(default_factory=dict)
    asleep: set[int] = field(default_factory=set)
    sent: list[tuple[int, Request]] = field(default_factory=list)
    _replies: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # as Flower's own process would
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=node, public_key=self.keys.get(node, b""))
            for node in self.sites
        ]

    def push_message(self, message: Any) -> str | None:
        node = message.metadata.dst_node_id
        if node not in self.sites:
            return None
        number = f"message-{len(self.sent)}"
        request = Request.from_records(message.content)
        self.sent.append((node, request))
        if node in self.asleep:
            return number
        try:
            content, error = self.sites[node](request).to_records(), None
        except Exception as problem:
            content, error = None, SimpleNamespace(code=2, reason=f"Traceback\n{problem}")
        self._reply(number, content, error)
        return number

    def _reply(self, number: str, content: Any, error: Any) -> None:
        reply = SimpleNamespace(content=content, error=error, has_error=lambda: error is not None)
        self._replies[number] = reply

    def pull_reply(self, message_id: str) -> Any:
        if message_id not in self._replies:
            return None
        reply = self._replies.pop(message_id)
        return SimpleNamespace(read=lambda: reply)

    def lose(self, node: int) -> None:
        """Let a node die: its open messages get an error that names no node."""
        self.sites.pop(node, None)
        for number, (where, _) in enumerate(self.sent):
            name = f"message-{number}"
            if where == node and node in self.asleep and name not in self._replies:
                self._reply(name, None, SimpleNamespace(code=5, reason="node unavailable"))
        self.asleep.discard(node)


def site_program(folder: Path, site: str, home: Path) -> Callable[[Request], Reply]:
    """Return the real program of a site, on its folder."""
    config = SiteConfig(site, paths_of(folder, site), home / site, threads=1)
    return lambda request: handle_request(config, request)


@dataclass
class RunLog:
    """What an engine reports while it works."""

    sites: dict[str, SiteStatus] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)


def engine_for(
    grid: FakeGrid,
    experiment: Experiment,
    model: DomainModel,
    classes: tuple[str, ...],
    expected: Mapping[str, str],
    *,
    rules: Rules = QUICK,
    wire: Wire = "float32",
    transform: Transform = DIGITS,
    refusals: Path | None = None,
) -> tuple[FlowerEngine, RunLog]:
    log = RunLog()
    folder = Path(tempfile.mkdtemp(prefix="engine-"))
    plan = plan_for(experiment, classes, transform)
    engine = FlowerEngine(
        grid,
        create_deployed_run("run-1", plan, model, wire),
        rules,
        lambda: expected,
        log.sites.update,
        folder / "messages",
        RefusalLedger(refusals or folder / "refusals.jsonl"),
    )
    weakref.finalize(engine, shutil.rmtree, folder, ignore_errors=True)
    return engine, log


def run_rounds(
    engine: Any,
    method: Method,
    source: Weights,
    log: RunLog,
    start: Checkpoint | None = None,
    every: int = 1,
) -> list[Checkpoint]:
    """Run all rounds and return the checkpoints after each."""
    checkpoints: list[Checkpoint] = []
    first = start or Checkpoint(0, method.init(clone(source)), {}, {})
    try:
        for result in federate(method, engine, first, every=every):
            if isinstance(result, Checkpoint):
                memories = {n: copy_record(memory) for n, memory in result.memories.items()}
                checkpoints.append(result._replace(memories=memories))
            else:
                log.lines.append(result)
    finally:
        engine.close()
    return checkpoints

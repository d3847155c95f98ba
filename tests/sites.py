"""Sites in this very process: Flower's grid without Flower's processes, and folders of images."""

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

from federation import kept as without_files
from fedwca.core.params import State, clone
from fedwca.data.augment import DIGITS, Transform
from fedwca.data.domains import Benchmark
from fedwca.data.images import ClientData
from fedwca.data.site_images import SitePaths, site_images
from fedwca.deploy.plan import Plan, plan_of
from fedwca.deploy.site import Here, answer
from fedwca.engines.flower import FlowerEngine, Rules
from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.flower_sites import SiteFacts
from fedwca.engines.flower_task import Task
from fedwca.engines.wire import Wire
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.runner import federate
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Method
from fedwca.models import DomainModel

QUICK = Rules(least_sites=1, start_seconds=0.2, round_seconds=5.0, return_seconds=0.2)


def write_images(folder: Path, benchmark: Benchmark, count: int = 40, test: int = 20) -> list[str]:
    """A folder for each target domain, images/SITE/*.png and test/SITE/CLASS/*.png; the sites."""
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


def held_by(folder: Path, site: str, benchmark: Benchmark) -> ClientData:
    """What the site's own program makes of its folder."""
    size = next(iter(benchmark.domains.values())).images.shape[1]
    return site_images(site, paths_of(folder, site), benchmark.classes, size, DIGITS)


def settings(method: str, **training: Any) -> Experiment:
    """An experiment on the tiny problem; what the sites get to know of it is real."""
    return resolve(
        {
            "data": {"benchmark": "npz", "source": "clean", "image_size": 16, "path": "/nowhere"},
            "model": {"bottleneck": 16},
            "method": {"name": method},
            "training": {"rounds": 3, "epochs": 1, "lr": 0.01, "batch_size": 16, **training},
        }
    )


def plan_for(
    experiment: Experiment, classes: tuple[str, ...], transform: Transform = DIGITS
) -> Plan:
    return plan_of(experiment, classes, transform)


@dataclass
class FakeGrid:
    """Flower's grid: nodes that answer at once, unless a test has them do something else.

    Attributes:
        sites: what the site of a node answers; a node that is not in it is offline.
        keys: public keys by node.
        asleep: nodes that take messages and never answer.
        sent: every request, with the node it went to.
    """

    sites: dict[int, Callable[[Request], Reply]]
    keys: dict[int, bytes] = field(default_factory=dict)
    asleep: set[int] = field(default_factory=set)
    sent: list[tuple[int, Request]] = field(default_factory=list)
    _replies: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
            1  # as Flower's own process would
        )

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=node, public_key=self.keys.get(node, b""))
            for node in self.sites
        ]

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        return [self._push(message) for message in messages]

    def _push(self, message: Any) -> str | None:
        node = message.metadata.dst_node_id
        if node not in self.sites:
            return None
        number = f"message-{len(self.sent)}"
        request = Request.read(message.content)
        self.sent.append((node, request))
        if node in self.asleep:
            return number
        try:
            content, error = self.sites[node](request).content(), None
        except Exception as problem:
            content, error = None, SimpleNamespace(code=2, reason=f"Traceback\n{problem}")
        self._replies[number] = SimpleNamespace(
            content=content,
            error=error,
            has_error=lambda: error is not None,
        )
        return number

    def fetch(self, number: str) -> Any:
        if number not in self._replies:
            return None
        reply = self._replies.pop(number)
        return SimpleNamespace(message=lambda: reply)

    def lose(self, node: int) -> None:
        """The node dies: who waits for its answer gets an error, which names no node."""
        self.sites.pop(node, None)
        answered = set(self._replies)
        for number, (where, _) in enumerate(self.sent):
            name = f"message-{number}"
            if where == node and node in self.asleep and name not in answered:
                error = SimpleNamespace(code=5, reason="node unavailable")
                self._replies[name] = SimpleNamespace(
                    content=None,
                    error=error,
                    has_error=lambda: True,
                )
        self.asleep.discard(node)


def site_program(folder: Path, site: str, home: Path) -> Callable[[Request], Reply]:
    """The real client half of a site, on its folder."""
    here = Here(site, paths_of(folder, site), home / site, threads=1)
    return lambda request: answer(here, request, lambda text: None)


@dataclass
class Told:
    """What an engine tells while it works."""

    notes: list[str] = field(default_factory=list)
    sites: dict[str, SiteFacts] = field(default_factory=dict)
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
    ledger: Path | None = None,
) -> tuple[FlowerEngine, Told]:
    told = Told()
    place = Path(tempfile.mkdtemp(prefix="engine-"))
    state = clone(model.state_dict())
    plan = plan_for(experiment, classes, transform)
    task = Task(
        run="run-1",
        plan=plan.model_dump_json(),
        method=experiment.method,
        features=clone(model.feature_state()),
        classifier={n: t for n, t in state.items() if n.startswith("classifier.")},
        sizes=plan.sizes(model),
        wire=wire,
        least_summed=plan.least_summed,
        private=experiment.privacy.on,
    )
    engine = FlowerEngine(
        grid,
        task,
        rules,
        lambda: expected,
        told.notes.append,
        told.sites.update,
        place / "replies",
        Ledger(ledger or place / "ledger.jsonl"),
    )
    weakref.finalize(engine, shutil.rmtree, place, ignore_errors=True)
    return engine, told


def run_rounds(
    engine: Any,
    method: Method,
    source: State,
    told: Told,
    start: Checkpoint | None = None,
    every: int = 1,
) -> list[Checkpoint]:
    """All rounds; the checkpoints after each."""
    checkpoints: list[Checkpoint] = []
    first = start or Checkpoint(0, method.init(clone(source)), {}, {})

    def keep(at: Checkpoint) -> None:
        memories = {name: without_files(memory) for name, memory in at.memories.items()}
        checkpoints.append(at._replace(memories=memories))

    try:
        federate(method, engine, first, told.lines.append, keep, every=every)
    finally:
        engine.close()
    return checkpoints

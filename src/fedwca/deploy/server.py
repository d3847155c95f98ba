"""The server's half of a deployed run: the source model, the run folder, the rounds."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedwca.core.params import clone
from fedwca.deploy.plan import Plan, plan_of
from fedwca.engines.flower import FlowerEngine, Rules
from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_post import Grid
from fedwca.engines.flower_sites import SiteFacts
from fedwca.engines.flower_task import Task
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.privacy import announce, guarantee
from fedwca.experiments.progress import Progress
from fedwca.experiments.runner import digests_of, federate_into, load_data, random_start
from fedwca.experiments.source import blank_model, check_source, source_model
from fedwca.experiments.store import SOURCE, RunFolder
from fedwca.files import write_json
from fedwca.methods.base import Record
from fedwca.models import DomainModel
from fedwca.notes import Note

__all__ = ["check_deployable", "deployed_name", "serve"]

# How nodes are reached, given a folder for replies, the bytes of the largest, and whom to tell.
Reach = Callable[[Path, int, Note], Grid]
LOG = "log.txt"
SITES = "sites.json"
LEDGER = "ledger.jsonl"
_BESIDE = 2**26  # bytes of a reply beside its model: values, names, numbers for the log


def deployed_name(experiment: Experiment) -> str:
    """Name of a deployed run's folder."""
    halved = "-half" if experiment.deploy.wire == "float16" else ""
    secure = "-secure" if experiment.deploy.secure_aggregation else ""
    return f"deployed-{experiment.name}{halved}{secure}"


def check_deployable(experiment: Experiment) -> None:
    """Refuse what makes sense in simulations only."""
    if getattr(experiment.method, "clustering", "") == "domain":
        raise UserError(
            'method.clustering = "domain" needs the true domains, which only a simulation knows: '
            'set it to "finch"'
        )
    if experiment.deploy.secure_aggregation:
        _check_summable(experiment)
    guarantee(experiment.privacy, experiment.method.rounds)  # its library may not be there
    if experiment.data.path is not None and experiment.data.benchmark == "images":
        raise UserError(
            "data.path is for simulations: sites have their own images; leave it out, and give the "
            "source model as source.weights, or labeled source images as data.source_path"
        )


def _check_summable(experiment: Experiment) -> None:
    """Refuse what cannot be had of sums alone."""
    method = experiment.method
    if getattr(method, "aggregation", "mean") != "mean":
        raise UserError(
            "deploy.secure_aggregation gives the server means and no single model, which "
            f'method.aggregation = "{method.aggregation}" compares: set it to "mean", or leave '
            "deploy.secure_aggregation out"
        )
    if method.in_clear(Record(), {}) is None:
        raise UserError(
            f"the server of this {experiment.method_name} needs every site's whole model: leave "
            "deploy.secure_aggregation out, or choose fedavg, or fedwca with a clustering_layer"
        )


def serve(
    reach: Reach,
    experiment: Experiment,
    runs: Path,
    cache: Path,
    expected: Callable[[], Mapping[str, str]],
    tell: Progress,
) -> RunFolder:
    """Run, or go on with, a deployed experiment."""
    check_deployable(experiment)
    path = runs / deployed_name(experiment)
    if RunFolder(path).done:
        return RunFolder(path)
    benchmark = load_data(experiment, cache, tell.note, elsewhere=True)
    identity = {
        **experiment.identity(),
        "deploy": _deployed_identity(experiment),
        "digests": digests_of(experiment, benchmark),
    }
    for warning in (*benchmark.warnings, *random_start(experiment)):
        tell.note(f"warning: {warning}")
    check_source(experiment, benchmark)
    promised = guarantee(experiment.privacy, experiment.method.rounds)
    model = blank_model(experiment, benchmark)
    with RunFolder.open(path, experiment.deployed_settings(), identity) as folder:
        folder.clean()
        kept = folder.path / SOURCE
        source_model(experiment, benchmark, model, kept, cache, tell.note)
        logged = _Logged(tell, folder.path / LOG)
        announce(folder, experiment.privacy, promised, logged.note)
        plan = plan_of(experiment, benchmark.classes, benchmark.transform)
        engine = _engine(
            reach, experiment, _task(experiment, model, plan), expected, folder, logged
        )
        every_round = experiment.model_copy(
            update={"run": experiment.run.model_copy(update={"checkpoint_every": 1})}
        )
        federate_into(folder, every_round, clone(model.feature_state()), engine, logged)
    return folder


def _engine(
    reach: Reach,
    experiment: Experiment,
    task: Task,
    expected: Callable[[], Mapping[str, str]],
    folder: RunFolder,
    logged: "_Logged",
) -> FlowerEngine:
    rules, watch = _rules(experiment), _watcher(folder)
    replies = reach(folder.path, _largest(task), logged.note)
    ledger = Ledger(folder.path / LEDGER)
    return FlowerEngine(replies, task, rules, expected, logged.note, watch, folder.scratch, ledger)


def _largest(task: Task) -> int:
    """Bytes that no reply reaches: twice a model, as it is under masks, and whatever comes with it.

    What a reply may really have depends on what was asked for, and is checked once it is here.
    """
    return 2 * sum(t.numel() * t.element_size() for t in task.features.values()) + _BESIDE


def _deployed_identity(experiment: Experiment) -> dict[str, Any]:
    """What of a deployment changes results."""
    deploy = experiment.deploy
    secure = {"least_summed": deploy.least_summed} if deploy.secure_aggregation else {}
    return {"wire": deploy.wire, **secure}


def _task(experiment: Experiment, model: DomainModel, plan: Plan) -> Task:
    state = clone(model.state_dict())
    return Task(
        run=deployed_name(experiment),
        plan=plan.model_dump_json(),
        method=experiment.method,
        features=clone(model.feature_state()),
        classifier={n: t for n, t in state.items() if n.startswith("classifier.")},
        sizes=plan.sizes(model),
        wire=experiment.deploy.wire,
        private=experiment.privacy.on,
        least_summed=plan.least_summed,
    )


def _rules(experiment: Experiment) -> Rules:
    return Rules(
        **experiment.deploy.model_dump(exclude={"wire", "secure_aggregation", "least_summed"})
    )


def _watcher(folder: RunFolder) -> Callable[[dict[str, SiteFacts]], None]:
    def watch(sites: dict[str, SiteFacts]) -> None:
        write_json(folder.path / SITES, {**sites}, durable=False)

    return watch


class _Logged:
    """Tells what happens, and keeps it with its time in the run folder."""

    def __init__(self, tell: Progress, path: Path) -> None:
        self._tell, self._path = tell, path

    def note(self, text: str) -> None:
        self._write(text)
        self._tell.note(text)

    def start(self, title: str, rounds: int, done: int) -> None:
        self._write(f"{title}: {rounds} rounds, {done} of them done")
        self._tell.start(title, rounds, done)

    def round(self, line: dict[str, Any]) -> None:
        self._write(_in_words(line))
        self._tell.round(line)

    def finish(self) -> None:
        self._tell.finish()

    def _write(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def _in_words(line: dict[str, Any]) -> str:
    plural = "" if line["round"] == 1 else "s"
    words = [f"{line['round']} round{plural} done: {len(line['clients'])} sites scored"]
    if line["accuracy"]["mean"] is not None:
        words.append(f"accuracy {100 * line['accuracy']['mean']:.1f} %")
    if "bytes_down" in line:
        words.append(f"{line['bytes_down']:,} bytes down, {line['bytes_up']:,} up")
        words.append(f"{line['seconds']:.0f} s")
    return ", ".join(words)

"""The server's part of a deployed run: prepare it, connect the sites, run the rounds."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError
from fedwca._support.files import write_json
from fedwca._support.text import format_count
from fedwca.engines.flower.engine import FlowerEngine, Rules
from fedwca.engines.flower.grid_adapter import FlowerGrid
from fedwca.engines.flower.plan import RunPlan, create_deployed_run
from fedwca.engines.flower.site_registry import RefusalLedger, SiteStatus
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.rounds import federate_into
from fedwca.experiments.run_records import save_guarantee
from fedwca.experiments.runner import PreparedRun, prepare_run
from fedwca.experiments.store import RunFolder
from fedwca.methods.capabilities import SupportsSums
from fedwca.models import NetworkSpec
from fedwca.privacy.accounting import compute_guarantee

__all__ = ["LOG", "SITES", "check_deployable", "log_to_file", "make_plan", "serve"]

logger = logging.getLogger(__name__)

LOG = "log.txt"
SITES = "sites.json"
LEDGER = "ledger.jsonl"
_MAX_EXTRA_BYTES = 2**26  # in a reply besides its model: values, names, metrics

# Returns the grid of nodes, given a folder for replies and the size limit of a reply.
ConnectGrid = Callable[[Path, int], FlowerGrid]
ReadSiteKeys = Callable[[], Mapping[str, str]]


def check_deployable(experiment: Experiment) -> None:
    """Raise UserError for settings that only a simulation supports."""
    if getattr(experiment.method, "clustering", "") == "domain":
        raise UserError(
            'method.clustering = "domain" needs the true domains, which only a simulation knows; '
            'set it to "finch"'
        )
    if experiment.deploy.secure_aggregation:
        _check_summable(experiment)
    # Raises if the library that it needs is missing.
    compute_guarantee(experiment.privacy, experiment.method.rounds)
    if experiment.data.path is not None and experiment.data.benchmark == "images":
        raise UserError(
            "data.path is for simulations, sites have their own images; remove it, and give a "
            "source model as source.weights or labeled source images as data.source_path"
        )


def _check_summable(experiment: Experiment) -> None:
    """Refuse a method whose server needs each site's model."""
    method, name = experiment.method, experiment.method_name
    if not isinstance(method, SupportsSums):
        raise UserError(
            f"the server of {name} needs each site's model, but deploy.secure_aggregation gives "
            "it only means: choose fedavg or fedwca, or remove deploy.secure_aggregation"
        )
    if settings := method.settings_for_sums():
        raise UserError(
            f"with these settings the server of {name} needs each site's model, but "
            f"deploy.secure_aggregation gives it only means: set {' and '.join(settings)}, or "
            "remove deploy.secure_aggregation"
        )


def serve(
    connect: ConnectGrid,
    experiment: Experiment,
    runs: Path,
    cache: Path,
    read_site_keys: ReadSiteKeys,
) -> RunFolder:
    """Run or resume an experiment with the connected sites; return it if it is finished.

    Args:
        connect: called once the run is prepared.
        experiment: its settings have passed `check_deployable`.
        runs: folder of runs.
        cache: folder of decoded images and source models.
        read_site_keys: returns the current sites with their public keys, "" in plaintext.
    """
    with prepare_run(experiment, runs, cache, deployed=True) as run:
        if run is not None:
            with log_to_file(run.folder.path / LOG):
                save_guarantee(run.folder, experiment.privacy, run.guarantee)
                engine = _create_engine(connect, experiment, run, read_site_keys)
                # Sites keep the memory of a few rounds only, so the server must not resume earlier.
                settings = experiment.run.model_copy(update={"checkpoint_every": 1})
                experiment = experiment.model_copy(update={"run": settings})
                federate_into(run.folder, experiment, run.source, engine, LogProgress())
    return RunFolder(runs / experiment.deployed_name)


def _create_engine(
    connect: ConnectGrid, experiment: Experiment, run: PreparedRun, read_site_keys: ReadSiteKeys
) -> FlowerEngine:
    folder, deploy = run.folder, experiment.deploy
    network = experiment.network(run.benchmark.classes, run.benchmark.transform)
    plan = make_plan(experiment, network)
    rules = deploy.model_dump(exclude={"wire", "secure_aggregation", "least_summed"})

    def save_sites(sites: dict[str, SiteStatus]) -> None:
        write_json(folder.path / SITES, {**sites}, durable=False)

    return FlowerEngine(
        connect(folder.path, _max_reply_bytes(run)),
        create_deployed_run(experiment.deployed_name, plan, run.model, deploy.wire),
        Rules(**rules),
        read_site_keys,
        save_sites,
        folder.scratch,
        RefusalLedger(folder.path / LEDGER),
    )


def make_plan(experiment: Experiment, network: NetworkSpec) -> RunPlan:
    """Return what sites learn about an experiment."""
    settings, deploy = experiment.settings(), experiment.deploy
    return RunPlan(
        seed=experiment.run.seed,
        network=network,
        method=settings["method"],
        training=settings["training"],
        privacy=experiment.privacy,
        least_summed=deploy.least_summed if deploy.secure_aggregation else 0,
    )


def _max_reply_bytes(run: PreparedRun) -> int:
    """Return a bound for any reply; the size that a request allows is checked on arrival.

    A model under masks is twice as large as the model itself.
    """
    return 2 * sum(tensor.nbytes for tensor in run.source.values()) + _MAX_EXTRA_BYTES


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append what the package logs to a file, with the time."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    package = logging.getLogger("fedwca")
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.setLevel(level)
        package.removeHandler(handler)
        handler.close()


class LogProgress:
    """Logs the rounds of a run."""

    def start(self, title: str, rounds: int, done: int) -> None:
        logger.info("%s: %d rounds, %d done", title, rounds, done)

    def round(self, line: dict[str, Any]) -> None:
        logger.info("%s", _describe_round(line))

    def finish(self) -> None: ...


def _describe_round(line: dict[str, Any]) -> str:
    rounds = format_count(line["round"], "round")
    parts = [f"{rounds} done: {len(line['clients'])} sites evaluated"]
    if line["accuracy"]["mean"] is not None:
        parts.append(f"accuracy {100 * line['accuracy']['mean']:.1f} %")
    if "bytes_down" in line:
        parts.append(f"{line['bytes_down']:,} bytes down, {line['bytes_up']:,} up")
        parts.append(f"{line['seconds']:.0f} s")
    return ", ".join(parts)

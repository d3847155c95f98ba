"""Run one experiment: check and load everything it needs, then run its rounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedwca._support.errors import UserError
from fedwca._support.machine import count_cores
from fedwca.core.params import Weights, clone
from fedwca.data import Benchmark, ClientData
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.inputs import (
    Digests,
    digest_inputs,
    load_data,
    log_warnings,
    simulated_clients,
)
from fedwca.experiments.rounds import NoProgress, Progress, federate_into
from fedwca.experiments.run_records import save_clients, save_guarantee
from fedwca.experiments.source import check_source, initialize_model, load_or_train_source
from fedwca.experiments.store import SOURCE_FILE, RunFolder
from fedwca.models import DomainModel
from fedwca.privacy.accounting import Guarantee, compute_guarantee

__all__ = ["PreparedRun", "prepare_run", "run_experiment"]


class PreparedRun(NamedTuple):
    """A run that is ready for its next round.

    Attributes:
        folder: the run folder, locked by this process.
        benchmark: the domains on this machine.
        clients: the simulated clients; none in a deployment.
        model: the source model, its classifier frozen.
        source: weights of its feature extractor.
        guarantee: differential privacy after all rounds, if [privacy] adds noise.
    """

    folder: RunFolder
    benchmark: Benchmark
    clients: list[ClientData]
    model: DomainModel
    source: Weights
    guarantee: Guarantee | None


def run_experiment(
    experiment: Experiment, runs: Path, cache: Path, progress: Progress | None = None
) -> RunFolder:
    """Run or resume an experiment by simulation; return it unchanged if it is finished."""
    with prepare_run(experiment, runs, cache) as run:
        if run is not None:
            _simulate(experiment, run, progress or NoProgress())
    return RunFolder(runs / experiment.name)


def _simulate(experiment: Experiment, run: PreparedRun, progress: Progress) -> None:
    save_clients(run.folder, run.clients, run.benchmark)
    engine = Simulator(
        run.model,
        experiment.method,
        run.clients,
        experiment.run.seed,
        run.folder.scratch,
        experiment.run.workers or count_cores(),
        experiment.privacy,
    )
    save_guarantee(run.folder, experiment.privacy, run.guarantee)
    federate_into(run.folder, experiment, run.source, engine, progress)


@contextmanager
def prepare_run(
    experiment: Experiment, runs: Path, cache: Path, *, deployed: bool = False
) -> Iterator[PreparedRun | None]:
    """Open a run that is ready for its next round, or None if it is finished.

    A mistake in settings or data is reported before a run folder is created.

    Args:
        deployed: whether the clients are sites, which keep their images on other machines.
    """
    path = runs / (experiment.deployed_name if deployed else experiment.name)
    settings = experiment.deployed_settings() if deployed else experiment.settings()
    identity = experiment.deployed_identity() if deployed else experiment.identity()
    if RunFolder(path).done:
        digests = _digest_data_left(experiment, cache, deployed)
        if digests is not None:  # raises if the data has changed
            RunFolder.open(path, settings, {**identity, "digests": digests})
        yield None
        return
    benchmark = load_data(experiment, cache, deployed=deployed)
    identity["digests"] = digest_inputs(experiment, benchmark)
    check_source(experiment, benchmark)
    guarantee = compute_guarantee(experiment.privacy, experiment.method.rounds)
    clients = [] if deployed else simulated_clients(experiment, benchmark)
    log_warnings(experiment, benchmark, clients)
    model = initialize_model(experiment, benchmark)
    with RunFolder.open(path, settings, identity) as folder:
        folder.clean()
        load_or_train_source(experiment, benchmark, model, folder.path / SOURCE_FILE, cache)
        source = clone(model.feature_weights())
        yield PreparedRun(folder, benchmark, clients, model, source, guarantee)


def _digest_data_left(experiment: Experiment, cache: Path, deployed: bool) -> Digests | None:
    """Return the digests of a finished run's inputs; None if they are gone, as they may be."""
    try:
        return digest_inputs(experiment, load_data(experiment, cache, deployed=deployed))
    except UserError:
        return None

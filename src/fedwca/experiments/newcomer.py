"""Adapt a model for a new site, from a finished run and the site's unlabeled images."""

from pathlib import Path
from typing import Any, NamedTuple

from fedwca._support.errors import UserError
from fedwca.core.params import Weights, clone, mix
from fedwca.data.site_images import SitePaths, load_site_images
from fedwca.engines.base import Evaluation
from fedwca.engines.client_runtime import ClientRuntime
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.export import describe_models
from fedwca.experiments.final_models import (
    list_clients,
    load_experiment,
    load_last_checkpoint,
    load_source_model,
)
from fedwca.experiments.store import RunFolder
from fedwca.methods.base import Adaptation, Client, Method, Record, round_of
from fedwca.methods.capabilities import LOCAL, AssignsNewcomers
from fedwca.methods.clustered import cluster_of, models_of
from fedwca.models import DomainModel, ModelDescription

__all__ = ["Newcomer", "adapt_newcomer"]


class Newcomer(NamedTuple):
    """The result of adapting a model for a new site.

    Attributes:
        model: the model to use.
        description: its network, and the site's cluster, α, β, v, confidence and matched share.
        scores: evaluations on the site's images, from the source model to the delivered one.
    """

    model: DomainModel
    description: ModelDescription
    scores: dict[str, Evaluation]


def adapt_newcomer(run: Path, name: str, paths: SitePaths) -> Newcomer:
    """Adapt a model for a site that was not in the run; no other client takes part.

    The site first adapts the source model, as every client does, and the server assigns it to a
    cluster by the result. Then the site adapts what the server would send it in the next round.
    The server's models do not change.
    """
    experiment, state = _load_finished(run)
    method, client = experiment.method, Client(name)
    if name in list_clients(run) or cluster_of(state, client) is not None:
        raise UserError(f"{run.name} already has a client {name!r}: choose another --name")
    if LOCAL not in method.replies(method.send(state, client)):
        raise UserError(
            f"clients of {experiment.method_name} have no model of their own, so a new site gets "
            "none: choose a run of another method, such as fedwca"
        )
    model, description = load_source_model(run), describe_models(run)
    source = clone(model.feature_weights())
    images = load_site_images(
        name, paths, description.classes, description.image_size, description.transform
    )
    site = ClientRuntime(model, method, {name: images}, experiment.run.seed)
    state, adapted = _adapt(site, method, state, client)
    facts = _describe_adaptation(method, state, client, adapted)
    models = {"source": source, **_server_models(method, state, client, facts.get("v"))}
    scores = {}
    for label, weights in models.items():
        site.load(name, weights, Record())
        scores[label] = site.evaluate(name)
    site.load(name, adapted.reply.models[LOCAL], adapted.memory)
    scores["delivered"] = site.evaluate(name)
    facts |= _describe_score(scores["delivered"])
    return Newcomer(model, description.with_details(**facts), scores)


def _load_finished(run: Path) -> tuple[Experiment, Record]:
    """Return the settings of a finished run, and the last state of its server."""
    experiment = load_experiment(run)
    if not RunFolder(run).done:
        raise UserError(f"{run} is not finished: finish it with `fedwca resume` first")
    return experiment, load_last_checkpoint(run, experiment, load_source_model(run)).state


def _adapt(
    site: ClientRuntime, method: Method, state: Record, client: Client
) -> tuple[Record, Adaptation]:
    """Return the server's state with the site in it, and the site's last adaptation."""
    rounds = round_of(state)
    first = site.adapt(client.name, rounds, method.send(state, client), Record())
    if not isinstance(method, AssignsNewcomers):
        return state, first
    assigned = method.assign_newcomer(state, client, first.reply)
    if assigned is state:
        return state, first
    message = method.send(assigned, client)
    return assigned, site.adapt(client.name, rounds + 1, message, first.memory)


def _describe_adaptation(
    method: Method, state: Record, client: Client, adapted: Adaptation
) -> dict[str, Any]:
    """Return what is known about the site without labels."""
    # What a line of results would report; the state after it is not used.
    server_facts = method.describe(method.aggregate(state, {client: adapted.reply}))
    facts = {
        "client": client.name,
        "cluster": cluster_of(state, client),
        "alpha": adapted.health.get("alpha"),
        "beta": adapted.health.get("beta"),
        "v": server_facts.get(f"v/{client.name}"),
        "matched": adapted.health.get("matched"),
        "rounds": round_of(state),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _server_models(
    method: Method, state: Record, client: Client, v: list[float] | None
) -> dict[str, Weights]:
    """Return the models that the server has for the site, by name."""
    name = "server" if cluster_of(state, client) is None else "cluster"
    models = {name: method.offered(state, client)}
    if v is not None:
        models["f_init"] = mix(models_of(state, "cluster"), v)
    return models


def _describe_score(score: Evaluation) -> dict[str, Any]:
    counts = {"correct": score.correct, "total": score.total} if score.total else {}
    return {**counts, "confidence": score.confidence}

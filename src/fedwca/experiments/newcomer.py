"""A site that was never in a run: its model, from a finished run and its own unlabeled images."""

from pathlib import Path
from typing import Any, NamedTuple

from fedwca.core.params import State, clone, mix
from fedwca.data.site_images import SitePaths, site_images
from fedwca.engines.base import Evaluation
from fedwca.engines.site import Site
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.describe import described_transform
from fedwca.experiments.export import run_description
from fedwca.experiments.final_models import (
    client_names,
    newest_state,
    source_of,
    stored_experiment,
)
from fedwca.experiments.store import RunFolder
from fedwca.methods.base import Adapted, Client, Method, Record, round_of
from fedwca.methods.cluster_state import cluster_of, numbered
from fedwca.models import Description, DomainModel
from fedwca.notes import Note, silent

__all__ = ["Newcomer", "adapt_newcomer"]


class Newcomer(NamedTuple):
    """What a new site gets.

    Attributes:
        model: the model to use.
        description: what it is, with the site's cluster, α, β, v, confidence and matched share.
        scores: how models do at the site, by name, from the source model to the delivered one.
    """

    model: DomainModel
    description: Description
    scores: dict[str, Evaluation]


def adapt_newcomer(run: Path, name: str, paths: SitePaths, note: Note = silent) -> Newcomer:
    """Let a site join a finished run for itself alone: no other client takes part.

    As every newcomer it adapts the source model first, by which the server knows its cluster; then
    it gets the server's message for it, as it would in the next round, and adapts that. The
    server's models stay as they are.
    """
    experiment, state = _finished(run)
    method, client = experiment.method, Client(name)
    if name in client_names(run) or cluster_of(state, client) is not None:
        raise UserError(f"{run.name} has a client {name!r} already: give the site another --name")
    _check_local(method, method.send(state, client), experiment.method_name)
    model, network = source_of(run), run_description(run, experiment)
    source = clone(model.feature_state())
    images = site_images(
        *(name, paths, network.classes, network.image_size, described_transform(network), note)
    )
    site = Site(model, method, {name: images}, experiment.run.seed)
    placed, adapted = _adapted(site, method, state, client)
    health = _health(method, placed, client, adapted)
    candidates = _candidates(method, source, placed, client, health)
    scores = {who: site.evaluate(name, weights, Record()) for who, weights in candidates.items()}
    # The last one is what the model holds when it is written.
    scores["delivered"] = site.evaluate(name, adapted.reply.models["local"], adapted.memory)
    return Newcomer(model, network.made_as(**health, **_told(scores["delivered"])), scores)


def _finished(run: Path) -> tuple[Experiment, Record]:
    """The settings of a run, and what its server knew at the end."""
    experiment = stored_experiment(run)
    if not RunFolder(run).done:
        raise UserError(f"{run} is not finished: go on with it by `fedwca resume`, then come back")
    return experiment, newest_state(run, experiment, source_of(run)).state


def _check_local(method: Method, message: Record, called: str) -> None:
    if "local" not in method.replies(message):
        raise UserError(
            f"clients of {called} send no model of their own, so a new site cannot be given one: "
            "take a run of another method, such as fedwca"
        )


def _adapted(site: Site, method: Method, state: Record, client: Client) -> tuple[Record, Adapted]:
    """The server's state that knows the site, and what the site made of its last message."""
    done = round_of(state)
    first = site.adapt(client.name, done, method.send(state, client), Record())
    placed = method.placed(state, client, first.reply)
    if placed is state:
        return state, first
    message = method.send(placed, client)
    return placed, site.adapt(client.name, done + 1, message, first.memory)


def _health(method: Method, placed: Record, client: Client, adapted: Adapted) -> dict[str, Any]:
    """What the site may know of itself without any label."""
    # What the log would say of it after such a round; the state itself is given up.
    after = method.describe(method.aggregate(placed, {client: adapted.reply}))
    known = {
        "cluster": cluster_of(placed, client),
        "alpha": adapted.health.get("alpha"),
        "beta": adapted.health.get("beta"),
        "v": after.get(f"v/{client.name}"),
        "matched": adapted.health.get("matched"),
        "rounds": round_of(placed),
    }
    return {"client": client.name, **{n: value for n, value in known.items() if value is not None}}


def _candidates(
    method: Method, source: State, placed: Record, client: Client, health: dict[str, Any]
) -> dict[str, State]:
    """The models on the way to the delivered one."""
    grouped = cluster_of(placed, client) is not None
    found = {"source": source, "cluster" if grouped else "server": method.offered(placed, client)}
    if "v" in health:
        found["f_init"] = mix(numbered(placed, "cluster"), health["v"])
    return found


def _told(score: Evaluation) -> dict[str, Any]:
    counts = {"correct": score.correct, "total": score.total} if score.total else {}
    return {**counts, "confidence": score.confidence}

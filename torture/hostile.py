"""Send wrong replies: which site, round and error is drawn at random.

The sites are in this process and train nothing, so that thousands of replies can be sent; the
engine, its checks and the method's server half are the real ones.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.codec import pack, save_records
from fedwca.engines.flower.messages import Reply, Request
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Record
from tests.support.federation import same
from tests.support.sites import FakeGrid, RunLog, engine_for, run_rounds, settings
from tests.support.superlink import SuperLink, reply_of
from tests.support.wrong_replies import WRONG_REPLIES, Program, make_wrong_reply, record_of
from torture.attack import Attack, check
from torture.quick_sites import CLASSES, SITES, honest_site, new_model

ROUNDS = 4
# Left out: 200 MB of junk, which tests/flower sends, and swapped values, which are valid if α and β
# have equal lengths.
ERRORS = [name for name in WRONG_REPLIES if name not in ("junk", "swapped values")]
FIRST_ROUND_ERRORS = [
    n
    for n in ERRORS
    if n != "no record" and not WRONG_REPLIES[n].replays and not {"alpha", "beta"} & {*n.split()}
]
_POLLING = threading.Lock()  # the patched pause between polls is global


def run(
    method: str,
    programs: dict[str, Program],
    change: Callable[[FakeGrid], None] = lambda grid: None,
) -> tuple[list[Checkpoint], RunLog]:
    """Run all rounds of a method with the sites; return checkpoints and log."""
    experiment = settings(method, rounds=ROUNDS)
    grid = FakeGrid(dict(enumerate(programs.values())))
    change(grid)
    model = new_model()
    engine, log = engine_for(grid, experiment, model, CLASSES, dict.fromkeys(programs, ""))
    with _POLLING, mock.patch("fedwca.engines.flower.collector._POLL_SECONDS", 0.001):
        checkpoints = run_rounds(engine, experiment.method, dict(model.feature_weights()), log)
    return checkpoints, log


def honest_sites(method: str) -> dict[str, Program]:
    chosen = settings(method).method
    return {name: honest_site(name, chosen) for name in SITES}


def same_states(expected: list[Checkpoint], found: list[Checkpoint]) -> bool:
    """Return whether the models and values of all checkpoints are equal to the bit."""
    return all(
        one.state.models.keys() == other.state.models.keys()
        and all(same(state, other.state.models[m]) for m, state in one.state.models.items())
        and same(one.state.values, other.state.values)
        for one, other in zip(expected, found, strict=True)
    )


Errors = dict[tuple[str, int], list[str]]  # by site and round, one for each try


def draw_errors(rng: random.Random, names: list[str], first: int) -> Errors:
    """Draw up to three sites and their wrong replies; after these a site replies correctly."""
    sites = rng.sample(SITES, rng.randint(1, 3))
    return {
        (site, round): rng.choices(names, k=rng.randint(1, 3))
        for site in sites
        for round in range(first, ROUNDS)
        if rng.random() < 0.7
    }


def wrong_site(name: str, program: Program, errors: Errors, folder: Path) -> Program:
    """Return a site that sends its wrong replies and then the right one."""
    remaining = {round: list(names) for (site, round), names in errors.items() if site == name}

    def answer(request: Request) -> Reply:
        reply = program(request)
        if reply.adapted and request.round == 0:
            save_records(folder / name, {"": record_of(reply)})
        if reply.adapted and remaining.get(request.round):
            return make_wrong_reply(remaining[request.round].pop(0), reply, folder / name)
        return reply

    return answer


def missing_site(name: str, program: Program, errors: Errors) -> Program:
    """Return a site that is missing where the other one is rejected three times."""
    gone = {round for (site, round), names in errors.items() if site == name and len(names) == 3}

    def answer(request: Request) -> Reply:
        reply = program(request)
        return Reply(name, problem="gone") if reply.adapted and request.round in gone else reply

    return answer


def send_and_compare(folder: Path, method: str, errors: Errors) -> int:
    """Check that every wrong reply is rejected for its reason and changes no model."""
    without = {n: missing_site(n, p, errors) for n, p in honest_sites(method).items()}
    expected, _ = run(method, without)
    sites = {n: wrong_site(n, p, errors, folder) for n, p in honest_sites(method).items()}
    found, log = run(method, sites)
    for (site, round), names in errors.items():
        reasons = log.lines[round].get("refused", {}).get(site, [])
        right = len(reasons) == len(names) and all(
            WRONG_REPLIES[name].reason in why for name, why in zip(names, reasons, strict=True)
        )
        check(right, f"{site} in round {round}: {names} were rejected with {reasons}")
    count = sum(map(len, errors.values()))
    rejected = sum(facts["refused"] for facts in log.sites.values())
    check(rejected == count, f"{rejected} of {count} wrong replies were rejected")
    check(same_states(expected, found), f"the models differ with {errors}")
    return count


def send_later(folder: Path, number: int) -> int:
    return send_and_compare(folder, "fedwca", draw_errors(random.Random(number), ERRORS, 1))


def send_at_once(folder: Path, number: int) -> int:
    return send_and_compare(
        folder, "fedavg", draw_errors(random.Random(number), FIRST_ROUND_ERRORS, 0)
    )


def forge(folder: Path, number: int) -> int:
    """Push unrequested messages before and after each reply, which claim to be that reply."""
    rng = random.Random(number)
    expected, _ = run("fedavg", honest_sites("fedavg"))
    forged = 0

    def change(grid: FakeGrid) -> None:
        pull_reply, superlink = grid.pull_reply, SuperLink()
        replies = superlink.grid(folder)

        def pull_among_forgeries(name: str) -> Any:
            nonlocal forged
            if (reply := pull_reply(name)) is None:
                return None
            content = reply.read().content
            before, after = rng.randint(0, 2), rng.randint(0, 2)
            forged += before + after
            for _ in range(before):
                superlink.take(forgery(content, name, rng))
            superlink.take(reply_of(content, rng.choice([name, "another"])), name)
            for _ in range(after):
                superlink.take(forgery(content, name, rng))
            return replies.pull_reply(name)

        grid.pull_reply = pull_among_forgeries

    found, log = run("fedavg", honest_sites("fedavg"), change)
    check(not any("refused" in line for line in log.lines), "an honest site was rejected")
    check(same_states(expected, found), "a forged reply changed the models")
    return forged


def forgery(content: Any, number: str, rng: random.Random) -> Any:
    """Return a well-formed reply with another model, or content that is no message."""
    right = Reply.from_records(content)
    if right.adapted:
        models = {"local": _poisoned(record_of(right).models["local"], rng)}
        payload = pack({"reply": Record(models, record_of(right).values)})[0]
        right = replace(right, payload=payload)
    content = right.to_records()
    return content if rng.random() < 0.2 else reply_of(content, number, node=rng.randint(0, 7))


def _poisoned(local: Weights, rng: random.Random) -> Weights:
    factor = rng.choice([-1.0, 1e3, -1e3, 1e-3, rng.gauss(0, 100)])

    def change(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.full_like(tensor, 2**40)
        return tensor * (abs(factor) if "var" in name else factor)

    return {name: change(name, tensor) for name, tensor in local.items()}


ATTACKS = [
    Attack("wrong replies of every kind in later rounds", send_later, times=40),
    Attack("wrong replies from the first round on", send_at_once, times=40),
    Attack("forged and unrequested replies", forge, times=20),
]

"""Attacks by sites that lie: who, when and how is drawn at random.

The sites are in this process and train nothing, so that thousands of lies can be told; the engine,
its checks and the method's server half are the real ones.
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

from attack import Attack, held
from fedwca.core.params import State, clone
from fedwca.core.robust import clipped_mean, coordinate_median, trimmed_mean
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.records import save_records
from fedwca.engines.wire import pack
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Record
from mischief import TRICKS, Program, play, record_of
from quick_sites import CLASSES, SITES, honest_record, honest_site, new_model
from sites import FakeGrid, Told, engine_for, run_rounds, settings
from superlink import SuperLink, reply_of

ROUNDS = 4
# 200 MB of junk at a time are for the tests; α and β of equal length may be swapped unnoticed.
LIES = [name for name in TRICKS if name not in ("junk", "swapped values")]
EARLY_LIES = [
    n
    for n in LIES
    if n != "no record" and not TRICKS[n].replays and not {"alpha", "beta"} & {*n.split()}
]
_POLLING = threading.Lock()  # the engine's pause is one for the whole process


def run(
    method: str,
    programs: dict[str, Program],
    change: Callable[[FakeGrid], None] = lambda grid: None,
) -> tuple[list[Checkpoint], Told]:
    """All rounds of a method with the sites."""
    experiment = settings(method, rounds=ROUNDS)
    grid = FakeGrid(dict(enumerate(programs.values())))
    change(grid)
    model = new_model()
    engine, told = engine_for(grid, experiment, model, CLASSES, dict.fromkeys(programs, ""))
    with _POLLING, mock.patch("fedwca.engines.flower_sites._POLL", 0.001):
        kept = run_rounds(engine, experiment.method, dict(model.feature_state()), told)
    return kept, told


def honest_sites(method: str) -> dict[str, Program]:
    chosen = settings(method).method
    return {name: honest_site(name, chosen) for name in SITES}


def same_states(wanted: list[Checkpoint], kept: list[Checkpoint]) -> bool:
    def tensors(at: Checkpoint) -> dict[str, torch.Tensor]:
        models = at.state.models.items()
        parts = {f"{m} {n}": tensor for m, state in models for n, tensor in state.items()}
        return {**parts, **at.state.values}

    for one, other in zip(wanted, kept, strict=True):
        a, b = tensors(one), tensors(other)
        if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
            return False
    return True


Lies = dict[tuple[str, int], list[str]]  # by site and round, one for each try


def drawn_lies(rng: random.Random, names: list[str], first: int) -> Lies:
    """Up to three liars, who lie in some rounds; after one or two lies they tell the truth."""
    liars = rng.sample(SITES, rng.randint(1, 3))
    return {
        (liar, round): rng.choices(names, k=rng.randint(1, 3))
        for liar in liars
        for round in range(first, ROUNDS)
        if rng.random() < 0.7
    }


def lying(name: str, program: Program, lies: Lies, folder: Path) -> Program:
    left = {round: list(tricks) for (liar, round), tricks in lies.items() if liar == name}

    def answer(request: Request) -> Reply:
        reply = program(request)
        if reply.adapted and request.round == 0:
            save_records(folder / name, {"": record_of(reply)})
        if reply.adapted and left.get(request.round):
            return play(left[request.round].pop(0), reply, folder / name)
        return reply

    return answer


def silent_after_three(name: str, program: Program, lies: Lies) -> Program:
    gone = {round for (liar, round), tricks in lies.items() if liar == name and len(tricks) == 3}

    def answer(request: Request) -> Reply:
        reply = program(request)
        return Reply(name, problem="gone") if reply.adapted and request.round in gone else reply

    return answer


def lie_and_compare(folder: Path, method: str, lies: Lies) -> int:
    """Every lie is refused for its reason, and the models are those of a run without liars."""
    without = {n: silent_after_three(n, p, lies) for n, p in honest_sites(method).items()}
    wanted, _ = run(method, without)
    with_them = {n: lying(n, p, lies, folder) for n, p in honest_sites(method).items()}
    kept, told = run(method, with_them)
    for (liar, round), tricks in lies.items():
        reasons = told.lines[round].get("refused", {}).get(liar, [])
        right = len(reasons) == len(tricks) and all(
            TRICKS[trick].reason in why for trick, why in zip(tricks, reasons, strict=True)
        )
        held(right, f"{liar} in round {round}: {tricks} were answered by {reasons}")
    count = sum(map(len, lies.values()))
    shown = sum(facts["refused"] for facts in told.sites.values())
    held(shown == count, f"{count} lies were told, {shown} are shown")
    held(same_states(wanted, kept), f"the models are others with {lies}")
    return count


def lie_later(folder: Path, number: int) -> int:
    return lie_and_compare(folder, "fedwca", drawn_lies(random.Random(number), LIES, 1))


def lie_at_once(folder: Path, number: int) -> int:
    return lie_and_compare(folder, "fedavg", drawn_lies(random.Random(number), EARLY_LIES, 0))


def interfere(folder: Path, number: int) -> int:
    """Beside each answer come messages that nobody asked for, and that claim to be that answer."""
    rng, aside = random.Random(number), list[str]()
    wanted, _ = run("fedavg", honest_sites("fedavg"))
    forged = 0

    def change(grid: FakeGrid) -> None:
        fetch, superlink = grid.fetch, SuperLink()
        replies = superlink.grid(folder, aside.append)

        def fetched(name: str) -> Any:
            nonlocal forged
            if (reply := fetch(name)) is None:
                return None
            content = reply.message().content
            before, after = rng.randint(0, 2), rng.randint(0, 2)
            forged += before + after
            for _ in range(before):
                superlink.take(forgery(content, name, rng))
            superlink.take(reply_of(content, rng.choice([name, "another"])), name)
            for _ in range(after):
                superlink.take(forgery(content, name, rng))
            return replies.fetch(name)

        grid.fetch = fetched  # type: ignore[method-assign]

    kept, told = run("fedavg", honest_sites("fedavg"), change)
    held(len(aside) == forged, f"{forged} answers were forged, {len(aside)} were left aside")
    held(not any("refused" in line for line in told.lines), "an honest site was refused for it")
    held(same_states(wanted, kept), "a forged answer has changed the models")
    return forged


def forgery(content: Any, number: str, rng: random.Random) -> Any:
    """Well-formed, with another model and the words of the right answer; or no message at all."""
    right = Reply.read(content)
    if right.adapted:
        models = {"local": _poisoned(record_of(right).models["local"], rng)}
        parcel = pack({"reply": Record(models, record_of(right).values)})[0]
        right = replace(right, parcel=parcel)
    made = right.content()
    return made if rng.random() < 0.2 else reply_of(made, number, node=rng.randint(0, 7))


def _poisoned(local: State, rng: random.Random) -> State:
    factor = rng.choice([-1.0, 1e3, -1e3, 1e-3, rng.gauss(0, 100)])

    def spoilt(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.full_like(tensor, 2**40)
        return tensor * (abs(factor) if "var" in name else factor)

    return {name: spoilt(name, tensor) for name, tensor in local.items()}


def poison(folder: Path, number: int) -> int:
    """What passes the checks moves a robust aggregate no further than stated."""
    rng = random.Random(number)
    torch_rng = torch.Generator().manual_seed(number)
    source = clone(new_model().feature_state())
    method = settings("fedavg").method
    record = Record({"cluster": source})
    honest = [honest_record(method, record, torch_rng).models["local"] for _ in range(7)]
    liar = _poisoned(honest[0], rng)
    everybody = [*honest, liar]
    rng.shuffle(everybody)
    middle, trimmed = coordinate_median(everybody), trimmed_mean(everybody, 0.2)
    clipped = clipped_mean(everybody, [1 / 8] * 8, source)
    for name, start in source.items():
        rows = torch.stack([state[name] for state in honest])
        least, most = rows.amin(dim=0), rows.amax(dim=0)
        for what, made in (("median", middle), ("trimmed mean", trimmed)):
            inside = bool(((made[name] >= least) & (made[name] <= most)).all())
            held(inside, f"the {what} of {name} leaves what the honest say")
        if start.is_floating_point():
            _check_clipped(name, clipped[name], rows, liar[name], start)
        else:
            held(bool((clipped[name] <= most).all()), f"{name} was driven up")
    return 3


def _check_clipped(name: str, made: Tensor, rows: Tensor, lie: Tensor, start: Tensor) -> None:
    """As `core.robust` states it: how far from the reference, and from the others' clipped mean."""
    updates = (rows - start).double().flatten(1)
    lengths = updates.norm(dim=1)
    every = torch.cat([lengths, (lie - start).double().norm()[None]]).sort().values
    threshold = float(every[3])  # the fourth of eight
    held(threshold <= float(lengths.max()), f"a lie sets the bound of {name}")
    own = (updates * (threshold / lengths).clamp(max=1.0)[:, None]).mean(dim=0)
    moved = (made - start).double().flatten()
    held(float(moved.norm()) <= threshold * 1.001, f"{name} leaves what is allowed to an update")
    held(float((moved - own).norm()) <= 2 / 8 * threshold * 1.001, f"{name} is moved too far")


ATTACKS = [
    Attack("sites lie in later rounds, in every way", lie_later, times=40),
    Attack("sites lie from the first round on", lie_at_once, times=40),
    Attack("answers are forged in others' names, or sent unasked", interfere, times=20),
    Attack("one of eight poisons a robust aggregate", poison, times=300, short=5),
]

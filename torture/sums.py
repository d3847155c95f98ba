"""Attacks on secure sums: sites drop out at any step, or send what is no step of theirs.

Sites and server are the real ones, in one process and without Flower between them; the model has
only a few numbers, so that hundreds of sums can be had.
"""

import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from attack import Attack, held
from fedwca.core.params import State, distance, mix
from fedwca.deploy.site_sums import SiteSums
from fedwca.engines.flower_sums import letter_of
from fedwca.engines.secure_sum import SumError, threshold
from fedwca.engines.sums import Step, Take, means_of
from fedwca.engines.wire import WireError, pack
from fedwca.methods import Record
from fedwca.methods.base import Client, Pooled

LEAST = 3
TEMPLATE: State = {"w": torch.zeros(4, 8), "norm.num_batches_tracked": torch.tensor(0)}
Spoil = Callable[[Record, random.Random], Record]


class Sites:
    """Sites of one group, some of which are lost or lie at a step."""

    def __init__(self, folder: Path, rng: random.Random, count: int) -> None:
        self.rng, self.states, self.sites = rng, {}, {}
        for number in range(count):
            name = f"site-{number}"
            (folder / name).mkdir()
            self.sites[name] = SiteSums(folder / name, name)
            self.states[name] = _state(number, rng)
        self.keys = {n: site.begin(0, self.states[n]) for n, site in self.sites.items()}
        self.weights = {name: rng.randint(1, 50) for name in self.sites}
        self.lost: dict[tuple[str, Step], bool] = {}  # whether it has done the step before
        self.lies: dict[tuple[str, Step], Spoil] = {}
        self.taken: dict[Step, list[str]] = {"share": [], "mask": [], "unmask": []}
        self.believed = 0  # lies that were of the right form

    def ask(
        self,
        step: Step,
        letters: Mapping[str, Record],
        names: Callable[[str], Collection[str]],
        take: Take,
    ) -> None:
        """What a server that sends letters gets back, in any order."""
        for name in self.rng.sample(sorted(letters), len(letters)):
            done_before = self.lost.get((name, step))
            if done_before is False:
                continue
            try:
                reply = self.sites[name].take(step, 0, letters[name], LEAST)
                if done_before is None:
                    told = self.lies.get((name, step), _honest)(reply, self.rng)
                    parcel, template = pack({"letter": told})[0], TEMPLATE if step == "mask" else {}
                    take(name, letter_of(parcel, names(name), template))
                    self.taken[step].append(name)
                    self.believed += told is not reply
            except (SumError, WireError):
                continue

    def mean(self) -> tuple[dict[str, State], list[str]]:
        """The server's means, and what it says of them."""
        notes: list[str] = []
        pooled = {Client(name): Pooled(0, weight) for name, weight in self.weights.items()}
        return means_of(pooled, self.keys, TEMPLATE, LEAST, self.ask, notes.append), notes

    def check(self, means: dict[str, State]) -> None:
        """The mean is that of those who are said to be in it."""
        if not means:
            return
        held(sorted(means) == sorted(self.taken["mask"]), "it is not of those who were summed")
        total = sum(self.weights[name] for name in means)
        shares = [self.weights[name] / total for name in means]
        wanted = mix([self.states[name] for name in means], shares)
        made = next(iter(means.values()))
        held(distance({"w": wanted["w"]}, {"w": made["w"]}) <= 2.0**-20, "the mean is not right")


def _state(number: int, rng: random.Random) -> State:
    generator = torch.Generator().manual_seed(rng.getrandbits(40) + number)
    return {**TEMPLATE, "w": torch.randn(4, 8, generator=generator)}


def _honest(reply: Record, rng: random.Random) -> Record:
    return reply


def drop_out(folder: Path, number: int) -> None:
    """With enough of them left there is a mean, and it is right; else there is none."""
    rng = random.Random(number)
    sites = Sites(folder, rng, count=rng.randint(3, 8))
    steps: list[Step] = ["share", "mask", "unmask"]
    for name in rng.sample(sorted(sites.sites), rng.randint(1, len(sites.sites) - 1)):
        sites.lost[name, rng.choice(steps)] = rng.random() < 0.5
    _sum_and_check(sites)


def _sum_and_check(sites: Sites) -> None:
    """The mean is there if enough have helped with it, and right; else it is said."""
    means, notes = sites.mean()
    sites.check(means)
    summed, helped = (len(sites.taken[step]) for step in ("mask", "unmask"))
    enough = min(summed, helped) >= threshold(len(sites.sites)) and summed >= LEAST
    held(enough or not means, f"{summed} were summed and {helped} helped: {notes}")
    # A lie of the right form may spoil the sum, which is noticed; any other is as good as silence.
    held(bool(means) == enough or sites.believed > 0, f"there is no mean: {notes}")
    held(bool(means) or any("no sum over" in note for note in notes), "nobody was told")


# --- lies ---------------------------------------------------------------------------------------


def _bytes_flipped(reply: Record, rng: random.Random) -> Record:
    values = {name: value.clone() for name, value in reply.values.items()}
    for name in rng.sample(sorted(values), rng.randint(1, len(values))):
        flat = values[name].flatten()
        flat[rng.randrange(len(flat))] ^= 1 << rng.randrange(8)
    return Record({}, values)


def _noise(reply: Record, rng: random.Random) -> Record:
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    values = {
        name: torch.randint(0, 256, value.shape, generator=generator).to(value.dtype) << shift
        for name, value in reply.values.items()
        for shift in [55 if value.dtype == torch.int64 else 0]
    }
    return Record({}, values)


def _cut(reply: Record, rng: random.Random) -> Record:
    return Record({}, {n: v[: rng.randrange(v.numel())] for n, v in reply.values.items()})


def _empty(reply: Record, rng: random.Random) -> Record:
    return Record()


def _hollow(reply: Record, rng: random.Random) -> Record:
    return Record({}, {name: value[:0] for name, value in reply.values.items()})


def _other_names(reply: Record, rng: random.Random) -> Record:
    names = list(reply.values)
    return Record({}, dict(zip([*names[1:], names[0]], reply.values.values(), strict=True)))


def _floats(reply: Record, rng: random.Random) -> Record:
    return Record({}, {name: value.float() for name, value in reply.values.items()})


LIES = [_noise, _cut, _empty, _hollow, _floats]
# Under masks a changed bit is as likely as any other, and there is one name only.
LIES_IN_PARTS = [*LIES, _bytes_flipped, _other_names]


def spoil(folder: Path, number: int) -> None:
    """The mean is right, or there is none and it is said: never a wrong one, never an end."""
    rng = random.Random(number)
    sites = Sites(folder, rng, count=rng.randint(3, 8))
    steps: list[Step] = ["share", "mask", "unmask"]
    for name in rng.sample(sorted(sites.sites), rng.randint(1, 2)):
        step = rng.choice(steps)
        sites.lies[name, step] = rng.choice(LIES if step == "mask" else LIES_IN_PARTS)
    _sum_and_check(sites)


ATTACKS = [
    Attack("sites drop out of secure sums at any step", drop_out, times=60, short=4),
    Attack("sites spoil steps of secure sums", spoil, times=60, short=4),
]

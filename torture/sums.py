"""Attacks on secure sums: sites drop out at any step, or send wrong replies.

Sites and server are the real ones, in one process and without Flower; the model has only a few
numbers, so that hundreds of sums can be computed.
"""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedwca.core.params import Weights, distance, mix
from fedwca.engines.codec import WireError, pack
from fedwca.engines.flower.messages import SUM_RECORD
from fedwca.engines.flower.sum_round import check_mean, read_step_reply
from fedwca.engines.secure_sum.protocol import SumError, threshold
from fedwca.engines.secure_sum.server import STEPS, SecureSums, Step
from fedwca.engines.secure_sum.site import SiteSums
from fedwca.methods import Record
from fedwca.methods.capabilities import GroupMember
from torture.attack import Attack, check

MIN_SUMMED = 3
TEMPLATE: Weights = {"w": torch.zeros(4, 8), "norm.num_batches_tracked": torch.tensor(0)}
Change = Callable[[Record, random.Random], Record]


class Sites:
    """Sites of one group, some of which are lost or reply wrongly at a step."""

    def __init__(self, folder: Path, rng: random.Random, count: int) -> None:
        self.rng, self.models, self.sites = rng, {}, {}
        for number in range(count):
            name = f"site-{number}"
            (folder / name).mkdir()
            self.sites[name] = SiteSums(folder / name, name)
            self.models[name] = _model(number, rng)
        self.keys = {n: site.begin(0, self.models[n]) for n, site in self.sites.items()}
        self.weights = {name: rng.randint(1, 50) for name in self.sites}
        self.lost: dict[tuple[str, Step], bool] = {}  # whether it does the step before the loss
        self.changes: dict[tuple[str, Step], Change] = {}
        self.accepted: dict[Step, list[str]] = {"share": [], "mask": [], "unmask": []}
        self.well_formed_changes = 0

    def means(self) -> dict[str, Weights]:
        """Return the server's means, after all steps with replies in any order."""
        members = {name: GroupMember(0, weight) for name, weight in self.weights.items()}
        sums = SecureSums(members, self.keys, TEMPLATE, MIN_SUMMED, round=0)
        for step in STEPS:
            messages = sums.messages(step)
            for name in self.rng.sample(sorted(messages), len(messages)):
                self._run_step(sums, step, name, messages[name])
        return sums.means(lambda mean: check_mean(mean, TEMPLATE))

    def _run_step(self, sums: SecureSums, step: Step, name: str, message: Record) -> None:
        does_step_before_loss = self.lost.get((name, step))
        if does_step_before_loss is False:
            return
        try:
            reply = self.sites[name].run_step(step, 0, message, MIN_SUMMED)
            if does_step_before_loss:
                return
            change = self.changes.get((name, step))
            sent = change(reply, self.rng) if change else reply
            template = TEMPLATE if step == "mask" else {}
            names = sums.reply_names(step, name)
            received = read_step_reply(pack({SUM_RECORD: sent})[0], names, template)
            sums.accept(step, name, received)
        except (SumError, WireError):
            return
        self.accepted[step].append(name)
        self.well_formed_changes += sent is not reply

    def check(self, means: dict[str, Weights]) -> None:
        """Check that the mean is that of the sites it names."""
        if not means:
            return
        summed = sorted(self.accepted["mask"])
        check(sorted(means) == summed, "the mean names other sites than were summed")
        total = sum(self.weights[name] for name in means)
        shares = [self.weights[name] / total for name in means]
        expected = mix([self.models[name] for name in means], shares)
        found = next(iter(means.values()))
        check(distance({"w": expected["w"]}, {"w": found["w"]}) <= 2.0**-20, "the mean is wrong")


def _model(number: int, rng: random.Random) -> Weights:
    generator = torch.Generator().manual_seed(rng.getrandbits(40) + number)
    return {**TEMPLATE, "w": torch.randn(4, 8, generator=generator)}


def drop_out(folder: Path, number: int) -> None:
    """Lose sites at random steps; the mean is right if enough remain, else there is none."""
    rng = random.Random(number)
    sites = Sites(folder, rng, count=rng.randint(3, 8))
    steps: list[Step] = ["share", "mask", "unmask"]
    for name in rng.sample(sorted(sites.sites), rng.randint(1, len(sites.sites) - 1)):
        sites.lost[name, rng.choice(steps)] = rng.random() < 0.5
    _sum_and_check(sites)


def _sum_and_check(sites: Sites) -> None:
    """Check that there is a mean if enough sites took part, and that it is right."""
    means = sites.means()
    sites.check(means)
    summed, helped = (len(sites.accepted[step]) for step in ("mask", "unmask"))
    enough = min(summed, helped) >= threshold(len(sites.sites)) and summed >= MIN_SUMMED
    check(enough or not means, f"{summed} were summed and {helped} helped")
    # A well-formed wrong reply may make the sum invalid, which is detected; any other is no reply.
    check(bool(means) == enough or sites.well_formed_changes > 0, "there is no mean")


# --- wrong replies ------------------------------------------------------------------------------


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


def _other_names(reply: Record, rng: random.Random) -> Record:
    first, *others = reply.values
    return Record({}, dict(zip([*others, first], reply.values.values(), strict=True)))


def _each(change: Callable[[Tensor, random.Random], Tensor]) -> Change:
    return lambda reply, rng: Record({}, {n: change(v, rng) for n, v in reply.values.items()})


CHANGES: list[Change] = [
    _noise,
    _each(lambda value, rng: value[: rng.randrange(value.numel())]),
    _each(lambda value, rng: value[:0]),
    _each(lambda value, rng: value.float()),
    lambda reply, rng: Record(),
]
# In a masked vector any bit is as likely as its opposite, and there is only one name.
PART_CHANGES = [*CHANGES, _bytes_flipped, _other_names]


def reply_wrongly(folder: Path, number: int) -> None:
    """Change replies at random steps: the mean is right or there is none."""
    rng = random.Random(number)
    sites = Sites(folder, rng, count=rng.randint(3, 8))
    steps: list[Step] = ["share", "mask", "unmask"]
    for name in rng.sample(sorted(sites.sites), rng.randint(1, 2)):
        step = rng.choice(steps)
        sites.changes[name, step] = rng.choice(CHANGES if step == "mask" else PART_CHANGES)
    _sum_and_check(sites)


ATTACKS = [
    Attack("sites drop out of secure sums at any step", drop_out, times=60, short_times=4),
    Attack("sites reply wrongly in secure sums", reply_wrongly, times=60, short_times=4),
]

"""The steps of a secure sum with the sites, after the work of a round."""

import time
from collections.abc import Callable, Collection, Mapping

import torch

from fedwca.core.params import State
from fedwca.engines.base import Summed, Sums
from fedwca.engines.flower_answers import check_whose
from fedwca.engines.flower_faults import Faults
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.flower_post import NoReply, late
from fedwca.engines.flower_sites import KnownSite, Sites
from fedwca.engines.flower_task import Task
from fedwca.engines.secure_sum import PublicKeys
from fedwca.engines.sums import Step, Take, means_of
from fedwca.engines.wire import Parcel, WireError, check_step_size, pack, unpack
from fedwca.methods.base import Client, Pooled, Record
from fedwca.notes import Note

__all__ = ["letter_of", "sums_after"]


def sums_after(
    task: Task,
    sites: Sites,
    round: int,
    seconds: float,
    keys: Mapping[str, PublicKeys],
    note: Note,
) -> Sums:
    """How the means of groups are had after a round, each step within so many seconds."""

    def told(text: str) -> None:
        note(f"round {round}: {text}")

    def sums(pooled: Mapping[Client, Pooled]) -> Summed:
        asked = _Asking(task, sites, round, seconds, note)
        means = means_of(pooled, keys, task.features, task.least_summed, asked.ask, told)
        had = {client: means[client.name] for client in pooled if client.name in means}
        return Summed(had, asked.bytes_down, asked.bytes_up, asked.faults.refused)

    return sums


def letter_of(parcel: Parcel, names: Collection[str], template: State) -> Record:
    """What a site answers to a step, values of these names; WireError if it is anything else.

    The template is empty where no model is due.
    """
    check_step_size(parcel, len(names), template)
    record = unpack(parcel, {})[0].get("letter", Record())
    plain = all(value.dtype in (torch.uint8, torch.int64) for value in record.values.values())
    if record.models or record.values.keys() != set(names) or not plain:
        raise WireError("its answer does not hold what was asked for")
    return record


class _Asking:
    """The steps of a secure sum: who does not answer one has dropped out, and is not asked twice.

    A site takes each step once, so that nothing can be learnt from two answers of one site.
    """

    def __init__(self, task: Task, sites: Sites, round: int, seconds: float, note: Note) -> None:
        self._task, self._sites, self._round, self._note = task, sites, round, note
        self._seconds = seconds
        self.bytes_down = self.bytes_up = 0
        self.faults = Faults(round, note)

    def ask(
        self,
        step: Step,
        letters: Mapping[str, Record],
        names: Callable[[str], Collection[str]],
        take: Take,
    ) -> None:
        """Have what the sites answer taken, as it comes."""

        def receive(site: KnownSite, reply: Reply | NoReply) -> None:
            waited_for.discard(site.name)
            self._receive(site, step, reply, names(site.name), take)

        self._sites.look()
        sent = {n: self._send(self._sites[n], step, letters[n], receive) for n in letters}
        waited_for = {name for name, number in sent.items() if number}
        closes = time.monotonic() + self._seconds
        while waited_for and time.monotonic() < closes:
            self._sites.look()
            waited_for -= {n for n in waited_for if self._sites[n].lost_at is not None}
            if waited_for:
                self._sites.pause()
        for name, number in sent.items():
            self._sites.post.expect(number, late(self._note, name, self._round))

    def _send(
        self,
        site: KnownSite,
        step: Step,
        letter: Record,
        receive: Callable[[KnownSite, Reply | NoReply], None],
    ) -> str:
        parcel, _ = pack({"letter": letter})
        request = Request(step, self._task.run, self._task.plan, self._round, parcel=parcel)
        self.bytes_down += parcel.nbytes()
        return self._sites.post.send(
            site.node.id, request.content(), "train.sum", lambda reply: receive(site, reply)
        )

    def _receive(
        self,
        site: KnownSite,
        step: Step,
        reply: Reply | NoReply,
        names: Collection[str],
        take: Take,
    ) -> None:
        what = f"drops out of the sum ({step})"
        if isinstance(reply, NoReply):
            self.faults.silent(site, what, reply)
        elif reply.problem:
            self.faults.fail(site, what, reply.problem)
        else:
            with self.faults.refusing(site, what):
                take(site.name, self._record(site.name, step, reply, names))

    def _record(self, name: str, step: Step, reply: Reply, names: Collection[str]) -> Record:
        check_whose(reply, name, self._task.run, self._round)
        self.bytes_up += reply.parcel.nbytes()
        return letter_of(reply.parcel, names, self._task.features if step == "mask" else {})

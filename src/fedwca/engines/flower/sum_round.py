"""The steps of secure sums with the sites, after they have adapted."""

from collections.abc import Collection, Mapping

import torch

from fedwca.core.params import Weights
from fedwca.engines.base import ClientResult
from fedwca.engines.codec import Payload, WireError, pack, unpack
from fedwca.engines.flower.collector import Collector
from fedwca.engines.flower.messages import SUM_RECORD, Reply
from fedwca.engines.flower.reply_checks import check_magnitude, check_origin
from fedwca.engines.flower.site_registry import RegisteredSite
from fedwca.engines.record_checks import check_step_size, check_weights
from fedwca.engines.secure_sum.protocol import PublicKeys
from fedwca.engines.secure_sum.server import STEPS, SecureSums, Step
from fedwca.methods.base import Client, Record
from fedwca.methods.capabilities import GroupMember, SupportsSums, replace_by_mean

__all__ = ["SumRound", "check_mean", "read_step_reply"]


class SumRound:
    """The secure sums of one round.

    A site that does not reply to a step drops out. No site is asked for a step twice: two
    replies of one site could reveal its model.

    Args:
        collector: carries the messages.
        seconds: time limit of a step.
    """

    def __init__(self, collector: Collector, seconds: float) -> None:
        self._collector, self._seconds = collector, seconds
        self._run, self._registry = collector.run, collector.registry

    def replace_models(
        self,
        state: Record,
        results: Mapping[Client, ClientResult],
        keys: Mapping[str, PublicKeys],
    ) -> dict[Client, ClientResult]:
        """Return the results with the means of groups; no adaptation where there is no mean.

        Args:
            state: the server's state of the method.
            results: of the round; the models in them hold only the shown weights.
            keys: public keys that came with them, by site.
        """
        method = self._run.method
        assert isinstance(method, SupportsSums)  # checked before the first round
        replies = {c: r.adapted.reply for c, r in results.items() if r.adapted is not None}
        members = method.assign_groups(state, replies)
        means = self._sum({client.name: member for client, member in members.items()}, keys)
        replaced: dict[Client, ClientResult] = {}
        for client, result in results.items():
            adapted = None
            if result.adapted is not None and client.name in means:
                mean, group = means[client.name], members[client].group
                reply = replace_by_mean(result.adapted.reply, mean, group)
                adapted = result.adapted._replace(reply=reply)
            replaced[client] = result._replace(adapted=adapted)
        return replaced

    def _sum(
        self, members: Mapping[str, GroupMember], keys: Mapping[str, PublicKeys]
    ) -> dict[str, Weights]:
        run, round = self._run, self._registry.round
        sums = SecureSums(members, keys, run.features, run.plan.least_summed, round)
        for step in STEPS:
            self._run_step(step, sums)
        return sums.means(lambda mean: check_mean(mean, run.features))

    def _run_step(self, step: Step, sums: SecureSums) -> None:
        """Send each site its message, and accept replies until all are there or time is up."""
        consequence = f"drops out of the sum ({step})"

        def accept(site: RegisteredSite, reply: Reply) -> None:
            try:
                check_origin(reply, site.name, self._run.name, self._registry.round)
                names = sums.reply_names(step, site.name)
                template = self._run.features if step == "mask" else {}
                sums.accept(step, site.name, read_step_reply(reply.payload, names, template))
            except Exception as error:  # whatever a site sends must not end the run of the others
                self._registry.refuse(site, f"{site.name} {consequence}", error)

        self._collector.open.clear()
        for name, message in sums.messages(step).items():
            self._collector.send(self._registry[name], step, pack({SUM_RECORD: message})[0])
        for _ in self._collector.collect(self._seconds, accept, consequence):
            for name in self._collector.open.keys() - self._registry.online():
                del self._collector.open[name]
            if not self._collector.open:
                break


def read_step_reply(payload: Payload, names: Collection[str], template: Weights) -> Record:
    """Return a site's reply to a step; WireError if it is malformed.

    Args:
        payload: what it sent.
        names: of the values that the reply must hold.
        template: weights of the model; empty if the reply holds no masked model.
    """
    check_step_size(payload, len(names), template)
    record = unpack(payload, {})[0].get(SUM_RECORD, Record())
    integers = all(value.dtype in (torch.uint8, torch.int64) for value in record.values.values())
    if record.models or record.values.keys() != set(names) or not integers:
        raise WireError("the reply does not hold the requested values")
    return record


def check_mean(mean: Weights, source: Weights) -> None:
    """Refuse a mean that honest models cannot have: a site has falsified the sum."""
    check_weights("mean", mean, source)
    check_magnitude(Record({"mean": mean}), source)

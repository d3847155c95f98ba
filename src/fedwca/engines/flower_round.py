"""One round with the sites: who has been sent what, who has answered, who was refused."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fedwca.engines.base import Answer, Job
from fedwca.engines.flower_answers import Due, Sent, Taken, due_of, taken
from fedwca.engines.flower_faults import Faults
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.flower_post import NoReply, late
from fedwca.engines.flower_sites import KnownSite, Sites, listed
from fedwca.engines.flower_task import Task
from fedwca.engines.plausible import MiscountError
from fedwca.engines.records import filed_record, save_records
from fedwca.engines.secure_sum import PublicKeys
from fedwca.engines.wire import Tensors, WireError, pack
from fedwca.errors import UserError
from fedwca.methods.base import Client, Record
from fedwca.notes import Note

__all__ = ["Round"]

_TRIES = 3  # how often a site is sent the same round


class Round:
    """The jobs of one round: who has been sent what, and what came of it."""

    def __init__(
        self,
        task: Task,
        sites: Sites,
        round: int,
        jobs: Mapping[Client, Job],
        note: Note,
        scratch: Path,
    ) -> None:
        self._task, self._sites, self._round, self._note = task, sites, round, note
        self._jobs, self._clients = jobs, {client.name: client for client in jobs}
        self._scratch = scratch
        self._under_way: dict[str, str] = {}  # a site's message
        self._tries: Counter[str] = Counter()
        self.answers: dict[str, Answer] = {}
        self.faults = Faults(round, note)
        self.keys: dict[str, PublicKeys] = {}  # of those who keep their models, for their sum
        self.bytes_down = self.bytes_up = 0

    def unanswered(self) -> list[str]:
        return [name for name in self._clients if name not in self.answers]

    def open_sites(self, patience: float) -> list[str]:
        """Sites from which an answer may still come."""
        recently = self._sites.lost_within(patience)

        def may_come(name: str) -> bool:
            if self._sites[name].lost_at is not None:
                return name in recently
            return name in self._under_way or self._tries[name] < _TRIES

        return [name for name in self.unanswered() if may_come(name)]

    def give_up_if_all_failed(self) -> None:
        """Stop the run where nobody is left who might still answer: waiting would never end."""
        names = self.unanswered()
        if self._under_way or any(self._tries[name] < _TRIES for name in names):
            return
        problems = dict.fromkeys(self._sites[name].facts["problem"] for name in names)
        raise UserError(
            f"{listed(names)} failed {_TRIES} times ({'; '.join(problems)}): "
            "mend that, then go on with `fedwca deploy run --resume`"
        )

    def send(self, online: list[str]) -> None:
        """Send the job to every site that is there and has none under way."""
        for name in self.unanswered():
            if name in online and name not in self._under_way and self._tries[name] < _TRIES:
                self._send(self._sites[name])

    def _send(self, site: KnownSite) -> None:
        self._tries[site.name] += 1
        job = self._jobs[self._clients[site.name]]
        parcel, tensors = pack(self._records(job), site.known, self._task.wire)
        due = due_of(self._task, job)
        sent = Sent(set(tensors), lambda known: self._packed(site.name, known))
        request = Request(
            "work", self._task.run, self._task.plan, self._round, self._task.wire, parcel
        )
        number = self._sites.post.send(
            site.node.id,
            request.content(),
            "train.work",
            lambda reply: self._receive(site, due, sent, reply),
        )
        if number:
            self._under_way[site.name] = number
            self.bytes_down += parcel.nbytes()

    def _packed(self, name: str, known: set[str]) -> Tensors:
        return pack(self._records(self._jobs[self._clients[name]]), known, self._task.wire)[1]

    def _records(self, job: Job) -> dict[str, Record]:
        records = {"classifier": Record({"": self._task.classifier})}
        if job.message is not None:
            records["message"] = job.message
        if job.offered is not None:
            records["offered"] = Record({"": job.offered})
        return records

    def _receive(self, site: KnownSite, due: Due, sent: Sent, reply: Reply | NoReply) -> None:
        self._under_way.pop(site.name, None)
        if isinstance(reply, NoReply):
            site.known.clear()  # who knows what it has kept
            self.faults.silent(site, "failed", reply)
            return
        self.bytes_up += reply.parcel.nbytes()
        if reply.missing:
            site.known.clear()
            site.facts["problem"] = f"round {self._round}: it had lost what it had been sent"
            self._note(f"round {self._round}: {site.name} has lost what it had; it is sent again")
        elif reply.problem:
            self.faults.fail(site, "failed", reply.problem)
        else:
            with self.faults.refusing(site, "failed"):
                self._take(site, due, sent, reply)

    def _take(self, site: KnownSite, due: Due, sent: Sent, reply: Reply) -> None:
        try:
            found = taken(self._task, self._round, site, reply, due, sent)
        except MiscountError:
            self._sites.ask_again(site)
            raise
        if found.keys is not None and not self._are_new(found.keys):
            raise WireError("its keys for the sum are those of another site")
        self._accept(site, sent, found)

    def _accept(self, site: KnownSite, sent: Sent, found: Taken) -> None:
        site.known = {*sent, *found.tensors}
        site.facts["answered"] = self._round
        site.ledger.add_model(site.name, self._round, found.fingerprint)
        self.answers[site.name] = self._filed(found.answer)
        if found.keys is not None:
            self.keys[site.name] = found.keys

    def _are_new(self, keys: PublicKeys) -> bool:
        """Two sites with one key would stop the sum for all."""
        return not any(set(keys) & set(others) for others in self.keys.values())

    def _filed(self, answer: Answer) -> Answer:
        """The answer, its models in files, unless they were kept back."""
        if answer.adapted is None or self._task.least_summed:
            return answer
        path = self._scratch / f"{len(self.answers)}.safetensors"
        save_records(path, {"": answer.adapted.reply}, durable=False)
        return answer._replace(adapted=answer.adapted._replace(reply=filed_record(path)))

    def close(self) -> None:
        """Answers that come from now on are too late."""
        for name, number in self._under_way.items():
            self._sites.post.expect(number, late(self._note, name, self._round))

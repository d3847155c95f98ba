"""Clients on other machines, reached through Flower: who is there, who answers, who is lost."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.base import Answer, Exchanged, Job, Summed, Sums
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.plausible import (
    MiscountError,
    check_counts,
    check_magnitude,
    fingerprint,
)
from fedwca.engines.records import filed_record, save_records
from fedwca.engines.secure_sum import PublicKeys
from fedwca.engines.sums import Step, Take, means_of
from fedwca.engines.wire import (
    Tensors,
    Wire,
    WireError,
    check_reply,
    check_size,
    check_state,
    check_step_size,
    pack,
    unpack,
)
from fedwca.engines.withheld import completed, declared, keys_of, shown_of
from fedwca.errors import UserError
from fedwca.methods.base import Adapted, Client, Declared, Method, Pooled, Record
from fedwca.notes import Note, printable

__all__ = ["FlowerEngine", "Node", "Rules", "SiteFacts", "Task"]

_POLL = 0.5  # seconds between looks for answers
_TRIES = 3  # how often a site is sent the same round
_ASK_AGAIN = 60.0  # seconds until a node that could not take part is asked again
_REMINDER = 60.0  # seconds between notes while too few sites are there
_AT_ONCE = 4  # replies that Flower hands over together, each of which may be a model


class Task(NamedTuple):
    """What is done with the sites.

    Attributes:
        run: name of the run.
        plan: settings that a site must know, as a text that the engine only passes on.
        method: whose messages and replies travel.
        features, classifier: of the source model; names, shapes and dtypes of all that comes are
            compared with the former, the latter goes to every site.
        sizes: what the letters in the method's declarations stand for.
        wire: how weights travel.
        private: sites keep back how many images they have, and how they do on them.
        least_summed: of how many models the server gets a sum, and of none a model; 0: it gets
            them all.
    """

    run: str
    plan: str
    method: Method
    features: State
    classifier: State
    sizes: Mapping[str, int]
    wire: Wire
    private: bool = False
    least_summed: int = 0


@dataclass(frozen=True)
class Rules:
    """When a round goes on, and when it closes.

    Attributes:
        least_sites: a round needs so many answers.
        start_seconds: how long the first round waits for all sites that are expected.
        round_seconds: time limit of a round.
        return_seconds: how long a site that was lost is waited for.
    """

    least_sites: int = 2
    start_seconds: float = 600.0
    round_seconds: float = 3600.0
    return_seconds: float = 90.0


class SiteFacts(TypedDict):
    """What the server knows of a site, for `deploy status`."""

    images: int
    test_images: int
    online: bool
    answered: int  # the last round that it answered, -1 if none
    refused: int  # how many of its answers were not taken
    problem: str  # the last one, with its round


class Node(NamedTuple):
    """A Flower node that is online: its number, and its public key where it has shown one."""

    id: int
    public_key: str


class Grid(Protocol):
    """What is used of Flower's grid."""

    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


class FlowerEngine:
    """One exchange a round with every site that is there.

    Sites are known by their names. Where they have keys, a site's node must hold the key that was
    made for it; elsewhere whoever comes under a name is believed.

    Args:
        grid: Flower's.
        task: what is done.
        rules: when rounds go on and close.
        expected: the sites of the deployment as they are now, each with its public key, or "".
        note: told what happens.
        watch: told what is known of all sites whenever that changes.
        scratch: a folder for replies; made, and removed, by the engine.
    """

    def __init__(
        self,
        grid: Grid,
        task: Task,
        rules: Rules,
        expected: Callable[[], Mapping[str, str]],
        note: Note,
        watch: Callable[[dict[str, SiteFacts]], None],
        scratch: Path,
    ) -> None:
        self._post = _Post(grid, 2 * rules.round_seconds + 60, note)
        self._task, self._rules, self._note = task, rules, note
        self._sites = _Sites(self._post, task, expected, note, watch)
        self._scratch = scratch
        self._begun = False

    def clients(self) -> list[Client]:
        """The sites that are there, once there are enough; lost ones are given time to return."""
        started = reminded = time.monotonic()
        while True:
            self._sites.look()
            here, absent = self._sites.online(), self._awaited(started)
            if len(here) >= self._rules.least_sites and not absent:
                break
            if time.monotonic() > reminded + _REMINDER:
                reminded = time.monotonic()
                self._note(f"waiting for sites; there: {_listed(here)}")
            time.sleep(_POLL)
        if not self._begun and (missing := self._sites.unseen()):
            self._note(f"beginning without {_listed(missing)}")
        self._begun = True
        return [Client(name) for name in here]

    def _awaited(self, started: float) -> list[str]:
        """Who is worth waiting for: at first all that are expected, then who was lost just now."""
        lost = self._sites.lost_within(self._rules.return_seconds)
        if self._begun or time.monotonic() > started + self._rules.start_seconds:
            return lost
        return lost + self._sites.unseen()

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """Send every site its job and gather the answers, until all have come or time is up.

        Replies lie in files until the next exchange, and what was sent is not kept: memory does
        not grow with the number of sites.
        """
        self.close()
        self._scratch.mkdir(parents=True)
        work = _Round(self._task, self._sites, round, jobs, self._note, self._scratch)
        closes = time.monotonic() + self._rules.round_seconds
        while True:
            self._sites.look()
            work.send(self._sites.online())
            waited_for = work.open_sites(self._rules.return_seconds)
            enough = len(work.answers) >= min(self._rules.least_sites, len(jobs))
            if not work.unanswered() or (not waited_for and enough):
                break
            if not enough:
                work.give_up_if_all_failed()
            if time.monotonic() > closes:
                if enough:
                    break
                self._note(
                    f"round {round}: only {len(work.answers)} of at least "
                    f"{self._rules.least_sites} sites have answered; the time limit starts over"
                )
                closes = time.monotonic() + self._rules.round_seconds
            time.sleep(_POLL)
        for name in work.unanswered():
            self._note(f"round {round}: closed without {name}")
        work.close()
        answers = {c: work.answers[c.name] for c in jobs if c.name in work.answers}
        sums = self._sums(round, work.keys) if self._task.least_summed else None
        return Exchanged(answers, work.bytes_down, work.bytes_up, work.refused, sums)

    def _sums(self, round: int, keys: Mapping[str, PublicKeys]) -> Sums:
        """How the means of groups are had after a round."""
        task, rules = self._task, self._rules

        def sums(pooled: Mapping[Client, Pooled]) -> Summed:
            asked = _Asking(task, self._sites, round, rules.round_seconds, self._note)

            def note(text: str) -> None:
                self._note(f"round {round}: {text}")

            means = means_of(pooled, keys, task.features, task.least_summed, asked.ask, note)
            had = {client: means[client.name] for client in pooled if client.name in means}
            return Summed(had, asked.bytes_down, asked.bytes_up)

        return sums

    def close(self) -> None:
        """Remove the replies; Flower ends the connection."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nobody"


OnReply = Callable[[Message], None]


class _Post:
    """Messages on their way, each with what is to be done with its reply."""

    def __init__(self, grid: Grid, ttl: float, note: Note) -> None:
        self._grid, self._ttl, self._note = grid, ttl, note
        self._on_reply: dict[str, tuple[int, OnReply]] = {}  # with the node that is to answer

    def nodes(self) -> list[Node]:
        """Who is online."""
        return [Node(int(n.node_id), n.public_key.decode()) for n in self._grid.get_nodes()]

    def send(self, node: int, content: RecordDict, kind: str, on_reply: OnReply) -> str:
        message = Message(content, node, kind, ttl=self._ttl)
        # One at a time: several large ones at once would be one large request.
        (number,) = self._grid.push_messages([message])
        if number is None:  # the node has just gone
            return ""
        self._on_reply[number] = node, on_reply
        return str(number)

    def deliver(self) -> None:
        """Hand out the replies that have come, a few at a time: they may be large."""
        waiting = iter(list(self._on_reply))
        while few := list(islice(waiting, _AT_ONCE)):
            replies = list(self._grid.pull_messages(few))
            while replies:  # each is let go of as soon as it has been handed out
                self._hand_out(replies.pop(0))

    def _hand_out(self, reply: Message) -> None:
        """The first reply to each message, from who was asked.

        Flower sees to both itself, but then a site's word would rest on Flower alone.
        """
        number = reply.metadata.reply_to_message_id
        node, on_reply = self._on_reply.get(number, (0, None))
        # A dead node's error has another sender: only the message that it answers tells whose.
        if on_reply is None:
            self._note("a second answer to one message is left aside")
        elif not reply.has_error() and reply.metadata.src_node_id != node:
            self._note("an answer from another node than was asked is left aside")
        else:
            del self._on_reply[number]
            on_reply(reply)

    def expect(self, number: str, on_reply: OnReply) -> None:
        """Do something else with the reply to a message, should it still come."""
        if number in self._on_reply:
            self._on_reply[number] = self._on_reply[number][0], on_reply


class _Site:
    """A site as the server knows it."""

    def __init__(self, name: str, node: Node) -> None:
        self.name, self.node = name, node
        self.known: set[str] = set()  # hashes of the tensors that it has
        self.told: dict[str, int] = {}  # its models by their fingerprints, and in which round
        self.lost_at: float | None = None
        self.facts = SiteFacts(
            images=0, test_images=0, online=True, answered=-1, refused=0, problem=""
        )


class _Sites:
    """Who is who, and who is there."""

    def __init__(
        self,
        post: _Post,
        task: Task,
        expected: Callable[[], Mapping[str, str]],
        note: Note,
        watch: Callable[[dict[str, SiteFacts]], None],
    ) -> None:
        self.post, self._task, self._expected = post, task, expected
        self._note, self._watch = note, watch
        self._sites: dict[str, _Site] = {}
        self._asked: dict[int, float] = {}  # nodes that were asked who they are, and when
        self._shown: dict[str, SiteFacts] = {}

    def __getitem__(self, name: str) -> _Site:
        return self._sites[name]

    def look(self) -> None:
        """Take in what has come, see who is online, ask newcomers who they are."""
        self.post.deliver()
        nodes = {node.id: node for node in self.post.nodes()}
        self._asked = {node: when for node, when in self._asked.items() if node in nodes}
        for site in self._sites.values():
            self._mark(site, site.node.id in nodes)
        named = {site.node.id for site in self._sites.values()}
        for node in nodes.values():
            due = self._asked.get(node.id, -_ASK_AGAIN) + _ASK_AGAIN <= time.monotonic()
            if due and node.id not in named:
                self._ask_unless_stranger(node)
        self.tell()

    def ask_again(self, site: _Site) -> None:
        """Its images may have changed since it came."""
        self._ask(site.node)

    def _mark(self, site: _Site, online: bool) -> None:
        if online and site.lost_at is not None:
            site.lost_at = None
            self._note(f"{site.name} is back")
        elif not online and site.lost_at is None:
            site.lost_at = time.monotonic()
            self._note(f"{site.name} is lost")
        site.facts["online"] = online

    def _ask_unless_stranger(self, node: Node) -> None:
        """Whoever holds no key of ours is told nothing, not even what is run."""
        keys = set(self._expected().values())
        if "" in keys or node.public_key in keys:
            self._ask(node)
        elif node.id not in self._asked:
            self._note("a node whose key is of no site here is left aside")
            self._asked[node.id] = math.inf

    def _ask(self, node: Node) -> None:
        self._asked[node.id] = time.monotonic()
        request = Request("join", self._task.run, self._task.plan)
        self.post.send(
            node.id, request.content(), "query.join", lambda reply: self._meet(node, reply)
        )

    def _meet(self, node: Node, message: Message) -> None:
        reply = _read(message)
        if isinstance(reply, str):
            self._note(f"a node did not say who it is: {printable(reply)}")
            return
        problem = self._refusal(node, reply) or reply.problem
        if problem:
            self._note(f"{reply.site} cannot take part: {problem}")
            return
        known = self._sites.get(reply.site)
        if known is None:
            known = self._sites[reply.site] = _Site(reply.site, node)
            told = f" with {reply.images} images" if reply.images else ""  # [privacy] keeps it back
            self._note(f"{reply.site} has joined{told}")
        elif known.facts["images"] != reply.images:
            self._note(f"{reply.site} now has {reply.images} images")
        known.node = node
        known.facts["images"], known.facts["test_images"] = reply.images, reply.test_images
        self._mark(known, True)

    def _refusal(self, node: Node, reply: Reply) -> str:
        expected = self._expected()
        if reply.site not in expected:
            return "no site of this deployment has that name; `fedwca deploy init` adds sites"
        key = expected[reply.site]
        return "" if not key or key == node.public_key else "it does not hold that site's key"

    def online(self) -> list[str]:
        """Names of the sites that are there, in the deployment's order."""
        here = [name for name, site in self._sites.items() if site.lost_at is None]
        order = list(self._expected())
        return sorted(here, key=lambda name: order.index(name) if name in order else len(order))

    def unseen(self) -> list[str]:
        """Expected sites that have never been there."""
        return [name for name in self._expected() if name not in self._sites]

    def lost_within(self, seconds: float) -> list[str]:
        """Sites that were lost so recently that they may well return."""
        since = time.monotonic() - seconds
        return [n for n, site in self._sites.items() if site.lost_at and site.lost_at > since]

    def tell(self) -> None:
        """Show what is known, if it has changed."""
        shown = {name: site.facts.copy() for name, site in self._sites.items()}
        if shown != self._shown:
            self._shown = shown
            self._watch(shown)


def _read(message: Message) -> Reply | str:
    """What a site says, or why it says nothing."""
    if message.has_error():
        return f"error {message.error.code}, {_last_line(message.error.reason)}"
    try:
        return Reply.read(message.content)
    except WireError as error:
        return str(error)
    except Exception as error:  # whatever a site sends, it must not end the run of the others
        return f"it cannot be read ({type(error).__name__})"


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"


class _Round:
    """The jobs of one round: who has been sent what, and what came of it."""

    def __init__(
        self,
        task: Task,
        sites: _Sites,
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
        self.refused: dict[str, list[str]] = {}
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
        """Stop the run where every site is there, and none can do its job."""
        names = self.unanswered()
        if self._under_way or any(self._tries[name] < _TRIES for name in names):
            return
        problems = dict.fromkeys(self._sites[name].facts["problem"] for name in names)
        raise UserError(
            f"{_listed(names)} failed {_TRIES} times ({'; '.join(problems)}): "
            "mend that, then go on with `fedwca deploy run --resume`"
        )

    def send(self, online: list[str]) -> None:
        """Send the job to every site that is there and has none under way."""
        for name in self.unanswered():
            if name in online and name not in self._under_way and self._tries[name] < _TRIES:
                self._send(self._sites[name])

    def _send(self, site: _Site) -> None:
        self._tries[site.name] += 1
        job = self._jobs[self._clients[site.name]]
        parcel, tensors = pack(self._records(job), site.known, self._task.wire)
        reply = None if job.message is None else self._due(job.message)
        due = _Due(reply, scored=job.offered is not None and not self._task.private)
        sent = _Sent(set(tensors), lambda known: self._packed(site.name, known))
        request = Request(
            "work", self._task.run, self._task.plan, self._round, self._task.wire, parcel
        )
        number = self._sites.post.send(
            site.node.id,
            request.content(),
            "train.work",
            lambda message: self._receive(site, due, sent, message),
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

    def _receive(self, site: _Site, due: "_Due", sent: "_Sent", message: Message) -> None:
        self._under_way.pop(site.name, None)
        reply = _read(message)
        if isinstance(reply, str):
            site.known.clear()  # who knows what it has kept
            (self._fail if message.has_error() else self._refuse)(site, reply)
            return
        self.bytes_up += reply.parcel.nbytes()
        if reply.missing:
            site.known.clear()
            site.facts["problem"] = f"round {self._round}: it had lost what it had been sent"
            self._note(f"round {self._round}: {site.name} has lost what it had; it is sent again")
            return
        if reply.problem:
            self._fail(site, reply.problem)
            return
        try:
            answer, tensors = self._answer(site, reply, due, sent)
        except WireError as error:
            self._refuse(site, str(error))
            if isinstance(error, MiscountError):
                self._sites.ask_again(site)
            return
        except Exception as error:  # as above
            self._refuse(site, f"{type(error).__name__}, {error}")
            return
        site.known = {*sent, *tensors}
        site.facts["answered"] = self._round
        self.answers[site.name] = self._filed(answer)

    def _filed(self, answer: Answer) -> Answer:
        """The answer, its models in files, unless they were kept back."""
        if answer.adapted is None or self._task.least_summed:
            return answer
        path = self._scratch / f"{len(self.answers)}.safetensors"
        save_records(path, {"": answer.adapted.reply}, durable=False)
        return answer._replace(adapted=answer.adapted._replace(reply=filed_record(path)))

    def _refuse(self, site: _Site, reason: str) -> None:
        self.refused.setdefault(site.name, []).append(printable(reason))
        site.facts["refused"] += 1
        self._fail(site, f"its answer is refused: {reason}")

    def _fail(self, site: _Site, problem: str) -> None:
        problem = printable(problem)
        site.facts["problem"] = f"round {self._round}: {problem}"
        self._note(f"round {self._round}: {site.name} failed: {problem}")

    def _answer(
        self, site: _Site, reply: Reply, due: "_Due", sent: "_Sent"
    ) -> tuple[Answer, Tensors]:
        if reply.site != site.name:
            raise WireError(f"it came from {reply.site!r}")
        if (reply.run, reply.round) != (self._task.run, self._round):
            raise WireError(f"it answers round {reply.round} of the run {reply.run!r}")
        if (reply.evaluation is not None) != due.scored:
            raise WireError("it has not scored what it was to score, and nothing else")
        if due.reply is None:
            return self._counted(site, Answer(None, reply.evaluation)), {}
        if not reply.adapted:
            raise WireError("it has not adapted")
        checks = due.reply, self._task.features, self._task.sizes
        check_size(reply.parcel, *checks)
        records, tensors = unpack(reply.parcel, sent)
        if other := records.keys() - {"reply"}:
            raise WireError(f"the record {min(other)!r} is not declared")
        record = records.get("reply", Record())
        check_reply(record, *checks)
        if self._task.least_summed:
            record = self._completed(site, record)
        check_magnitude(record, self._task.features)
        self._check_new(site, fingerprint(reply.parcel, sent.keys()))
        answer = Answer(Adapted(record, Record(), reply.health), reply.evaluation)
        return self._counted(site, answer), tensors

    def _completed(self, site: _Site, record: Record) -> Record:
        """The reply with a model as far as it is shown; all that is seen of it is checked."""
        keys = keys_of(record.values)
        if not keys.usable():
            raise WireError("its keys for the sum cannot be used")
        self.keys[site.name] = keys
        whole = completed(record, self._task.features)
        check_state("local", whole.models["local"], self._task.features)
        return whole

    def _counted(self, site: _Site, answer: Answer) -> Answer:
        record = answer.adapted.reply if answer.adapted else Record()
        images = 1 if self._task.private else site.facts["images"]  # all weigh the same then
        check_counts(record, answer.evaluation, images, site.facts["test_images"])
        return answer

    def _check_new(self, site: _Site, mark: str) -> None:
        """Refuse a model of an earlier round; where a site cannot train, it may stay the same.

        A model that is kept back has no mark: its sum is under keys of this round.
        """
        enough = self._task.private or site.facts["images"] > 1
        trains = self._task.method.training.epochs > 0 and enough
        first = site.told.setdefault(mark, self._round)
        if mark and trains and first != self._round:
            raise WireError(f"it has sent the very same model in round {first}")

    def _due(self, message: Record) -> Declared:
        method, features = self._task.method, self._task.features
        due = method.replies(message)
        if not self._task.least_summed:
            return due
        return declared(due, shown_of(method, message, features), features)

    def close(self) -> None:
        """Answers that come from now on are too late."""
        for name, number in self._under_way.items():
            self._sites.post.expect(number, _late(self._note, name, self._round))


def _late(note: Note, name: str, round: int) -> OnReply:
    """Holds nothing of the round: a reply that never comes must not keep its models."""
    return lambda _: note(f"{name} has answered round {round} too late")


class _Due(NamedTuple):
    """What a site's answer must hold: a reply as declared, if it is to adapt; its scores."""

    reply: Declared | None
    scored: bool


class _Sent(Mapping[str, Tensor]):
    """The tensors that a site was sent, by hash: made once more if its reply names one of them."""

    def __init__(self, hashes: set[str], make: Callable[[set[str]], Tensors]) -> None:
        self._hashes, self._make = hashes, make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise KeyError(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:  # whether it was sent; that makes nothing
        return name in self._hashes

    @cached_property
    def _made(self) -> Tensors:
        return self._make(self._hashes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)


class _Asking:
    """The steps of a secure sum: who does not answer one has dropped out, and is not asked twice.

    A site takes each step once, so that nothing can be learnt from two answers of one site.
    """

    def __init__(self, task: Task, sites: _Sites, round: int, seconds: float, note: Note) -> None:
        self._task, self._sites, self._round, self._note = task, sites, round, note
        self._seconds = seconds
        self.bytes_down = self.bytes_up = 0

    def ask(
        self,
        step: Step,
        letters: Mapping[str, Record],
        names: Callable[[str], Collection[str]],
        take: Take,
    ) -> None:
        """Have what the sites answer taken, as it comes."""
        waited_for: set[str] = set()

        def receive(site: _Site, message: Message) -> None:
            if site.name in waited_for:  # else it is too late
                waited_for.remove(site.name)
                self._receive(site, step, message, names(site.name), take)

        self._sites.look()
        for name, letter in letters.items():
            if self._send(self._sites[name], step, letter, receive):
                waited_for.add(name)
        closes = time.monotonic() + self._seconds
        while waited_for and time.monotonic() < closes:
            self._sites.look()
            waited_for -= {n for n in waited_for if self._sites[n].lost_at is not None}
            if waited_for:
                time.sleep(_POLL)
        waited_for.clear()

    def _send(
        self, site: _Site, step: Step, letter: Record, receive: Callable[[_Site, Message], None]
    ) -> bool:
        parcel, _ = pack({"letter": letter})
        request = Request(step, self._task.run, self._task.plan, self._round, parcel=parcel)
        self.bytes_down += parcel.nbytes()
        number = self._sites.post.send(
            site.node.id, request.content(), "train.sum", lambda message: receive(site, message)
        )
        return bool(number)

    def _receive(
        self, site: _Site, step: Step, message: Message, names: Collection[str], take: Take
    ) -> None:
        reply = _read(message)
        if isinstance(reply, str):
            (self._fail if message.has_error() else self._refuse)(site, step, reply)
            return
        if reply.problem:
            self._fail(site, step, reply.problem)
            return
        try:
            take(site.name, self._record(site.name, reply, names))
        except WireError as error:
            self._refuse(site, step, str(error))
        except Exception as error:  # as above
            self._refuse(site, step, f"{type(error).__name__}, {error}")

    def _record(self, name: str, reply: Reply, names: Collection[str]) -> Record:
        asked = (name, self._task.run, self._round)
        if (reply.site, reply.run, reply.round) != asked:
            raise WireError(f"it answers round {reply.round} of the run {reply.run!r}")
        self.bytes_up += reply.parcel.nbytes()
        check_step_size(reply.parcel, len(names), self._task.features)
        record = unpack(reply.parcel, {})[0].get("letter", Record())
        plain = all(value.dtype in (torch.uint8, torch.int64) for value in record.values.values())
        if record.models or record.values.keys() != set(names) or not plain:
            raise WireError("its answer does not hold what was asked for")
        return record

    def _refuse(self, site: _Site, step: Step, reason: str) -> None:
        site.facts["refused"] += 1
        self._fail(site, step, f"its answer is refused: {reason}")

    def _fail(self, site: _Site, step: Step, problem: str) -> None:
        problem = printable(problem)
        site.facts["problem"] = f"round {self._round}: {problem}"
        self._note(f"round {self._round}: {site.name} drops out of the sum ({step}): {problem}")

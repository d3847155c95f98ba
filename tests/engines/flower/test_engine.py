"""Sites are late, die, return, lie or lose data: rounds go on with those that reply."""

import gc
import itertools
import json
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.data.types import Benchmark
from fedwca.engines.base import Job
from fedwca.engines.codec import WireError, pack, unpack
from fedwca.engines.flower.engine import FlowerEngine, Rules
from fedwca.engines.flower.grid_adapter import StoredReply
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.flower.plan import parse_plan
from fedwca.engines.flower.site_registry import RefusalLedger
from fedwca.methods.base import Client, Record
from fedwca.models import DomainModel
from tests.support.federation import same
from tests.support.sites import (
    QUICK,
    FakeGrid,
    RunLog,
    engine_for,
    plan_for,
    run_rounds,
    settings,
    site_program,
    write_images,
)
from tests.support.wrong_replies import WRONG_REPLIES, Program, send_wrong_replies

NewModel = Callable[[], DomainModel]
HASTY = replace(QUICK, round_seconds=1.0)
PATIENT = replace(QUICK, round_seconds=300.0)  # where all are to answer, however busy the machine


class World:
    """Two sites on folders of tiny images."""

    def __init__(
        self,
        folder: Path,
        benchmark: Benchmark,
        new_model: NewModel,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.folder, self.benchmark, self.new_model = folder, benchmark, new_model
        self.names = write_images(folder, benchmark, count=24, test=10)
        self.grid = FakeGrid({n: self.program(site) for n, site in enumerate(self.names)})
        self.caplog = caplog

    @property
    def messages(self) -> list[str]:
        """What the server logged."""
        site = "fedwca.engines.flower.site"
        return [r.getMessage() for r in self.caplog.records if r.name != site]

    def program(self, site: str) -> Program:
        return site_program(self.folder, site, self.folder / "home")

    def engine(self, method: str = "fedavg", **more: Any) -> tuple[FlowerEngine, RunLog]:
        self.experiment = settings(method, **{k: more.pop(k) for k in ["rounds"] if k in more})
        expected = more.pop("expected", dict.fromkeys(self.names, ""))
        model = self.new_model()
        return engine_for(
            self.grid, self.experiment, model, self.benchmark.classes, expected, **more
        )

    def run(self, engine: FlowerEngine, log: RunLog, start: Any = None) -> Any:
        source = self.new_model().feature_weights()
        return run_rounds(engine, self.experiment.method, source, log, start)


@pytest.fixture
def world(
    tmp_path: Path,
    tiny_benchmark: Benchmark,
    new_model: NewModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> World:
    caplog.set_level("INFO", logger="fedwca")
    monkeypatch.setattr("fedwca.engines.flower.collector._POLL_SECONDS", 0.02)
    return World(tmp_path, tiny_benchmark, new_model, caplog)


def work(grid: FakeGrid) -> list[tuple[int, int]]:
    """Return node and round of every work request."""
    return [(node, request.round) for node, request in grid.sent if request.kind == "work"]


def test_one_message_each_way_a_round(world: World) -> None:
    engine, log = world.engine()
    world.run(engine, log)
    assert [r.kind for _, r in world.grid.sent][:2] == ["join", "join"]
    assert work(world.grid) == [(n, r) for r in range(4) for n in (0, 1)]  # round 3 only scores
    assert [set(line["clients"]) for line in log.lines] == [set(world.names)] * 4
    assert log.lines[-1]["clients"]["dim"]["total"] == 10
    assert log.sites["dim"] == {
        "images": 24,
        "test_images": 10,
        "online": True,
        "answered": 3,
        "refused": 0,
        "problem": "",
    }


def test_what_a_site_has_is_not_sent_again(world: World) -> None:
    engine, log = world.engine("local")
    world.run(engine, log)
    down = [line["bytes_down"] for line in log.lines[1:]]
    weights = sum(t.numel() * 4 for t in world.new_model().feature_weights().values())
    assert down[0] > 2 * weights
    assert down[1] < 0.2 * weights  # the site has the source model and the classifier
    assert all(line["bytes_up"] < 1000 for line in log.lines[1:])


def test_a_site_that_lost_its_disk_is_sent_everything(world: World) -> None:
    engine, log = world.engine("local")
    site = world.grid.sites[0]

    def forgetful(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            for file in (world.folder / "home" / "dim").rglob("*.safetensors"):
                file.unlink()
        return site(request)

    world.grid.sites[0] = forgetful
    world.run(engine, log)
    assert any("resending to dim" in message for message in world.messages)
    assert work(world.grid).count((0, 1)) == 2
    assert [len(line["clients"]) for line in log.lines] == [2, 2, 2, 2]


def test_a_round_closes_without_a_late_site(world: World) -> None:
    engine, log = world.engine(rules=HASTY)
    assert [c.name for c in engine.clients()] == world.names
    world.grid.asleep.add(1)
    threading.Timer(1.5, world.grid.asleep.discard, [1]).start()
    kept = world.run(engine, log)
    assert "round 0: closed without noisy" in world.messages
    assert list(log.lines[0]["clients"]) == ["dim"]
    assert list(log.lines[-1]["clients"]) == world.names
    assert len(kept) == 3


def test_a_site_that_returns_is_sent_the_round_again(world: World) -> None:
    engine, log = world.engine(rules=replace(QUICK, return_seconds=5.0))
    site = world.grid.sites[1]
    assert len(engine.clients()) == 2
    world.grid.asleep.add(1)

    def die_and_return() -> None:
        world.grid.lose(1)
        time.sleep(1.0)
        world.grid.sites[7] = site  # without a key, it comes back as another node

    threading.Timer(1.0, die_and_return).start()
    world.run(engine, log)
    assert (7, 0) in work(world.grid)
    assert any(note.startswith("noisy has disconnected") for note in world.messages)
    assert "noisy has reconnected" in world.messages
    assert [len(line["clients"]) for line in log.lines] == [2, 2, 2, 2]


def test_a_round_waits_a_limited_time_for_a_lost_site(world: World) -> None:
    engine, log = world.engine()
    assert len(engine.clients()) == 2
    world.grid.asleep.add(1)
    threading.Timer(0.7, world.grid.lose, [1]).start()
    world.run(engine, log)
    assert "round 0: closed without noisy" in world.messages
    assert [len(line["clients"]) for line in log.lines] == [1, 1, 1, 1]
    assert log.sites["noisy"]["online"] is False


def test_sites_that_come_and_go_do_not_hold_up_the_others(world: World) -> None:
    engine, _ = world.engine()
    assert len(engine.clients()) == 2
    here, turn = dict(world.grid.sites), itertools.cycle([0, 1])

    def get_nodes() -> list[Any]:
        away = next(turn)
        return [SimpleNamespace(node_id=n, public_key=b"") for n in here if n != away]

    world.grid.get_nodes = get_nodes  # type: ignore[method-assign]
    began = time.monotonic()
    assert len(engine.clients()) == 1
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("method", ["fedwca", "fedavg", "fedpcl", "fedamp", "ladd", "ifca"])
def test_a_site_may_join_in_a_later_round(world: World, method: str) -> None:
    engine, log = world.engine(method)
    late = world.grid.sites.pop(1)
    first = world.grid.sites[0]

    def and_then(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            world.grid.sites[1] = late
        return first(request)

    world.grid.sites[0] = and_then
    kept = world.run(engine, log)
    assert [len(line["clients"]) for line in log.lines] == [1, 1, 2, 2]
    if method == "fedwca":
        clusters = [v for n, v in kept[-1].state.values.items() if n.startswith("cluster_of/")]
        assert [int(c) for c in clusters] == [0, 0]  # the nearest of the one that there is


def test_a_site_without_its_key_is_refused_and_an_unknown_key_ignored(world: World) -> None:
    keys = {"dim": "key of dim", "noisy": "key of noisy"}
    world.grid.keys = {0: b"key of dim", 1: b"key of dim", 3: b"key of nobody"}
    world.grid.sites[2] = world.grid.sites[3] = world.grid.sites[0]  # no key, and a foreign one
    engine, _ = world.engine(expected=keys)
    assert [c.name for c in engine.clients()] == ["dim"]
    assert any(m.startswith("dim as noisy cannot join: ") for m in world.messages)
    assert world.messages.count("Ignoring a node with an unregistered key") == 2
    assert {node for node, _ in world.grid.sent} == {0, 1}


@pytest.mark.parametrize(
    "lie", [{"site": "dim"}, {"site": "stranger"}, {"images": 2**24 + 1}, {"images": -1}]
)
def test_a_lie_on_joining_is_counted_for_the_owner_of_the_key(
    world: World, lie: dict[str, Any]
) -> None:
    honest = world.grid.sites[1]
    world.grid.sites[1] = lambda request: replace(honest(request), **lie)
    world.grid.keys = {0: b"key of dim", 1: b"key of noisy"}
    refusals = world.folder / "refusals.jsonl"
    expected = {"dim": "key of dim", "noisy": "key of noisy"}
    engine, log = world.engine(expected=expected, refusals=refusals)
    world.run(engine, log)
    assert [list(line["clients"]) for line in log.lines] == [["dim"]] * 4
    (refused,) = (line["refused"] for line in log.lines if "refused" in line)
    assert list(refused) == ["noisy"]
    assert RefusalLedger(refusals).count("noisy") == 1
    assert any(note.startswith("noisy") for note in world.messages)

    world.grid.sites[1] = honest
    engine, log = world.engine(expected=expected, refusals=refusals)
    world.run(engine, log)
    assert log.sites["noisy"]["refused"] == 1


def test_a_node_that_does_not_join_is_asked_at_growing_intervals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.engines.flower.site_registry._REPEAT_JOIN", 0.02)
    world.grid.asleep = {1}
    engine, _ = world.engine()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        engine.clients()
    asked = [node for node, request in world.grid.sent if request.kind == "join"]
    # After 0.02 + 0.04 + … s: six times in 1.26 s. The one that answers is asked once.
    assert 2 <= asked.count(1) <= 7
    assert asked.count(0) == 1


def after_round_0(program: Program, then: Program) -> Program:
    return lambda request: (program if request.round == 0 else then)(request)


def test_a_wrong_reply_is_refused_and_changes_no_model(world: World) -> None:
    rounds = 1 + -(-len(WRONG_REPLIES) // 3)  # a site is asked three times a round
    honest = world.grid.sites[1]
    gone = after_round_0(honest, lambda request: Reply("noisy", problem="gone"))
    world.grid.sites[1] = gone
    wanted = world.run(*world.engine("fedwca", rounds=rounds, rules=PATIENT))

    again = world.folder / "again"
    world.grid.sites = {
        0: site_program(world.folder, "dim", again),
        1: send_wrong_replies(
            site_program(world.folder, "noisy", again), list(WRONG_REPLIES), world.folder / "played"
        ),
    }
    engine, log = world.engine("fedwca", rounds=rounds, rules=PATIENT)
    kept = world.run(engine, log)
    tries = 3 * (rounds - 1)
    reasons = [t.reason for t in (*WRONG_REPLIES.values(), *WRONG_REPLIES.values())][:tries]
    refused = [note for note in world.messages if "noisy failed: reply refused: " in note]
    assert [r in note for r, note in zip(reasons, refused, strict=True)] == [True] * tries
    assert log.sites["noisy"]["refused"] == tries
    assert reasons[-1] in log.sites["noisy"]["problem"]
    kept_too = [why for line in log.lines for why in line.get("refused", {}).get("noisy", [])]
    assert [note.partition("refused: ")[2] for note in refused] == kept_too
    assert [set(line["clients"]) for line in log.lines][1:-1] == [{"dim"}] * (rounds - 1)
    for before, after in zip(wanted, kept, strict=True):
        for name, state in before.state.models.items():
            assert same(state, after.state.models[name])
        assert same(before.state.values, after.state.values)


def test_a_site_whose_images_have_changed_is_asked_again(world: World) -> None:
    engine, log = world.engine("fedavg")
    honest = world.grid.sites[1]

    def more_from_round_1(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            first = world.folder / "images" / "noisy" / "0000.png"
            shutil.copy(first, first.with_name("new.png"))
        return honest(request)

    world.grid.sites[1] = more_from_round_1
    world.run(engine, log)
    assert "25 images, the site reported 24" in log.sites["noisy"]["problem"]
    assert "noisy now has 25 images" in world.messages
    assert [len(line["clients"]) for line in log.lines] == [2, 2, 2, 2]


def test_a_run_ends_if_no_site_can_work(world: World) -> None:
    def fails(request: Request) -> Reply:
        if request.kind == "join":
            return Reply("dim", images=3)
        return Reply("dim", problem="the disk is full: make room")

    world.grid.sites = {0: fails}
    engine, log = world.engine(expected={"dim": ""})
    with pytest.raises(UserError, match=r"dim failed 3 times .*the disk is full"):
        world.run(engine, log)


def test_a_crash_at_a_site_is_logged_with_its_last_line(world: World) -> None:
    def crashes(request: Request) -> Reply:
        if request.kind == "join":
            return Reply("dim", images=3)
        raise ZeroDivisionError("of all things")

    world.grid.sites[0] = crashes
    engine, log = world.engine()
    world.run(engine, log)
    assert "round 0: dim failed: error 2, of all things" in world.messages
    assert [list(line["clients"]) for line in log.lines] == [["noisy"]] * 4


def test_a_round_waits_for_least_sites(world: World) -> None:
    late = world.grid.sites.pop(1)
    rules = Rules(least_sites=2, start_seconds=0.1, round_seconds=5, return_seconds=0.1)
    engine, _ = world.engine(rules=rules)
    threading.Timer(1.0, world.grid.sites.__setitem__, [1, late]).start()
    started = time.monotonic()
    assert len(engine.clients()) == 2
    assert time.monotonic() - started > 0.9


def test_a_site_without_images_cannot_join(world: World) -> None:
    for file in (world.folder / "images" / "noisy").iterdir():
        file.unlink()
    engine, _ = world.engine()
    assert [c.name for c in engine.clients()] == ["dim"]
    assert any(message.startswith("noisy cannot join: ") for message in world.messages)
    assert not any(str(world.folder) in note for note in world.messages)  # no path leaves a site


@pytest.mark.parametrize("method", ["local", "fedamp", "fedpcl", "fedwca"])
def test_a_round_repeated_after_a_server_crash_changes_nothing(
    world: World, method: str, tmp_path: Path
) -> None:
    engine, log = world.engine(method)
    unbroken = world.run(engine, log)
    # The server comes back from its checkpoint of round 2, while the sites have done round 2.
    again, log_again = world.engine(method)
    resumed = world.run(again, log_again, start=unbroken[1])
    for part, state in unbroken[-1].state.models.items():
        assert same(state, resumed[-1].state.models[part])
    assert log_again.lines[-1]["clients"] == log.lines[-1]["clients"]
    assert log_again.sites["dim"]["refused"] == 0


def test_another_protocol_is_refused(world: World, new_model: NewModel) -> None:
    plan = plan_for(settings("fedavg"), world.benchmark.classes)
    content = Request("join", "run-1", plan.model_dump_json()).to_records()
    content.config_records["words"]["protocol"] = 99
    with pytest.raises(WireError, match="install the same version"):
        Request.from_records(content)
    reply = world.program("dim")(Request("join", "run-1", '{"seed": 1}'))
    assert "install the same version of fedwca" in reply.problem
    reply = world.program("dim")(Request("work", "../evil", plan.model_dump_json()))
    assert "'../evil'" in reply.problem


def first_jobs(world: World, engine: FlowerEngine) -> dict[Client, Job]:
    method = world.experiment.method
    state = method.init(world.new_model().feature_weights())
    return {c: Job(method.send(state, c), None, Record()) for c in engine.clients()}


def test_replies_are_in_files_until_the_engine_closes(world: World) -> None:
    engine, _ = world.engine()
    answers = engine.exchange(0, Record(), first_jobs(world, engine).items()).results
    assert len(list(engine._scratch.iterdir())) == len(answers) == 2
    for answer in answers.values():
        assert answer.adapted is not None
        models = answer.adapted.reply.models
        assert models["local"] is not models["local"]  # read each time, never kept
        assert same(models["local"], models["local"])
    engine.close()
    assert not engine._scratch.exists()


def test_one_reply_is_pulled_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pull_reply, most = world.grid.pull_reply, list[int]()

    def pull(number: str) -> Any:
        most.append(sum(thread.name.startswith("Thread") for thread in threading.enumerate()))
        return pull_reply(number)

    before = sum(thread.name.startswith("Thread") for thread in threading.enumerate())
    monkeypatch.setattr(world.grid, "pull_reply", pull)
    engine, log = world.engine()
    world.run(engine, log)
    assert max(most) == before + 1
    assert len(log.lines) == 4


def test_a_reply_that_flower_cannot_assemble_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, log = world.engine(rounds=1)
    pull_reply, corrupted = world.grid.pull_reply, list[str]()

    def pull(number: str) -> Any:
        reply = pull_reply(number)
        if reply and not corrupted and world.grid.sent[-1][1].kind == "work":
            corrupted.append(number)
            stored = StoredReply("head", world.folder, 10**6)
            stored.add("head", b"\x00nonsense")
            return stored
        return reply

    monkeypatch.setattr(world.grid, "pull_reply", pull)
    world.run(engine, log)
    assert corrupted
    (reasons,) = log.lines[0]["refused"].values()
    assert len(reasons) == 1
    assert reasons[0].startswith("the reply cannot be read (")
    assert [len(line["clients"]) for line in log.lines] == [2, 2]


def test_an_error_of_the_grid_is_raised(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(number: str) -> Any:
        raise ConnectionError("the SuperLink is gone")

    monkeypatch.setattr(world.grid, "pull_reply", pull)
    engine, log = world.engine()
    with pytest.raises(ConnectionError, match="SuperLink is gone"):
        world.run(engine, log)


def test_refusals_of_rounds_without_evaluation_are_in_the_next_line(world: World) -> None:
    honest, lies = world.grid.sites[0], iter([True])

    def answer(request: Request) -> Reply:
        reply = honest(request)
        lie = request.kind == "work" and request.round == 1 and next(lies, False)
        return replace(reply, round=7) if lie else reply

    world.grid.sites[0] = answer
    engine, log = world.engine()
    source = world.new_model().feature_weights()
    run_rounds(engine, world.experiment.method, source, log, every=3)
    assert [line["round"] for line in log.lines] == [0, 3]
    assert "refused" not in log.lines[0]
    (reason,) = log.lines[1]["refused"]["dim"]
    assert "round 7" in reason


def test_a_late_reply_keeps_no_job_in_memory(world: World) -> None:
    engine, _ = world.engine(rules=HASTY)
    jobs = first_jobs(world, engine)
    world.grid.asleep.add(1)
    messages = [weakref.ref(job.message) for job in jobs.values()]
    engine.exchange(0, Record(), jobs.items())
    assert any("closed without" in note for note in world.messages)
    del jobs
    gc.collect()
    assert [message() for message in messages] == [None, None]
    engine.close()


def test_a_reply_may_name_tensors_that_the_site_was_sent(world: World) -> None:
    def echo(program: Program) -> Program:
        def answer(request: Request) -> Reply:
            reply = program(request)
            if not reply.adapted:
                return reply
            records, came = unpack(request.payload, {})
            own = unpack(reply.payload, came)[0]["reply"].values
            named = Record({"local": records["message"].models["global"]}, own)
            return replace(reply, payload=pack({"reply": named}, came)[0])

        return answer

    world.grid.sites = {n: echo(program) for n, program in world.grid.sites.items()}
    engine, _ = world.engine()
    for answer in engine.exchange(0, Record(), first_jobs(world, engine).items()).results.values():
        assert answer.adapted is not None
        assert same(answer.adapted.reply.models["local"], world.new_model().feature_weights())
    engine.close()


@pytest.mark.parametrize(
    "transform",
    [{"crop": 17}, {"crop": -1}, {"std": [0.0] * 3}, {"std": [1e999] * 3}],
)
def test_a_plan_with_an_invalid_transform_is_refused(transform: dict[str, Any]) -> None:
    plan = plan_for(settings("fedavg"), ("a", "b")).model_dump(mode="json")
    assert parse_plan(json.dumps(plan)).network.image_size == 16
    plan["network"] |= transform
    with pytest.raises(WireError, match="not understood"):
        parse_plan(json.dumps(plan))


def test_a_network_that_is_too_large_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_for(settings("fedavg"), ("a", "b"))
    weights = sum(tensor.numel() for tensor in plan.build_model().state_dict().values())
    monkeypatch.setattr("fedwca.engines.flower.plan.MAX_WEIGHTS", weights - 1)
    drawn = torch.random.get_rng_state()
    with pytest.raises(WireError, match="too large to be sent"):
        plan.build_template()
    assert torch.equal(torch.random.get_rng_state(), drawn)

"""Sites come late, die, return, lie, forget: the rounds go on with those who answer."""

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

from federation import same
from fedwca.data.domains import Benchmark
from fedwca.deploy.plan import read_plan
from fedwca.engines.base import Job
from fedwca.engines.flower import FlowerEngine, Rules
from fedwca.engines.flower_grid import Letter
from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.wire import WireError, pack, unpack
from fedwca.errors import UserError
from fedwca.methods.base import Client, Record
from fedwca.models import DomainModel
from mischief import TRICKS, Program, play_tricks
from sites import (
    QUICK,
    FakeGrid,
    Told,
    engine_for,
    plan_for,
    run_rounds,
    settings,
    site_program,
    write_images,
)

NewModel = Callable[[], DomainModel]
HASTY = replace(QUICK, round_seconds=1.0)
PATIENT = replace(QUICK, round_seconds=300.0)  # where all are to answer, however busy the machine


class World:
    """Two sites on folders of tiny images, and whatever a test does to them."""

    def __init__(self, folder: Path, benchmark: Benchmark, new_model: NewModel) -> None:
        self.folder, self.benchmark, self.new_model = folder, benchmark, new_model
        self.names = write_images(folder, benchmark, count=24, test=10)
        self.grid = FakeGrid({n: self.program(site) for n, site in enumerate(self.names)})

    def program(self, site: str) -> Program:
        return site_program(self.folder, site, self.folder / "home")

    def engine(self, method: str = "fedavg", **more: Any) -> tuple[FlowerEngine, Told]:
        self.experiment = settings(method, **{k: more.pop(k) for k in ["rounds"] if k in more})
        expected = more.pop("expected", dict.fromkeys(self.names, ""))
        model = self.new_model()
        return engine_for(
            self.grid, self.experiment, model, self.benchmark.classes, expected, **more
        )

    def run(self, engine: FlowerEngine, told: Told, start: Any = None) -> Any:
        source = self.new_model().feature_state()
        return run_rounds(engine, self.experiment.method, source, told, start)


@pytest.fixture
def world(
    tmp_path: Path,
    tiny_benchmark: Benchmark,
    new_model: NewModel,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    monkeypatch.setattr("fedwca.engines.flower_sites._POLL", 0.02)
    return World(tmp_path, tiny_benchmark, new_model)


def work(grid: FakeGrid) -> list[tuple[int, int]]:
    """Node and round of all work that was sent out."""
    return [(node, request.round) for node, request in grid.sent if request.kind == "work"]


def test_one_message_each_way_a_round(world: World) -> None:
    engine, told = world.engine()
    world.run(engine, told)
    assert [r.kind for _, r in world.grid.sent][:2] == ["join", "join"]
    assert work(world.grid) == [(n, r) for r in range(4) for n in (0, 1)]  # round 3 only scores
    assert [set(line["clients"]) for line in told.lines] == [set(world.names)] * 4
    assert told.lines[-1]["clients"]["dim"]["total"] == 10
    assert told.sites["dim"] == {
        "images": 24,
        "test_images": 10,
        "online": True,
        "answered": 3,
        "refused": 0,
        "problem": "",
    }


def test_what_a_site_has_is_not_sent_again(world: World) -> None:
    engine, told = world.engine("local")
    world.run(engine, told)
    down = [line["bytes_down"] for line in told.lines[1:]]
    weights = sum(t.numel() * 4 for t in world.new_model().feature_state().values())
    assert down[0] > 2 * weights
    assert down[1] < 0.2 * weights  # the source model and the classifier lie there already
    assert all(line["bytes_up"] < 1000 for line in told.lines[1:])


def test_a_site_that_lost_its_disk_is_sent_everything_and_begins_anew(world: World) -> None:
    engine, told = world.engine("local")
    site = world.grid.sites[0]

    def forgetful(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            for file in (world.folder / "home" / "dim").rglob("*.safetensors"):
                file.unlink()
        return site(request)

    world.grid.sites[0] = forgetful
    world.run(engine, told)
    assert "round 1: dim has lost what it had; it is sent again" in told.notes
    assert work(world.grid).count((0, 1)) == 2
    assert [len(line["clients"]) for line in told.lines] == [2, 2, 2, 2]


def test_a_late_site_is_left_out_and_the_round_closes(world: World) -> None:
    engine, told = world.engine(rules=HASTY)
    assert [c.name for c in engine.clients()] == world.names
    world.grid.asleep.add(1)
    threading.Timer(1.5, world.grid.asleep.discard, [1]).start()
    kept = world.run(engine, told)
    assert "round 0: closed without noisy" in told.notes
    assert list(told.lines[0]["clients"]) == ["dim"]
    assert list(told.lines[-1]["clients"]) == world.names
    assert len(kept) == 3


def test_a_site_that_dies_in_a_round_and_returns_is_sent_the_round_again(world: World) -> None:
    engine, told = world.engine(rules=replace(QUICK, return_seconds=5.0))
    site = world.grid.sites[1]
    assert len(engine.clients()) == 2
    world.grid.asleep.add(1)

    def die_and_return() -> None:
        world.grid.lose(1)
        time.sleep(1.0)
        world.grid.sites[7] = site  # without a key, it comes back as another node

    threading.Timer(1.0, die_and_return).start()
    world.run(engine, told)
    assert (7, 0) in work(world.grid)
    assert any(note.startswith("noisy is lost") for note in told.notes)
    assert "noisy is back" in told.notes
    assert [len(line["clients"]) for line in told.lines] == [2, 2, 2, 2]


def test_a_lost_site_is_waited_for_only_so_long(world: World) -> None:
    engine, told = world.engine()
    assert len(engine.clients()) == 2
    world.grid.asleep.add(1)
    threading.Timer(0.7, world.grid.lose, [1]).start()
    world.run(engine, told)
    assert "round 0: closed without noisy" in told.notes
    assert [len(line["clients"]) for line in told.lines] == [1, 1, 1, 1]
    assert told.sites["noisy"]["online"] is False


def test_sites_that_come_and_go_in_turns_do_not_hold_up_the_others(world: World) -> None:
    engine, _ = world.engine()
    assert len(engine.clients()) == 2
    here, turn = dict(world.grid.sites), itertools.cycle([0, 1])

    def get_nodes() -> list[Any]:
        away = next(turn)
        return [SimpleNamespace(node_id=n, public_key=b"") for n in here if n != away]

    world.grid.get_nodes = get_nodes  # type: ignore[method-assign]
    began = time.monotonic()
    assert len(engine.clients()) == 1
    assert time.monotonic() - began < 30  # it was for ever


@pytest.mark.parametrize("method", ["fedwca", "fedavg", "fedpcl", "fedamp", "ladd", "ifca"])
def test_a_site_may_join_in_a_later_round(world: World, method: str) -> None:
    engine, told = world.engine(method)
    late = world.grid.sites.pop(1)
    first = world.grid.sites[0]

    def and_then(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            world.grid.sites[1] = late
        return first(request)

    world.grid.sites[0] = and_then
    kept = world.run(engine, told)
    assert [len(line["clients"]) for line in told.lines] == [1, 1, 2, 2]
    if method == "fedwca":
        clusters = [v for n, v in kept[-1].state.values.items() if n.startswith("cluster_of/")]
        assert [int(c) for c in clusters] == [0, 0]  # the nearest of the one that there is


def test_a_site_under_another_s_name_is_refused_and_a_stranger_not_even_asked(
    world: World,
) -> None:
    keys = {"dim": "key of dim", "noisy": "key of noisy"}
    world.grid.keys = {0: b"key of dim", 1: b"key of dim", 3: b"key of nobody"}
    world.grid.sites[2] = world.grid.sites[3] = world.grid.sites[0]  # no key, and a foreign one
    engine, told = world.engine(expected=keys)
    assert [c.name for c in engine.clients()] == ["dim"]
    liar = "dim, which came as noisy, cannot take part: it does not hold that site's key"
    assert liar in told.notes
    assert told.notes.count("a node whose key is of no site here is left aside") == 2
    assert {node for node, _ in world.grid.sent} == {0, 1}


@pytest.mark.parametrize("lie", [{"site": "dim"}, {"images": 2**24 + 1}, {"images": -1}])
def test_a_lie_on_joining_is_the_fault_of_whoever_holds_the_key(
    world: World, lie: dict[str, Any]
) -> None:
    honest = world.grid.sites[1]
    world.grid.sites[1] = lambda request: replace(honest(request), **lie)
    world.grid.keys = {0: b"key of dim", 1: b"key of noisy"}
    ledger = world.folder / "ledger.jsonl"
    engine, told = world.engine(
        expected={"dim": "key of dim", "noisy": "key of noisy"}, ledger=ledger
    )
    world.run(engine, told)
    assert [list(line["clients"]) for line in told.lines] == [["dim"]] * 4
    (refused,) = (line["refused"] for line in told.lines if "refused" in line)
    assert list(refused) == ["noisy"]
    assert Ledger(ledger).refusals_of("noisy") == 1
    assert any(note.startswith("noisy") for note in told.notes)

    world.grid.sites[1] = honest
    engine, told = world.engine(
        expected={"dim": "key of dim", "noisy": "key of noisy"}, ledger=ledger
    )
    world.run(engine, told)
    assert told.sites["noisy"]["refused"] == 1


def test_a_node_that_never_says_who_it_is_is_asked_ever_more_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.engines.flower_sites._ASK_AGAIN", 0.02)
    world.grid.asleep = {1}
    engine, _ = world.engine()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        engine.clients()
    asked = [node for node, request in world.grid.sent if request.kind == "join"]
    # After 0.02 + 0.04 + … s: six times in 1.26 s. The one that answers is asked once.
    assert 2 <= asked.count(1) <= 7
    assert asked.count(0) == 1


def test_a_name_that_nobody_expects_is_refused(world: World) -> None:
    honest = world.grid.sites[1]
    world.grid.sites[1] = lambda request: replace(honest(request), site="stranger")
    engine, told = world.engine()
    assert [c.name for c in engine.clients()] == ["dim"]
    assert any("stranger cannot take part: no site of this" in note for note in told.notes)


def after_round_0(program: Program, then: Program) -> Program:
    return lambda request: (program if request.round == 0 else then)(request)


def test_a_wrong_answer_is_refused_and_harms_nobody(world: World) -> None:
    rounds = 1 + -(-len(TRICKS) // 3)  # a site is asked three times a round
    honest = world.grid.sites[1]
    gone = after_round_0(honest, lambda request: Reply("noisy", problem="gone"))
    world.grid.sites[1] = gone
    wanted = world.run(*world.engine("fedwca", rounds=rounds, rules=PATIENT))

    again = world.folder / "again"
    world.grid.sites = {
        0: site_program(world.folder, "dim", again),
        1: play_tricks(
            site_program(world.folder, "noisy", again), list(TRICKS), world.folder / "played"
        ),
    }
    engine, told = world.engine("fedwca", rounds=rounds, rules=PATIENT)
    kept = world.run(engine, told)
    tries = 3 * (rounds - 1)
    reasons = [t.reason for t in (*TRICKS.values(), *TRICKS.values())][:tries]
    refused = [note for note in told.notes if "noisy failed: its answer is refused: " in note]
    assert [r in note for r, note in zip(reasons, refused, strict=True)] == [True] * tries
    assert told.sites["noisy"]["refused"] == tries
    assert reasons[-1] in told.sites["noisy"]["problem"]
    kept_too = [why for line in told.lines for why in line.get("refused", {}).get("noisy", [])]
    assert [note.partition("refused: ")[2] for note in refused] == kept_too
    assert [set(line["clients"]) for line in told.lines][1:-1] == [{"dim"}] * (rounds - 1)
    for before, after in zip(wanted, kept, strict=True):
        for name, state in before.state.models.items():
            assert same(state, after.state.models[name])
        assert same(before.state.values, after.state.values)


def test_a_site_whose_images_have_changed_is_asked_again(world: World) -> None:
    engine, told = world.engine("fedavg")
    honest = world.grid.sites[1]

    def more_from_round_1(request: Request) -> Reply:
        if request.kind == "work" and request.round == 1:
            first = world.folder / "images" / "noisy" / "0000.png"
            shutil.copy(first, first.with_name("new.png"))
        return honest(request)

    world.grid.sites[1] = more_from_round_1
    world.run(engine, told)
    assert "it has learnt from 25 images, and told of 24" in told.sites["noisy"]["problem"]
    assert "noisy now has 25 images" in told.notes
    assert [len(line["clients"]) for line in told.lines] == [2, 2, 2, 2]


def test_a_run_ends_with_a_sentence_where_no_site_can_work(world: World) -> None:
    def fails(request: Request) -> Reply:
        if request.kind == "join":
            return Reply("dim", images=3)
        return Reply("dim", problem="the disk is full: make room")

    world.grid.sites = {0: fails}
    engine, told = world.engine(expected={"dim": ""})
    with pytest.raises(UserError, match=r"dim failed 3 times \(round 0: the disk is full"):
        world.run(engine, told)


def test_a_crash_at_a_site_is_told_by_its_last_line(world: World) -> None:
    def crashes(request: Request) -> Reply:
        if request.kind == "join":
            return Reply("dim", images=3)
        raise ZeroDivisionError("of all things")

    world.grid.sites[0] = crashes
    engine, told = world.engine()
    world.run(engine, told)
    assert "round 0: dim failed: error 2, of all things" in told.notes
    assert [list(line["clients"]) for line in told.lines] == [["noisy"]] * 4


def test_a_round_waits_for_the_least_number_of_sites(world: World) -> None:
    late = world.grid.sites.pop(1)
    rules = Rules(least_sites=2, start_seconds=0.1, round_seconds=5, return_seconds=0.1)
    engine, _ = world.engine(rules=rules)
    threading.Timer(1.0, world.grid.sites.__setitem__, [1, late]).start()
    started = time.monotonic()
    assert len(engine.clients()) == 2
    assert time.monotonic() - started > 0.9


def test_a_site_with_no_images_says_so(world: World) -> None:
    for file in (world.folder / "images" / "noisy").iterdir():
        file.unlink()
    engine, told = world.engine()
    assert [c.name for c in engine.clients()] == ["dim"]
    assert "noisy cannot take part: there are no images in its folder" in told.notes
    assert not any(str(world.folder) in note for note in told.notes)  # no path leaves a site


@pytest.mark.parametrize("method", ["local", "fedamp", "fedpcl", "fedwca"])
def test_a_round_done_again_after_a_server_crash_changes_nothing(
    world: World, method: str, tmp_path: Path
) -> None:
    engine, told = world.engine(method)
    unbroken = world.run(engine, told)
    # The server comes back from its checkpoint of round 2, while the sites have done round 2.
    again, told_again = world.engine(method)
    resumed = world.run(again, told_again, start=unbroken[1])
    for part, state in unbroken[-1].state.models.items():
        assert same(state, resumed[-1].state.models[part])
    assert told_again.lines[-1]["clients"] == told.lines[-1]["clients"]


def test_another_protocol_is_refused_in_words(world: World, new_model: NewModel) -> None:
    plan = plan_for(settings("fedavg"), world.benchmark.classes)
    content = Request("join", "run-1", plan.model_dump_json()).content()
    content.config_records["words"]["protocol"] = 99
    from fedwca.engines.wire import WireError

    with pytest.raises(WireError, match="install the same version"):
        Request.read(content)
    reply = world.program("dim")(Request("join", "run-1", '{"seed": 1}'))
    assert "install the same version of fedwca" in reply.problem
    reply = world.program("dim")(Request("work", "../evil", plan.model_dump_json()))
    assert "no name of a run" in reply.problem


def first_jobs(world: World, engine: FlowerEngine) -> dict[Client, Job]:
    method = world.experiment.method
    state = method.init(world.new_model().feature_state())
    return {c: Job(method.send(state, c), None, Record()) for c in engine.clients()}


def test_replies_lie_in_files_that_are_gone_at_the_end(world: World) -> None:
    engine, _ = world.engine()
    answers = engine.exchange(0, first_jobs(world, engine)).answers
    assert len(list(engine._scratch.iterdir())) == len(answers) == 2
    for answer in answers.values():
        assert answer.adapted is not None
        models = answer.adapted.reply.models
        assert models["local"] is not models["local"]  # read each time, never kept
        assert same(models["local"], models["local"])
    engine.close()
    assert not engine._scratch.exists()


def test_one_reply_is_asked_for_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, most = world.grid.fetch, list[int]()

    def fetched(number: str) -> Any:
        most.append(sum(thread.name.startswith("Thread") for thread in threading.enumerate()))
        return fetch(number)

    before = sum(thread.name.startswith("Thread") for thread in threading.enumerate())
    monkeypatch.setattr(world.grid, "fetch", fetched)
    engine, told = world.engine()
    world.run(engine, told)
    assert max(most) == before + 1
    assert len(told.lines) == 4


def test_a_reply_that_does_not_come_whole_keeps_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower tells of a reply first, and waits in there until all of it has come."""
    monkeypatch.setattr("fedwca.engines.flower_post._PATIENCE", 0.05)
    engine, told = world.engine(rules=HASTY)
    jobs, whole, fetch = first_jobs(world, engine), threading.Event(), world.grid.fetch

    def fetched(number: str) -> Any:
        node, request = world.grid.sent[int(number.removeprefix("message-"))]
        if (node, request.kind) == (1, "work"):
            whole.wait(timeout=60)
        return fetch(number)

    monkeypatch.setattr(world.grid, "fetch", fetched)
    answers = engine.exchange(0, jobs).answers
    assert [client.name for client in answers] == world.names[:1]
    assert f"round 0: closed without {world.names[1]}" in told.notes
    whole.set()
    while engine._post._slow:
        engine._sites.look()
    assert f"{world.names[1]} has answered round 0 too late" in told.notes
    engine.close()


def test_what_flower_cannot_put_together_is_refused_and_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, told = world.engine(rounds=1)
    fetch, spoilt = world.grid.fetch, list[str]()

    def fetched(number: str) -> Any:
        reply = fetch(number)
        if reply and not spoilt and world.grid.sent[-1][1].kind == "work":
            spoilt.append(number)
            letter = Letter("head", world.folder, 10**6)
            letter.add("head", b"\x00nonsense")
            return letter
        return reply

    monkeypatch.setattr(world.grid, "fetch", fetched)
    world.run(engine, told)
    assert spoilt
    (reasons,) = told.lines[0]["refused"].values()
    assert len(reasons) == 1
    assert reasons[0].startswith("it cannot be read (")
    assert [len(line["clients"]) for line in told.lines] == [2, 2]


def test_a_grid_that_cannot_be_reached_is_nobodys_fault(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(number: str) -> Any:
        raise ConnectionError("the SuperLink is gone")

    monkeypatch.setattr(world.grid, "fetch", fetched)
    engine, told = world.engine()
    with pytest.raises(ConnectionError, match="SuperLink is gone"):
        world.run(engine, told)


def test_refusals_of_rounds_that_are_not_scored_stand_in_the_next_line(world: World) -> None:
    honest, lies = world.grid.sites[0], iter([True])

    def answer(request: Request) -> Reply:
        reply = honest(request)
        lie = request.kind == "work" and request.round == 1 and next(lies, False)
        return replace(reply, round=7) if lie else reply

    world.grid.sites[0] = answer
    engine, told = world.engine()
    source = world.new_model().feature_state()
    run_rounds(engine, world.experiment.method, source, told, every=3)
    assert [line["round"] for line in told.lines] == [0, 3]
    assert "refused" not in told.lines[0]
    assert told.lines[1]["refused"] == {"dim": ["it answers round 7 of the run 'run-1'"]}


def test_a_late_answer_keeps_nothing_of_its_round(world: World) -> None:
    engine, told = world.engine(rules=HASTY)
    jobs = first_jobs(world, engine)
    world.grid.asleep.add(1)
    messages = [weakref.ref(job.message) for job in jobs.values()]
    engine.exchange(0, jobs)
    assert any("closed without" in note for note in told.notes)
    del jobs
    gc.collect()
    assert [message() for message in messages] == [None, None]
    engine.close()


def test_a_reply_may_name_what_the_site_was_sent(world: World) -> None:
    def echo(program: Program) -> Program:
        def answer(request: Request) -> Reply:
            reply = program(request)
            if not reply.adapted:
                return reply
            records, came = unpack(request.parcel, {})
            own = unpack(reply.parcel, came)[0]["reply"].values
            named = Record({"local": records["message"].models["global"]}, own)
            return replace(reply, parcel=pack({"reply": named}, came)[0])

        return answer

    world.grid.sites = {n: echo(program) for n, program in world.grid.sites.items()}
    engine, _ = world.engine()
    for answer in engine.exchange(0, first_jobs(world, engine)).answers.values():
        assert answer.adapted is not None
        assert same(answer.adapted.reply.models["local"], world.new_model().feature_state())
    engine.close()


@pytest.mark.parametrize(
    "transform",
    [{"crop": 17}, {"crop": -1}, {"std": [0.0] * 3}, {"std": [1e999] * 3}],
)
def test_a_plan_that_no_image_fits_is_refused_before_any_is_read(transform: dict[str, Any]) -> None:
    told = plan_for(settings("fedavg"), ("a", "b")).model_dump(mode="json")
    assert read_plan(json.dumps(told)).image_size == 16
    told["transform"] |= transform
    with pytest.raises(WireError, match="not understood"):
        read_plan(json.dumps(told))


# --- a server that is started again -------------------------------------------------------------


def test_a_server_that_was_started_again_knows_old_models_and_refusals(world: World) -> None:
    ledger, played = world.folder / "ledger.jsonl", world.folder / "played"
    honest = world.grid.sites[1]
    engine, told = world.engine(rounds=2, ledger=ledger)
    world.grid.sites[1] = play_tricks(honest, ["log"], played)
    first, *_ = world.run(engine, told)
    assert told.sites["noisy"]["refused"] == 3  # in round 1

    with ledger.open("a") as file:
        file.write('{"round": 9, "site": "no')  # as a power cut may leave it
    engine, told = world.engine(rounds=2, ledger=ledger)
    world.grid.sites[1] = play_tricks(honest, ["old model"], played)
    world.run(engine, told, start=first)
    (reasons,) = (line["refused"]["noisy"] for line in told.lines if "refused" in line)
    assert reasons == ["it has sent the very same model in round 0"] * 3
    assert told.sites["noisy"]["refused"] == 6
    whole = Ledger(ledger)
    assert whole.refusals_of("noisy") == 6
    assert whole.refusals_of("dim") == 0
    assert set(whole.models_of("dim").values()) == {0, 1}


def test_a_round_done_again_after_a_crash_is_no_replay(world: World) -> None:
    ledger = world.folder / "ledger.jsonl"
    first, *_ = world.run(*world.engine("fedwca", rounds=2, ledger=ledger))
    engine, told = world.engine("fedwca", rounds=2, ledger=ledger)
    world.run(engine, told, start=first)
    assert not any("refused" in line for line in told.lines)
    assert told.sites["dim"]["refused"] == 0


def test_a_plan_of_a_network_that_no_message_holds_builds_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_for(settings("fedavg"), ("a", "b"))
    weights = sum(tensor.numel() for tensor in plan.build_model().state_dict().values())
    monkeypatch.setattr("fedwca.deploy.plan.MOST_WEIGHTS", weights - 1)
    drawn = torch.random.get_rng_state()
    with pytest.raises(WireError, match="too large to be sent"):
        plan.sketch()
    assert torch.equal(torch.random.get_rng_state(), drawn)

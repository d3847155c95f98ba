"""Secure aggregation end to end: the results of plain averaging, and a server without models."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca._support.files import verify_checksum
from fedwca.core.params import Weights, distance
from fedwca.data.types import Benchmark
from fedwca.deploy.server import check_deployable
from fedwca.engines.base import Job
from fedwca.engines.codec import load_records, pack, unpack
from fedwca.engines.flower.collector import Collector
from fedwca.engines.flower.engine import FlowerEngine
from fedwca.engines.flower.messages import SUM_RECORD, Reply, Request
from fedwca.engines.secure_sum.masked_reply import bytes_to_tensor
from fedwca.engines.secure_sum.protocol import PublicKeys, SumError
from fedwca.engines.secure_sum.server import STEPS, SecureSums
from fedwca.engines.secure_sum.site import SiteSums
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.store import Checkpoint
from fedwca.methods.base import Client, Method, Record
from fedwca.methods.capabilities import GroupMember
from fedwca.models import DomainModel
from tests.support.sites import (
    QUICK,
    FakeGrid,
    RunLog,
    engine_for,
    run_rounds,
    settings,
    site_program,
)
from tests.support.sites import write_images as write_domains
from tests.support.wrong_replies import Program

NewModel = Callable[[], DomainModel]
Values = dict[str, torch.Tensor]
PATIENT = replace(QUICK, round_seconds=300.0)  # no result may hang on how busy a machine is
SITES = [f"{domain}-{part}" for domain in ("dim", "noisy") for part in "abcd"]


def secured(method: str, min_summed: int = 3, **training: Any) -> Experiment:
    experiment = settings(method, **training)
    deploy = experiment.deploy.model_copy(
        update={"secure_aggregation": True, "least_summed": min_summed}
    )
    return experiment.model_copy(update={"deploy": deploy})


class World:
    """Eight sites, four of each domain, in this process; and all their replies."""

    def __init__(
        self,
        folder: Path,
        benchmark: Benchmark,
        new_model: NewModel,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.caplog = caplog
        self.folder, self.benchmark, self.new_model = folder, benchmark, new_model
        self.replies: list[tuple[str, Request, Reply]] = []
        for domain in write_domains(folder, benchmark, count=32, test=4):
            for number, image in enumerate(sorted((folder / "images" / domain).iterdir())):
                site = folder / "images" / f"{domain}-{'abcd'[number % 4]}"
                site.mkdir(exist_ok=True)
                image.rename(site / image.name)
            for part in "abcd":
                (folder / "test" / f"{domain}-{part}").symlink_to(folder / "test" / domain)
        self.programs = {site: self.program(site, "home") for site in SITES}
        self.start()

    @property
    def messages(self) -> list[str]:
        """What the server logged since the last start."""
        site = "fedwca.engines.flower.site"
        return [r.getMessage() for r in self.caplog.records if r.name != site]

    def start(self) -> None:
        self.caplog.clear()
        self.grid = FakeGrid({n: self.record_replies(site) for n, site in enumerate(SITES)})

    def program(self, site: str, home: str) -> Program:
        return site_program(self.folder, site, self.folder / home)

    def record_replies(self, site: str) -> Program:
        def answer(request: Request) -> Reply:
            reply = self.programs[site](request)
            self.replies.append((site, request, reply))
            return reply

        return answer

    def engine(self, experiment: Experiment) -> tuple[FlowerEngine, RunLog]:
        expected = dict.fromkeys(SITES, "")
        classes, rules = self.benchmark.classes, replace(PATIENT, least_sites=len(SITES))
        return engine_for(self.grid, experiment, self.new_model(), classes, expected, rules=rules)

    def run(self, experiment: Experiment, start: Any = None) -> tuple[list[Checkpoint], RunLog]:
        engine, log = self.engine(experiment)
        source = self.new_model().feature_weights()
        return run_rounds(engine, experiment.method, source, log, start), log

    def run_plainly(self, experiment: Experiment) -> tuple[Weights, dict[str, Weights]]:
        """Run one round with models in clear; return the server's state and the sites' models."""
        kept, self.programs = self.programs, {s: self.program(s, "plain") for s in SITES}
        deploy = experiment.deploy.model_copy(update={"secure_aggregation": False})
        (checkpoint,), _ = self.run(experiment.model_copy(update={"deploy": deploy}))
        models = {
            site: unpack(reply.payload, {})[0]["reply"].models["local"]
            for site, _, reply in self.replies
            if reply.adapted
        }
        self.programs, self.replies = kept, []
        self.start()
        return checkpoint.state, models

    def tamper(self, site: str, step: str, change: Callable[[Values], Values]) -> None:
        """Let a site change the values of its reply to a step."""
        honest = self.programs[site]

        def answer(request: Request) -> Reply:
            reply = honest(request)
            if request.kind != step:
                return reply
            record = Record({}, change(unpack(reply.payload, {})[0][SUM_RECORD].values))
            return replace(reply, payload=pack({SUM_RECORD: record})[0])

        self.programs[site] = answer

    def drop(self, site: str, step: str, *, after: bool) -> None:
        """Let a site die at a step of the first sum, before its work or after it."""
        honest = self.programs[site]

        def answer(request: Request) -> Reply:
            if request.kind == step and request.round == 0:
                if after:
                    honest(request)
                raise RuntimeError("killed")
            return honest(request)

        self.programs[site] = answer


@pytest.fixture
def world(
    tmp_path: Path,
    tiny_benchmark: Benchmark,
    new_model: NewModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> World:
    caplog.set_level("INFO", logger="fedwca")
    monkeypatch.setattr("fedwca.engines.flower.collector._POLL_SECONDS", 0.01)
    return World(tmp_path, tiny_benchmark, new_model, caplog)


@pytest.mark.parametrize("method", ["fedavg", "fedwca"])
def test_the_first_round_equals_plain_averaging(world: World, method: str) -> None:
    experiment = secured(method, min_summed=2, rounds=1)
    plain, _ = world.run_plainly(experiment)
    (secure,), _ = world.run(experiment)
    assert secure.state.models.keys() == plain.models.keys()
    assert {k: v.tolist() for k, v in secure.state.values.items()} == {
        k: v.tolist() for k, v in plain.values.items()
    }
    for name, model in plain.models.items():
        # Half a step is 2^-41 here; what is left is one rounding to float32.
        assert distance(model, secure.state.models[name]) <= 2.0**-22
    assert all("has joined" in note for note in world.messages)


def test_sites_delete_the_secrets_of_each_round(world: World) -> None:
    checkpoints, log = world.run(secured("fedwca", min_summed=2))
    assert len(checkpoints) == 3
    assert [len(line["clients"]) for line in log.lines] == [8] * 4
    weights = sum(t.numel() for t in world.new_model().feature_weights().values())
    assert all(line["bytes_up"] > 8 * 8 * weights for line in log.lines[1:])
    for site in SITES:
        folder = world.folder / "home" / site / "run-1"
        assert not (folder / "sum").exists()
        given = verify_checksum(json.loads((folder / "sums.json").read_text()))
        assert given is not None
        assert list(given) == ["0", "1", "2"]


def test_the_server_gets_only_the_first_layer_of_the_first_round(world: World) -> None:
    world.run(secured("fedwca", min_summed=2, rounds=2))
    first = {"backbone.conv1.weight", "backbone.conv1.bias"}
    features = world.new_model().feature_weights()
    for _, request, reply in world.replies:
        records = unpack(reply.payload, {})[0] if reply.payload.blob else {}
        for record in records.values():
            assert not record.models
            floats = {n for n, v in record.values.items() if v.is_floating_point()}
            visible = {n.removeprefix("shown/") for n in floats if n.startswith("shown/")}
            assert visible == (first & features.keys() if request.round == 0 else set()) or (
                request.kind != "work" and not floats
            )
            assert floats - {f"shown/{n}" for n in visible} <= {"alpha", "beta"}
    masked = [
        unpack(reply.payload, {})[0][SUM_RECORD].values["masked"]
        for _, request, reply in world.replies
        if request.kind == "mask"
    ]
    assert len(masked) == 16
    for vector in masked:  # as random as can be: a fixed point number would have zeros on top
        assert abs(float((vector < 0).double().mean()) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("step", "after", "summed"),
    [
        ("share", False, False),
        ("mask", False, False),
        ("mask", True, False),
        ("unmask", False, True),
    ],
)
def test_a_site_may_drop_out_at_every_step(
    world: World, step: str, after: bool, summed: bool
) -> None:
    experiment = secured("fedavg", rounds=1)
    if not PLAIN:
        PLAIN.update(world.run_plainly(experiment)[1])
    world.drop("dim-b", step, after=after)
    (made,), _ = world.run(experiment)
    there = [PLAIN[site] for site in SITES if summed or site != "dim-b"]
    wanted = mean(there)  # all sites have as many images
    assert distance(wanted, made.state.models["global"]) <= 2.0**-22
    assert any(f"dim-b drops out of the sum ({step})" in note for note in world.messages)
    assert any(note.endswith("lacks dim-b") for note in world.messages) is not summed


PLAIN: dict[str, Weights] = {}  # the sites' models of the first round, computed once


def mean(models: list[Weights]) -> Weights:
    return {
        name: torch.stack([s[name].double() for s in models]).mean(dim=0).to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in models[0].items()
    }


def test_without_enough_helpers_the_model_stays(world: World) -> None:
    for site in SITES[:4]:  # four of eight are left, five would be needed
        world.drop(site, "unmask", after=False)
    checkpoints, _ = world.run(secured("fedavg", rounds=2))
    source = world.new_model().feature_weights()
    assert distance(checkpoints[0].state.models["global"], source) == 0
    assert distance(checkpoints[1].state.models["global"], source) > 0
    assert any(note.endswith("only 4 of 8 have helped to unmask") for note in world.messages)


def test_sites_of_a_cluster_without_a_sum_join_others(new_model: NewModel) -> None:
    method, source = secured("fedwca").method, new_model().feature_weights()
    members = {name: 0 if name in "ab" else 1 for name in "abcde"}
    state = method.aggregate(method.init(source), replies(source, members, without="ab"))
    assert {n: int(v) for n, v in state.values.items() if n.startswith("cluster_of/")} == {
        "cluster_of/c": 0,
        "cluster_of/d": 0,
        "cluster_of/e": 0,
    }
    assert [n for n in state.models if n.startswith("cluster/")] == ["cluster/0"]
    groups = method.assign_groups(state, replies(source, members))
    assert {client.name: member for client, member in groups.items()} == dict.fromkeys(
        "abcde", (0, 1)
    )


def replies(source: Weights, members: dict[str, int], without: str = "") -> dict[Client, Record]:
    return {
        Client(name): Record(
            {"local": source}, {"samples": torch.tensor(5), "group": torch.tensor(group)}
        )
        for name, group in members.items()
        if name not in without
    }


def test_sites_of_a_group_that_is_too_small_get_no_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="fedwca")
    keys = dict.fromkeys("ab", PublicKeys(b"", b""))
    members = {name: GroupMember(0, 1) for name in "ab"}
    sums = SecureSums(members, keys, {"w": torch.zeros(3)}, min_summed=3, round=0)
    assert [sums.messages(step) for step in STEPS] == [{}, {}, {}]
    assert sums.means(lambda mean: None) == {}
    (message,) = caplog.messages
    assert "deploy.least_summed = 3" in message


def test_a_site_does_every_step_once(world: World) -> None:
    seen: dict[str, Request] = {}
    honest = world.programs["dim-a"]

    def curious(request: Request) -> Reply:
        """Let the server repeat a step, with another list of sites."""
        seen[request.kind] = request
        if request.kind != "unmask":
            return honest(request)
        secret = world.folder / "home" / "dim-a" / "run-1" / "sum" / "secret.json"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
        again = honest(seen["mask"])
        assert again.problem == "the site is not at the step 'mask' of a sum of round 0"
        reply = honest(request)
        record = unpack(request.payload, {})[0][SUM_RECORD]
        del record.values["summed/noisy-d"]
        lying = replace(request, payload=pack({SUM_RECORD: record})[0])
        assert honest(lying).problem == "the site is not at the step 'unmask' of a sum of round 0"
        return reply

    world.programs["dim-a"] = curious
    (made,), _ = world.run(secured("fedavg", rounds=1))
    assert distance(made.state.models["global"], world.new_model().feature_weights()) > 0
    assert "not at the step 'share'" in honest(seen["share"]).problem


def test_a_repeated_round_gives_only_the_same_sum(world: World) -> None:
    """Training again gives the same model: another sum of it would reveal the difference."""
    experiment = secured("fedavg", rounds=1)
    (first,), _ = world.run(experiment)
    world.start()
    (again,), log = world.run(experiment)
    assert distance(first.state.models["global"], again.state.models["global"]) == 0
    world.start()
    world.drop("noisy-d", "mask", after=False)
    (third,), log = world.run(experiment)
    assert distance(third.state.models["global"], world.new_model().feature_weights()) == 0
    refusal = "the site already took part in a sum of round 0 with other sites"
    assert sum(refusal in note for note in world.messages) == 7
    world.start()
    world.drop("noisy-d", "work", after=False)
    engine, log = world.engine(experiment)
    engine._rules = PATIENT
    (fourth,) = run_rounds(engine, experiment.method, world.new_model().feature_weights(), log)
    assert distance(fourth.state.models["global"], world.new_model().feature_weights()) == 0
    assert sum(refusal in note for note in world.messages) == 7


def test_a_repeated_round_with_other_images_gives_no_sum(world: World) -> None:
    """From 200·x' and 100·x, all others being equal, the server would have the site's model."""
    experiment = secured("fedavg", rounds=1)
    world.run(experiment)
    image = next((world.folder / "images" / "dim-a").iterdir())
    image.with_name("one-more.png").write_bytes(image.read_bytes())
    world.start()
    (again,), _ = world.run(experiment)
    assert distance(again.state.models["global"], world.new_model().feature_weights()) == 0
    refusal = "the site already took part in a sum of round 0 with another model or count"
    assert any(f"dim-a drops out of the sum (mask): {refusal}" in note for note in world.messages)


def test_a_site_that_does_not_know_the_end_of_a_sum_is_in_no_other(world: World) -> None:
    """The server died after the others helped: a sum of other sites would be its second one."""
    experiment = secured("fedavg", rounds=1)
    world.drop("noisy-d", "unmask", after=False)
    honest = world.program("noisy-d", "home")
    (first,), _ = world.run(experiment)
    assert distance(first.state.models["global"], world.new_model().feature_weights()) > 0
    world.programs["noisy-d"] = honest
    world.start()
    (again,), _ = world.run(experiment)
    assert distance(again.state.models["global"], world.new_model().feature_weights()) == 0
    refusal = "the site sent its model to a sum whose outcome it does not know"
    assert any(
        f"noisy-d drops out of the sum (share): {refusal}" in note for note in world.messages
    )


@pytest.mark.parametrize("method", ["fedamp", "fedpcl", "ifca", "local"])
def test_methods_that_need_models_are_refused(method: str) -> None:
    with pytest.raises(UserError, match="secure_aggregation"):
        check_deployable(secured(method))


@pytest.mark.parametrize(
    ("method", "changes", "setting"),
    [
        ("fedwca", {"clustering_layer": "all"}, "clustering_layer"),
        ("fedwca", {"aggregation": "median"}, r'method\.aggregation = "mean"'),
        ("fedavg", {"aggregation": "median"}, r'method\.aggregation = "mean"'),
    ],
)
def test_settings_that_need_models_are_refused(
    method: str, changes: dict[str, str], setting: str
) -> None:
    experiment = secured(method)
    check_deployable(experiment)
    assert experiment.deployed_name.endswith("-secure")
    other = replace(experiment.method, **changes)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=setting):
        check_deployable(experiment.model_copy(update={"method": other}))


# --- beside what is refused in clear --------------------------------------------------------------


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    def play(reply: Reply) -> Reply:
        record = unpack(reply.payload, {})[0]["reply"]
        record.values[name] = change(record.values[name])
        return replace(reply, payload=pack({"reply": record})[0])

    return play


def one_more_scored(reply: Reply) -> Reply:
    assert reply.evaluation is not None
    return replace(reply, evaluation=replace(reply.evaluation, total=5))


LAYER, COUNTER = "backbone.conv1.weight", "bottleneck.norm.num_batches_tracked"
LIES: list[tuple[Callable[[Reply], Reply], str]] = [
    (changed("samples", lambda count: count + 1), "the reply counts 9 images"),
    (one_more_scored, "the reply counts 5 test images"),
    (changed(f"shown/{LAYER}", lambda w: w + 1e6), f"{LAYER} of the model 'local' reaches 1e+06"),
    (
        changed(f"shown/{LAYER}", lambda w: w * torch.nan),
        f"the value 'shown/{LAYER}' is not finite",
    ),
    (changed(f"shown/{COUNTER}", lambda n: -n), f"{COUNTER} of the model 'local' is negative"),
    (changed("key/mask", lambda key: key + 1), "the keys for the secure sum cannot be used"),
]


def lying_once(honest: Program, lie: Callable[[Reply], Reply]) -> Program:
    lies = iter([lie])

    def answer(request: Request) -> Reply:
        reply = honest(request)
        return next(lies, lambda right: right)(reply) if request.kind == "work" else reply

    return answer


def test_lies_in_clear_are_refused_and_sites_may_try_again(world: World) -> None:
    for site, (lie, _) in zip(SITES, LIES, strict=False):
        world.programs[site] = lying_once(world.programs[site], lie)
    (made,), log = world.run(secured("fedwca", min_summed=2, rounds=1))
    for site, (_, reason) in zip(SITES, LIES, strict=False):
        (refusal,) = log.lines[0]["refused"][site]
        assert refusal.startswith(reason)
        assert log.sites[site]["refused"] == 1
    assert len(log.lines[0]["refused"]) == len(LIES)
    assert sum(name.startswith("cluster_of/") for name in made.state.values) == len(SITES)


def test_a_spoiled_sum_is_not_used(world: World) -> None:
    world.tamper("dim-b", "mask", lambda values: {"masked": values["masked"] + 2**61})
    (made,), _ = world.run(secured("fedavg", rounds=1))
    assert distance(made.state.models["global"], world.new_model().feature_weights()) == 0
    assert any(
        "no sum over" in note and "of the model 'mean' reaches" in note for note in world.messages
    )


@pytest.mark.parametrize(
    ("step", "change", "problem"),
    [
        ("mask", lambda values: {"masked": values["masked"][:3]}, "the model's length"),
        ("share", lambda boxes: {**boxes, min(boxes): boxes[min(boxes)][:0]}, "no share"),
    ],
)
def test_a_malformed_reply_to_a_step_is_refused_and_counted(
    world: World, step: str, change: Callable[[Values], Values], problem: str
) -> None:
    world.tamper("dim-b", step, change)
    (made,), log = world.run(secured("fedavg", rounds=1))
    assert log.sites["dim-b"]["refused"] == 1
    assert problem in log.sites["dim-b"]["problem"]
    assert distance(made.state.models["global"], world.new_model().feature_weights()) > 0
    assert any(note.endswith("lacks dim-b") for note in world.messages)


def test_keys_of_another_site_are_refused(world: World) -> None:
    shared: dict[str, torch.Tensor] = {}

    def with_one_key(program: Program) -> Program:
        def answer(request: Request) -> Reply:
            reply = program(request)
            if not reply.adapted or len(lied) == 2:
                return reply
            lied.append(reply.site)
            record = unpack(reply.payload, unpack(request.payload, {})[1])[0]["reply"]
            own = {n: v for n, v in record.values.items() if n.startswith("key/")}
            shared.update({} if shared else own)
            same = Record(record.models, {**record.values, **shared})
            return replace(reply, payload=pack({"reply": same})[0])

        return answer

    lied: list[str] = []
    for site in ("dim-b", "dim-c"):
        world.programs[site] = with_one_key(world.programs[site])
    (made,), log = world.run(secured("fedavg", rounds=1))
    assert {site: facts["refused"] for site, facts in log.sites.items() if facts["refused"]} == {
        lied[1]: 1
    }
    assert "keys for the secure sum are those of another site" in log.sites[lied[1]]["problem"]
    assert distance(made.state.models["global"], world.new_model().feature_weights()) > 0
    assert not any("lacks" in note for note in world.messages)


def exchange(engine: FlowerEngine, world: World, method: Method) -> dict[Client, Record]:
    """Return the replies of a round."""
    state = method.init(world.new_model().feature_weights())
    jobs = {
        client: Job(method.send(state, client), method.offered(state, client), Record())
        for client in engine.clients()
    }
    results = engine.exchange(0, state, jobs.items()).results
    return {client: r.adapted.reply for client, r in results.items() if r.adapted is not None}


def test_sites_of_a_group_share_one_mean_in_memory(world: World) -> None:
    experiment = secured("fedwca", min_summed=2, rounds=1)
    engine, _ = world.engine(experiment)
    replies = exchange(engine, world, experiment.method)
    assert len(replies) == len(SITES)
    groups = {int(reply.values["group"]) for reply in replies.values()}
    weights = [reply.models["local"]["backbone.conv1.weight"] for reply in replies.values()]
    assert len({weight.data_ptr() for weight in weights}) == len(groups) < len(SITES)
    assert not list(engine._scratch.iterdir())
    engine.close()


def test_a_late_reply_to_a_step_is_ignored(world: World) -> None:
    experiment, node = secured("fedavg", rounds=1), SITES.index("dim-b")
    engine, _ = world.engine(experiment)

    def before(site: str, act: Callable[[], object]) -> None:
        honest = world.programs[site]

        def answer(request: Request) -> Reply:
            if request.kind == "mask":
                act()
            return honest(request)

        world.programs[site] = answer

    before("dim-a", lambda: world.grid.asleep.add(node))  # sites are asked in this order
    before("noisy-d", lambda: world.grid.sites.pop(node))
    replies = exchange(engine, world, experiment.method)
    assert {client.name for client in replies} == set(SITES) - {"dim-b"}
    world.grid.lose(node)  # Flower says so in place of an answer
    next(Collector(engine._run, engine._inbox, engine._registry).collect())
    assert any(note.startswith("dim-b replied to round 0 too late") for note in world.messages)
    engine.close()


# --- with [privacy] on ----------------------------------------------------------------------------


def private(method: dict[str, Any]) -> Experiment:
    return resolve(
        {
            "data": {"benchmark": "npz", "source": "clean", "image_size": 16, "path": "/nowhere"},
            "model": {"bottleneck": 16},
            "method": method,
            "training": {"rounds": 1, "epochs": 1, "lr": 0.01, "batch_size": 16},
            "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
            "deploy": {"secure_aggregation": True, "least_summed": 2},
        }
    )


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg", "mean": "plain"},
        {"name": "fedwca", "cluster_weights": "one_equal"},
    ],
)
def test_with_privacy_on_noised_models_are_summed(world: World, method: dict[str, Any]) -> None:
    experiment = private(method)
    (made,), _ = world.run(experiment)
    said = {
        site: load_records(world.folder / "home" / site / "run-1" / "released.safetensors")
        for site in SITES
    }
    models = {site: _only(records).models["local"] for site, records in said.items()}
    assert all("drops" not in note and "failed" not in note for note in world.messages)
    for site, request, reply in world.replies:
        assert (reply.images, reply.evaluation, reply.health) == (0, None, {})
        if request.kind == "work" and request.round == 0:
            came = unpack(request.payload, {})[1]
            values = unpack(reply.payload, came)[0]["reply"].values
            visible = {n.removeprefix("shown/"): v for n, v in values.items() if "shown/" in n}
            assert values.keys() - {f"shown/{n}" for n in visible} == {
                *("samples", "key/mask", "key/share")
            }
            assert int(values["samples"]) == 1
            assert all(torch.equal(models[site][name], part) for name, part in visible.items())
    homes = {site: int(made.state.values.get(f"cluster_of/{site}", 0)) for site in SITES}
    for number in set(homes.values()):
        wanted = mean([models[site] for site, home in homes.items() if home == number])
        name = "global" if method["name"] == "fedavg" else f"cluster/{number}"
        assert distance(wanted, made.state.models[name]) <= 2.0**-20


def _only(records: dict[str, Record]) -> Record:
    """Return the only reply in a site's log."""
    (reply,) = (record for name, record in records.items() if name != "count")
    return reply


def test_a_private_site_sums_the_same_noised_model_again(world: World) -> None:
    experiment = private({"name": "fedavg", "mean": "plain"})
    (first,), _ = world.run(experiment)
    world.start()
    (again,), _ = world.run(experiment)
    assert distance(first.state.models["global"], again.state.models["global"]) == 0
    assert all("drops" not in note for note in world.messages)


# --- damage ---------------------------------------------------------------------------------------


def test_a_site_with_a_corrupt_record_of_sums_takes_part_in_none(tmp_path: Path) -> None:
    sites = {name: SiteSums(tmp_path / name, name) for name in "abc"}
    for name in sites:
        (tmp_path / name).mkdir()
    keys = {name: sums.begin(4, {"w": torch.ones(3)}) for name, sums in sites.items()}
    values = {
        f"{kind}/{name}": bytes_to_tensor(key)
        for name, public in keys.items()
        for kind, key in public._asdict().items()
    }
    (tmp_path / "b" / "sums.json").write_text('{"3": {"members": ["a", "b"]}}')
    with pytest.raises(SumError, match="record of earlier sums is corrupt"):
        sites["b"].run_step("share", 4, Record({}, values), 2)
    boxes = sites["a"].run_step("share", 4, Record({}, values), 2).values
    assert boxes.keys() == {"b", "c"}
    kept = tmp_path / "c" / "sum" / "secret.json"
    kept.write_text(kept.read_text().replace('"round": 4', '"round": 5'))
    with pytest.raises(SumError, match="not at the step 'share'"):
        sites["c"].run_step("share", 5, Record({}, values), 2)

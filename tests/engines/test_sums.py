"""Secure aggregation end to end: plain averaging's results, and a server that sees no model."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca.core.params import State, distance
from fedwca.data.domains import Benchmark
from fedwca.deploy.server import check_deployable, deployed_name
from fedwca.deploy.site_sums import SiteSums
from fedwca.engines.base import Exchanged, Job
from fedwca.engines.flower import FlowerEngine
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.records import load_records
from fedwca.engines.secure_sum import PublicKeys, SumError
from fedwca.engines.sums import means_of
from fedwca.engines.wire import pack, unpack
from fedwca.engines.withheld import as_tensor
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.store import Checkpoint
from fedwca.files import unseal
from fedwca.methods.base import Client, Method, Pooled, Record
from fedwca.models import DomainModel
from mischief import Program
from sites import QUICK, FakeGrid, Told, engine_for, run_rounds, settings, site_program
from sites import write_images as write_domains

NewModel = Callable[[], DomainModel]
PATIENT = replace(QUICK, round_seconds=300.0)  # no result may hang on how busy a machine is
SITES = [f"{domain}-{part}" for domain in ("dim", "noisy") for part in "abcd"]


def secured(method: str, least: int = 3, **training: Any) -> Experiment:
    experiment = settings(method, **training)
    deploy = experiment.deploy.model_copy(
        update={"secure_aggregation": True, "least_summed": least}
    )
    return experiment.model_copy(update={"deploy": deploy})


class World:
    """Eight sites, four of each domain, in this process; and all that the server gets of them."""

    def __init__(self, folder: Path, benchmark: Benchmark, new_model: NewModel) -> None:
        self.folder, self.benchmark, self.new_model = folder, benchmark, new_model
        self.came: list[tuple[str, Request, Reply]] = []
        for domain in write_domains(folder, benchmark, count=32, test=4):
            for number, image in enumerate(sorted((folder / "images" / domain).iterdir())):
                site = folder / "images" / f"{domain}-{'abcd'[number % 4]}"
                site.mkdir(exist_ok=True)
                image.rename(site / image.name)
            for part in "abcd":
                (folder / "test" / f"{domain}-{part}").symlink_to(folder / "test" / domain)
        self.programs = {site: self.program(site, "home") for site in SITES}
        self.start()

    def start(self) -> None:
        self.grid = FakeGrid({n: self.heard(site) for n, site in enumerate(SITES)})

    def program(self, site: str, home: str) -> Program:
        return site_program(self.folder, site, self.folder / home)

    def heard(self, site: str) -> Program:
        def answer(request: Request) -> Reply:
            reply = self.programs[site](request)
            self.came.append((site, request, reply))
            return reply

        return answer

    def engine(self, experiment: Experiment) -> tuple[FlowerEngine, Told]:
        expected = dict.fromkeys(SITES, "")
        classes, rules = self.benchmark.classes, replace(PATIENT, least_sites=len(SITES))
        return engine_for(self.grid, experiment, self.new_model(), classes, expected, rules=rules)

    def run(self, experiment: Experiment, start: Any = None) -> tuple[list[Checkpoint], Told]:
        engine, told = self.engine(experiment)
        source = self.new_model().feature_state()
        return run_rounds(engine, experiment.method, source, told, start), told

    def run_plainly(self, experiment: Experiment) -> list[Checkpoint]:
        """The same sites with clean homes, and models sent as they are."""
        kept, self.programs = self.programs, {s: self.program(s, "plain") for s in SITES}
        deploy = experiment.deploy.model_copy(update={"secure_aggregation": False})
        checkpoints, _ = self.run(experiment.model_copy(update={"deploy": deploy}))
        self.programs, self.came = kept, []
        self.start()
        return checkpoints

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
    tmp_path: Path, tiny_benchmark: Benchmark, new_model: NewModel, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr("fedwca.engines.flower_sites._POLL", 0.01)
    return World(tmp_path, tiny_benchmark, new_model)


def locals_of(world: World, round: int) -> dict[str, State]:
    """Every site's model of a round, by an exchange in plain."""
    found = {}
    for site, request, reply in world.came:
        if reply.adapted and request.round == round:
            found[site] = unpack(reply.parcel, {})[0]["reply"].models["local"]
    return found


@pytest.mark.parametrize("method", ["fedavg", "fedwca"])
def test_the_first_round_is_that_of_plain_averaging(world: World, method: str) -> None:
    experiment = secured(method, least=2, rounds=1)
    plain = world.run_plainly(experiment)[-1].state
    (secure,), told = world.run(experiment)
    assert secure.state.models.keys() == plain.models.keys()
    assert {k: v.tolist() for k, v in secure.state.values.items()} == {
        k: v.tolist() for k, v in plain.values.items()
    }
    for name, model in plain.models.items():
        # Half a step is 2^-41 here; what is left is one rounding to float32.
        assert distance(model, secure.state.models[name]) <= 2.0**-22
    assert all("has joined" in note for note in told.notes)


def test_rounds_go_on_and_sites_keep_nothing_of_a_sum(world: World) -> None:
    checkpoints, told = world.run(secured("fedwca", least=2))
    assert len(checkpoints) == 3
    assert [len(line["clients"]) for line in told.lines] == [8] * 4
    weights = sum(t.numel() for t in world.new_model().feature_state().values())
    assert all(line["bytes_up"] > 8 * 8 * weights for line in told.lines[1:])
    for site in SITES:
        folder = world.folder / "home" / site / "run-1"
        assert not (folder / "sum").exists()
        given = unseal(json.loads((folder / "sums.json").read_text()))
        assert given is not None
        assert list(given) == ["0", "1", "2"]


def test_the_server_gets_no_model_but_the_first_layer_of_the_first_round(world: World) -> None:
    world.run(secured("fedwca", least=2, rounds=2))
    first = {"backbone.conv1.weight", "backbone.conv1.bias"}
    features = world.new_model().feature_state()
    for _, request, reply in world.came:
        records = unpack(reply.parcel, {})[0] if reply.parcel.blob else {}
        for record in records.values():
            assert not record.models
            floats = {n for n, v in record.values.items() if v.is_floating_point()}
            shown = {n.removeprefix("shown/") for n in floats if n.startswith("shown/")}
            assert shown == (first & features.keys() if request.round == 0 else set()) or (
                request.kind != "work" and not floats
            )
            assert floats - {f"shown/{n}" for n in shown} <= {"alpha", "beta"}
    masked = [
        unpack(reply.parcel, {})[0]["letter"].values["masked"]
        for _, request, reply in world.came
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
    models = PLAIN or plain_models(world, experiment)
    world.drop("dim-b", step, after=after)
    (made,), told = world.run(experiment)
    there = {s: m for s, m in models.items() if summed or s != "dim-b"}
    wanted = mean(list(there.values()))  # all sites have as many images
    assert distance(wanted, made.state.models["global"]) <= 2.0**-22
    assert any(f"dim-b drops out of the sum ({step})" in note for note in told.notes)
    assert any(note.endswith("lacks dim-b") for note in told.notes) is not summed


PLAIN: dict[str, State] = {}  # made once: sites' models of the first round


def plain_models(world: World, experiment: Experiment) -> dict[str, State]:
    kept, world.programs = world.programs, {s: world.program(s, "plain") for s in SITES}
    deploy = experiment.deploy.model_copy(update={"secure_aggregation": False})
    world.run(experiment.model_copy(update={"deploy": deploy}))
    models = locals_of(world, 0)
    world.programs, world.came = kept, []
    world.start()
    assert len(models) == len(SITES)
    PLAIN.update(models)
    return models


def mean(states: list[State]) -> State:
    return {
        name: torch.stack([s[name].double() for s in states]).mean(dim=0).to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }


def test_without_enough_helpers_the_model_stays_and_the_log_says_so(world: World) -> None:
    for site in SITES[:4]:  # four of eight are left, five would be needed
        world.drop(site, "unmask", after=False)
    checkpoints, told = world.run(secured("fedavg", rounds=2))
    source = world.new_model().feature_state()
    assert distance(checkpoints[0].state.models["global"], source) == 0
    assert distance(checkpoints[1].state.models["global"], source) > 0
    assert any(note.endswith("only 4 of 8 have helped to unmask") for note in told.notes)


def test_a_cluster_that_was_not_summed_joins_others_in_the_next_round(new_model: NewModel) -> None:
    method, source = secured("fedwca").method, new_model().feature_state()
    members = {name: 0 if name in "ab" else 1 for name in "abcde"}
    state = method.aggregate(method.init(source), replies(source, members, without="ab"))
    assert {n: int(v) for n, v in state.values.items() if n.startswith("cluster_of/")} == {
        "cluster_of/c": 0,
        "cluster_of/d": 0,
        "cluster_of/e": 0,
    }
    assert [n for n in state.models if n.startswith("cluster/")] == ["cluster/0"]
    pooled = method.pooled(state, replies(source, members))
    assert {client.name: pool for client, pool in pooled.items()} == dict.fromkeys("abcde", (0, 1))


def replies(source: State, members: dict[str, int], without: str = "") -> dict[Client, Record]:
    return {
        Client(name): Record(
            {"local": source}, {"samples": torch.tensor(5), "group": torch.tensor(group)}
        )
        for name, group in members.items()
        if name not in without
    }


def test_groups_that_are_too_small_are_asked_nothing() -> None:
    notes: list[str] = []
    asked: list[int] = []

    def nobody(step: str, letters: Any, names: Any, take: Any) -> None:
        asked.append(len(letters))

    keys = dict.fromkeys("ab", PublicKeys(b"", b""))
    pooled = {Client(name): Pooled(0, 1) for name in "ab"}
    assert means_of(pooled, keys, {"w": torch.zeros(3)}, 3, nobody, notes.append) == {}
    assert asked == [0, 0, 0]
    assert notes == ["no sum over a, b: deploy.least_summed = 3"]


def ask(world: World, site: str, step: str, round: int, **values: Any) -> Reply:
    """What a server may try with a site."""
    plan = next(request.plan for _, request, _ in world.came if request.kind == "work")
    letter = Record({}, {k.replace("__", "/"): v for k, v in values.items()})
    request = Request(step, "run-1", plan, round, parcel=pack({"letter": letter})[0])  # type: ignore[arg-type]
    return world.programs[site](request)


def test_a_site_takes_every_step_once_and_never_helps_to_bare_another(world: World) -> None:
    seen: dict[str, Request] = {}
    honest = world.programs["dim-a"]

    def curious(request: Request) -> Reply:
        """The server sends the step a second time, with the first site said to be lost."""
        seen[request.kind] = request
        if request.kind != "unmask":
            return honest(request)
        secret = world.folder / "home" / "dim-a" / "run-1" / "sum" / "secret.json"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
        again = honest(seen["mask"])
        assert again.problem == "it is not at the step 'mask' of a sum of round 0"
        reply = honest(request)
        record = unpack(request.parcel, {})[0]["letter"]
        del record.values["summed/noisy-d"]
        lying = replace(request, parcel=pack({"letter": record})[0])
        assert honest(lying).problem == "it is not at the step 'unmask' of a sum of round 0"
        return reply

    world.programs["dim-a"] = curious
    (made,), _ = world.run(secured("fedavg", rounds=1))
    assert distance(made.state.models["global"], world.new_model().feature_state()) > 0
    assert ask(world, "dim-a", "share", 0).problem.startswith("it is not at the step 'share'")


def test_a_round_that_is_done_again_gives_only_the_sum_that_it_gave(world: World) -> None:
    """Training again gives the same model: another sum of it would bare the difference."""
    experiment = secured("fedavg", rounds=1)
    (first,), _ = world.run(experiment)
    world.start()
    (again,), told = world.run(experiment)
    assert distance(first.state.models["global"], again.state.models["global"]) == 0
    world.start()
    world.drop("noisy-d", "mask", after=False)
    (third,), told = world.run(experiment)
    assert distance(third.state.models["global"], world.new_model().feature_state()) == 0
    refusal = "it has taken part in a sum of round 0 with other sites already"
    assert sum(refusal in note for note in told.notes) == 7
    world.start()
    world.drop("noisy-d", "work", after=False)
    experiment_7 = secured("fedavg", rounds=1)
    engine, told = world.engine(experiment_7)
    engine._rules = PATIENT
    (fourth,) = run_rounds(engine, experiment.method, world.new_model().feature_state(), told)
    assert distance(fourth.state.models["global"], world.new_model().feature_state()) == 0
    assert sum(refusal in note for note in told.notes) == 7


def test_a_round_that_is_done_again_with_other_images_gives_no_second_sum(world: World) -> None:
    """From 200·x' and 100·x, all others being equal, the server would have the site's model."""
    experiment = secured("fedavg", rounds=1)
    world.run(experiment)
    image = next((world.folder / "images" / "dim-a").iterdir())
    image.with_name("one-more.png").write_bytes(image.read_bytes())
    world.start()
    (again,), told = world.run(experiment)
    assert distance(again.state.models["global"], world.new_model().feature_state()) == 0
    refusal = "it has taken part in a sum of round 0 with another model or count already"
    assert any(f"dim-a drops out of the sum (mask): {refusal}" in note for note in told.notes)


def test_who_does_not_know_the_end_of_a_sum_is_in_no_second_one(world: World) -> None:
    """The server had the others' help and died: with a second sum of other sites it had two."""
    experiment = secured("fedavg", rounds=1)
    world.drop("noisy-d", "unmask", after=False)
    honest = world.program("noisy-d", "home")
    (first,), _ = world.run(experiment)
    assert distance(first.state.models["global"], world.new_model().feature_state()) > 0
    world.programs["noisy-d"] = honest
    world.start()
    (again,), told = world.run(experiment)
    assert distance(again.state.models["global"], world.new_model().feature_state()) == 0
    refusal = "it has sent its model to a sum of which it does not know the end"
    assert any(f"noisy-d drops out of the sum (share): {refusal}" in note for note in told.notes)


def test_what_is_refused_before_a_run() -> None:
    for method in ("fedamp", "fedpcl", "ifca", "local"):
        with pytest.raises(UserError, match="needs every site's whole model"):
            check_deployable(secured(method))
    experiment = secured("fedwca")
    check_deployable(experiment)
    assert deployed_name(experiment).endswith("-secure")
    whole = replace(experiment.method, clustering_layer="all")
    with pytest.raises(UserError, match="clustering_layer"):
        check_deployable(experiment.model_copy(update={"method": whole}))


def test_robust_aggregation_is_refused_for_it_looks_at_single_models() -> None:
    for method in ("fedavg", "fedwca"):
        experiment = secured(method)
        robust = replace(experiment.method, aggregation="median")
        with pytest.raises(UserError, match='"median" compares: set it to "mean", or leave'):
            check_deployable(experiment.model_copy(update={"method": robust}))
        assert robust.in_clear(Record(), {}) is None


# --- beside what is refused in clear --------------------------------------------------------------


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    def play(reply: Reply) -> Reply:
        record = unpack(reply.parcel, {})[0]["reply"]
        record.values[name] = change(record.values[name])
        return replace(reply, parcel=pack({"reply": record})[0])

    return play


def one_more_scored(reply: Reply) -> Reply:
    assert reply.evaluation is not None
    return replace(reply, evaluation=replace(reply.evaluation, total=5))


LAYER, COUNTER = "backbone.conv1.weight", "bottleneck.norm.num_batches_tracked"
LIES: list[tuple[Callable[[Reply], Reply], str]] = [
    (changed("samples", lambda count: count + 1), "it has learnt from 9 images, and told of 8"),
    (one_more_scored, "it has scored 5 test images, and told of 4"),
    (changed(f"shown/{LAYER}", lambda w: w + 1e6), f"{LAYER} of the model 'local' reaches 1e+06"),
    (
        changed(f"shown/{LAYER}", lambda w: w * torch.nan),
        f"the value 'shown/{LAYER}' is not finite",
    ),
    (changed(f"shown/{COUNTER}", lambda n: -n), f"{COUNTER} of the model 'local' is negative"),
    (changed("key/mask", lambda key: key + 1), "its keys for the sum cannot be used"),
]


def lying_once(honest: Program, lie: Callable[[Reply], Reply]) -> Program:
    lies = iter([lie])

    def answer(request: Request) -> Reply:
        reply = honest(request)
        return next(lies, lambda right: right)(reply) if request.kind == "work" else reply

    return answer


def test_what_is_in_clear_is_refused_as_ever_and_sites_may_mend_it(world: World) -> None:
    for site, (lie, _) in zip(SITES, LIES, strict=False):
        world.programs[site] = lying_once(world.programs[site], lie)
    (made,), told = world.run(secured("fedwca", least=2, rounds=1))
    for site, (_, reason) in zip(SITES, LIES, strict=False):
        (refusal,) = told.lines[0]["refused"][site]
        assert refusal.startswith(reason)
        assert told.sites[site]["refused"] == 1
    assert len(told.lines[0]["refused"]) == len(LIES)
    assert sum(name.startswith("cluster_of/") for name in made.state.values) == len(SITES)


def test_a_spoilt_sum_is_noticed_though_not_by_whom(world: World) -> None:
    honest = world.programs["dim-b"]

    def answer(request: Request) -> Reply:
        reply = honest(request)
        if request.kind != "mask":
            return reply
        vector = unpack(reply.parcel, {})[0]["letter"].values["masked"]
        spoilt = Record({}, {"masked": vector + 2**61})
        return replace(reply, parcel=pack({"letter": spoilt})[0])

    world.programs["dim-b"] = answer
    (made,), told = world.run(secured("fedavg", rounds=1))
    assert distance(made.state.models["global"], world.new_model().feature_state()) == 0
    assert any(
        "no sum over" in note and "of the model 'mean' reaches" in note for note in told.notes
    )


def test_a_step_of_another_form_is_refused_and_counted(world: World) -> None:
    honest = world.programs["dim-b"]

    def answer(request: Request) -> Reply:
        reply = honest(request)
        if request.kind != "mask":
            return reply
        short = Record({}, {"masked": torch.zeros(3, dtype=torch.int64)})
        return replace(reply, parcel=pack({"letter": short})[0])

    world.programs["dim-b"] = answer
    _, told = world.run(secured("fedavg", rounds=1))
    assert told.sites["dim-b"]["refused"] == 1
    assert "no vector of the model's length" in told.sites["dim-b"]["problem"]
    assert any(note.endswith("lacks dim-b") for note in told.notes)


def test_an_empty_box_is_refused_and_ends_nothing(world: World) -> None:
    honest = world.programs["dim-b"]

    def answer(request: Request) -> Reply:
        reply = honest(request)
        if request.kind != "share":
            return reply
        boxes = unpack(reply.parcel, {})[0]["letter"].values
        boxes[min(boxes)] = torch.zeros(0, dtype=torch.uint8)
        return replace(reply, parcel=pack({"letter": Record({}, boxes)})[0])

    world.programs["dim-b"] = answer
    (made,), told = world.run(secured("fedavg", rounds=1))
    assert "it has nothing for another site" in told.sites["dim-b"]["problem"]
    assert distance(made.state.models["global"], world.new_model().feature_state()) > 0
    assert any(note.endswith("lacks dim-b") for note in told.notes)


def test_a_site_with_another_s_keys_is_refused_until_it_has_its_own(world: World) -> None:
    shared: dict[str, torch.Tensor] = {}

    def with_one_key(program: Program) -> Program:
        def answer(request: Request) -> Reply:
            reply = program(request)
            if not reply.adapted or len(lied) == 2:
                return reply
            lied.append(reply.site)
            record = unpack(reply.parcel, unpack(request.parcel, {})[1])[0]["reply"]
            own = {n: v for n, v in record.values.items() if n.startswith("key/")}
            shared.update({} if shared else own)
            same = Record(record.models, {**record.values, **shared})
            return replace(reply, parcel=pack({"reply": same})[0])

        return answer

    lied: list[str] = []
    for site in ("dim-b", "dim-c"):
        world.programs[site] = with_one_key(world.programs[site])
    (made,), told = world.run(secured("fedavg", rounds=1))
    assert {site: facts["refused"] for site, facts in told.sites.items() if facts["refused"]} == {
        lied[1]: 1
    }
    assert "keys for the sum are those of another site" in told.sites[lied[1]]["problem"]
    assert distance(made.state.models["global"], world.new_model().feature_state()) > 0
    assert not any("lacks" in note for note in told.notes)


def exchange(engine: FlowerEngine, world: World, method: Method) -> tuple[list[Client], Exchanged]:
    clients, state = engine.clients(), method.init(world.new_model().feature_state())
    jobs = {c: Job(method.send(state, c), method.offered(state, c), Record()) for c in clients}
    return clients, engine.exchange(0, jobs)


def test_one_mean_for_each_group_is_in_memory_and_nothing_in_files(world: World) -> None:
    experiment = secured("fedwca", least=2, rounds=1)
    engine, _ = world.engine(experiment)
    clients, exchanged = exchange(engine, world, experiment.method)
    assert exchanged.sums is not None
    means = exchanged.sums({c: Pooled(n % 2, 1) for n, c in enumerate(clients)}).means
    assert len(means) == len(SITES)
    assert len({id(mean) for mean in means.values()}) == 2
    assert not list(engine._scratch.iterdir())
    engine.close()


def test_a_step_that_is_answered_too_late_is_left_aside(world: World) -> None:
    experiment, node = secured("fedavg", rounds=1), SITES.index("dim-b")
    engine, told = world.engine(experiment)
    clients, exchanged = exchange(engine, world, experiment.method)

    def before(site: str, act: Callable[[], object]) -> None:
        honest = world.programs[site]

        def answer(request: Request) -> Reply:
            if request.kind == "mask":
                act()
            return honest(request)

        world.programs[site] = answer

    before("dim-a", lambda: world.grid.asleep.add(node))  # sites are asked in this order
    before("noisy-d", lambda: world.grid.sites.pop(node))
    assert exchanged.sums is not None
    means = exchanged.sums({client: Pooled(0, 1) for client in clients}).means
    assert {client.name for client in means} == set(SITES) - {"dim-b"}
    world.grid.lose(node)  # Flower says so in place of an answer
    engine._sites.look()
    assert "dim-b has answered round 0 too late" in told.notes
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
def test_with_privacy_on_sums_are_of_noised_models_and_nothing_else_is_told(
    world: World, method: dict[str, Any]
) -> None:
    experiment = private(method)
    (made,), told = world.run(experiment)
    said = {
        site: load_records(world.folder / "home" / site / "run-1" / "released.safetensors")
        for site in SITES
    }
    models = {site: _only(records).models["local"] for site, records in said.items()}
    assert all("drops" not in note and "failed" not in note for note in told.notes)
    for site, request, reply in world.came:
        assert (reply.images, reply.evaluation, reply.health) == (0, None, {})
        if request.kind == "work" and request.round == 0:
            came = unpack(request.parcel, {})[1]
            values = unpack(reply.parcel, came)[0]["reply"].values
            shown = {n.removeprefix("shown/"): v for n, v in values.items() if "shown/" in n}
            assert values.keys() - {f"shown/{n}" for n in shown} == {
                *("samples", "key/mask", "key/share")
            }
            assert int(values["samples"]) == 1
            assert all(torch.equal(models[site][name], part) for name, part in shown.items())
    homes = {site: int(made.state.values.get(f"cluster_of/{site}", 0)) for site in SITES}
    for number in set(homes.values()):
        wanted = mean([models[site] for site, home in homes.items() if home == number])
        name = "global" if method["name"] == "fedavg" else f"cluster/{number}"
        assert distance(wanted, made.state.models[name]) <= 2.0**-20


def _only(records: dict[str, Record]) -> Record:
    """The one reply that a site kept, beside its count of them."""
    (reply,) = (record for name, record in records.items() if name != "told")
    return reply


def test_a_private_site_that_is_asked_again_sums_the_model_that_it_has_noised(world: World) -> None:
    experiment = private({"name": "fedavg", "mean": "plain"})
    (first,), _ = world.run(experiment)
    world.start()
    (again,), told = world.run(experiment)
    assert distance(first.state.models["global"], again.state.models["global"]) == 0
    assert all("drops" not in note for note in told.notes)


# --- damage ---------------------------------------------------------------------------------------


def test_a_site_that_no_longer_knows_its_sums_takes_part_in_none(tmp_path: Path) -> None:
    sites = {name: SiteSums(tmp_path / name, name) for name in "abc"}
    for name in sites:
        (tmp_path / name).mkdir()
    keys = {name: sums.begin(4, {"w": torch.ones(3)}) for name, sums in sites.items()}
    values = {
        f"{kind}/{name}": as_tensor(key)
        for name, public in keys.items()
        for kind, key in public._asdict().items()
    }
    (tmp_path / "b" / "sums.json").write_text('{"3": {"members": ["a", "b"]}}')
    with pytest.raises(SumError, match="no longer knows with whom it was summed"):
        sites["b"].take("share", 4, Record({}, values), 2)
    boxes = sites["a"].take("share", 4, Record({}, values), 2).values
    assert boxes.keys() == {"b", "c"}
    kept = tmp_path / "c" / "sum" / "secret.json"
    kept.write_text(kept.read_text().replace('"round": 4', '"round": 5'))
    with pytest.raises(SumError, match="not at the step 'share'"):
        sites["c"].take("share", 5, Record({}, values), 2)
    model = tmp_path / "a" / "sum" / "local.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    counts = {"weight": torch.tensor(1), "total": torch.tensor(3)}
    with pytest.raises(SumError, match="kept to be summed is damaged"):
        sites["a"].take("mask", 4, Record({}, counts), 2)

"""What every method of the registry must do."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fedwca.core.params import Weights
from fedwca.core.style import style_length
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.engines.codec import load_records, pack, save_records
from fedwca.engines.record_checks import check_message, check_reply, check_size
from fedwca.methods import METHODS, Client, Method, Record, Training
from fedwca.methods.capabilities import AssignsNewcomers
from tests.support.drawn import rng
from tests.support.federation import Log, TinyProblem, final_models, same

TRAINING = Training(rounds=3, epochs=1, lr=0.01, batch_size=16)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param](training=TRAINING)


@pytest.fixture
def log(method: Method, tiny: TinyProblem) -> Log:
    return tiny.run(method)


@pytest.mark.parametrize("kind", METHODS.values(), ids=list(METHODS))
def test_it_is_a_frozen_dataclass_that_documents_its_fields(kind: type[Method]) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    for field in dataclasses.fields(kind):
        if field.name != "training":
            docs = "".join(base.__doc__ or "" for base in kind.__mro__)
            assert f"{field.name}:" in docs, f"{field.name} is not documented"


def test_it_runs_and_scores_every_client_in_every_round(
    method: Method, log: Log, tiny: TinyProblem
) -> None:
    assert [line["round"] for line in log.lines] == list(range(method.rounds + 1))
    for line in log.lines:
        assert set(line["clients"]) == {c.name for c in tiny.clients}
        assert 0 <= line["accuracy"]["mean"] <= 1


def test_only_what_is_declared_travels(method: Method, log: Log, tiny: TinyProblem) -> None:
    template = tiny.source()
    classes, features = tiny.new_model().classifier_weight().shape
    sizes = {"M": classes, "q": features, "S": style_length(16)}
    for messages, answers in zip(log.messages, log.replies, strict=True):
        for client, message in messages.items():
            check_message(message, method.sends, template, sizes)
            schema, reply = method.replies(message), answers[client].reply
            check_reply(reply, schema, template, sizes)
            check_size(pack({"reply": reply})[0], schema, template, sizes)


def test_messages_states_and_memories_survive_the_file_format(log: Log, tmp_path: Path) -> None:
    records = {"state": log.states[-1], **log.memories[-1]}
    for messages, answers in zip(log.messages, log.replies, strict=True):
        records |= {f"job {c.name}": message for c, message in messages.items()}
        records |= {f"reply {c.name}": answer.reply for c, answer in answers.items()}
    save_records(tmp_path / "records", records)
    back = load_records(tmp_path / "records")
    assert list(back) == list(records)
    for group, record in records.items():
        assert list(back[group].models) == list(record.models)
        for model, state in record.models.items():
            assert list(back[group].models[model]) == list(state)
            assert same(back[group].models[model], state)
        assert same(back[group].values, record.values)


def test_resuming_from_any_round_ends_in_the_same_models(
    method: Method, log: Log, tiny: TinyProblem, tmp_path: Path
) -> None:
    expected = final_models(log, method, tiny.clients)
    for done in range(1, method.rounds):
        save_records(tmp_path / "c", {"state": log.states[done], **log.memories[done]})
        groups = load_records(tmp_path / "c")
        finals = tiny.finals(method, start=(done, groups.pop("state"), groups))
        assert all(same(finals[client], expected[client]) for client in expected)


def test_it_handles_a_client_with_one_image_and_one_with_one_class(
    method: Method, tiny: TinyProblem, one_image_client: ClientData, one_class_client: ClientData
) -> None:
    clients = [*tiny.clients, one_image_client, one_class_client]
    log = tiny.run(method, clients)
    for state in final_models(log, method, clients).values():
        check_sound(state)
    assert log.lines[-1]["clients"]["alone/0"]["accuracy"] is None
    assert log.lines[-1]["accuracy"]["mean"] is not None


@pytest.mark.parametrize("batch_norm", ["blend", "recalibrate", "local"])
def test_batch_norm_statistics_stay_sound(
    method: Method, tiny: TinyProblem, batch_norm: str
) -> None:
    training = dataclasses.replace(TRAINING, batch_norm=batch_norm)
    for state in tiny.finals(dataclasses.replace(method, training=training)).values():
        assert set(state) == set(tiny.source())
        check_sound(state)


def check_sound(state: Weights) -> None:
    for name, tensor in state.items():
        assert torch.isfinite(tensor).all(), name
        if name.endswith("running_var"):
            assert (tensor >= 0).all(), name
        if name.endswith("num_batches_tracked"):
            assert tensor.dtype == torch.int64


@pytest.mark.parametrize("lost_in", [(0,), (1,), (0, 1, 2)], ids=["first", "later", "always"])
def test_a_client_that_does_not_reply_still_gets_a_model(
    method: Method, tiny: TinyProblem, lost_in: tuple[int, ...]
) -> None:
    lost = tiny.clients[-1].name
    log = tiny.run(method, lost=dict.fromkeys(lost_in, lost))
    check_sound(final_models(log, method, tiny.clients)[lost])
    assert log.lines[-1]["clients"][lost]["total"] > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_works_with_very_few_clients(method: Method, tiny: TinyProblem, count: int) -> None:
    log = tiny.run(method, tiny.clients[:count])
    assert len(log.lines[-1]["clients"]) == count


def test_a_round_without_replies_changes_no_model(method: Method, tiny: TinyProblem) -> None:
    state = method.init(tiny.new_model().feature_weights())
    after = method.aggregate(state, {})
    nobody = Client("nobody")
    assert same(method.offered(after, nobody), method.offered(state, nobody))


def test_a_newcomer_is_assigned_as_in_a_round_and_no_model_changes(
    method: Method, tiny: TinyProblem
) -> None:
    if not isinstance(method, AssignsNewcomers):
        pytest.skip("its server needs to know nothing of a newcomer")
    *others, last = tiny.clients
    state = tiny.run(method, others).states[-1]
    newcomer = Client("newcomer")
    message = method.send(state, newcomer)
    reply = method.adapt(tiny.new_model(), last.train, message, Record(), rng()).reply
    assigned = method.assign_newcomer(state, newcomer, reply)
    assert assigned.models is state.models
    assert all(assigned.values[key] is value for key, value in state.values.items())
    known = {key: value for key, value in assigned.values.items() if key not in state.values}
    in_a_round = method.aggregate(state, {newcomer: reply}).values
    assert all(torch.equal(value, in_a_round[key]) for key, value in known.items())
    assert list(known) == ["cluster_of/newcomer"]
    sent = method.send(assigned, newcomer)
    assert "cluster" in {**sent.models, **sent.values}


def test_unlabeled_images_have_no_labels() -> None:
    assert {f.name for f in dataclasses.fields(UnlabeledImages)} == {"pixels", "index", "transform"}

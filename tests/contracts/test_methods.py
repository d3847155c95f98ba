"""What every method of the registry must do."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedwca.core.params import State, clone
from fedwca.core.style import style_length
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.engines.codec import load_records, pack, save_records
from fedwca.engines.record_checks import check_message, check_reply, check_size
from fedwca.methods import METHODS, Client, Method, Record, Training
from fedwca.methods.capabilities import AssignsNewcomers
from fedwca.models import DomainModel
from tests.support.federation import TinyProblem, final_models, run, same

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=3, epochs=1, lr=0.01, batch_size=16)

every_method = pytest.mark.parametrize("name", METHODS)


def make(name: str) -> Method:
    return METHODS[name](training=TRAINING)


@every_method
def test_it_is_a_frozen_dataclass_that_documents_its_fields(name: str) -> None:
    kind = METHODS[name]
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    for field in dataclasses.fields(kind):
        if field.name != "training":
            docs = "".join(base.__doc__ or "" for base in kind.__mro__)
            assert f"{field.name}:" in docs, f"{field.name} is not documented"


@every_method
def test_it_runs_and_scores_every_client_in_every_round(tiny: TinyProblem, name: str) -> None:
    method = make(name)
    log = tiny.run(method)
    assert [line["round"] for line in log.lines] == list(range(method.rounds + 1))
    for line in log.lines:
        assert set(line["clients"]) == {c.name for c in tiny.clients}
        assert 0 <= line["accuracy"]["mean"] <= 1


@every_method
def test_only_what_is_declared_travels(tiny: TinyProblem, name: str) -> None:
    method = make(name)
    model = tiny.new_model()
    template = clone(model.feature_state())
    classes, features = model.classifier_weight().shape
    sizes = {"M": classes, "q": features, "S": style_length(16)}
    log = run(method, model, tiny.clients)
    for messages, answers in zip(log.messages, log.replies, strict=True):
        for client, message in messages.items():
            check_message(message, method.sends, template, sizes)
            schema, reply = method.replies(message), answers[client].reply
            check_reply(reply, schema, template, sizes)
            check_size(pack({"reply": reply})[0], schema, template, sizes)


@every_method
def test_messages_states_and_memories_survive_the_file_format(
    tiny: TinyProblem, name: str, tmp_path: Path
) -> None:
    log = tiny.run(make(name))
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


@every_method
def test_resuming_from_any_round_ends_in_the_same_models(
    tiny: TinyProblem, name: str, tmp_path: Path
) -> None:
    method = make(name)
    whole = tiny.run(method)
    expected = final_models(whole, method, tiny.clients)
    for done in range(1, method.rounds):
        save_records(tmp_path / "c", {"state": whole.states[done], **whole.memories[done]})
        groups = load_records(tmp_path / "c")
        state = groups.pop("state")
        rest = tiny.run(method, start=(done, state, groups))
        finals = final_models(rest, method, tiny.clients)
        assert all(same(finals[client], expected[client]) for client in expected)


@every_method
def test_it_handles_a_client_with_one_image_and_one_with_one_class(
    new_model: NewModel,
    tiny_clients: list[ClientData],
    one_image_client: ClientData,
    one_class_client: ClientData,
    name: str,
) -> None:
    method = make(name)
    clients = [*tiny_clients, one_image_client, one_class_client]
    log = run(method, new_model(), clients)
    for state in final_models(log, method, clients).values():
        check_sound(state)
    assert log.lines[-1]["clients"]["alone/0"]["accuracy"] is None
    assert log.lines[-1]["accuracy"]["mean"] is not None


@every_method
@pytest.mark.parametrize("batch_norm", ["blend", "recalibrate", "local"])
def test_batch_norm_statistics_stay_sound(tiny: TinyProblem, name: str, batch_norm: str) -> None:
    training = dataclasses.replace(TRAINING, batch_norm=batch_norm)
    method = METHODS[name](training=training)
    log = tiny.run(method)
    names = set(tiny.new_model().feature_state())
    for state in final_models(log, method, tiny.clients).values():
        assert set(state) == names
        check_sound(state)


def check_sound(state: State) -> None:
    for name, tensor in state.items():
        assert torch.isfinite(tensor).all(), name
        if name.endswith("running_var"):
            assert (tensor >= 0).all(), name
        if name.endswith("num_batches_tracked"):
            assert tensor.dtype == torch.int64


@every_method
@pytest.mark.parametrize("lost_in", [(0,), (1,), (0, 1, 2)], ids=["first", "later", "always"])
def test_a_client_that_does_not_reply_still_gets_a_model(
    tiny: TinyProblem, name: str, lost_in: tuple[int, ...]
) -> None:
    method = make(name)
    lost = tiny.clients[-1].name
    log = tiny.run(method, lost=dict.fromkeys(lost_in, lost))
    check_sound(final_models(log, method, tiny.clients)[lost])
    assert log.lines[-1]["clients"][lost]["total"] > 0


@every_method
@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_works_with_very_few_clients(tiny: TinyProblem, name: str, count: int) -> None:
    clients = tiny.clients[:count]
    log = tiny.run(make(name), clients)
    assert len(log.lines[-1]["clients"]) == count


@every_method
def test_a_round_without_replies_changes_no_model(tiny: TinyProblem, name: str) -> None:
    method = make(name)
    state = method.init(tiny.new_model().feature_state())
    after = method.aggregate(state, {})
    nobody = Client("nobody")
    assert same(method.offered(after, nobody), method.offered(state, nobody))


@every_method
def test_a_newcomer_is_assigned_as_in_a_round_and_no_model_changes(
    tiny: TinyProblem, name: str
) -> None:
    method = make(name)
    if not isinstance(method, AssignsNewcomers):
        pytest.skip("its server needs to know nothing of a newcomer")
    *others, last = tiny.clients
    state = tiny.run(method, others).states[-1]
    newcomer, rng = Client("newcomer"), torch.Generator().manual_seed(0)
    message = method.send(state, newcomer)
    reply = method.adapt(tiny.new_model(), last.train, message, Record(), rng).reply
    assigned = method.assign_newcomer(state, newcomer, reply)
    assert assigned.models is state.models
    assert all(assigned.values[key] is value for key, value in state.values.items())
    known = {key: value for key, value in assigned.values.items() if key not in state.values}
    in_a_round = method.aggregate(state, {newcomer: reply}).values
    assert all(torch.equal(value, in_a_round[key]) for key, value in known.items())
    assert list(known) == ["cluster_of/newcomer"]
    assert "cluster" in method.send(assigned, newcomer).models


def test_unlabeled_images_have_no_labels() -> None:
    assert {f.name for f in dataclasses.fields(UnlabeledImages)} == {"pixels", "index", "transform"}

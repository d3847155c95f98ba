"""Everything that leaves a client, in both engines, is compared with what is declared.

Each method has a row in the table of docs/privacy.md; a new method needs one too.
"""

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto
from PIL import Image

from fedwca._support.errors import UserError
from fedwca.data.augment import DIGITS
from fedwca.data.images import ClientData, LabeledImages
from fedwca.data.types import Benchmark
from fedwca.engines.codec import unpack
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.record_checks import check_reply
from fedwca.experiments.config import Experiment, parse_override, resolve
from fedwca.methods import METHODS, Record
from fedwca.models import DomainModel
from tests.support.federation import run
from tests.support.sites import FakeGrid, engine_for, run_rounds, settings, site_program

NewModel = Callable[[], DomainModel]
Program = Callable[[Request], Reply]
DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"
SITES = ["dim", "noisy"]
PRIVACY = {"clip": 0.5, "noise_multiplier": 1.0}
# Fields of a reply besides what its method declares.
WORDS = {"protocol", "site", "run", "round", "problem", "missing", "adapted", "places"}
WORDS |= {"images", "test_images"}

every_method = pytest.mark.parametrize("name", METHODS)


class Documented(NamedTuple):
    """A method's row of the table."""

    weights: set[str]
    numbers: set[str]
    health: set[str]


def documented(name: str) -> Documented:
    text = DOCUMENT.read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
    assert row is not None, f"docs/privacy.md does not say what leaves a client of {name}"
    return Documented(*(set(re.findall(r"`([^`]+)`", cell)) for cell in row[1].split("|")[:3]))


# --- sites ------------------------------------------------------------------------------------


class Wire(FakeGrid):
    """A grid that keeps every reply as it goes over the wire."""

    def push_message(self, message: Any) -> str | None:
        number = super().push_message(message)
        content = self._replies[str(number)].content
        assert content is not None, self._replies[str(number)].error
        # A copy, since the server releases the tensors of what it has read.
        self.recorded.append(copy.deepcopy(content))
        return number

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recorded: list[RecordDict] = []

    def bytes(self) -> list[bytes]:
        """The very bytes."""
        return [recorddict_to_proto(c).SerializeToString(deterministic=True) for c in self.recorded]


def write_sites(folder: Path, benchmark: Benchmark, name_part: Callable[[int, int], str]) -> None:
    """Write each training image into a folder of its own, `name_part` into all names of its row."""
    for site in SITES:
        domain = benchmark.domains[site]
        for row in range(18):
            label = int(domain.labels[row])
            place = folder / "images" / site / f"{row:04d}{name_part(row, label)}"
            if row >= 12:
                place = folder / "test" / site / benchmark.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"{row:04d}{name_part(row, label)}.png"
            Image.fromarray(domain.images[row]).save(file)


def over_the_wire(
    experiment: Experiment,
    folder: Path,
    model: DomainModel,
    benchmark: Benchmark,
    asked: Callable[[Program], Program] = lambda program: program,
) -> Wire:
    home = folder / "home"
    grid = Wire({node: asked(site_program(folder, s, home)) for node, s in enumerate(SITES)})
    expected = dict.fromkeys(SITES, "")
    engine, log = engine_for(grid, experiment, model, benchmark.classes, expected)
    with mock.patch("fedwca.engines.flower.collector._POLL_SECONDS", 0.01):
        run_rounds(engine, experiment.method, model.feature_weights(), log)
    assert not any(status["problem"] for status in log.sites.values())
    return grid


@every_method
def test_a_site_sends_what_is_declared_and_no_names_labels_or_pixels(
    name: str, new_model: NewModel, tiny_benchmark: Benchmark, tmp_path: Path
) -> None:
    experiment = settings(name, rounds=2)
    # Two worlds with the same pixels: all names of files are others, all training labels too.
    right, wrong = tmp_path / "secret-place", tmp_path / "elsewhere"
    write_sites(right, tiny_benchmark, lambda row, label: f"-{tiny_benchmark.classes[label]}-Meier")
    write_sites(wrong, tiny_benchmark, lambda row, label: f"-{tiny_benchmark.classes[label - 1]}")
    grid = over_the_wire(experiment, right, new_model(), tiny_benchmark)
    other = over_the_wire(experiment, wrong, new_model(), tiny_benchmark)
    assert grid.bytes() == other.bytes()

    check_canaries(b"".join(grid.bytes()), [*pixels_of(tiny_benchmark)])
    for forbidden in (b"Meier", b"secret-place", b".png", str(tmp_path).encode()):
        assert forbidden not in b"".join(grid.bytes())
    sent = Documented(set(), set(), set())
    for (_, request), content in zip(grid.sent, grid.recorded, strict=True):
        check_words(content, request)
        sent.health.update(content.metric_records["health"])
        if request.kind == "work" and request.round < experiment.method.rounds:
            record = replied(request, content, grid, experiment)
            sent.weights.update(record.models)
            sent.numbers.update(record.values)
    assert sent == documented(name)


def check_words(content: RecordDict, request: Request) -> None:
    assert set(content) <= {"words", "tensors", "health", "evaluation"}
    words = content.config_records["words"]
    assert set(words) == WORDS
    assert words["site"] in SITES
    assert (words["run"], words["round"], words["problem"]) == ("run-1", request.round, "")
    counts = (12, 6) if request.kind == "join" else (0, 0)
    assert (words["images"], words["test_images"]) == counts
    assert set(content.array_records["tensors"]) <= {"blob"}
    if "evaluation" in content:
        assert set(content.metric_records["evaluation"]) == {"correct", "total", "confidence"}


def replied(request: Request, content: RecordDict, grid: Wire, experiment: Experiment) -> Record:
    """The reply's record, which must hold what the method declares, in names, dtypes and sizes."""
    known = travelled(grid)
    sent = unpack(request.payload, known)[0]
    payload = Reply.from_records(content).payload
    record = unpack(payload, known)[0]["reply"]
    template, due = sent["offered"].models[""], experiment.method.replies(sent["message"])
    check_reply(record, due, template, {"M": 3, "q": 16, "S": 27})
    placed = {where[-1] for where in json.loads(payload.places)}
    assert set(safetensors.torch.load(payload.blob)) <= placed  # nothing rides along
    return record


def travelled(grid: Wire) -> dict[str, torch.Tensor]:
    """All tensors that have gone either way."""
    known: dict[str, torch.Tensor] = {}
    blobs = [sent.payload.blob for _, sent in grid.sent]
    blobs += [Reply.from_records(content).payload.blob for content in grid.recorded]
    for blob in filter(None, blobs):
        known.update(safetensors.torch.load(blob))
    return known


def pixels_of(benchmark: Benchmark) -> list[np.ndarray]:
    return [benchmark.domains[site].images[row] for site in SITES for row in range(18)]


def check_canaries(left: bytes, images: list[np.ndarray]) -> None:
    """No line of any image is in the bytes: as stored, as numbers 0 to 1, as network input."""
    for image in images:
        share, seen = image / np.float32(255), DIGITS(torch.from_numpy(image[None]), None, "cpu")[0]
        lines = [image[8], image[8, :, 0], share[8], share[8, :, 0]]
        lines += [seen[0, 8].numpy(), seen[0, 8].half().numpy()]
        lines += [line.astype(np.float64) for line in lines]  # as numbers for the log travel
        for line in lines:
            canary = line.tobytes()
            assert len(set(canary)) > 4  # one that could be anything would be none
            assert canary not in left


# --- the simulator ----------------------------------------------------------------------------


@every_method
def test_a_simulated_client_sends_the_same(
    name: str, new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    method = settings(name, rounds=2).method
    log = run(method, new_model(), tiny_clients)
    poisoned = run(method, new_model(), [with_wrong_labels(client) for client in tiny_clients])
    sent = Documented(set(), set(), set())
    for answers, others in zip(log.replies, poisoned.replies, strict=True):
        for client, adapted in answers.items():
            assert as_bytes(adapted.reply) == as_bytes(others[client].reply)
            assert adapted.health == others[client].health
            sent.weights.update(adapted.reply.models)
            sent.numbers.update(adapted.reply.values)
            sent.health.update(adapted.health)
    every = [adapted for answers in log.replies for adapted in answers.values()]
    left = b"".join(as_bytes(a.reply) for a in every)
    left += b"".join(np.array(value).tobytes() for a in every for value in a.health.values())
    check_canaries(left, [c.train.pixels[row] for c in tiny_clients for row in c.train.index])
    assert sent == documented(name)


def with_wrong_labels(client: ClientData) -> ClientData:
    def wrong(part: LabeledImages | None) -> LabeledImages | None:
        return part and dataclasses.replace(part, labels=(part.labels + 1) % 3)

    return dataclasses.replace(client, validation=wrong(client.validation), test=wrong(client.test))


def as_bytes(record: Record) -> bytes:
    tensors = [t for state in record.models.values() for t in state.values()]
    return b"".join(t.contiguous().numpy().tobytes() for t in (*tensors, *record.values.values()))


# --- with [privacy] on ------------------------------------------------------------------------


def private(name: str) -> Experiment:
    """The method with [privacy] on, its settings as the refusal asks for; UserError if in vain."""
    chosen = {
        "data": {"benchmark": "npz", "source": "clean", "image_size": 16, "path": "/nowhere"},
        "model": {"bottleneck": 16},
        "training": {"rounds": 2, "epochs": 1, "lr": 0.01, "batch_size": 16},
        "method": {"name": name},
        "privacy": PRIVACY,
    }
    try:
        return resolve(chosen)
    except UserError as error:
        advice = str(error).partition(": set ")[2]
        if not advice:
            raise
        return resolve(chosen, [parse_override(part) for part in advice.split(" and ")])


def asked_twice(program: Program) -> Program:
    """A site that is asked everything once more, as after a lost answer: it says the very same."""

    def answer(request: Request) -> Reply:
        first, second = program(request), program(request)
        assert first == second
        return second

    return answer


@every_method
def test_with_privacy_on_one_noised_model_leaves_and_nothing_else(
    name: str, new_model: NewModel, tiny_benchmark: Benchmark, tmp_path: Path
) -> None:
    if name in ("fedpcl", "ifca"):
        with pytest.raises(UserError, match="also send"):
            private(name)
        return
    experiment = private(name)
    write_sites(tmp_path, tiny_benchmark, lambda row, label: "")
    grid = over_the_wire(experiment, tmp_path, new_model(), tiny_benchmark, asked_twice)
    for (_, request), content in zip(grid.sent, grid.recorded, strict=True):
        words = content.config_records["words"]
        assert (words["images"], words["test_images"], words["problem"]) == (0, 0, "")
        assert set(content) == {"words", "tensors", "health"}
        assert not content.metric_records["health"]
        if request.kind == "work" and request.round < experiment.method.rounds:
            record = replied(request, content, grid, experiment)
            assert set(record.models) <= {"local"}
            values = {name: int(value) for name, value in record.values.items()}
            assert values in ({}, {"samples": 1})
            message = unpack(request.payload, travelled(grid))[0]["message"]
            for state in record.models.values():
                check_noised(state, next(iter(message.models.values())))
            if name == "fedwca" and request.round == 1:
                assert list(message.models) == ["init", "cluster"]  # training starts from the first


def check_noised(state: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> None:
    """Every number has noise of standard deviation z·C = 0.5, and no counter counts.

    Noise can round to nothing: one number of some million stays as it was.
    """
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, reference[name])
        elif not name.endswith("running_var"):
            assert int((tensor == reference[name]).sum()) <= 1
    moved = torch.cat([(state[n] - reference[n]).flatten() for n in state if "weight" in n])
    assert 0.47 < float(moved.std()) < 0.53

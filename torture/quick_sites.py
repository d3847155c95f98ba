"""Sites in this process that train nothing, so that an attack can be made thousands of times."""

from dataclasses import replace

import torch

from fedwca.engines.base import Evaluation
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.wire import Tensors, pack, unpack
from fedwca.methods import Method, Record
from fedwca.models import DomainModel, build_model
from mischief import Program

SITES = ["bay", "fen", "hill", "lake", "mill", "moor", "peak", "weir"]
CLASSES = ("bar", "post", "square")


def new_model() -> DomainModel:
    """Always the same; torch's own randomness is shared with the attacks beside this one."""
    model = build_model("lenet", len(CLASSES), image_size=16, bottleneck=8)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=rng))
    model.freeze_classifier()
    return model.eval()


def honest_site(name: str, method: Method) -> Program:
    """Answers at once, with a model near the one that came; it depends on site and round alone."""
    shelf: Tensors = {}

    def answer(request: Request) -> Reply:
        if request.kind == "join":
            return Reply(name, request.run, images=20, test_images=5)
        records, came = unpack(request.parcel, shelf)
        shelf.update(came)
        score = Evaluation(3, 5, 0.5) if "offered" in records else None
        told = Reply(name, request.run, request.round, evaluation=score)
        if "message" not in records:
            return told
        rng = torch.Generator().manual_seed(100 * SITES.index(name) + request.round)
        record = honest_record(method, records["message"], rng)
        parcel, sent = pack({"reply": record}, came)
        shelf.update(sent)
        return replace(told, adapted=True, parcel=parcel, health={"loss": 1.0})

    return answer


def honest_record(method: Method, message: Record, rng: torch.Generator) -> Record:
    start = next(iter(message.models.values()))
    local = {
        name: t + 0.01 * torch.randn(t.shape, generator=rng) if t.is_floating_point() else t + 1
        for name, t in start.items()
    }
    due = {name: kind for name, kind in method.replies(message).items() if name != "local"}
    values = {"samples": torch.tensor(20)}
    for name in due.keys() & {"alpha", "beta"}:
        sides = due[name].sides  # type: ignore[union-attr]
        values[name] = torch.rand(sides, generator=rng, dtype=torch.float64).softmax(0)
    return Record({"local": local}, values)

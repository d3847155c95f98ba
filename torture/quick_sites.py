"""Sites that train nothing, so that an attack can run thousands of times, and images for others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedwca.data.augment import DIGITS
from fedwca.data.types import Benchmark, Domain
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import Tensors, pack, unpack
from fedwca.engines.flower.messages import Reply, Request
from fedwca.methods import Method, Record
from fedwca.models import DomainModel, build_model
from tests.support.sites import write_images
from tests.support.wrong_replies import Program

SITES = ["bay", "fen", "hill", "lake", "mill", "moor", "peak", "weir"]
CLASSES = ("bar", "post", "square")


def write_noise(folder: Path, sites: list[str], side: int) -> list[str]:
    """Write images without content, 16 to train and 8 to test for each site; return the sites."""
    rng = np.random.default_rng(0)

    def drawn() -> Domain:
        pixels = rng.integers(0, 256, (24, side, side, 3), dtype=np.uint8)
        return Domain(pixels, np.arange(24) % len(CLASSES))

    noise = Benchmark("noise", CLASSES, {site: drawn() for site in sites}, DIGITS)
    return write_images(folder, noise, count=16, test=8)


def new_model() -> DomainModel:
    """Return the same model every time, whatever other threads draw from torch's generator."""
    model = build_model("lenet", len(CLASSES), image_size=16, bottleneck=16)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=rng))
    model.freeze_classifier()
    return model.eval()


def honest_site(name: str, method: Method) -> Program:
    """Return a site that replies at once, with a model that depends on site and round only."""
    known: Tensors = {}

    def answer(request: Request) -> Reply:
        if request.kind == "join":
            return Reply(name, request.run, images=20, test_images=5)
        records, received = unpack(request.payload, known)
        known.update(received)
        score = Evaluation(3, 5, 0.5) if "offered" in records else None
        reply = Reply(name, request.run, request.round, evaluation=score)
        if "message" not in records:
            return reply
        rng = torch.Generator().manual_seed(100 * SITES.index(name) + request.round)
        record = honest_record(method, records["message"], rng)
        payload, sent = pack({"reply": record}, received)
        known.update(sent)
        return replace(reply, adapted=True, payload=payload, health={"loss": 1.0})

    return answer


def honest_record(method: Method, message: Record, rng: torch.Generator) -> Record:
    start = next(iter(message.models.values()))
    local = {
        name: t + 0.01 * torch.randn(t.shape, generator=rng) if t.is_floating_point() else t + 1
        for name, t in start.items()
    }
    schema = {name: kind for name, kind in method.replies(message).items() if name != "local"}
    values = {"samples": torch.tensor(20)}
    for name in schema.keys() & {"alpha", "beta"}:
        sides = schema[name].sides
        values[name] = torch.rand(sides, generator=rng, dtype=torch.float64).softmax(0)
    return Record({"local": local}, values)

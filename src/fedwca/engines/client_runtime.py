"""The client's half of an exchange, the same for every engine."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from fedwca._support.errors import UserError
from fedwca.core.params import Weights, is_finite
from fedwca.data.images import ClientData
from fedwca.engines.base import ClientResult, Evaluation, Job
from fedwca.methods.base import Adaptation, Method, Record
from fedwca.methods.inference import evaluate, load
from fedwca.models import DomainModel
from fedwca.privacy.mechanism import Privacy, draw_from_seed, draw_from_system, privatize

__all__ = ["ClientRuntime", "seed_generator", "use_threads"]


def seed_generator(seed: int, round: int, client: str) -> torch.Generator:
    """Return the generator of (seed, round, client): neither engine nor order changes a result."""
    digest = hashlib.sha256(f"{seed}/{round}/{client}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute on `count` threads; with one, results are the same bits in every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class ClientRuntime:
    """Runs the jobs of clients, one after another, in the buffers of one model.

    Attributes:
        clients: their data, by name.
        privacy: applied to replies before they leave.
        seeded_noise: draw the privacy noise from the seed, for simulations; otherwise from the
            operating system, so that nobody can predict it.
    """

    model: DomainModel
    method: Method
    clients: dict[str, ClientData]
    seed: int
    privacy: Privacy = field(default_factory=Privacy)
    seeded_noise: bool = False

    def run(self, name: str, round: int, job: Job) -> ClientResult:
        """Run a client's job: evaluate first, then adapt."""
        evaluation = adapted = None
        if job.offered is not None:
            self.load_offered(name, job.offered, job.memory)
            evaluation = self.evaluate(name)
        if job.message is not None:
            adapted = self.adapt(name, round, job.message, job.memory)
        return ClientResult(adapted, evaluation)

    def load_offered(self, name: str, offered: Weights, memory: Record) -> None:
        """Load the weights that the client uses, given those that the server offers."""
        self.load(name, self.method.personal(offered, memory), memory)

    def load(self, name: str, weights: Weights, memory: Record) -> None:
        """Load weights into the model, with the client's BatchNorm statistics."""
        images = self.clients[name].train
        load(self.model, weights, images, self.method.training.batch_norm, memory)

    def adapt(self, name: str, round: int, message: Record, memory: Record) -> Adaptation:
        """Run the client's half of a round."""
        rng = seed_generator(self.seed, round, name)
        adapted = self.method.adapt(self.model, self.clients[name].train, message, memory, rng)
        if not all(is_finite(weights) for weights in adapted.reply.models.values()):
            sentence = (
                f"The model of client {name!r} became NaN or infinite in round {round}. "
                "Lower training.lr."
            )
            raise UserError(sentence, elsewhere=sentence)
        if not self.privacy.on:
            return adapted
        draw = draw_from_seed(self.seed, round, name) if self.seeded_noise else draw_from_system
        return privatize(adapted, message, self.privacy, draw)

    def evaluate(self, name: str) -> Evaluation:
        """Evaluate the model on the client's test images; without any, only its confidence."""
        client = self.clients[name]
        outputs = evaluate(self.model, client.test.images if client.test else client.train)
        confidence, predicted = outputs.probabilities.max(dim=1)
        if client.test is None:
            return Evaluation(0, 0, float(confidence.mean()))
        correct = int((predicted == torch.from_numpy(client.test.labels)).sum())
        return Evaluation(correct, len(client.test), float(confidence.mean()))

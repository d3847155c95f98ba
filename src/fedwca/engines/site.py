"""One place where clients' work is done: a resident model, the method, the data."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from fedwca.core.params import State, is_finite
from fedwca.data.images import ClientData
from fedwca.engines.base import Answer, Evaluation, Job
from fedwca.engines.privacy import Privacy, from_system, noise_from, protected
from fedwca.errors import UserError
from fedwca.methods.base import Adapted, Method, Record
from fedwca.methods.inference import evaluate, load
from fedwca.methods.shot import own_of
from fedwca.models import DomainModel

__all__ = ["Site", "generator", "threads"]


def generator(seed: int, round: int, client: str) -> torch.Generator:
    """Randomness from (seed, round, client) alone, so no engine and no order changes a result."""
    digest = hashlib.sha256(f"{seed}/{round}/{client}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute on so many threads. With one, the bits are the same in any process."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Site:
    """Does one client's work at a time, in the model's resident buffers.

    Attributes:
        privacy: what is done to replies before they leave.
        seeded_noise: take its noise from the seed, for simulations; else nobody can know it.
    """

    model: DomainModel
    method: Method
    clients: dict[str, ClientData]
    seed: int
    privacy: Privacy = field(default_factory=Privacy)
    seeded_noise: bool = False

    def work(self, name: str, round: int, job: Job) -> Answer:
        """A client's half of an exchange."""
        evaluation = self.score(name, job)
        if job.message is None:
            return Answer(None, evaluation)
        return Answer(self.adapt(name, round, job.message, job.memory), evaluation)

    def score(self, name: str, job: Job) -> Evaluation | None:
        """How the client does with what it is offered, which the model holds afterwards."""
        if job.offered is None:
            return None
        return self.evaluate(name, self.method.personal(job.offered, job.memory), job.memory)

    def adapt(self, name: str, round: int, message: Record, memory: Record) -> Adapted:
        """Run the client's half of a round."""
        rng = generator(self.seed, round, name)
        adapted = self.method.adapt(self.model, self.clients[name].train, message, memory, rng)
        if not all(is_finite(state) for state in adapted.reply.models.values()):
            sentence = (
                f"the model of client {name!r} became NaN or infinite in round {round}: "
                "lower training.lr"
            )
            raise UserError(sentence, elsewhere=sentence)
        if not self.privacy.on:
            return adapted
        draw = noise_from(self.seed, round, name) if self.seeded_noise else from_system
        return protected(adapted, self.method, message, self.privacy, draw)

    def evaluate(self, name: str, deployed: State, memory: Record) -> Evaluation:
        """Score the weights on the client's test images, or tell their confidence."""
        client = self.clients[name]
        load(self.model, deployed, client.train, self.method.training.batch_norm, own_of(memory))
        outputs = evaluate(self.model, client.test.images if client.test else client.train)
        confidence, predicted = outputs.probabilities.max(dim=1)
        if client.test is None:
            return Evaluation(0, 0, float(confidence.mean()))
        correct = int((predicted == torch.from_numpy(client.test.labels)).sum())
        return Evaluation(correct, len(client.test), float(confidence.mean()))

"""What leaves a client when [privacy] is on: one clipped and noised model, and nothing else."""

import hashlib
import os

import numpy as np
import torch

from fedwca._support.errors import UserError
from fedwca.core.privacy import Draw, noised_update
from fedwca.methods.base import Adaptation, Record
from fedwca.privacy.settings import Privacy

__all__ = ["draw_from_seed", "draw_from_system", "privatize"]

_SAMPLES = "samples"  # the only value that may be in a reply; it becomes 1 for every client
draw_from_system: Draw = os.urandom


def draw_from_seed(seed: int, round: int, client: str) -> Draw:
    """Return repeatable noise for simulations, which does not protect from who has the seed."""
    digest = hashlib.sha256(f"noise/{seed}/{round}/{client}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).bytes


def privatize(adapted: Adaptation, message: Record, privacy: Privacy, draw: Draw) -> Adaptation:
    """Clip and noise the reply, as an update of the message's first model; log no numbers.

    The model in the client's memory does not change.
    """
    models, values = adapted.reply.models, adapted.reply.values
    if len(models) > 1 or values.keys() - {_SAMPLES}:
        names = ", ".join((*models, *values))
        sentence = f"[privacy] does not protect replies with {names}: choose another method"
        raise UserError(sentence, elsewhere=sentence)
    reference = next(iter(message.models.values()), {})
    noised = {
        name: noised_update(local, reference, privacy.clip, privacy.noise_multiplier, draw)
        for name, local in models.items()
    }
    ones = {name: torch.tensor(1) for name in values}
    return Adaptation(Record(noised, ones), adapted.memory, {})

"""Jobs on their way to workers: what they share is written once, what is theirs is let go of."""

import weakref
from pathlib import Path

import torch

from fedwca.core.params import State
from fedwca.engines.base import Job
from fedwca.engines.mailbox import Mailbox, Written
from fedwca.methods.base import Record


def model(number: float) -> State:
    return {"w": torch.full((3,), number)}


def test_models_of_single_clients_are_let_go_of_and_shared_ones_are_written_once(
    tmp_path: Path,
) -> None:
    mailbox, written = Mailbox(tmp_path, "server"), Written()
    mailbox.contents()  # which makes the folder
    shared = {f"cluster/{n}": model(n) for n in range(3)}
    own = []
    letters = []
    for number in range(50):
        blended = model(100 + number)
        own.append(weakref.ref(blended["w"]))
        job = Job(Record({**shared, "init": blended}), None, Record())
        letters.append(mailbox.post_job(job, written))
        del blended, job
    assert sum(ref() is not None for ref in own) <= 6
    assert len(list(tmp_path.iterdir())) == 3 + 50
    for number, letter in enumerate(letters):
        message = letter.job().message
        assert message is not None
        found = {name: float(state["w"][0]) for name, state in message.models.items()}
        wanted = {"cluster/0": 0, "cluster/1": 1, "cluster/2": 2, "init": 100 + number}
        assert found == wanted


def test_what_has_vanished_already_is_not_missed(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, "server")
    mailbox.discard([tmp_path / "worker-1-1.safetensors.0123abcd-7.tmp"])

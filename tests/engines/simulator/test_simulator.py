"""The number of workers changes no bit of a result, nor does the death of a worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.core.params import clone
from fedwca.data.images import ClientData
from fedwca.engines.base import Exchange, Job
from fedwca.engines.client_runtime import seed_generator
from fedwca.engines.simulator.simulator import Simulator
from fedwca.methods import Client, Record, Training
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.local import Local
from fedwca.models import DomainModel
from tests.support.federation import final_models, run, same

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=2, epochs=2, lr=0.01, batch_size=16)


def test_one_two_and_four_workers_agree_to_the_bit(
    new_model: NewModel, tiny_clients: list[ClientData], tmp_path: Path
) -> None:
    method = FedWCA(TRAINING, clustering="domain", temperature_a=0.1)
    results = {}
    for workers in (1, 2, 4):
        log = run(method, new_model(), tiny_clients, workers=workers, scratch=tmp_path / "scratch")
        finals = final_models(log, method, tiny_clients)
        # everything but the clock
        lines = [{k: v for k, v in line.items() if k != "seconds"} for line in log.lines]
        results[workers] = (finals, lines)
    for workers in (2, 4):
        assert results[workers][1] == results[1][1]
        for client, weights in results[1][0].items():
            assert same(weights, results[workers][0][client])
    assert not (tmp_path / "scratch").exists()


def test_a_killed_worker_is_replaced_and_its_client_done_again(
    new_model: NewModel, tiny_clients: list[ClientData], tmp_path: Path
) -> None:
    method = FedAvg(replace(TRAINING, epochs=30))
    model = new_model()
    state = method.init(model.feature_weights())
    jobs = {
        Client(c.name, c.domain): Job(method.send(state, Client(c.name)), None, Record())
        for c in tiny_clients
    }
    quiet = Simulator(new_model(), method, tiny_clients, 0, tmp_path / "quiet", 1)
    undisturbed = _replies(quiet.exchange(0, state, jobs.items()))
    engine = Simulator(new_model(), method, tiny_clients, 0, tmp_path / "scratch", 2)
    killed: list[int] = []
    killer = threading.Thread(target=_kill_a_worker, args=(engine, killed))
    killer.start()
    try:
        disturbed = _replies(engine.exchange(0, state, jobs.items()))
        for client, expected in undisturbed.items():
            assert same(expected.models["local"], disturbed[client].models["local"])
    finally:
        killer.join()
        engine.close()
        quiet.close()
    assert killed


def _replies(exchange: Exchange) -> dict[Client, Record]:
    return {c: r.adapted.reply for c, r in exchange.results.items() if r.adapted}


def _kill_a_worker(engine: Simulator, killed: list[int]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        pids = [worker.process.pid or 0 for worker in engine._pool._workers] if engine._pool else []
        replies = len(list(engine._files.folder.glob("*.safetensors"))) - 1  # one is the message
        if len(pids) == 2 and replies > 0:
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
            return
        time.sleep(0.001)


def test_divergence_names_the_setting_to_change(
    new_model: NewModel, tiny_clients: list[ClientData], tmp_path: Path
) -> None:
    method = FedAvg(replace(TRAINING, lr=1e30))
    with pytest.raises(UserError, match=r"training\.lr"):
        run(method, new_model(), tiny_clients, scratch=tmp_path / "scratch")


def test_randomness_depends_on_seed_round_and_client_alone() -> None:
    def draw(*key: Any) -> float:
        return float(torch.rand(1, generator=seed_generator(*key)))

    assert draw(0, 1, "a") == draw(0, 1, "a")
    assert len({draw(0, 1, "a"), draw(1, 1, "a"), draw(0, 2, "a"), draw(0, 1, "b")}) == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_replies_are_in_files_until_the_next_exchange(
    new_model: NewModel, tiny_clients: list[ClientData], tmp_path: Path, workers: int
) -> None:
    method = FedAvg(replace(TRAINING, rounds=1, epochs=0))
    engine = Simulator(new_model(), method, tiny_clients, 0, tmp_path / "scratch", workers)
    state = method.init(clone(new_model().feature_weights()))
    jobs = {client: Job(state, None, Record()) for client in engine.clients()}
    try:
        first = _replies(engine.exchange(0, state, jobs.items()))
        for reply in first.values():
            assert list(reply.models) == ["local"]
            assert reply.models["local"] is not reply.models["local"]  # read each time
            assert same(reply.models["local"], state.models["global"])
        left = len(list((tmp_path / "scratch").iterdir()))
        engine.exchange(1, state, jobs.items())
        assert len(list((tmp_path / "scratch").iterdir())) == left  # those of before are gone
    finally:
        engine.close()
    assert not (tmp_path / "scratch").exists()


def test_a_memory_is_in_a_file_until_an_exchange_without_it(
    new_model: NewModel, tiny_clients: list[ClientData], tmp_path: Path
) -> None:
    method = Local(replace(TRAINING, rounds=1, epochs=0))
    engine = Simulator(new_model(), method, tiny_clients, 0, tmp_path / "scratch", 1)
    state = method.init(clone(new_model().feature_weights()))
    jobs = {client: Job(state, None, Record()) for client in engine.clients()}
    results = engine.exchange(0, state, jobs.items()).results
    memories = {c: r.adapted.memory for c, r in results.items() if r.adapted}
    assert len(memories) == len(jobs)
    for memory in memories.values():
        assert memory.models["own"] is not memory.models["own"]  # read each time
    late, *others = jobs
    idle = Job(None, None, memories[late])
    engine.exchange(1, state, {late: idle, **{c: jobs[c] for c in others}}.items())
    assert same(memories[late].models["own"], state.models["source"])
    with pytest.raises(FileNotFoundError):
        memories[others[0]].models["own"]
    engine.close()


def test_a_process_ends_though_nobody_closed_the_engine(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(
        """
import sys
from pathlib import Path
import numpy as np
from fedwca.data.augment import DIGITS
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.engines.base import Job
from fedwca.engines.simulator.simulator import Simulator
from fedwca.methods import Record
from fedwca.methods.fedavg import FedAvg
from fedwca.models import build_model

if __name__ == "__main__":
    images = UnlabeledImages(np.zeros((4, 32, 32, 3), np.uint8), np.arange(4), DIGITS)
    clients = [ClientData(name, "", images, None, None) for name in "ab"]
    model = build_model("lenet", 3, image_size=32, bottleneck=256)
    engine = Simulator(model, FedAvg(), clients, 0, Path(sys.argv[1]), 2)
    engine.exchange(0, Record(), [(engine.clients()[0], Job(None, None, Record()))])
"""
    )
    command = [sys.executable, str(script), str(tmp_path / "scratch")]
    subprocess.run(command, check=True, timeout=90, capture_output=True)

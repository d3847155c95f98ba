"""Records in transfer: shared models are saved once, models of one client are released."""

import pickle
import weakref
from pathlib import Path

import pytest
import torch

from fedwca.core.params import Weights
from fedwca.engines.base import Job
from fedwca.engines.simulator.simulator import Simulator
from fedwca.engines.simulator.transfer import ModelFiles, RecentWeights
from fedwca.methods.base import Client, Record


def model(number: float) -> Weights:
    return {"w": torch.full((3,), number)}


def test_models_of_single_clients_are_released_and_shared_ones_are_saved_once(
    tmp_path: Path,
) -> None:
    simulator = Simulator.__new__(Simulator)
    simulator._files = ModelFiles(tmp_path)
    recent = RecentWeights()
    shared = {f"cluster/{n}": model(n) for n in range(3)}
    own = []
    stored_jobs = []
    for number in range(50):
        blended = model(100 + number)
        own.append(weakref.ref(blended["w"]))
        job = Job(Record({**shared, "init": blended}), None, Record())
        stored_jobs.append(simulator._store_job(Client(str(number)), 0, job, recent))
        del blended, job
    assert sum(ref() is not None for ref in own) <= 6
    assert len(list(tmp_path.iterdir())) == 3 + 50
    for number, stored in enumerate(stored_jobs):
        assert stored.message is not None
        found = {name: float(state["w"][0]) for name, state in stored.message.models.items()}
        wanted = {"cluster/0": 0, "cluster/1": 1, "cluster/2": 2, "init": 100 + number}
        assert found == wanted


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor(3.25, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 3, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.arange(12).reshape(3, 4).t()[1:],
    ],
)
def test_values_of_any_type_travel(value: torch.Tensor, tmp_path: Path) -> None:
    record = ModelFiles(tmp_path).save(Record({"m": model(1)}, {"value": value}), RecentWeights())
    back = pickle.loads(pickle.dumps(record))
    assert back.values["value"].dtype == value.dtype
    assert torch.equal(back.values["value"], value)
    assert torch.equal(back.models["m"]["w"], model(1)["w"])


def test_a_view_travels_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    row = torch.zeros(1000, 100)[3]
    record = ModelFiles(tmp_path).save(Record(values={"row": row}), RecentWeights())
    assert len(pickle.dumps(record)) < 5_000


def test_a_resumed_run_writes_files_of_other_names(tmp_path: Path) -> None:
    for _ in range(2):
        ModelFiles(tmp_path).save(Record({"m": model(1)}), RecentWeights())
    assert len(list(tmp_path.iterdir())) == 2

"""A client's final model is the very one that the run scored."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca._support.files import add_checksum, verify_checksum, write_json
from fedwca.engines.client_runtime import use_threads
from fedwca.experiments.config import resolve
from fedwca.experiments.export import export_run
from fedwca.experiments.final_models import (
    list_clients,
    load_experiment,
    load_final_model,
    load_network_spec,
    load_source_model,
)
from fedwca.experiments.inputs import load_data
from fedwca.experiments.runner import run_experiment
from fedwca.experiments.store import RunFolder
from fedwca.methods.inference import evaluate
from fedwca.models import read_weights


def settings(npz_folder: Path, method: str, **training: Any) -> dict[str, Any]:
    return {
        "data": {
            **{"benchmark": "npz", "path": npz_folder, "source": "clean"},
            **{"image_size": 16, "clients_per_domain": 2},
        },
        "source": {"epochs": 2},
        "training": {"rounds": 2, "epochs": 1, "batch_size": 16, **training},
        "method": {"name": method},
        "run": {"workers": 1},
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def finish_run(tmp_path: Path, npz_folder: Path, method: str, **training: Any) -> Path:
    experiment = resolve(settings(npz_folder, method, **training))
    return run_experiment(experiment, tmp_path / "runs", tmp_path / "cache").path


@pytest.mark.parametrize(
    ("method", "batch_norm"),
    [
        ("fedwca", "blend"),
        ("fedwca", "local"),
        ("fedwca_plus", "recalibrate"),
        ("source_only", "recalibrate"),
        ("source_only", "blend"),
        ("local", "local"),
        ("fedpcl", "blend"),
        ("fedamp", "blend"),
    ],
)
def test_final_models_score_exactly_as_in_the_run(
    tmp_path: Path, npz_folder: Path, cache: Path, method: str, batch_norm: str
) -> None:
    run = finish_run(tmp_path, npz_folder, method, batch_norm=batch_norm)
    experiment = resolve(settings(npz_folder, method, batch_norm=batch_norm))
    clients = load_data(experiment, cache).clients("clean", experiment.data.partition, 0)
    if batch_norm != "recalibrate":
        shutil.rmtree(npz_folder)  # only "recalibrate" looks at images
    scores = json.loads((run / "result.json").read_text())["clients"]
    assert list_clients(run) == list(scores) == [c.name for c in clients]
    assert load_network_spec(run).classes == ("0", "1", "2")
    for client in clients:
        model = load_final_model(run, client.name, cache)
        assert not model.training
        assert client.test is not None
        with use_threads(1):
            outputs = evaluate(model, client.test.images)
        confidence, predicted = outputs.probabilities.max(dim=1)
        correct = int((predicted == torch.from_numpy(client.test.labels)).sum())
        assert correct == scores[client.name]["correct"]
        assert float(confidence.mean()) == scores[client.name]["confidence"]


def test_loading_draws_no_random_number(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "source_only")
    before = torch.random.get_rng_state()
    load_final_model(run, "dim/0")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unfinished_run_has_the_newest_model(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "fedavg")
    (run / "result.json").unlink()
    (run / "checkpoint-00002" / "state.safetensors").write_bytes(b"damaged")
    at = RunFolder(run).load_checkpoint()
    assert at is not None
    assert at.rounds == 1
    found = load_final_model(run, "dim/1").feature_weights()
    assert all(torch.equal(found[n], t) for n, t in at.state.models["global"].items())


def test_missing_parts_are_named(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "fedavg")
    with pytest.raises(UserError, match=r"'dim/9'; did you mean 'dim/"):
        load_final_model(run, "dim/9")
    with pytest.raises(UserError, match=r"config\.json"):
        list_clients(tmp_path)
    with pytest.raises(UserError, match=run.name):
        list_clients(run.with_name(run.name[:-1]))
    shutil.rmtree(run / "checkpoint-00002")
    with pytest.raises(UserError, match="no valid checkpoint"):
        load_final_model(run, "dim/0")
    (run / "source.safetensors").unlink()
    with pytest.raises(UserError, match=r"source\.safetensors"):
        load_source_model(run)


def test_changed_images_are_refused_by_recalibrate(
    tmp_path: Path, npz_folder: Path, cache: Path
) -> None:
    run = finish_run(tmp_path, npz_folder, "source_only", batch_norm="recalibrate")
    shutil.copy(npz_folder / "noisy.npz", npz_folder / "dim.npz")
    with pytest.raises(UserError, match="have changed"):
        load_final_model(run, "dim/0", cache)


def test_models_that_are_complete_only_at_sites_are_refused(
    tmp_path: Path, npz_folder: Path
) -> None:
    run = finish_run(tmp_path, npz_folder, "fedavg", batch_norm="local")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["deploy"] = {"wire": "float32"}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_final_model(run, "dim/0")


@pytest.mark.parametrize("older", [False, True])
def test_lost_results_do_not_lose_clients(tmp_path: Path, npz_folder: Path, older: bool) -> None:
    run = finish_run(tmp_path, npz_folder, "fedavg")
    known = list_clients(run)
    (run / "results.jsonl").unlink()
    if older:  # whose lines have no digest
        final = json.loads((run / "result.json").read_text())
        del final["sha256"]
        (run / "result.json").write_text(json.dumps(final))
    assert list_clients(run) == known
    assert len(list(export_run(run, None, "safetensors", tmp_path / "models"))) == len(known)


def test_a_run_without_results_is_refused(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "source_only")
    (run / "results.jsonl").unlink()
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="no results"):
        list(export_run(run, None, "safetensors", tmp_path / "models"))


def test_lines_of_another_shape_are_refused(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "source_only")
    final = verify_checksum(json.loads((run / "result.json").read_text()))
    assert final is not None
    write_json(run / "result.json", add_checksum({**final, "server": 3}))
    with pytest.raises(UserError, match=re.escape(str(run))):
        list(export_run(run, None, "safetensors", tmp_path / "models"))


def test_exports_from_a_running_run_are_of_one_round(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "fedavg")
    (run / "result.json").unlink()
    (run / "checkpoint-00002").rename(tmp_path / "later")
    written = export_run(run, None, "safetensors", tmp_path / "models")
    first, _ = next(written)
    (tmp_path / "later").rename(run / "checkpoint-00002")
    wanted = read_weights(first)
    for model, _ in written:  # of FedAvg all have one model
        found = read_weights(model)
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_settings_of_older_versions_are_accepted(tmp_path: Path, npz_folder: Path) -> None:
    run = finish_run(tmp_path, npz_folder, "source_only")
    config = json.loads((run / "config.json").read_text())
    del config["settings"]["data"]["size_dirichlet"]
    (run / "config.json").write_text(json.dumps(config))
    assert load_experiment(run).data.size_dirichlet == 0

"""A client's final model is the very one that the run scored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca.engines.site import threads
from fedwca.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.experiments.export import export_run
from fedwca.experiments.final_models import (
    class_names,
    client_names,
    final_model,
    source_of,
    stored_experiment,
)
from fedwca.experiments.runner import load_data, run_experiment
from fedwca.experiments.store import RunFolder
from fedwca.files import seal, unseal, write_json
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


def finished(tmp_path: Path, npz_folder: Path, method: str, **training: Any) -> Path:
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
def test_it_scores_as_the_run_did_to_the_last_digit(
    tmp_path: Path, npz_folder: Path, cache: Path, method: str, batch_norm: str
) -> None:
    run = finished(tmp_path, npz_folder, method, batch_norm=batch_norm)
    experiment = resolve(settings(npz_folder, method, batch_norm=batch_norm))
    clients = load_data(experiment, cache).clients("clean", experiment.data.partition, 0)
    if batch_norm != "recalibrate":
        shutil.rmtree(npz_folder)  # only "recalibrate" looks at images
    told = json.loads((run / "result.json").read_text())["clients"]
    assert client_names(run) == list(told) == [c.name for c in clients]
    assert class_names(run) == ("0", "1", "2")
    for client in clients:
        model = final_model(run, client.name, cache)
        assert not model.training
        assert client.test is not None
        with threads(1):
            said = evaluate(model, client.test.images).probabilities
        confidence, predicted = said.max(dim=1)
        correct = int((predicted == torch.from_numpy(client.test.labels)).sum())
        assert correct == told[client.name]["correct"]
        assert float(confidence.mean()) == told[client.name]["confidence"]


def test_no_random_number_is_used_up(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "source_only")
    before = torch.random.get_rng_state()
    final_model(run, "dim/0")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unfinished_run_gives_the_newest_model(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "fedavg")
    (run / "result.json").unlink()
    (run / "checkpoint-00002" / "state.safetensors").write_bytes(b"damaged")
    at = RunFolder(run).load_checkpoint(1)
    assert at is not None
    assert at.rounds == 1
    found = final_model(run, "dim/1").feature_state()
    assert all(torch.equal(found[n], t) for n, t in at.state.models["global"].items())


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "fedavg")
    with pytest.raises(UserError, match=r"has no client 'dim/9': did you mean 'dim/"):
        final_model(run, "dim/9")
    with pytest.raises(UserError, match="is not a run folder"):
        client_names(tmp_path)
    shutil.rmtree(run / "checkpoint-00002")
    with pytest.raises(UserError, match="no whole checkpoint of its last round"):
        final_model(run, "dim/0")
    (run / "source.safetensors").unlink()
    with pytest.raises(UserError, match=r"source\.safetensors is gone"):
        source_of(run)


def test_changed_images_are_noticed_where_they_matter(
    tmp_path: Path, npz_folder: Path, cache: Path
) -> None:
    run = finished(tmp_path, npz_folder, "source_only", batch_norm="recalibrate")
    shutil.copy(npz_folder / "noisy.npz", npz_folder / "dim.npz")
    with pytest.raises(UserError, match="have changed since"):
        final_model(run, "dim/0", cache)


def test_what_a_site_keeps_to_itself_is_not_guessed(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "fedavg", batch_norm="local")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["deploy"] = {"wire": "float32"}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model\.safetensors in its own folder"):
        final_model(run, "dim/0")


@pytest.mark.parametrize("older", [False, True])
def test_lost_results_lose_no_client(tmp_path: Path, npz_folder: Path, older: bool) -> None:
    run = finished(tmp_path, npz_folder, "fedavg")
    known = client_names(run)
    (run / "results.jsonl").unlink()
    if older:  # whose lines have no digest
        final = json.loads((run / "result.json").read_text())
        del final["sha256"]
        (run / "result.json").write_text(json.dumps(final))
    assert client_names(run) == known
    assert len(list(export_run(run, None, "safetensors", tmp_path / "models"))) == len(known)


def test_a_run_without_any_result_is_told(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "source_only")
    (run / "results.jsonl").unlink()
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="no whole results, so its clients are not known"):
        list(export_run(run, None, "safetensors", tmp_path / "models"))


def test_lines_of_another_shape_are_told(tmp_path: Path, npz_folder: Path) -> None:
    run = finished(tmp_path, npz_folder, "source_only")
    final = unseal(json.loads((run / "result.json").read_text()))
    assert final is not None
    write_json(run / "result.json", seal({**final, "server": 3}))
    with pytest.raises(UserError, match="are damaged"):
        list(export_run(run, None, "safetensors", tmp_path / "models"))


def test_models_of_a_run_that_goes_on_meanwhile_are_of_one_round(
    tmp_path: Path, npz_folder: Path
) -> None:
    run = finished(tmp_path, npz_folder, "fedavg")
    (run / "result.json").unlink()
    (run / "checkpoint-00002").rename(tmp_path / "later")
    written = export_run(run, None, "safetensors", tmp_path / "models")
    first, _ = next(written)
    (tmp_path / "later").rename(run / "checkpoint-00002")
    wanted = read_weights(first)
    for model, _ in written:  # of FedAvg all have one model
        found = read_weights(model)
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("identity", [{}, {"digests": 3}, {"digests": []}])
def test_a_config_that_tells_no_digests_is_one_of_other_images(
    tmp_path: Path, npz_folder: Path, cache: Path, identity: Any
) -> None:
    run = finished(tmp_path, npz_folder, "source_only", batch_norm="recalibrate")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "identity": identity}))
    with pytest.raises(UserError, match="have changed since"):
        final_model(run, "dim/0", cache)


def changed_config(run: Path, change: Callable[[dict[str, Any]], object], *parts: str) -> None:
    config = json.loads((run / "config.json").read_text())
    for part in parts:
        change(config[part])
    (run / "config.json").write_text(json.dumps(config))


def test_settings_that_the_run_was_not_made_with_are_noticed(
    tmp_path: Path, npz_folder: Path, cache: Path
) -> None:
    run = finished(tmp_path, npz_folder, "source_only", batch_norm="recalibrate")
    changed_config(run, lambda told: told["run"].update(seed=1), "settings")
    damage = pytest.raises(UserError, match="are damaged: move it away and run again")
    with damage:  # whose clients would hold other images
        final_model(run, "dim/0", cache)
    with damage:
        next(export_run(run, None, "safetensors", tmp_path / "models", cache))
    with damage:
        finished(tmp_path, npz_folder, "source_only", batch_norm="recalibrate")


def test_settings_that_make_no_difference_and_those_of_older_versions_are_taken(
    tmp_path: Path, npz_folder: Path
) -> None:
    run = finished(tmp_path, npz_folder, "source_only")
    changed_config(run, lambda told: told["run"].update(workers=2), "settings")
    assert stored_experiment(run).run.workers == 2
    changed_config(run, lambda told: told["data"].pop("size_dirichlet"), "settings", "identity")
    assert stored_experiment(run).data.size_dirichlet == 0

"""Settings: defaults of the paper, overrides, and errors that name the setting."""

from pathlib import Path
from typing import Any

import pytest

from fedwca._support.errors import UserError
from fedwca.experiments.config import parse_override, read_experiment, resolve
from fedwca.experiments.defaults import defaults
from fedwca.methods import METHODS, Training
from fedwca.methods.fedwca import FedWCA

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_config_in_the_repository_is_valid(path: Path) -> None:
    assert read_experiment(path).data.source


@pytest.mark.parametrize(
    ("benchmark", "source", "temperature_a", "lr", "ce_weight", "rounds"),
    [
        # FedWCA, appendix C: the table of hyper-parameters
        ("digit-five", "mnist", 0.01, 1e-3, 0.1, 100),
        ("digit-five", "synth", 0.001, 1e-3, 0.1, 100),
        ("pacs", "art_painting", 0.1, 1e-4, 0.3, 100),
        ("office-home", "Art", 0.01, 1e-4, 0.3, 50),
        ("office-home", "Clipart", 0.1, 1e-4, 0.3, 50),
    ],
)
def test_defaults_follow_the_paper(
    benchmark: str, source: str, temperature_a: float, lr: float, ce_weight: float, rounds: int
) -> None:
    table = defaults(benchmark, source, "fedwca")
    training = Training(**table["training"])
    method = FedWCA(training, **table["method"])
    assert method.temperature_a == temperature_a
    assert (method.temperature_b, method.mixup_share) == (0.05, 0.55)
    assert (training.lr, training.ce_weight, training.rounds) == (lr, ce_weight, rounds)
    assert (training.epochs, training.momentum, training.weight_decay) == (5, 0.9, 1e-3)


def test_the_defaults_of_a_benchmark_reach_the_experiment() -> None:
    synth = resolve({"data": {"benchmark": "digit-five", "source": "synth"}})
    assert (synth.method.temperature_a, synth.method.training.lr) == (0.001, 1e-3)
    assert synth.data.clients_per_domain == 8


def test_an_override_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[training]\nrounds = 7\nlr = 0.5\n")
    training = read_experiment(path, [("training.lr", 0.25)]).method.training
    assert (training.rounds, training.lr, training.epochs) == (7, 0.25, 5)


def test_settings_of_the_method_in_the_file_do_not_apply_to_another(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[method]\nname = "fedwca"\ntemperature_a = 0.5\n')
    assert read_experiment(path, [("method.name", "fedavg")]).method_name == "fedavg"
    again = read_experiment(path, [("method.name", "fedwca")])
    assert again.method.temperature_a == 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": {"learning_rate": 1}}, "training has no setting 'learning_rate'"),
        ({"training": {"epoch": 1}}, "did you mean 'epochs'?"),
        ({"trainin": {}}, "did you mean 'training'?"),
        ({"method": {"name": "fedwac"}}, "did you mean 'fedwca'?"),
        ({"method": {"temperatur_a": 1}}, "did you mean 'temperature_a'?"),
        ({"training": {"lr": "fast"}}, "training.lr"),
        ({"training": {"rounds": 2.5}}, "training.rounds"),
        ({"training": {"lr": -1.0}}, "training.lr"),
        ({"training": {"lr": float("nan")}}, "training.lr"),
        ({"training": {"ce_weight": float("inf")}}, "training.ce_weight"),
        ({"training": {"batch_size": 1}}, "training.batch_size"),
        ({"training": {"batch_norm": "freeze"}}, "'blend', 'recalibrate' or 'local'"),
        ({"method": {"temperature_a": float("nan")}}, "temperature_a"),
        ({"method": {"temperature_b": 0}}, "temperature_b"),
        ({"method": {"mixup": True, "two_models": False}}, "two_models"),
        ({"method": {"prototypes": False}}, "prototypes"),
        ({"method": {"clustering_layer": "some"}}, "method.clustering_layer"),
        ({"method": {"training": {}}}, "[training]"),
        ({"training": 3}, "[training]"),
        ({"source": {"lr": float("inf")}}, "source.lr"),
        ({"data": {"clients_per_domain": 0}}, "data.clients_per_domain"),
        ({"data": {"clients_per_domain": 1, "size_dirichlet": 1}}, "data.size_dirichlet"),
        ({"data": {"path": "~nosuchuser/x"}}, "data.path: there is no such user"),
        ({"data": {"path": "x"}}, "data.path: benchmark 'mini-digits' has no files"),
        ({"data": {"classes": "a,b"}}, "data.classes"),
        ({"data": {"benchmark": "npz"}}, "set data.source"),
        ({"run": {"seed": -1}}, "run.seed"),
    ],
)
def test_an_error_names_the_setting(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"data": {"benchmark": "pacs", "path": "images", "source": "photo"}}
    experiment = resolve(settings, [("source.weights", "w.safetensors")])
    assert experiment.data.path == tmp_path / "images"
    assert experiment.source.weights == tmp_path / "w.safetensors"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.lr=0.01", ("training.lr", 0.01)),
        ("method.name=fedavg", ("method.name", "fedavg")),
        ('data.source="x y"', ("data.source", "x y")),
        ("method.mixup=false", ("method.mixup", False)),
        ("method.clustering_layer=all", ("method.clustering_layer", "all")),
        ("data.path=2024", ("data.path", "2024")),
    ],
)
def test_overrides_are_read_as_toml_or_text(text: str, expected: tuple[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["training.lr", "lr=1", "=1"])
def test_a_malformed_override_says_how_to_write_it(text: str) -> None:
    with pytest.raises(UserError, match="such as training"):
        resolve({}, [parse_override(text)])


@pytest.mark.parametrize("name", METHODS)
def test_stored_settings_give_the_same_experiment(name: str) -> None:
    experiment = resolve({"method": {"name": name}, "run": {"seed": 3}})
    again = resolve(experiment.settings())
    assert again == experiment
    assert again.name == experiment.name


def test_speed_settings_do_not_change_the_name_but_results_do() -> None:
    base = resolve({})
    assert resolve({"run": {"workers": 7, "checkpoint_every": 5}}).name == base.name
    assert resolve({"run": {"seed": 1}}).name != base.name
    assert resolve({"method": {"temperature_a": 0.02}}).name != base.name


def test_a_hostile_source_name_gives_a_harmless_folder_name() -> None:
    name = resolve({"data": {"source": "../../x" + "y" * 300}}).name
    assert "/" not in name
    assert ".." not in name
    assert len(name) < 200


def test_a_method_may_change_the_defaults_of_training() -> None:
    chosen = resolve({"method": {"name": "fedwca_plus"}})
    assert chosen.method.training.batch_norm == "recalibrate"
    settings = {"method": {"name": "fedwca_plus"}, "training": {"batch_norm": "blend"}}
    assert resolve(settings).method.training.batch_norm == "blend"
    assert resolve({"method": {"name": "fedwca"}}).method.training.batch_norm == "blend"


@pytest.mark.parametrize(
    ("benchmark", "clusters"), [("digit-five", 4), ("pacs", 3), ("mini-digits", 4)]
)
def test_ifca_has_a_model_for_each_target_domain(benchmark: str, clusters: int) -> None:
    settings = {"data": {"benchmark": benchmark, "source": "x"}, "method": {"name": "ifca"}}
    assert resolve(settings).method.clusters == clusters


def test_fedpcl_takes_the_papers_twenty_rounds_on_objects() -> None:
    for benchmark, rounds in (("pacs", 20), ("office-home", 20), ("digit-five", 100)):
        settings = {"data": {"benchmark": benchmark, "source": "x"}, "method": {"name": "fedpcl"}}
        assert resolve(settings).method.training.rounds == rounds

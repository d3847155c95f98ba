"""Settings: defaults of the paper, overrides, and one clear sentence for every mistake."""

from pathlib import Path
from typing import Any

import pytest

from fedwca.errors import UserError
from fedwca.experiments.config import parse_override, read_experiment, resolve
from fedwca.experiments.defaults import defaults
from fedwca.methods import METHODS, Training
from fedwca.methods.fedwca import FedWCA

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_config_that_we_ship_is_valid(path: Path) -> None:
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
def test_defaults_are_the_papers(
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


def test_settings_of_the_files_method_do_not_bother_another(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[method]\nname = "fedwca"\ntemperature_a = 0.5\n')
    assert read_experiment(path, [("method.name", "fedavg")]).method_name == "fedavg"
    again = read_experiment(path, [("method.name", "fedwca")])
    assert again.method.temperature_a == 0.5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training": {"learning_rate": 1}}, "training has no setting 'learning_rate'"),
        ({"training": {"epoch": 1}}, "did you mean 'epochs'?"),
        ({"trainin": {}}, "there is no section [trainin]: did you mean 'training'?"),
        ({"method": {"name": "fedwac"}}, "no method 'fedwac': did you mean 'fedwca'?"),
        ({"method": {"temperatur_a": 1}}, "did you mean 'temperature_a'?"),
        ({"training": {"lr": "fast"}}, "training.lr: input should be a valid number"),
        ({"training": {"rounds": 2.5}}, "training.rounds: input should be a valid integer"),
        ({"training": {"lr": -1.0}}, "training.lr must be a number from 0 on"),
        ({"training": {"lr": float("nan")}}, "training.lr must be a number from 0 on"),
        ({"training": {"ce_weight": float("inf")}}, "training.ce_weight must be a number"),
        ({"method": {"temperature_a": float("nan")}}, "must be positive"),
        ({"source": {"lr": float("inf")}}, "source.lr: input should be a finite number"),
        ({"training": {"batch_size": 1}}, "at least 2, for BatchNorm"),
        ({"training": {"batch_norm": "freeze"}}, "'blend', 'recalibrate' or 'local'"),
        ({"data": {"clients_per_domain": 0}}, "data.clients_per_domain: input should be greater"),
        ({"data": {"benchmark": "npz"}}, "set data.source"),
        ({"method": {"mixup": True, "two_models": False}}, "set it to false with two_models"),
        ({"method": {"prototypes": False}}, "set it to false with prototypes"),
        ({"method": {"temperature_b": 0}}, "must be positive"),
        ({"method": {"clustering_layer": "some"}}, "method.clustering_layer"),
        ({"method": {"training": {}}}, "write it as [training]"),
        ({"training": 3}, "write it as [training]"),
        ({"run": {"seed": -1}}, "run.seed: input should be greater"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as told:
        resolve(settings)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.lr=0.01", ("training.lr", 0.01)),
        ("method.name=fedavg", ("method.name", "fedavg")),
        ('data.source="x y"', ("data.source", "x y")),
        ("method.mixup=false", ("method.mixup", False)),
        ("method.clustering_layer=all", ("method.clustering_layer", "all")),
    ],
)
def test_overrides_are_read_as_toml_or_text(text: str, expected: tuple[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["training.lr", "lr=1", "=1"])
def test_a_malformed_override_says_how_to_write_it(text: str) -> None:
    with pytest.raises(UserError, match="such as training"):
        resolve({}, [parse_override(text)])


@pytest.mark.parametrize("name", METHODS)
def test_settings_lead_back_to_the_same_experiment(name: str) -> None:
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


def test_a_method_may_be_made_for_other_training_settings() -> None:
    chosen = resolve({"method": {"name": "fedwca_plus"}})
    assert chosen.method.training.batch_norm == "recalibrate"
    given = {"method": {"name": "fedwca_plus"}, "training": {"batch_norm": "blend"}}
    assert resolve(given).method.training.batch_norm == "blend"
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

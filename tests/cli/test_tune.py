"""`fedwca tune`: a grid, ranked without test images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca.experiments.tune import combine, parse_grid

TINY = (
    "--set=data.images_per_domain=60",
    "--set=data.clients_per_domain=1",
    "--set=source.epochs=1",
    "--set=training.rounds=1",
    "--set=training.epochs=1",
    "--set=run.workers=1",
)


def test_a_grid_has_all_combinations() -> None:
    grid = parse_grid(["training.lr=0.1,0.2", "method.clustering=finch,each"])
    assert list(combine(grid)) == [
        (("training.lr", lr), ("method.clustering", clustering))
        for lr in (0.1, 0.2)
        for clustering in ("finch", "each")
    ]


@pytest.mark.parametrize("by", ["validation", "agreement", "density"])
def test_tuning_ranks_by_the_signal_and_scores_no_test_image(
    invoke: Callable[..., Any], tmp_path: Path, by: str
) -> None:
    result = invoke("tune", *TINY, "--grid", "training.lr=0.001,0.1", "--by", by)
    assert result.code == 0, result.err
    rows = [line.split() for line in result.out.splitlines() if line.startswith("training.lr=")]
    scores = [float(score) for _, score in rows]
    assert scores == sorted(scores, reverse=True)
    assert "Best: --set training.lr=" in result.out
    runs = sorted(Path("runs").glob("*/config.json"))
    assert len(runs) == 2
    for config in runs:
        assert json.loads(config.read_text())["settings"]["run"]["score_on"] == "validation"
        line = json.loads((config.parent / "result.json").read_text())
        held = json.loads((config.parent / "clients.json").read_text())["clients"]
        for name, client in line["clients"].items():
            assert client["total"] == len(held[name]["validation"])
    if by == "validation":
        results = [json.loads((run.parent / "result.json").read_text()) for run in runs]
        means = [result["accuracy"]["mean"] for result in results]
        assert scores == pytest.approx(sorted(means, reverse=True), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "seeds"),
    [([], [5]), (["--set=run.seed=3"], [3]), (["--seed=1", "--seed=2"], [1, 2])],
)
def test_seeds_come_from_the_config_unless_given(
    invoke: Callable[..., Any], tmp_path: Path, arguments: list[str], seeds: list[int]
) -> None:
    config = tmp_path / "experiment.toml"
    config.write_text("[run]\nseed = 5\n")
    result = invoke("tune", str(config), *TINY, *arguments, "--grid", "method.name=source_only")
    assert result.code == 0, result.err
    runs = [json.loads(path.read_text())["settings"] for path in Path("runs").glob("*/config.json")]
    assert sorted(settings["run"]["seed"] for settings in runs) == seeds


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--by", "luck", "--grid", "training.lr=1"], "'luck'"),
        ([], "--grid"),
        (["--grid", "training.lr"], "--grid"),
        (["--grid", "training.lrr=0.1,0.2"], "lrr"),
    ],
)
def test_an_invalid_request_is_named(
    invoke: Callable[..., Any], arguments: list[str], named: str
) -> None:
    result = invoke("tune", *arguments)
    assert result.code == 2
    assert named in result.err

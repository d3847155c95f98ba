"""Run folders with invalid content are named, and no command crashes on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedwca._support.errors import UserError
from fedwca.cli.entry import main
from fedwca.experiments.run_schema import check_line, one_cluster_notice
from fedwca.report.runs import find_runs, read_run
from tests.support.made_up_runs import make_run

SCORE = {"domain": "photo", "accuracy": 0.5, "correct": 1, "total": 2, "confidence": 0.5}
HEALTH = {"photo/0": {"matched": 0.5, "alpha": [0.5, 0.5]}}
LINE: dict[str, Any] = {
    "round": 5,
    "accuracy": {"mean": 0.5, "domains": {"photo": 0.5}},
    "clients": {"photo/0": SCORE},
    "server": {"cluster_of/photo/0": 0, "v/photo/0": [0.5, 1], "attention/photo/0": [1.0]},
    "health": HEALTH,
    "seconds": 1,
}
WRONG: list[dict[str, Any]] = [
    {"round": True},
    {"round": 2**40},
    *({"server": {"cluster_of/photo/0": x}} for x in ("x", 1.5, [1], True, None)),
    *({"server": {"v/photo/0": x}} for x in (5, "x", ["x"], [None])),
    *({"accuracy": {"mean": 0.5, "domains": x}} for x in (3, {"photo": "y"}, {"photo": 7}, None)),
    *({"accuracy": {"mean": x, "domains": {}}} for x in ("x", float("nan"), 10**400)),
    {"accuracy": {"mean": None}},
    *({"clients": {"photo/0": {**SCORE, "domain": x}}} for x in (None, 3, [])),
    {"clients": {"photo/0": {"accuracy": 0.5}}},
    {"clients": {"photo/0": {**SCORE, "accuracy": "x"}}},
    {"clients": {"photo/0": {**SCORE, "confidence": {}}}},
    {"health": {"photo/0": {"matched": "x"}}},
    {"health": {"photo/0": {"matched": 10**400}}},
    {"seconds": "long"},
    {"bytes_up": -1},
    {"refused": {"photo/0": "no list"}},
]


def test_a_line_as_runs_write_it_is_valid() -> None:
    check_line(LINE)
    check_line({**LINE, "health": {"photo/0": {"loss": float("nan")}}})  # training went astray
    check_line({"round": 0, "accuracy": {"mean": None, "domains": {}}, "clients": {}})


@pytest.mark.parametrize(
    ("clusters", "method", "noticed", "setting"),
    [
        ([1, 1], {"clustering": "finch"}, True, True),
        ([1, 1], {}, True, False),  # ifca has clusters, but not that setting
        ([0, 1], {"clustering": "finch"}, False, False),
        ([0], {"clustering": "finch"}, False, False),
        ([], {}, False, False),
    ],
)
def test_several_clients_in_one_cluster_are_noticed(
    clusters: list[int], method: dict[str, Any], noticed: bool, setting: bool
) -> None:
    server = {f"cluster_of/{name}": number for name, number in enumerate(clusters)}
    notice = one_cluster_notice({"server": server}, {"method": method})
    assert bool(notice) == noticed
    assert ("method.clustering" in notice) == setting


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_an_invalid_line_is_corrupt(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run, good = make_run(tmp_path), make_run(tmp_path, method="fedavg")
    (run / "result.json").write_text(json.dumps({**LINE, **wrong}))
    with pytest.raises(UserError, match=run.name):
        read_run(run)
    views, problems = find_runs(tmp_path)
    assert [view.path for view in views] == [good]
    assert run.name in problems[0]


@pytest.mark.parametrize(
    ("name", "value"), [*(("lr", x) for x in (float("nan"), {"deep": 1}, [1])), ("rounds", "2")]
)
def test_a_setting_of_an_impossible_type_is_corrupt(tmp_path: Path, name: str, value: Any) -> None:
    run = make_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["settings"]["training"][name] = value
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=run.name):
        read_run(run)


def test_a_corrupt_run_does_not_stop_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs")
    make_run(tmp_path / "runs", method="fedavg")
    line = {**LINE, "server": {"cluster_of/photo/0": "x"}}
    (run / "result.json").write_text(json.dumps(line))

    def call(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as stop:
            main([*words])
        return stop.value.code, capsys.readouterr().err

    for words in (["list"], ["compare"], ["report"]):
        code, output = call(*words)
        assert code == 0
        assert f"runs/{run.name}" in output
    for words in (["show", run.name], ["compare", run.name], ["tensorboard", run.name]):
        code, output = call(*words)
        assert code == 2
        assert run.name in output

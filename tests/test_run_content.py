"""Run folders that say what no run of ours would: named, and no command dies of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedwca.cli import main
from fedwca.errors import UserError
from fedwca.files import seal
from fedwca.report.runs import find_runs, read_run
from fedwca.run_content import check_line
from made_up_runs import make_run

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


def test_a_line_as_runs_write_them_is_right() -> None:
    check_line(LINE)
    check_line({**LINE, "health": {"photo/0": {"loss": float("nan")}}})  # training went astray
    check_line({"round": 0, "accuracy": {"mean": None, "domains": {}}, "clients": {}})


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_line_of_another_shape_is_damage_with_and_without_a_digest(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    run, good = make_run(tmp_path), make_run(tmp_path, method="fedavg")
    for line in ({**LINE, **wrong}, seal({**LINE, **wrong})):
        (run / "result.json").write_text(json.dumps(line))
        with pytest.raises(UserError, match="are damaged: move it away"):
            read_run(run)
        views, problems = find_runs(tmp_path)
        assert [view.path for view in views] == [good]
        assert run.name in problems[0]


@pytest.mark.parametrize("value", [float("nan"), {"deep": 1}, [[1]], [1]], ids=repr)
def test_no_setting_is_of_a_kind_that_none_has(tmp_path: Path, value: Any) -> None:
    run = make_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["settings"]["training"]["lr"] = value
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="are damaged"):
        read_run(run)


def test_settings_that_are_not_those_of_the_identity_are_damage(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["identity"] = {**config["settings"], "digests": {"data": {}}, "deploy": {"wire": "x"}}
    (run / "config.json").write_text(json.dumps(config))
    read_run(run)
    config["settings"] = {**config["settings"], "run": {"seed": 1}}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="are damaged"):
        read_run(run)


def test_one_such_run_does_not_end_a_command(
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
        code, told = call(*words)
        assert code == 0
        assert f"warning: the files in runs/{run.name} are damaged" in told
    for words in (["show", run.name], ["compare", run.name], ["tensorboard", run.name]):
        code, told = call(*words)
        assert code == 2
        assert "are damaged: move it away" in told

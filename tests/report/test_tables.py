"""Tables from hand-made run folders, with numbers that are easy to check."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedwca.report.runs import find_runs, read_run
from fedwca.report.tables import accuracy_tables, cluster_table, run_table, to_markdown


def write_run(root: Path, name: str, method: str, seed: int, accuracies: dict[str, float]) -> Path:
    path = root / name
    path.mkdir(parents=True)
    settings = {
        "data": {"benchmark": "toy", "source": "a"},
        "training": {"rounds": 1, "batch_norm": "blend"},
        "method": {"name": method},
        "run": {"seed": seed},
    }
    clients = {f"{d}/0": {"domain": d, "accuracy": a} for d, a in accuracies.items()}
    line = {
        "round": 1,
        "accuracy": {"mean": sum(accuracies.values()) / len(accuracies), "domains": accuracies},
        "clients": clients,
        "server": {"cluster_of/b/0": 1, "cluster_of/c/0": 0} if method == "fedwca" else {},
    }
    (path / "config.json").write_text(json.dumps({"settings": settings}))
    (path / "results.jsonl").write_text(json.dumps(line) + "\n")
    (path / "result.json").write_text(json.dumps(line))
    return path


def test_mean_and_spread_over_trials(tmp_path: Path) -> None:
    write_run(tmp_path, "r0", "fedwca", 0, {"b": 0.50, "c": 0.70})
    write_run(tmp_path, "r1", "fedwca", 1, {"b": 0.60, "c": 0.70})
    (table,) = accuracy_tables(find_runs(tmp_path)[0])
    # mean of 50 and 60 is 55; their sample deviation is 10/√2 = 7.07
    assert table.rows == [["fedwca", "55.0±7.1", "70.0±0.0", "62.5±3.5", "2", "1"]]
    assert table.header == ["method", "b", "c", "mean", "trials", "rounds"]
    assert "| fedwca | 55.0±7.1 |" in to_markdown(table)


def test_variants_of_a_method_are_named_by_what_differs(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{"lr": 1}, {"lr": 2}]
    changes.append({"lr": 1, "batch_norm": "recalibrate"})
    for number, change in enumerate(changes):
        path = write_run(tmp_path, f"r{number}", "fedavg", 0, {"b": 0.5})
        config = json.loads((path / "config.json").read_text())
        config["settings"]["training"] |= change
        (path / "config.json").write_text(json.dumps(config))
    write_run(tmp_path, "s", "fedwca", 0, {"b": 0.5})
    (table,) = accuracy_tables(find_runs(tmp_path)[0])
    names = [row[0] for row in table.rows]
    assert names == ["fedavg (lr=1)", "fedavg (lr=2)", "fedavg (recalibrate)", "fedwca"]


def test_clusters_are_shown_by_domain(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, "r", "fedwca", 0, {"b": 0.5, "c": 0.5}))
    table = cluster_table(run)
    assert table is not None
    assert table.rows == [["b", "1"], ["c", "0"]]
    assert cluster_table(read_run(write_run(tmp_path, "s", "fedavg", 0, {"b": 0.5}))) is None


def test_an_unfinished_run_is_shown_as_such(tmp_path: Path) -> None:
    path = write_run(tmp_path, "r", "fedavg", 0, {"b": 0.5})
    (path / "result.json").unlink()
    with (path / "results.jsonl").open("a") as file:
        file.write('{"round": 2, "acc')  # being written just now
    run = read_run(path)
    assert (run.rounds, run.done) == (1, False)
    assert run_table([run]).rows[0][-1] == "unfinished"
    assert accuracy_tables([run])[0].rows[0][-1] == "1…"


@pytest.mark.parametrize("name", ["[red]x[/red]", "a|b", "<script>", "‮rtl", "x" * 300])
def test_hostile_domain_names_do_no_harm(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, "r", "fedavg", 0, {name: 0.5})
    (table,) = accuracy_tables(find_runs(tmp_path)[0])
    lines = to_markdown(table).splitlines()
    bars = [line.replace("\\|", "").count("|") for line in lines]
    assert len(set(bars)) == 1


def test_reading_runs_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, fedwca.report.tables, fedwca.cli.entry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_finished_run_is_readable_if_its_lines_are_corrupt(tmp_path: Path) -> None:
    path = write_run(tmp_path, "r", "fedavg", 0, {"b": 0.5})
    (path / "results.jsonl").write_text("XX\n5\n")
    assert read_run(path).accuracy == 0.5


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, "r", "fedavg", 0, {"b": 0.5}))
    assert accuracy_tables([run, run])[0].rows[0][-2:] == ["1", "1"]


@pytest.mark.parametrize("name", ["config.json", "results.jsonl", "result.json"])
def test_an_unparsable_run_does_not_hide_the_others(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, "good", "fedavg", 0, {"b": 0.5})
    file = write_run(tmp_path, "bad", "fedavg", 1, {"b": 0.5}) / name
    file.write_text('{"settings": ' + "[" * 100_000)
    assert "good" in [run.name for run in find_runs(tmp_path)[0]]
    file.unlink()
    file.mkdir()
    assert "good" in [run.name for run in find_runs(tmp_path)[0]]

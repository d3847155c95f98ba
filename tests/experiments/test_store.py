"""The run folder: what it refuses, what it forgives."""

from pathlib import Path

import pytest
import torch

from fedwca.errors import UserError
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.methods import Record


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path / "run", {"a": 1}, {"a": 1})


def record(number: float) -> Record:
    return Record({"m": {"w": torch.tensor([number])}})


def test_another_experiments_folder_is_refused_and_kept(tmp_path: Path) -> None:
    folder(tmp_path).append({"round": 0})
    with pytest.raises(UserError, match=r"another configuration.*choose another --runs folder"):
        RunFolder.open(tmp_path / "run", {"a": 2}, {"a": 2})
    assert folder(tmp_path).lines() == [{"round": 0}]


def test_two_processes_on_one_folder_are_refused(tmp_path: Path) -> None:
    with folder(tmp_path), pytest.raises(UserError, match="another process is at work"):
        folder(tmp_path).__enter__()
    with folder(tmp_path):
        pass


def test_the_newest_checkpoint_counts_and_two_are_kept(tmp_path: Path) -> None:
    run = folder(tmp_path)
    assert run.load_checkpoint(1) is None
    run.append({"round": 0})
    for rounds in (1, 2, 3):
        run.append({"round": rounds})
        memories = {"x/0": record(10 * rounds)}
        run.save_checkpoint(Checkpoint(rounds, record(rounds), memories, {"seconds": rounds}))
    rounds, state, memories, facts = run.load_checkpoint(1) or pytest.fail("no checkpoint")
    assert facts == {"seconds": 3}
    assert (rounds, float(state.models["m"]["w"])) == (3, 3.0)
    assert float(memories["x/0"].models["m"]["w"]) == 30.0
    assert len(list(run.path.glob("checkpoint-*"))) == 2


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.append({"round": 0})
    for rounds in (1, 2):
        run.append({"round": rounds})
        run.save_checkpoint(Checkpoint(rounds, record(rounds), {}, {}))
    newest = run.path / "checkpoint-00002.safetensors"
    newest.write_bytes(newest.read_bytes()[:50])
    rounds, state, *_ = run.load_checkpoint(1) or pytest.fail("no checkpoint")
    assert (rounds, float(state.models["m"]["w"])) == (1, 1.0)


def test_a_half_written_line_is_left_out_and_later_rounds_are_forgotten(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for number in range(4):
        run.append({"round": number})
    with (run.path / "results.jsonl").open("a") as file:
        file.write('{"round": 4, "acc')
    run.rewind(2)
    assert run.lines() == [{"round": 0}, {"round": 1}]


def test_a_checkpoint_counts_only_with_all_its_results(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for rounds in range(4):
        run.append({"round": rounds})
        run.save_checkpoint(Checkpoint(rounds, record(rounds), {}, {}))
    path = run.path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "XX" + lines[2]]))  # round 2 is damaged
    rounds, *_ = run.load_checkpoint(1) or pytest.fail("no checkpoint")
    assert rounds == 2
    path.write_text("\n".join([lines[0], "5", *lines[2:]]))  # round 1 is damaged
    assert run.load_checkpoint(1) is None
    assert run.load_checkpoint(2) is not None  # it was not to be evaluated


def test_a_strange_file_beside_the_checkpoints_is_ignored(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.append({"round": 0})
    run.save_checkpoint(Checkpoint(0, record(0), {}, {}))
    (run.path / "checkpoint-00003 (copy).safetensors").write_text("")
    assert run.load_checkpoint(1) is not None


def test_a_line_separator_inside_a_name_cuts_no_line(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.append({"round": 0, "clients": {"漢\u2028字\n": 1}})
    assert run.lines() == [{"round": 0, "clients": {"漢\u2028字\n": 1}}]


def test_a_damaged_config_is_told_in_a_sentence(tmp_path: Path) -> None:
    (folder(tmp_path).path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is damaged: move"):
        folder(tmp_path)


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    run = folder(tmp_path)
    (run.path / "result.json.77.tmp").write_text("{")
    run.scratch.mkdir()
    (run.scratch / "1.safetensors").write_text("")
    run.clean()
    assert [p.name for p in run.path.iterdir()] == ["config.json"]

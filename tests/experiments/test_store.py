"""The run folder: corrupt files are noticed, valid ones are used."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca._support.files import add_checksum, temporary_path, write_json
from fedwca.experiments.checkpoint import write_checkpoint
from fedwca.experiments.store import SOURCE_FILE, Checkpoint, RunFolder
from fedwca.methods import Record
from fedwca.models import DomainModel, save_weights

NewModel = Callable[[], DomainModel]


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path / "run", {"a": 1}, {"a": 1})


def record(number: float) -> Record:
    return Record({"m": {"w": torch.tensor([number])}})


def load(run: RunFolder) -> Checkpoint:
    return run.load_checkpoint() or pytest.fail("no checkpoint")


def with_checkpoints(tmp_path: Path) -> RunFolder:
    """A run after two of three rounds; client x remembers a model, client y does not."""
    run = folder(tmp_path)
    for rounds in (1, 2):
        run.append({"round": rounds - 1})
        memories = {"x/0": record(10 * rounds), "y": Record()}
        run.save_checkpoint(Checkpoint(rounds, record(rounds), memories, {"seconds": rounds}))
    return run


def check_falls_back(run: RunFolder, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    caplog.clear()
    found = load(run)
    assert (found.rounds, float(found.state.models["m"]["w"])) == (1, 1.0)
    assert float(found.memories["x/0"].models["m"]["w"]) == 10.0
    assert len(caplog.messages) == 1
    assert "checkpoint-00002" in caplog.messages[0]
    assert reason in caplog.messages[0]


def test_the_folder_of_another_experiment_is_refused_and_unchanged(tmp_path: Path) -> None:
    folder(tmp_path).append({"round": 0})
    with pytest.raises(UserError, match="--runs"):
        RunFolder.open(tmp_path / "run", {"a": 2}, {"a": 2})
    assert folder(tmp_path).lines() == [{"round": 0}]


def test_two_processes_on_one_folder_are_refused(tmp_path: Path) -> None:
    with folder(tmp_path), pytest.raises(UserError, match=r"(?i)another process"):
        folder(tmp_path).__enter__()
    with folder(tmp_path):
        pass


def test_the_newest_checkpoint_is_loaded_and_two_are_on_disk(tmp_path: Path) -> None:
    assert folder(tmp_path).load_checkpoint() is None
    run = with_checkpoints(tmp_path)
    (run.path / "checkpoint-00003 (copy)").mkdir()
    run.save_checkpoint(Checkpoint(3, record(3), {"x/0": record(30), "y": Record()}, {}))
    rounds, state, memories, facts = load(run)
    assert (rounds, float(state.models["m"]["w"]), facts) == (3, 3.0, {})
    assert float(memories["x/0"].models["m"]["w"]) == 30.0
    assert len(list(run.path.glob("checkpoint-?????"))) == 2


def test_a_checkpoint_is_a_folder_and_memories_are_read_when_used(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    newest = run.path / "checkpoint-00002"
    names = ["manifest.json", "memory-0.safetensors", "results.jsonl", "state.safetensors"]
    assert sorted(path.name for path in newest.iterdir()) == names
    found = load(run)
    assert found.facts == {"seconds": 2}
    assert list(found.memories) == ["x/0"]  # who remembers nothing needs no file
    models = found.memories["x/0"].models
    assert models["m"] is not models["m"]


@pytest.mark.parametrize(
    "name", ["manifest.json", "memory-0.safetensors", "state.safetensors", "results.jsonl"]
)
def test_a_flipped_byte_a_cut_or_a_missing_file_is_noticed(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = with_checkpoints(tmp_path)
    path = run.path / "checkpoint-00002" / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        flipped = whole[place] ^ 1 << place % 8
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        check_falls_back(run, caplog, name)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        check_falls_back(run, caplog, name)
    path.unlink()
    check_falls_back(run, caplog, f"{name} is missing")


def test_checkpoints_of_other_versions_and_runs_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = with_checkpoints(tmp_path)
    newest = run.path / "checkpoint-00002"
    other = RunFolder.open(tmp_path / "other", {"a": 2}, {"a": 2})
    write_checkpoint(newest, Checkpoint(2, record(2), {}, {}), other._digest(), b"")
    check_falls_back(run, caplog, "another run")
    write_json(newest / "manifest.json", add_checksum({"format": "fedwca-checkpoint-9"}))
    check_falls_back(run, caplog, "another version")


def test_another_source_model_invalidates_checkpoints(tmp_path: Path, new_model: NewModel) -> None:
    run = with_checkpoints(tmp_path)
    save_weights(new_model(), run.path / SOURCE_FILE)
    assert run.load_checkpoint() is None


def test_a_disk_that_cannot_be_read_now_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_checkpoints(tmp_path)

    def broken(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fedwca.experiments.checkpoint.file_digest", broken)
    with pytest.raises(UserError, match="checkpoint-00002"):
        run.load_checkpoint()
    monkeypatch.undo()
    assert load(run).rounds == 2


def test_a_source_model_that_cannot_be_read_now_costs_no_checkpoint(
    tmp_path: Path, new_model: NewModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder(tmp_path)
    save_weights(new_model(), run.path / SOURCE_FILE)
    run.save_checkpoint(Checkpoint(1, record(1), {}, {}))

    def broken(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("fedwca.models.tensor_file.open_regular_file", broken)
    with pytest.raises(OSError, match="Too many open files"):
        run.load_checkpoint()
    with pytest.raises(OSError, match="Too many open files"):
        run.save_checkpoint(Checkpoint(2, record(2), {}, {}))
    monkeypatch.undo()
    assert load(run).rounds == 1


def test_rewind_removes_later_lines_and_checkpoints(tmp_path: Path) -> None:
    run = with_checkpoints(tmp_path)
    run.rewind(1)
    assert [path.name for path in run.path.glob("checkpoint-*")] == ["checkpoint-00001"]
    assert run.lines() == [{"round": 0}]


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for number in range(4):
        run.append({"round": number})
    with (run.path / "results.jsonl").open("a") as file:
        file.write('{"round": 4, "acc')
    run.rewind(2)
    assert run.lines() == [{"round": 0}, {"round": 1}]


@pytest.mark.parametrize("damage", ["", "nonsense\n", None])
def test_corrupt_results_cost_no_round(tmp_path: Path, damage: str | None) -> None:
    run = folder(tmp_path)
    for rounds in range(4):
        run.append({"round": rounds, "accuracy": rounds / 7})
        run.save_checkpoint(Checkpoint(rounds + 1, record(rounds), {}, {}))
    wanted, path = run.lines(), run.path / "results.jsonl"
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    assert load(run).rounds == 4
    run.rewind(4)
    assert run.lines() == wanted


def test_lines_come_from_the_file_the_checkpoints_and_the_result(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "nowhere").lines() == []
    run = with_checkpoints(tmp_path)
    run.append({"round": 2})
    run.write_json("result.json", add_checksum({"round": 2}))
    (run.path / "results.jsonl").unlink()
    assert run.lines() == [{"round": number} for number in range(3)]


def test_a_corrupt_result_is_ignored(tmp_path: Path) -> None:
    run = folder(tmp_path)
    path = run.path / "result.json"
    assert not run.done
    run.write_json("result.json", add_checksum({"round": 2}))
    assert run.done
    path.write_text(path.read_text().replace("2", "3", 1))
    assert not run.done
    run.write_json("result.json", {"round": 2})  # of an older version
    assert run.done


def test_any_flipped_byte_of_a_line_is_noticed(tmp_path: Path) -> None:
    run, line = folder(tmp_path), {"round": 0, "accuracy": {"mean": 0.25}}
    run.append(line)
    path = run.path / "results.jsonl"
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        flipped = whole[place] ^ 1 << place % 8
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        assert run.lines() == []
    path.write_bytes(whole)
    assert run.lines() == [line]


def test_a_corrupt_config_is_named(tmp_path: Path) -> None:
    (folder(tmp_path).path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        folder(tmp_path)


def test_stale_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    run = folder(tmp_path)
    card = temporary_path(run.path / "models" / "a.md")
    card.parent.mkdir()
    card.touch()
    os.utime(card, (10**9, 10**9))  # of a process that is gone, which had our number
    (run.path / "result.json.77.tmp").write_text("{")
    (run.path / "checkpoint-00002.tmp").mkdir()
    (run.path / "checkpoint-00002.tmp" / "state.safetensors").write_text("")
    run.scratch.mkdir()
    (run.scratch / "1.safetensors").write_text("")
    run.clean()
    card.parent.rmdir()
    assert {p.name for p in run.path.iterdir()} == {"config.json", ".lock"}


def test_a_link_at_scratch_is_not_followed(tmp_path: Path) -> None:
    run, precious = folder(tmp_path), tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.touch()
    run.scratch.symlink_to(precious.parent)
    run.clean()
    assert not run.scratch.is_symlink()
    assert precious.exists()

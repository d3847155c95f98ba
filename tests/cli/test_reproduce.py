"""`fedwca reproduce` from the command line: plan, interruption, table, and nothing run twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.cli import reproduce as reproduction
from fedwca.experiments import runner
from fedwca.reproduce.tables import TABLES
from tests.cli.conftest import Invoke, assert_error

TINY = ("--scale", "tiny", "--source", "handwriting", "--set=run.workers=1")
TWO_ROWS = ("main", *TINY, "--source=postal", "--method=fedavg", "--method=source_only")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Images this small gain nothing by more, and where cores are busy lose much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images and source models, made once for all tests here."""
    return f"--cache={tmp_path_factory.mktemp('cache')}"


def written(root: Path) -> dict[Path, int]:
    """When each result was last written."""
    return {path: path.stat().st_mtime_ns for path in root.glob("*/result*.json*")}


def test_the_tables_are_listed(invoke: Invoke) -> None:
    for arguments in ([], ["--list"], ["main", "--list"]):
        code, said, _ = invoke("reproduce", *arguments)
        assert code == 0
        assert "digit-clusters" in said
        assert "ladd_plus" in said


def test_invalid_options_are_errors_before_anything_is_run(
    invoke: Invoke, cache: str, tmp_path: Path
) -> None:
    for arguments, named in [
        (["mian"], "'main'"),
        (["main", "--scale", "tinny"], "'tiny'"),
        (["all", "--method", "fedwac"], "'fedwca'"),
        (["all", "--source", "street", "--source", "stret"], "'street'"),
        (["all", "--data", "nowhere"], "nowhere"),
        (["all", "--seeds", "0"], "--seeds"),
        (["revised", "--set", "model.weights=none.pth", "--scale", "tiny"], "none.pth"),
    ]:
        assert_error(invoke("reproduce", *arguments, cache), named)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_only_prints_the_plan(invoke: Invoke, cache: str, tmp_path: Path) -> None:
    code, said, _ = invoke("reproduce", *TWO_ROWS, cache, "--dry-run")
    assert code == 0
    assert "8 cells, 0 done, " in said
    assert "left (an estimate)" in said
    assert not (tmp_path / "runs").exists()


def test_interrupted_resumed_and_not_run_again(
    invoke: Invoke, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops_at_the_third(*arguments: Any) -> object:
        if len(list((tmp_path / "runs").glob("*/result.json"))) == 3:
            raise KeyboardInterrupt
        return runner.run_experiment(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "run_experiment", stops_at_the_third)
        stopped = invoke("reproduce", *TWO_ROWS, cache)
    assert stopped.code == 130
    assert "rerun the same command" in stopped.err
    assert "3 of 8 cells done, " in stopped.out
    assert "3 of 8 cells are done" in stopped.out
    tables = tmp_path / "runs" / "tables"
    assert "| fedavg |" in part_of(tables, "main", "md").read_text()
    assert "…" in stopped.out
    assert "–" in stopped.out

    early = written(tmp_path / "runs")
    said = invoke("reproduce", *TWO_ROWS, cache)
    assert said.code == 0, said.err
    assert "8 cells, 3 done, " in said.out
    assert "8 of 8 cells done" in said.out
    assert "±" in said.out
    assert "2 clients per domain" in said.out
    assert early.items() <= written(tmp_path / "runs").items()
    for suffix in ("md", "csv", "tex"):
        assert part_of(tables, "main", suffix).stat().st_size > 100

    before = written(tmp_path / "runs")
    again = invoke("reproduce", *TWO_ROWS, cache, "--output", "elsewhere")
    assert "8 cells, all done" in again.out
    assert written(tmp_path / "runs") == before
    text = part_of(Path("elsewhere"), "main", "csv").read_text()
    assert text == part_of(tables, "main", "csv").read_text()
    assert text.count("\n") == 1 + 2 * 3


def part_of(tables: Path, table: str, suffix: str) -> Path:
    """The file of a table that was asked for in part: it may not take the whole one's name."""
    (path,) = tables.glob(f"{table}-mini-digits-tiny-part-*.{suffix}")
    return path


def test_a_corrupt_cell_is_named_and_the_others_are_shown(
    invoke: Invoke, cache: str, tmp_path: Path
) -> None:
    assert invoke("reproduce", *TWO_ROWS, cache).code == 0
    result = sorted((tmp_path / "runs").glob("*-s1-*/result.json"))[0]
    whole = result.read_bytes()
    result.write_text("{")
    assert invoke("reproduce", *TWO_ROWS, cache).code == 0
    assert result.read_bytes() == whole  # rebuilt from the last checkpoint
    result.with_name("config.json").write_text("{")
    said = invoke("reproduce", *TWO_ROWS, cache)
    assert_error(said, "corrupt")
    assert "7 of 8 cells are done" in said.out
    assert "…" in part_of(tmp_path / "runs" / "tables", "main", "md").read_text()


def test_an_output_that_cannot_be_written_is_an_error_before_anything_is_run(
    invoke: Invoke, cache: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    said = invoke("reproduce", *TWO_ROWS, cache, "--output", "file/tables")
    assert_error(said, "file/tables")
    assert not (tmp_path / "runs").exists()


def test_the_whole_main_table(invoke: Invoke, cache: str) -> None:
    said = invoke("reproduce", "main", "--scale", "tiny", "--set=run.workers=1", cache)
    assert said.code == 0, said.err
    assert "60 of 60 cells done, nothing left" in said.out  # 6 methods, 5 sources, 2 seeds
    text = Path("runs/tables/main-mini-digits-tiny.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:8] == [f"| {row.name}" for row in TABLES["main"].rows]
    assert "–" not in text.partition("- ")[0]
    assert "fedwca against " in text


def test_clusters_by_layer(invoke: Invoke, cache: str) -> None:
    code, said, error = invoke("reproduce", "layers", *TINY, cache)
    assert code == 0, error
    assert "sizes by domain" in said
    assert part_of(Path("runs/tables"), "layers", "tex").is_file()


def test_ours_is_tested_against_the_best_other(invoke: Invoke, cache: str) -> None:
    code, said, error = invoke("reproduce", "revised", *TINY, cache)
    assert code == 0, error
    assert "fedwca against fedwca_u5" in said
    assert "little power" in said


def test_a_failed_cell_leaves_the_others(
    invoke: Invoke, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_at_the_second(*arguments: Any) -> object:
        if list((tmp_path / "runs").glob("*/result.json")):
            raise UserError("the cable was pulled: plug it in")
        return runner.run_experiment(*arguments)

    monkeypatch.setattr(reproduction, "run_experiment", fails_at_the_second)
    said = invoke("reproduce", *TWO_ROWS, cache)
    assert_error(said, "the cable was pulled")
    assert "1 of 8 cells are done" in said.out

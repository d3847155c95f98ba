"""The run folders and scripts in results/, from which docs/results.md is made."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedwca.report.runs import find_runs

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = sorted(p for p in RESULTS.iterdir() if p.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_run_can_be_read(folder: Path) -> None:
    runs, problems = find_runs(folder)
    assert runs
    assert problems == []


@pytest.mark.parametrize(
    "arguments",
    [("shrink_runs.py",), ("tables.py",), ("tables.py", "digit-five-all")],
    ids=" ".join,
)
def test_scripts_end_with_one_sentence_for_wrong_arguments(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=RESULTS, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1

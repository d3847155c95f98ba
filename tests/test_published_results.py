"""The run folders in results/, from which docs/results.md is made."""

from pathlib import Path

import pytest

from fedwca.report.runs import find_runs

FOLDERS = sorted(p for p in (Path(__file__).parents[1] / "results").iterdir() if p.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_run_can_be_read(folder: Path) -> None:
    runs, problems = find_runs(folder)
    assert runs
    assert problems == []

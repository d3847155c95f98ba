"""The guide's own method: under 60 lines, one registry line, and it is everywhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_settings import TINY

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "new_method.py"

# What a user does by adding the line to the registry.
ONE_LINE = """
import sys
from fedwca.methods import METHODS
from new_method import FedPersonal
METHODS["fedpersonal"] = FedPersonal
if __name__ == "__main__":
    from fedwca.cli.entry import main
    main(sys.argv[1:])
"""


def test_it_has_fewer_than_60_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "new_method.py").write_text(EXAMPLE.read_text())
    (tmp_path / "with_it.py").write_text(ONE_LINE)
    return [sys.executable, str(tmp_path / "with_it.py")]


def fedwca(command: list[str], *arguments: str) -> str:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_in_workers_and_appears_in_compare(
    command: list[str], npz_folder: Path, tmp_path: Path
) -> None:
    where = ["--runs", str(tmp_path / "runs")]
    settings = [*TINY, f"--set=data.path={npz_folder}", "--set=run.workers=2"]
    cache = ["--cache", str(tmp_path / "cache")]
    fedwca(command, "run", "--method", "fedpersonal", *settings, *where, *cache)
    assert "fedpersonal" in fedwca(command, "compare", *where)
    assert "fedpersonal" in fedwca(command, "methods")
    bad = ["run", "--method", "fedpersonal", "--set=method.own_share=2", *settings, *where, *cache]
    done = subprocess.run([*command, *bad], capture_output=True, text=True)
    assert done.returncode == 2
    assert "method.own_share" in done.stderr


def test_it_keeps_the_contract() -> None:
    """All contract tests, in a process whose registry holds the example alone."""
    tests = ROOT / "tests" / "contracts" / "test_methods.py"
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import pytest
from fedwca.methods import METHODS
from new_method import FedPersonal
METHODS.clear()
METHODS["fedpersonal"] = FedPersonal
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {str(tests)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout

"""The examples run as they stand, and what they print is what the run says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedwca

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: whoever comes second finds the run done."""
    return tmp_path_factory.mktemp("examples")


def printed(example: str, place: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        cwd=place,
        env={**os.environ, "FEDWCA_CACHE": str(place / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def the_run(place: Path) -> fedwca.Run:
    (path,) = (place / "runs").glob("*-fedwca-*")
    return fedwca.open_run(path)


def test_quickstart(place: Path) -> None:
    lines = printed("quickstart.py", place)
    run = the_run(place)
    (other,) = (place / "runs").glob("*-source_only-*")
    assert lines[0] == f"source_only: accuracy {fedwca.open_run(other).accuracy:.3f}"
    assert lines[1] == f"fedwca: accuracy {run.accuracy:.3f}, in {run.path}"
    for line, (client, domain) in zip(lines[2:10], run.domains.items(), strict=True):
        shares = ", ".join(f"{share:.2f}" for share in run.weights[1][client])
        cluster, accuracy = run.clusters[client], run.accuracies[client]
        assert line.startswith(f"{client} ({domain}): cluster {cluster}, v = {shares}; ")
        assert line.endswith(f"{accuracy:.0%}")
    losses = [record["loss_ce"] for record in run.records() if record["client"] == "postal/0"]
    assert lines[10] == f"losses of postal/0: {losses}"
    assert losses[0] is None
    words = lines[11].split()
    assert words[:4] == ["an", "image", "of", "a"]
    assert words[8] in run.classes


def test_walkthrough(place: Path) -> None:
    lines = printed("walkthrough.py", place)
    run = the_run(place)
    assert lines[0] == str(run)
    assert [line.split(":")[0] for line in lines[1:9]] == list(run.domains)
    assert lines[9] == f"clusters: {run.clusters}"
    record = run.records()[-1]
    client = record["client"]
    rounded = {name: [round(share, 3) for share in record[name]] for name in ("alpha", "beta")}
    assert lines[10] == f"α of {client}: {rounded['alpha']}"
    assert lines[11] == f"β of {client}: {rounded['beta']}"
    assert lines[12] == f"v of {client}: {[round(share, 3) for share in record['weights']]}"
    matched, mismatched = (int(line.split()[4].rstrip(",")) for line in lines[13:15])
    assert matched / (matched + mismatched) == record["matched"]
    assert lines[16:] == [
        "largest difference to the run's cluster models: 0.0",
        "largest difference to the run's S: 0.0",
    ]


def test_faults_prints_help(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "faults.py"), "--help"],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "folder" in done.stdout
    assert not (place / "--help").exists()

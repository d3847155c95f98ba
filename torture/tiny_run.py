"""A run that takes seconds on the command line, and checks that an attack changed nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedwca.engines.codec import load_records
from fedwca.models import read_weights
from tests.support.tiny_settings import TINY
from torture.attack import check

SLOW_DISK = Path(__file__).parent / "slow_disk"


def command(world: Path, place: Path, *more: str) -> list[str]:
    """Return `fedwca run` on the images of a world, with runs and cache in `place`."""
    folders = ["--runs", str(place / "runs"), "--cache", str(place / "cache")]
    settings = [*TINY, "--set=source.epochs=1", f"--set=data.path={_images(world)}", *more]
    return [sys.executable, "-m", "fedwca.cli", "run", *settings, *folders]


def _images(world: Path) -> Path:
    """Write three domains of bright and dark squares, once."""
    folder = world / "images"
    if not folder.exists():
        folder.mkdir()
        for seed, name in enumerate(("clean", "dim", "noisy")):
            rng = np.random.default_rng(seed)
            labels = rng.permutation(np.arange(24) % 3)
            images = rng.integers(0, 60 + 40 * seed, (24, 16, 16, 3))
            images[np.arange(24), 4 * labels + 2, :, :] += 120
            np.savez(folder / name, images=images.astype(np.uint8), labels=labels)
    return folder


def undisturbed_run(world: Path, *more: str) -> Path:
    """Run the same without an attack, once."""
    place = world / "undisturbed" / "".join(c if c.isalnum() else "-" for c in "".join(more))
    if not (place / "finished").exists():
        run_to_end(command(world, place, *more))
        (place / "finished").touch()
    return place


def run_to_end(command: list[str], **environment: str) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        command, env=environment or None, capture_output=True, text=True, timeout=300
    )
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stderr + done.stdout


def checkpoint_rounds(place: Path) -> list[int]:
    """Return the number of rounds of each checkpoint, the newest last."""
    return sorted(int(path.name[-5:]) for path in place.glob("runs/*/checkpoint-?????"))


def newest_checkpoint(place: Path) -> int:
    """Return the number of rounds of the newest checkpoint, 0 if there is none."""
    return max(checkpoint_rounds(place), default=0)


def check_resumes(place: Path, run: Callable[[], str]) -> None:
    """Check that a command, which returns its output, resumes from the newest checkpoint."""
    rounds, done = newest_checkpoint(place), list(place.glob("runs/*/result.json"))
    output = run()
    if not done:  # a finished run prints nothing
        check_resumed(output, rounds)


def check_resumed(output: str, rounds: int) -> None:
    """Check in a command's output that it resumed after `rounds` rounds.

    The results cannot show it: they are the same wherever a run resumes.
    """
    found = re.search(r": \d+ rounds(?:, (\d+) already done)?\n", output)
    check(found is not None, f"no round started: {output[-500:]}")
    done = int(found[1] or 0) if found else 0
    check(done == rounds, f"resumed after {done} rounds, not {rounds}: {output[-500:]}")


def read_tensors(path: Path) -> dict[str, bytes]:
    """Return the bytes of all tensors of a model file."""
    return {name: tensor.numpy().tobytes() for name, tensor in read_weights(path).items()}


def read_outcome(place: Path) -> tuple[list[Any], list[dict[str, bytes]], dict[str, bytes]]:
    """Return results without timings, and the bytes of all models and of the source model."""
    (run,) = (place / "runs").iterdir()
    texts = [*(run / "results.jsonl").read_text().splitlines(), (run / "result.json").read_text()]
    lines = [json.loads(text) for text in texts]
    for line in lines:
        line.pop("seconds", None)
        line.pop("sha256", None)  # of the timings too
    models = []
    newest = max(run.glob("checkpoint-*"))  # an older corrupt one is not rebuilt
    for path in sorted(newest.glob("*.safetensors")):
        (record,) = load_records(path).values()
        states = {**record.models, "": record.values}
        found = {f"{m}/{n}": t.numpy().tobytes() for m, s in states.items() for n, t in s.items()}
        models.append({"": f"{path.parent.name}/{path.name}".encode(), **found})
    return lines, models, read_tensors(run / "source.safetensors")


def check_same_result(place: Path, expected: Path, attack: str = "") -> None:
    """Check that the results are those of the undisturbed run, and that no stale files remain."""
    check(read_outcome(place) == read_outcome(expected), f"{attack}the result differs")
    check_no_stale_files(place, attack)


def check_no_stale_files(place: Path, attack: str = "") -> None:
    """Check that a run has left neither temporary files nor a scratch folder."""
    found = [*place.rglob("*.tmp"), *place.rglob("scratch")]
    check(not found, f"{attack}files remain: {[str(path.relative_to(place)) for path in found]}")


def slow_environment() -> dict[str, str]:
    """Return the environment of a process with a slow disk."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(SLOW_DISK), *filter(None, others)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

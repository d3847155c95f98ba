"""A run that takes seconds, by the command line, and what must be the same after any mischief."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attack import held
from fedwca.engines.records import load_records
from fedwca.models import read_weights
from tiny_settings import TINY

__all__ = [
    "check_resumed",
    "command",
    "finished",
    "kept",
    "outcome",
    "slowly",
    "tensors",
    "unbroken",
    "untidy",
]

SLOW_DISK = Path(__file__).parent / "slow_disk"


def command(world: Path, place: Path, *more: str) -> list[str]:
    """`fedwca run` on the images of a world, with its runs and its cache in a place."""
    folders = ["--runs", str(place / "runs"), "--cache", str(place / "cache")]
    settings = [*TINY, "--set=source.epochs=1", f"--set=data.path={_images(world)}", *more]
    return [sys.executable, "-m", "fedwca.cli", "run", *settings, *folders]


def _images(world: Path) -> Path:
    """Three domains of bright and dark squares."""
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


def unbroken(world: Path, *more: str) -> Path:
    """The same run without mischief, made once."""
    place = world / "unbroken" / "".join(c if c.isalnum() else "-" for c in "".join(more))
    if not (place / "whole").exists():
        finished(command(world, place, *more))
        (place / "whole").touch()
    return place


def finished(words: list[str]) -> str:
    """Let a command come to its end, which must be a good one; what it said."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    held(done.returncode == 0, f"it ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stderr + done.stdout


def kept(place: Path) -> list[int]:
    """After how many rounds each checkpoint of a run was made, the newest last."""
    return sorted(int(path.name[-5:]) for path in place.glob("runs/*/checkpoint-?????"))


def check_resumed(said: str, rounds: int) -> None:
    """Whether a command went on after so many rounds, by what it said when the rounds began.

    Runs come to the same end wherever they begin: by results alone nobody could tell.
    """
    found = re.search(r": \d+ rounds(?:, (\d+) already done)?\n", said)
    held(found is not None, f"it did not come to the rounds: {said[-500:]}")
    done = int(found[1] or 0) if found else 0
    held(done == rounds, f"it went on after {done} rounds, not after {rounds}: {said[-500:]}")


def tensors(path: Path) -> dict[str, bytes]:
    """Every bit of a model on the disk, which must be whole."""
    return {name: tensor.numpy().tobytes() for name, tensor in read_weights(path).items()}


def outcome(place: Path) -> tuple[list[Any], list[dict[str, bytes]], dict[str, bytes]]:
    """All that a run has come to but for the clock: results, every bit of models, the source."""
    (run,) = (place / "runs").iterdir()
    texts = [*(run / "results.jsonl").read_text().splitlines(), (run / "result.json").read_text()]
    lines = [json.loads(text) for text in texts]
    for line in lines:
        line.pop("seconds", None)
        line.pop("sha256", None)  # of the seconds too
    models = []
    newest = max(run.glob("checkpoint-*"))  # one that was damaged before it is not made again
    for path in sorted(newest.glob("*.safetensors")):
        (record,) = load_records(path).values()
        states = {**record.models, "": record.values}
        found = {f"{m}/{n}": t.numpy().tobytes() for m, s in states.items() for n, t in s.items()}
        models.append({"": f"{path.parent.name}/{path.name}".encode(), **found})
    return lines, models, tensors(run / "source.safetensors")


def untidy(place: Path) -> list[str]:
    """What should not lie in a place after a run: half-written files and scratch."""
    found = [*place.rglob("*.tmp"), *place.rglob("scratch")]
    return [str(path.relative_to(place)) for path in found]


def slowly() -> dict[str, str]:
    """The environment of a process whose disk is slow."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(SLOW_DISK), *filter(None, others)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

"""Print a digest of what every method computes on a tiny problem, to compare two versions.

    python tools/method_digests.py > before.txt
    python tools/method_digests.py --compare before.txt

Each method runs two rounds on a small mini-digits with one worker and one thread. A line holds the
digest of all result lines (without timings), then a line for each client the digest of its final
model. Equal lines mean equal bits, on one machine: another processor may round differently.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fedwca
from fedwca.methods import METHODS

SETTINGS = {
    "data": {"clients_per_domain": 2, "images_per_domain": 100},
    "source": {"epochs": 3},
    "training": {"rounds": 2, "epochs": 2, "batch_size": 16},
    "run": {"workers": 1, "seed": 0, "device": "cpu"},
}
# The treatments of BatchNorm and a few ablations change code paths that the defaults do not reach.
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method.name": name} for name in METHODS},
    "fedavg/recalibrate": {"method.name": "fedavg", "training.batch_norm": "recalibrate"},
    "fedwca/recalibrate": {"method.name": "fedwca", "training.batch_norm": "recalibrate"},
    "fedwca/median": {"method.name": "fedwca", "method.aggregation": "median"},
    "fedwca/style": {"method.name": "fedwca", "method.clustering": "style"},
    "fedwca/one_equal": {"method.name": "fedwca", "method.cluster_weights": "one_equal"},
}


def results_digest(path: Path) -> str:
    """Digest of the result lines without their timings and checksums."""
    digest = hashlib.sha256()
    for text in (path / "results.jsonl").read_text(encoding="utf-8").splitlines():
        line = {k: v for k, v in json.loads(text).items() if k not in ("seconds", "sha256")}
        digest.update(json.dumps(line, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def model_digest(model: torch.nn.Module) -> str:
    """Digest of all parameters and buffers by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def digests() -> list[str]:
    """Lines of digests for all variants."""
    torch.set_num_threads(1)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, overrides in VARIANTS.items():
            folders = {"runs": Path(folder, "runs"), "cache": Path(folder, "cache")}
            run = fedwca.run(SETTINGS, overrides=overrides, **folders)
            lines.append(f"{name} results {results_digest(run.path)}")
            for client in run.accuracies:
                lines.append(f"{name} {client} {model_digest(run.model(client))}")
    return lines


def main() -> int:
    """Print the digests, or compare them with a file: exit code 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", type=Path, help="a file of digests printed before")
    compare = parser.parse_args().compare
    found = digests()
    if compare is None:
        print("\n".join(found))
        return 0
    expected = compare.read_text(encoding="utf-8").splitlines()
    differing = sorted(set(expected) ^ set(found))
    print("\n".join(differing) or f"all {len(expected)} digests are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure speed and scale; print a table and write it as JSON.

    python benchmarks/bench.py [PART…] [--repeats 3] [--quick] [--json FILE]

Nothing else should run on the machine. Alternatives run in turn, several times; a ratio is the
median of the ratios of all turns. `--quick` is a trial with less work; its numbers mean little.
Without PART, everything is measured.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import growth
import rounds
import speed
import torch

from fedwca._support.machine import count_cores, keep_freed_memory

PARTS = {
    "adaptation": speed.adaptation,
    "small-clients": speed.small_clients,
    "resnet": speed.resnet,
    "start": rounds.start,
    "methods": rounds.methods,
    "additions": rounds.additions,
    "parts": rounds.parts,
    "clients": growth.clients,
    "clusters": growth.clusters,
    "images": growth.images,
    "server": growth.server,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    if unknown := [part for part in options.part if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if (load := os.getloadavg()[0]) > 0.3:
        print(f"warning: the machine is busy (load {load:.1f}); wait until nothing else runs")
    keep_freed_memory()
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    results: dict[str, Any] = {"machine": facts, "repeats": options.repeats, "parts": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.part or PARTS:
            started = time.perf_counter()
            rows = PARTS[name](Path(folder), options.repeats, options.quick)
            print(f"\n{name} ({time.perf_counter() - started:.0f} s)")
            print("\n".join(map(str, rows)), flush=True)
            results["parts"][name] = [r._asdict() for r in rows]
            options.json.write_text(json.dumps(results, indent=1))
    print(f"\nwritten to {options.json}")


def machine() -> dict[str, str]:
    """Describe the machine that the numbers depend on."""
    info = Path("/proc/cpuinfo")
    names = [x for x in info.read_text().splitlines() if "model name" in x] if info.exists() else []
    return {
        "processor": names[0].partition(": ")[2] if names else platform.processor(),
        "cores": str(count_cores()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": f"{os.getloadavg()[0]:.2f}",
    }


if __name__ == "__main__":
    main()

"""Interleaved, repeated measurements, and table rows with their spread."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca._support.machine import count_cores


class Row(NamedTuple):
    """A table row: a median, its range, and the target if there is one."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    target: str = ""

    def __str__(self) -> str:
        spread = f"{self.low:,.4g} to {self.high:,.4g}" if self.low != self.high else ""
        text = f"  {self.name:58} {self.value:>9,.4g} {self.unit:9} {spread:24} {self.target}"
        return text.rstrip()


def row(name: str, values: Sequence[float], unit: str, target: str = "") -> Row:
    return Row(name, statistics.median(values), unit, min(values), max(values), target)


def ratio(name: str, of: Sequence[float], to: Sequence[float], unit: str, target: str = "") -> Row:
    """Return the median of the ratios within each repetition; what slows both cancels out."""
    return row(name, [a / b for a, b in zip(of, to, strict=True)], unit, target)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(ways: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run all alternatives in turn, in reverse order every second time."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
            print(f"    {repeat + 1}/{repeats} {name}", file=sys.stderr, flush=True)
            found[name].append(ways[name]())
    return found


def matrix_limit(size: int = 4096, times: int = 6) -> float:
    """Return the median FLOP/s of a large single-precision matrix product on all cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count_cores())
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    found = [2 * size**3 / seconds(lambda: a @ b) for _ in range(times)]
    torch.set_num_threads(before)
    return statistics.median(found)


def peak_memory(process: int | str = "self") -> float:
    """Return the peak memory of a process in MiB; `getrusage` would include its parent's."""
    return _status("VmHWM", process)


def memory_now() -> float:
    """Return the memory of this process in MiB and reset its peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str, process: int | str = "self") -> float:
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def in_a_process(script: str, *arguments: object, environment: Mapping[str, str]) -> Any:
    """Run a script and return the JSON that it prints last."""
    command = [sys.executable, script, *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment))
    if done.returncode:
        raise RuntimeError(f"{script} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])

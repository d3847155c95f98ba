"""How things are measured: interleaved and repeated, in rows that say how far they spread."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca.machine import cores


class Row(NamedTuple):
    """A line of the table: a median and its range; what was hoped for, where there is a bar."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    bar: str = ""

    def __str__(self) -> str:
        spread = f"{self.low:,.4g} to {self.high:,.4g}" if self.low != self.high else ""
        return f"  {self.name:58} {self.value:>9,.4g} {self.unit:9} {spread:24} {self.bar}".rstrip()


def row(name: str, values: Sequence[float], unit: str, bar: str = "") -> Row:
    return Row(name, statistics.median(values), unit, min(values), max(values), bar)


def ratio(name: str, of: Sequence[float], to: Sequence[float], unit: str, bar: str = "") -> Row:
    """The median of the ratios within each repetition: what slows both does not count."""
    return row(name, [a / b for a, b in zip(of, to, strict=True)], unit, bar)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(ways: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """What each way measures, in turns, the other way round every second time."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
            print(f"    {repeat + 1}/{repeats} {name}", file=sys.stderr, flush=True)
            found[name].append(ways[name]())
    return found


def matrix_limit(size: int = 4096, times: int = 6) -> float:
    """FLOP/s of a large single-precision matrix product on all cores: the median of a few."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    found = [2 * size**3 / seconds(lambda: a @ b) for _ in range(times)]
    torch.set_num_threads(before)
    return statistics.median(found)


def peak_memory(process: int | str = "self") -> float:
    """MiB of a process at its peak. What `getrusage` says would include its parent's."""
    return _status("VmHWM", process)


def memory_now() -> float:
    """MiB of this process; the peak is measured anew from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str, process: int | str = "self") -> float:
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def in_a_process(script: str, *arguments: object, environment: Mapping[str, str]) -> Any:
    """The JSON that a script prints last."""
    command = [sys.executable, script, *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment))
    if done.returncode:
        raise RuntimeError(f"{script} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])

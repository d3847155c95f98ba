"""Jobs for worker processes, and how they can fail."""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import torch

from fedwca._support.errors import UserError


class OddJob(NamedTuple):
    """Fails once for each trick, then succeeds.

    Attributes:
        diary: a file that gets a line with the time of every attempt.
        tricks: how the first attempts fail.
        seconds: how long the others take.
    """

    diary: Path
    tricks: tuple[str, ...] = ()
    seconds: float = 0.0


class StubbornError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def attempts(job: OddJob) -> list[float]:
    return [float(line) for line in job.diary.read_text().splitlines()]


def do(job: OddJob) -> float:
    with job.diary.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    before = len(attempts(job)) - 1
    if before < len(job.tricks):
        play(job.tricks[before])
    time.sleep(job.seconds)
    return time.monotonic()


def play(trick: str) -> None:
    if trick == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trick == "real time":
        os.kill(os.getpid(), 40)
    elif trick == "exit":
        os._exit(3)
    elif trick == "memory":
        raise MemoryError
    elif trick == "allocate":
        torch.empty(1 << 60, dtype=torch.uint8)
    elif trick == "bug":
        raise KeyError("a bug of ours")
    elif trick == "mistake":
        raise UserError("lower the setting", elsewhere="the same for others")
    elif trick == "stubborn":
        raise StubbornError("can", "not travel")


def blocks_interrupts(job: object = None) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

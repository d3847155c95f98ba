"""What an attack is: a fault that is injected into the software, again and again."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Attack", "AttackFailedError", "check"]


class AttackFailedError(AssertionError):
    """The software did not withstand the attack; the message says what went wrong."""


class Attack(NamedTuple):
    """One row of the table.

    Attributes:
        name: what is done, as the table shows it.
        attempt: attacks once, in an empty folder, with all randomness from the number. The
            folder's parent is shared by all attempts, for reference results. Any exception counts
            as a failure. It may attack several times, or not at all, and return how often.
        times: attempts in a full run.
        short_times: attempts in the short form, which the tests run; 0: none.
        short_attempt: the attempt of the short form, where the other takes too long for it.
        alone: nothing else may run at the same time, because it measures memory or needs all cores.
    """

    name: str
    attempt: Callable[[Path, int], int | None]
    times: int
    short_times: int = 1
    short_attempt: Callable[[Path, int], int | None] | None = None
    alone: bool = False


def check(condition: bool, message: str) -> None:
    """Raise AttackFailedError with the message unless the condition holds."""
    if not condition:
        raise AttackFailedError(message)

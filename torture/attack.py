"""What an attack is: something bad that is done to the software, again and again."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Attack", "LostError", "NotTriedError", "held"]


class LostError(AssertionError):
    """The software did not hold: what was lost, in a sentence."""


class NotTriedError(Exception):
    """The attack cannot be made here: why, in a few words."""


class Attack(NamedTuple):
    """One line of the table.

    Attributes:
        name: what is done, as the table says it.
        attempt: does it once, in an empty folder, with all randomness from the number; the folder's
            parent is shared by all attempts, for what they compare with. Whatever it raises counts
            as lost, but for `NotTriedError`. It may do it several times, or not at all, and return
            how often.
        times: attempts in a full run.
        short: attempts in the short form, which the tests run; 0: left out there.
        quick: the attempt of the short form, where the other takes too long for it.
        alone: nothing else may run beside it, because it measures memory or takes all cores.
    """

    name: str
    attempt: Callable[[Path, int], int | None]
    times: int
    short: int = 1
    quick: Callable[[Path, int], int | None] | None = None
    alone: bool = False


def held(condition: bool, otherwise: str) -> None:
    """Whether the software held; `otherwise` says what was lost."""
    if not condition:
        raise LostError(otherwise)

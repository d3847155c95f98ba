"""The one exception that is meant for the user's eyes, and the hint that often goes with it."""

import difflib
from collections.abc import Iterable

__all__ = ["UserError", "did_you_mean"]


class UserError(Exception):
    """Something the user can put right; its text is one sentence that says how.

    Args:
        sentence: for the user of this machine.
        elsewhere: the same for another machine, which is not to learn of paths and file names.
    """

    def __init__(self, sentence: str, elsewhere: str = "") -> None:
        super().__init__(sentence)
        self.elsewhere = elsewhere


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """The nearest known name as a question; where none is near, `otherwise` or all of them."""
    names = list(known)
    near = difflib.get_close_matches(str(word), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return otherwise or f"choose from {', '.join(names)}"

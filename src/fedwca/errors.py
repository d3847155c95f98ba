"""The one exception that is meant for the user's eyes, and the hint that often goes with it."""

import difflib
from collections.abc import Iterable

__all__ = ["UserError", "did_you_mean"]


class UserError(Exception):
    """Something the user can put right; its text is one sentence that says how."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The nearest known name as a question, or all of them to choose from."""
    names = list(known)
    near = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}"

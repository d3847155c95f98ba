"""The one exception that is meant for the user's eyes, and the hints that often go with it."""

import difflib
import errno
import os
from collections.abc import Iterable

__all__ = ["UserError", "did_you_mean", "disk_sentence"]


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


def disk_sentence(error: OSError) -> str:
    """What the user can do about a disk that is full, read-only or broken."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):  # Windows has no quota
        return f"the disk is full{where}: free some space and run the same command again"
    if error.errno in (errno.EACCES, errno.EPERM) and _is_shut(error.filename):
        return f"cannot read{where} ({error.strerror}): make it readable, or give another file"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"cannot write{where} ({error.strerror}): choose another --runs or --cache folder"
    return f"cannot use{where} ({error.strerror or error}): check the path and try again"


def _is_shut(path: str | None) -> bool:
    return path is not None and os.path.isfile(path) and not os.access(path, os.R_OK)

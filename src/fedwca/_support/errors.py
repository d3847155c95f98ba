"""The exception for users' mistakes, and hints for its message."""

import difflib
import errno
from collections.abc import Iterable

__all__ = ["UserError", "describe_disk_error", "did_you_mean", "missing_extra_error"]


class UserError(Exception):
    """A mistake that the user can correct; the message says how.

    Args:
        message: for the user of this machine.
        elsewhere: the same for another machine, which must not learn paths or file names.
    """

    def __init__(self, message: str, elsewhere: str = "") -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """Suggest the most similar known name; if none is similar, return `otherwise` or list all."""
    names = list(known)
    similar = difflib.get_close_matches(str(word), names, n=1)
    if similar:
        return f"did you mean {similar[0]!r}?"
    return otherwise or f"choose from {', '.join(names)}"


def missing_extra_error(problem: str, extra: str) -> UserError:
    """Return the error for a package that an extra of fedwca installs."""
    return UserError(f"{problem}; install it with: pip install 'fedwca[{extra}]'")


def describe_disk_error(error: OSError) -> str:
    """Say what is wrong with the disk or file, and what the user can do."""
    path = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):  # Windows has no quota
        return f"the disk is full{path}: free some space, then rerun the same command"
    if error.errno == errno.EROFS:
        return f"cannot write{path} ({error.strerror}): choose another --runs or --cache folder"
    return f"cannot use{path} ({error.strerror or error}): check the path and its permissions"

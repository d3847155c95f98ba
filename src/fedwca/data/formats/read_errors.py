"""Explain why a file cannot be read: a full disk or lost network must not count as corrupt."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca._support.files import is_transient
from fedwca._support.machine import is_out_of_memory

__all__ = ["explain_read_errors", "transient_read_error"]


@contextmanager
def explain_read_errors(file: Path, complaint: str) -> Iterator[None]:
    """Raise UserError instead of whatever a parser raises; `complaint` follows the file's name."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # on corrupt bytes, parsers raise a dozen kinds
        if isinstance(error, OSError) and is_transient(error):
            raise transient_read_error(file, error) from None
        if is_out_of_memory(error):
            raise UserError(
                f"out of memory while reading {file}; free memory or split the file"
            ) from None
        raise UserError(f"{file} {complaint}") from None


def transient_read_error(path: Path, error: OSError) -> UserError:
    """Return the error for a file that may be readable the next time."""
    return UserError(
        f"{path} cannot be read at the moment ({error.strerror}); "
        "fix that and rerun, or remove the file",
        "one of its images cannot be read at the moment",
    )

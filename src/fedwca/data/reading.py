"""Why a file cannot be read: only what is its own fault may be called damage."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwca.errors import UserError
from fedwca.files import is_passing
from fedwca.machine import lacks_memory

__all__ = ["not_now", "reading"]


@contextmanager
def reading(file: Path, damaged: str) -> Iterator[None]:
    """Whatever a parser raises in here, told in a sentence; `damaged` goes on after the name."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # on bad bytes, parsers raise a dozen kinds
        if isinstance(error, OSError) and is_passing(error):
            raise not_now(file, error) from None
        if lacks_memory(error):
            raise UserError(
                f"there is too little memory to read {file}: free some, or save it in smaller parts"
            ) from None
        raise UserError(f"{file} {damaged}") from None


def not_now(path: Path, error: OSError) -> UserError:
    """For a file that cannot be read for the moment."""
    return UserError(
        f"{path} cannot be read for the moment ({error.strerror}): mend that and run again, "
        "or remove the file",
        "one of its images cannot be read for the moment",
    )

"""The answer to a name that does not exist."""

import difflib
from collections.abc import Iterable

from fedwca.errors import UserError


def unknown_name(what: str, name: str, known: Iterable[str], otherwise: str) -> UserError:
    """Propose the nearest known name; where none is near, say `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1)
    advice = f'did you mean "{near[0]}"?' if near else f"{otherwise}."
    return UserError(f'There is no {what} "{name}"; {advice}')

"""Federated source-free domain adaptation: FedWCA and its rivals.

`run` runs an experiment, `open_run` opens one that was run before; both give a `Run`. What cannot
be done is told by a `UserError`.
"""

from typing import TYPE_CHECKING

from fedwca.errors import UserError

if TYPE_CHECKING:
    from fedwca.api import Run, open_run, run
else:

    def __getattr__(name: str) -> object:
        # Loaded when asked for: the command line imports this package at every start.
        if name not in ("Run", "open_run", "run"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fedwca import api

        return getattr(api, name)


__all__ = ["Run", "UserError", "open_run", "run"]

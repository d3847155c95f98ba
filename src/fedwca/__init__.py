"""Federated source-free domain adaptation: FedWCA and other methods.

`run` runs an experiment and `open_run` opens an earlier one; both return a `Run`. A mistake of the
caller raises `UserError`.
"""

from typing import TYPE_CHECKING

from fedwca._support.errors import UserError

if TYPE_CHECKING:
    from fedwca.api import Run, open_run, run
else:

    def __getattr__(name: str) -> object:
        # Imported on first use, because every start of the command line imports this package.
        if name not in ("Run", "open_run", "run"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fedwca import api

        return getattr(api, name)


__all__ = ["Run", "UserError", "open_run", "run"]

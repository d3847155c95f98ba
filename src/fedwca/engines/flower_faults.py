"""Sites that fail in a round, and answers that are refused: in the log, and in what is known."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedwca.engines.flower_post import NoReply
from fedwca.engines.flower_sites import KnownSite
from fedwca.engines.wire import WireError
from fedwca.notes import Note, printable

__all__ = ["Faults"]


class Faults:
    """What goes wrong with the sites in a round.

    Attributes:
        refused: by site, why answers of it were not taken.
    """

    def __init__(self, round: int, note: Note) -> None:
        self._round, self._note = round, note
        self.refused: dict[str, list[str]] = {}

    def silent(self, site: KnownSite, what: str, reply: NoReply) -> None:
        """It says nothing, or nothing that can be read; `what` it thereby does goes to the log."""
        (self._refuse if reply.refused else self.fail)(site, what, reply.reason)

    def fail(self, site: KnownSite, what: str, problem: str) -> None:
        """It could not do its work."""
        problem = printable(problem)
        site.facts["problem"] = f"round {self._round}: {problem}"
        self._note(f"round {self._round}: {site.name} {what}: {problem}")

    @contextmanager
    def refusing(self, site: KnownSite, what: str) -> Iterator[None]:
        """Whatever is wrong with its answer has it refused: it must not end the others' run."""
        try:
            yield
        except WireError as error:
            self._refuse(site, what, str(error))
        except Exception as error:
            self._refuse(site, what, f"{type(error).__name__}, {error}")

    def _refuse(self, site: KnownSite, what: str, reason: str) -> None:
        self.refused.setdefault(site.name, []).append(printable(reason))
        site.refuse(self._round, printable(reason))
        self.fail(site, what, f"its answer is refused: {reason}")

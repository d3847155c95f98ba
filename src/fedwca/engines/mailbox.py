"""Records on their way between the simulator's processes: models in files, numbers by hand."""

import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fedwca.core.params import State
from fedwca.engines.base import Answer, Evaluation, Job
from fedwca.engines.raw_tensor import RawTensor
from fedwca.engines.records import Filed, save_records
from fedwca.methods.base import Adapted, Health, Record

__all__ = ["Done", "Letters", "Mailbox", "Written", "files_of"]

Places = dict[str, tuple[Path, str]]  # of each model, its file, and its name in there


class Parcel(NamedTuple):
    """A record on its way: where its models lie, and its values."""

    models: Places
    values: dict[str, RawTensor]

    def record(self) -> Record:
        """The record, its models still in their files."""
        values = {name: value.tensor() for name, value in self.values.items()}
        return Record(Filed(self.models), values)


class Written:
    """Where states were written: each is held, since an id is a state's only as long as it lives.

    About as many are held as two jobs have: what all jobs share is always among them, and a model
    that was blended for one client is let go of.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[int, tuple[State, Path]] = OrderedDict()

    def place(self, state: State, write: Callable[[State], Path]) -> Path:
        """Where the state lies; it is written unless it was."""
        if id(state) not in self._places:
            self._places[id(state)] = state, write(state)
        self._places.move_to_end(id(state))
        return self._places[id(state)][1]

    def let_go(self, but: int) -> None:
        """Keep only the last ones that were asked for."""
        while len(self._places) > but:
            self._places.popitem(last=False)


class Letters(NamedTuple):
    """A job on its way."""

    memory: Parcel
    message: Parcel | None
    offered: Parcel | None

    def job(self) -> Job:
        """The job, its models still in their files but for what is to be scored."""
        return Job(
            self.message.record() if self.message else None,
            self.offered.record().models[""] if self.offered else None,
            self.memory.record(),
        )


class Sent(NamedTuple):
    """What a client gave back, on its way, and how large its reply is."""

    reply: Parcel
    memory: Parcel
    health: Health
    nbytes: int


class Done(NamedTuple):
    """An answer on its way."""

    adapted: Sent | None
    evaluation: Evaluation | None

    def answer(self) -> Answer:
        """The answer, its models still in their files."""
        if self.adapted is None:
            return Answer(None, self.evaluation)
        reply, memory, health, _ = self.adapted
        return Answer(Adapted(reply.record(), memory.record(), health), self.evaluation)


def files_of(record: Record) -> set[Path]:
    """Where the models of a record lie; nowhere if they are in memory."""
    places = record.models.places if isinstance(record.models, Filed) else {}
    return {path for path, _ in places.values()}


class Mailbox:
    """A folder through which records go from process to process.

    `sender` keeps the files of several senders apart.
    """

    def __init__(self, folder: Path, sender: str) -> None:
        self.folder = folder
        self._sender = sender
        self._letters = 0

    def contents(self) -> set[Path]:
        """All files that are there; the folder is made if it is not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return set(self.folder.iterdir())

    def discard(self, files: Iterable[Path]) -> None:
        """Remove what nobody needs any more."""
        for path in files:
            path.unlink(missing_ok=True)  # half of one, of a process that has just ended

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def post_job(self, job: Job, written: Written) -> Letters:
        """Write what a job needs; a model that is in `written` already is not written again."""
        letters = Letters(
            self._post(job.memory, written),
            None if job.message is None else self._post(job.message, written),
            None if job.offered is None else self._post(Record({"": job.offered}), written),
        )
        written.let_go(but=2 * sum(len(parcel.models) for parcel in letters if parcel))
        return letters

    def post_answer(self, answer: Answer) -> Done:
        """Write what a client gives back."""
        if answer.adapted is None:
            return Done(None, answer.evaluation)
        reply, memory, health = answer.adapted
        written = Written()
        posted = self._post(reply, written), self._post(memory, written)
        return Done(Sent(*posted, health, reply.nbytes()), answer.evaluation)

    def _post(self, record: Record, written: Written) -> Parcel:
        values = {name: RawTensor.of(value) for name, value in record.values.items()}
        if isinstance(record.models, Filed):  # a memory that lies in files is not moved
            return Parcel(record.models.places, values)
        places = {n: written.place(state, self._write) for n, state in record.models.items()}
        return Parcel({name: (path, "") for name, path in places.items()}, values)

    def _write(self, state: State) -> Path:
        self._letters += 1
        path = self.folder / f"{self._sender}-{self._letters}.safetensors"
        save_records(path, {"": Record({"": state})}, durable=False)
        return path

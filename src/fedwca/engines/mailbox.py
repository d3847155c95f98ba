"""Records on their way between the simulator's processes: models in files, numbers by hand."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedwca.core.params import State
from fedwca.engines.base import Answer, Evaluation, Job
from fedwca.engines.raw_tensor import RawTensor
from fedwca.engines.records import Filed, save_records
from fedwca.methods.base import Adapted, Health, Record

__all__ = ["Done", "Letters", "Mailbox", "Written"]

Places = dict[str, tuple[Path, str]]  # of each model, its file, and its name in there
Written = dict[int, tuple[State, Path]]  # by id, which is the state's only while it is held


class Parcel(NamedTuple):
    """A record on its way: where its models lie, and its values."""

    models: Places
    values: dict[str, RawTensor]

    def record(self) -> Record:
        """The record, its models still in their files."""
        values = {name: value.tensor() for name, value in self.values.items()}
        return Record(Filed(self.models), values)


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


class Mailbox:
    """A folder through which records go from process to process.

    `sender` keeps the files of several senders apart.
    """

    def __init__(self, folder: Path, sender: str) -> None:
        self.folder = folder
        self._sender = sender
        self._letters = 0

    def empty(self, but: Iterable[Record]) -> None:
        """Make room for a new exchange; the files of records that are still needed stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        needed = {
            path
            for record in but
            if isinstance(record.models, Filed)
            for path, _ in record.models.places.values()
        }
        for path in self.folder.iterdir():
            if path not in needed:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def post_job(self, job: Job, written: Written) -> Letters:
        """Write what a job needs; a model that is in `written` already is not written again."""
        return Letters(
            self._post(job.memory, written),
            None if job.message is None else self._post(job.message, written),
            None if job.offered is None else self._post(Record({"": job.offered}), written),
        )

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
        models = {}
        for name, state in record.models.items():
            if id(state) not in written:
                written[id(state)] = (state, self._write(state))
            models[name] = written[id(state)][1], ""
        return Parcel(models, values)

    def _write(self, state: State) -> Path:
        self._letters += 1
        path = self.folder / f"{self._sender}-{self._letters}.safetensors"
        save_records(path, {"": Record({"": state})}, durable=False)
        return path

"""Pass records between the simulator's processes: models in files, everything else by pickle."""

import shutil
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

from fedwca.core.params import Weights
from fedwca.engines.codec import LazyModels, save_records
from fedwca.methods.base import Record

__all__ = ["ModelFiles", "RecentWeights", "files_of"]


class RecentWeights:
    """The files of the weights that were saved last, so that shared ones are saved once.

    Weights are held, since an id is unique only as long as its object lives.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[int, tuple[Weights, Path]] = OrderedDict()

    def find(self, weights: Weights, save: Callable[[Weights], Path]) -> Path:
        """Return the file of weights; save them if there is none."""
        if id(weights) not in self._files:
            self._files[id(weights)] = weights, save(weights)
        self._files.move_to_end(id(weights))
        return self._files[id(weights)][1]

    def limit(self, count: int) -> None:
        """Forget all but the weights that were used last."""
        while len(self._files) > count:
            self._files.popitem(last=False)


class ModelFiles:
    """A folder with one file for each model, so that memory does not grow with the clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, record: Record, recent: RecentWeights) -> Record:
        """Return the record with models that are read from files, ready to be pickled."""
        # A clone, since pickling a view would pickle all of its storage.
        values = {name: value.detach().cpu().clone() for name, value in record.values.items()}
        if isinstance(record.models, LazyModels):  # its models are in files already
            return Record(record.models, values)
        files = {name: recent.find(weights, self._save) for name, weights in record.models.items()}
        return Record(LazyModels({name: (path, "") for name, path in files.items()}), values)

    def _save(self, weights: Weights) -> Path:
        # A unique name: a worker of a killed run may still be writing.
        path = self.folder / f"{uuid.uuid4().hex}.safetensors"
        save_records(path, {"": Record({"": weights})}, durable=False)
        return path

    def paths(self) -> set[Path]:
        """Return all files; make the folder if it is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return set(self.folder.iterdir())

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files."""
        for path in paths:
            path.unlink(missing_ok=True)  # a temporary file may be gone already

    def remove_folder(self) -> None:
        """Remove the folder with all files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def files_of(record: Record) -> set[Path]:
    """Return the files of the record's models; none for models in memory."""
    files = record.models.files if isinstance(record.models, LazyModels) else {}
    return {path for path, _ in files.values()}

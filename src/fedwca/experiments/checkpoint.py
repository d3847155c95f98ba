"""A checkpoint on disk: a folder that is there whole or not at all, and notices any damage.

- state.safetensors     the server's state
- memory-K.safetensors  what a client remembers, for each that remembers something
- results.jsonl         the lines of results that were there by then
- manifest.json         rounds, facts, whose memory each is, digests of all files and of itself
"""

import errno
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from fedwca.engines.records import filed_record, load_records, save_records
from fedwca.errors import UserError
from fedwca.files import (
    file_digest,
    folder_at_once,
    is_passing,
    read_json,
    read_lines,
    seal,
    unseal,
    write_atomically,
    write_json,
)
from fedwca.methods.base import Record
from fedwca.run_content import check_facts

__all__ = ["Checkpoint", "lines_before", "read_checkpoint", "write_checkpoint"]

_FORMAT = "fedwca-checkpoint-3"
_MANIFEST = "manifest.json"
_STATE = "state.safetensors"
_RESULTS = "results.jsonl"
_Name = Annotated[
    str, StringConstraints(pattern=r"\A((state|memory-\d+)\.safetensors|results\.jsonl)\z")
]
_DENIED = {errno.EACCES, errno.EPERM}  # it is ours, so that this is no damage either


class Checkpoint(NamedTuple):
    """All that is needed to go on.

    Attributes:
        rounds: how many are done.
        state: the server's.
        memories: of the clients, by name; of those only who cannot keep theirs themselves. Their
            models may lie in files, and are read when asked for.
        facts: what the next line of results will say of the last round.
    """

    rounds: int
    state: Record
    memories: dict[str, Record]
    facts: dict[str, Any]


class _Manifest(BaseModel):
    """What `manifest.json` says; what has any other form is damaged."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: str
    run: str
    rounds: Annotated[int, Field(ge=0)]
    facts: Annotated[dict[str, Any], AfterValidator(check_facts)]
    memories: dict[str, _Name]
    digests: dict[_Name, str]

    def fits(self, folder: str) -> bool:
        """Whether it is of the folder, and every file that it names has its digest."""
        named = {_STATE, _RESULTS, *self.memories.values()}
        return folder == f"checkpoint-{self.rounds:05d}" and self.digests.keys() == named


def write_checkpoint(path: Path, checkpoint: Checkpoint, run: str, results: bytes) -> None:
    """Write a checkpoint of the run that has this digest, one memory at a time.

    The results so far are in it, so that no round is lost with a damaged line.
    """
    known = {name: m for name, m in checkpoint.memories.items() if m.models or m.values}
    with folder_at_once(path) as folder:
        save_records(folder / _STATE, {"": checkpoint.state})
        write_atomically(folder / _RESULTS, results)
        files = {name: f"memory-{number}.safetensors" for number, name in enumerate(known)}
        for name, file in files.items():
            save_records(folder / file, {"": known[name]})
        manifest = {
            "format": _FORMAT,
            "run": run,
            "rounds": checkpoint.rounds,
            "facts": checkpoint.facts,
            "memories": files,
            "digests": {n: file_digest(folder / n) for n in (_STATE, _RESULTS, *files.values())},
        }
        write_json(folder / _MANIFEST, seal(manifest))


def read_checkpoint(path: Path, run: str) -> Checkpoint:
    """Read a checkpoint, all of whose files are checked first; ValueError says what is wrong."""
    try:
        manifest = _manifest(path)
        if manifest.run != run:
            raise ValueError("is of another run")
        for name, digest in manifest.digests.items():
            if file_digest(path / name) != digest:
                raise ValueError(f"is damaged ({name})")
        (state,) = load_records(path / _STATE).values()
        memories = {n: filed_record(path / file) for n, file in manifest.memories.items()}
    except OSError as error:
        if is_passing(error) or error.errno in _DENIED:
            raise UserError(
                f"{path} cannot be read ({error.strerror}): mend that and run again, or remove it "
                "to go on from the one before it"
            ) from None
        raise ValueError(f"cannot be read ({error.strerror})") from None
    return Checkpoint(manifest.rounds, state, memories, manifest.facts)


def lines_before(path: Path) -> list[dict[str, Any]]:
    """The lines of results that a checkpoint has kept."""
    return read_lines(path / _RESULTS, older=False)


def _manifest(path: Path) -> _Manifest:
    if path.is_file():
        raise ValueError("is of an older version")
    try:
        content = read_json(path / _MANIFEST)
        whole = unseal(content) if isinstance(content, dict) else None
        other = whole is not None and whole.get("format") != _FORMAT
        manifest = None if other else _Manifest.model_validate(whole)
    except ValueError:
        raise ValueError(f"is damaged ({_MANIFEST})") from None
    if manifest is None:
        raise ValueError("is of another version")
    if not manifest.fits(path.name):
        raise ValueError(f"is damaged ({_MANIFEST})")
    return manifest

"""A checkpoint: a folder that is written atomically, with a checksum for each file.

- state.safetensors     the server's state
- memory-K.safetensors  a client's memory, for each client that has one
- results.jsonl         the lines of results so far
- manifest.json         rounds, facts, the file of each memory, checksums of all files and of itself
"""

from pathlib import Path
from typing import Any, NamedTuple

from fedwca._support.errors import UserError
from fedwca._support.files import (
    add_checksum,
    file_digest,
    read_json,
    verify_checksum,
    write_atomically,
    write_folder_atomically,
    write_json,
)
from fedwca.engines.codec import load_records, open_record, save_records
from fedwca.methods.base import Record

__all__ = ["RESULTS", "Checkpoint", "read_checkpoint", "write_checkpoint"]

_FORMAT = "fedwca-checkpoint-3"
_MANIFEST = "manifest.json"
_STATE = "state.safetensors"
RESULTS = "results.jsonl"


class Checkpoint(NamedTuple):
    """Everything that is needed to resume after a round.

    Attributes:
        rounds: number of completed rounds.
        state: the server's state.
        memories: by client, for clients that do not store their memory themselves. Their models
            may be in files and are read when used.
        facts: what the next line of results reports about the last round.
    """

    rounds: int
    state: Record
    memories: dict[str, Record]
    facts: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint, run: str, results: bytes) -> None:
    """Write a checkpoint, one memory at a time.

    Args:
        run: digest of the run that it belongs to.
        results: the lines so far, so that a corrupt results.jsonl can be restored.
    """
    memories = {name: m for name, m in checkpoint.memories.items() if m.models or m.values}
    files = {name: f"memory-{number}.safetensors" for number, name in enumerate(memories)}
    with write_folder_atomically(path) as folder:
        save_records(folder / _STATE, {"": checkpoint.state}, checksum=False)
        write_atomically(folder / RESULTS, results)
        for name, file in files.items():
            save_records(folder / file, {"": memories[name]}, checksum=False)
        manifest = {
            "format": _FORMAT,
            "run": run,
            "rounds": checkpoint.rounds,
            "facts": checkpoint.facts,
            "memories": files,
            "digests": {n: file_digest(folder / n) for n in (_STATE, RESULTS, *files.values())},
        }
        write_json(folder / _MANIFEST, add_checksum(manifest))


def read_checkpoint(path: Path, run: str) -> Checkpoint:
    """Verify and read a checkpoint; ValueError if it is corrupt or belongs to another run."""
    try:
        manifest = _read_manifest(path / _MANIFEST)
        if manifest["run"] != run:
            raise ValueError("it belongs to another run")
        for name, digest in manifest["digests"].items():
            if file_digest(path / name) != digest:
                raise ValueError(f"checksum mismatch in {name}")
        (state,) = load_records(path / _STATE).values()
        memories = {n: open_record(path / file) for n, file in manifest["memories"].items()}
    except FileNotFoundError as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from None
    except OSError as error:  # it may be valid, so it must be neither ignored nor replaced
        raise UserError(
            f"{path} cannot be read ({error.strerror}); make it readable and rerun, or remove "
            "it to resume from the checkpoint before"
        ) from None
    return Checkpoint(manifest["rounds"], state, memories, manifest["facts"])


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError:
        content = None
    manifest = verify_checksum(content) if isinstance(content, dict) else None
    if manifest is None:
        raise ValueError(f"{path.name} is corrupt")
    if manifest["format"] != _FORMAT:
        raise ValueError("it has the format of another version")
    return manifest

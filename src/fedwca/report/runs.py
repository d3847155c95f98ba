"""Run folders as the reports see them: JSON only, so that reading them needs no PyTorch."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwca.errors import UserError

__all__ = ["RunView", "find_runs", "read_run"]


@dataclass(frozen=True)
class RunView:
    """One run folder, read."""

    path: Path
    settings: dict[str, Any]
    lines: tuple[dict[str, Any], ...]
    done: bool

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def method(self) -> str:
        """Name of the method, with its BatchNorm treatment where that is not the paper's."""
        treatment = self.settings["training"]["batch_norm"]
        name = str(self.settings["method"]["name"])
        return name if treatment == "blend" else f"{name} ({treatment})"

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["run"]["seed"])

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    @property
    def last(self) -> dict[str, Any]:
        """The newest result line, empty if there is none yet."""
        return self.lines[-1] if self.lines else {}

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over clients, where labels exist."""
        mean = self.last.get("accuracy", {}).get("mean")
        return None if mean is None else float(mean)


def read_run(path: Path) -> RunView:
    """Read a run folder."""
    config = path / "config.json"
    if not config.is_file():
        raise UserError(f"{path} is not a run folder: it has no config.json; see `fedwca list`")
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))["settings"]
    except (ValueError, KeyError):
        raise UserError(f"{config} is damaged: delete {path} and run again") from None
    return RunView(path, settings, tuple(_lines(path)), (path / "result.json").exists())


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    results = path / "results.jsonl"
    if not results.exists():
        return
    for text in results.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # the last line of a run that was cut short, or is being written
            return


def find_runs(root: Path) -> list[RunView]:
    """All runs below a folder, by name."""
    if not root.is_dir():
        return []
    return [read_run(config.parent) for config in sorted(root.glob("*/config.json"))]

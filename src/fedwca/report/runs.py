"""Run folders as the reports see them: JSON only, so that reading them needs no PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwca.errors import UserError
from fedwca.files import read_json, read_lines, read_sealed
from fedwca.run_content import DAMAGED, check_line, damaged, settings_of

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

    @property
    def privacy(self) -> str:
        """What the run promised its clients, empty if nothing."""
        path = self.path / "privacy.json"
        if not path.is_file():
            return ""
        told = read_json(path)
        return f"ε = {told['epsilon']:.3g}, δ = {told['delta']:g} after {told['rounds']} rounds"

    @property
    def clusters(self) -> dict[str, int]:
        """Each client's cluster, empty if the method has none."""
        return {
            name.removeprefix("cluster_of/"): int(value)
            for name, value in self.last.get("server", {}).items()
            if name.startswith("cluster_of/")
        }

    @property
    def domains(self) -> dict[str, str]:
        """The true domain of each client that has a cluster."""
        found = self.clusters
        clients = self.last.get("clients", {})
        return {name: score["domain"] for name, score in clients.items() if name in found}


def read_run(path: Path) -> RunView:
    """Read a run folder."""
    config = path / "config.json"
    if not config.is_file():
        raise UserError(f"{path} is not a run folder: it has no config.json; see `fedwca list`")
    try:
        settings = settings_of(read_json(config))
        final = read_sealed(path / "result.json", older=True)  # damaged, it will be made anew
        view = RunView(path, settings, tuple(_lines(path, final)), final is not None)
        for line in view.lines:
            check_line(line)
        _ = view.privacy
    except DAMAGED:
        raise damaged(path) from None
    return view


def _lines(path: Path, final: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The result lines, the final one from its own file once the run is done."""
    lines = read_lines(path / "results.jsonl")
    if final is None:
        return lines
    return [line for line in lines if line["round"] < final["round"]] + [final]


def find_runs(root: Path) -> tuple[list[RunView], list[str]]:
    """All runs below a folder by name, and a sentence for each that cannot be read."""
    views, problems = [], []
    for config in sorted(root.glob("*/config.json")):
        try:
            views.append(read_run(config.parent))
        except UserError as error:
            problems.append(str(error))
    return views, problems

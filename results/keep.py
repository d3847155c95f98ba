"""Keep finished runs small: settings, accuracy by round, and the whole last line.

    python results/keep.py RUNS results/digit-five

What it writes is still a run folder: `fedwca compare --runs results/digit-five` reads it.
"""

import json
import sys
from pathlib import Path
from typing import Any

PATHS = (("data", "path"), ("data", "source_path"), ("model", "weights"), ("source", "weights"))


def keep(run: Path, target: Path) -> None:
    """Copy what the tables and the analysis need of one run."""
    settings = json.loads((run / "config.json").read_text())["settings"]
    for section, name in PATHS:  # where files lay is nobody's business
        if settings[section].get(name):
            settings[section][name] = Path(settings[section][name]).name
    final = json.loads((run / "result.json").read_text())
    lines = [json.loads(text) for text in (run / "results.jsonl").read_text().splitlines()]
    folder = target / run.name
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "config.json", {"settings": settings})
    write(folder / "result.json", final)
    text = "".join(json.dumps(short(line)) + "\n" for line in lines)
    (folder / "results.jsonl").write_text(text)


def short(line: dict[str, Any]) -> dict[str, Any]:
    """A result line without its clients."""
    kept = {"round": line["round"], "accuracy": line["accuracy"]}
    return rounded({**kept, **({"seconds": line["seconds"]} if "seconds" in line else {})})


def rounded(value: Any) -> Any:
    """Four digits are more than a test set of some hundred images can tell."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def write(path: Path, content: dict[str, Any]) -> None:
    """One line of JSON."""
    path.write_text(json.dumps(rounded(content)) + "\n")


if __name__ == "__main__":
    runs, target = map(Path, sys.argv[1:3])
    done = sorted(path.parent for path in runs.glob("*/result.json"))
    for run in done:
        keep(run, target)
    print(f"kept {len(done)} runs in {target}")

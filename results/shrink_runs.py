"""Copy finished runs in a small form: settings, accuracy by round, and the complete last line.

    python results/shrink_runs.py RUNS results/digit-five

The copies are run folders: `fedwca compare --runs results/digit-five` reads them.
"""

import json
import sys
from pathlib import Path
from typing import Any

PATHS = (("data", "path"), ("data", "source_path"), ("model", "weights"), ("source", "weights"))


def shrink_run(run: Path, target: Path) -> None:
    """Copy what the tables and the analysis need of one run."""
    settings = json.loads((run / "config.json").read_text())["settings"]
    for section, name in PATHS:  # only names: folders are private
        if settings[section].get(name):
            settings[section][name] = Path(settings[section][name]).name
    final = json.loads((run / "result.json").read_text())
    lines = [json.loads(text) for text in (run / "results.jsonl").read_text().splitlines()]
    folder = target / run.name
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "config.json", {"settings": settings})
    write(folder / "result.json", final)
    text = "".join(json.dumps(round_numbers(shorten(line))) + "\n" for line in lines)
    (folder / "results.jsonl").write_text(text)


def shorten(line: dict[str, Any]) -> dict[str, Any]:
    """Return a result line without its clients."""
    short = {"round": line["round"], "accuracy": line["accuracy"], "clients": {}}
    if "seconds" in line:
        short["seconds"] = line["seconds"]
    return short


def round_numbers(value: Any) -> Any:
    """Round to four digits, more than a few hundred test images justify."""
    if isinstance(value, dict):
        return {key: round_numbers(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def write(path: Path, content: dict[str, Any]) -> None:
    """Write one line of JSON."""
    path.write_text(json.dumps(round_numbers(content)) + "\n")


def main() -> None:
    if len(sys.argv) != 3:
        print("usage: python results/shrink_runs.py RUNS TARGET", file=sys.stderr)
        sys.exit(2)
    runs, target = map(Path, sys.argv[1:])
    done = sorted(path.parent for path in runs.glob("*/result.json"))
    for run in done:
        shrink_run(run, target)
    print(f"wrote {len(done)} runs to {target}")


if __name__ == "__main__":
    main()

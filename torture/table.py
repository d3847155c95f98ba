"""Print the results of `make torture` as the Markdown table of docs/reliability.md.

python -m torture.table [torture.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["to_markdown"]


def to_markdown(facts: dict[str, Any]) -> str:
    """Return a row for each attack and one with the totals."""
    lines = ["| attack | attempts | passed | failed |", "|---|---:|---:|---:|"]
    for tally in facts["attacks"]:
        skipped = f" (skipped: {tally['skipped']})" if tally.get("skipped") else ""
        cells = [f"{tally['name']}{skipped}".replace("|", "\\|")]
        cells += [f"{tally[column]:,}" for column in ("attempts", "passed", "failed")]
        lines.append(f"| {' | '.join(cells)} |")
    sums = [sum(t[column] for t in facts["attacks"]) for column in ("attempts", "passed", "failed")]
    lines.append(f"| **total** | {sums[0]:,} | {sums[1]:,} | {sums[2]:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "torture.json")
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        sys.exit(f"{path} cannot be read as a result of torture; run `make torture` to write it")
    print(to_markdown(facts))
    print(f"\nSeed {facts['seed']}{', short form' if facts['short'] else ''}.")

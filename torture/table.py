"""The table of docs/reliability.md, in Markdown, from what `make torture` has written.

python torture/table.py [torture.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["markdown"]


def markdown(facts: dict[str, Any]) -> str:
    """A line for each attack, and one for all of them."""
    lines = ["| attack | times tried | held | lost |", "|---|---:|---:|---:|"]
    for tally in facts["attacks"]:
        unmade = f" (not tried: {tally['not_tried']})" if tally.get("not_tried") else ""
        name = f"{tally['name']}{unmade}".replace("|", "\\|")
        lines.append(f"| {name} | {tally['tried']:,} | {tally['held']:,} | {tally['lost']:,} |")
    sums = [sum(t[column] for t in facts["attacks"]) for column in ("tried", "held", "lost")]
    lines.append(f"| **together** | {sums[0]:,} | {sums[1]:,} | {sums[2]:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "torture.json")
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        sys.exit(f"{path} is no result of torture: make one with `make torture`")
    print(markdown(found))
    print(f"\nSeed {found['seed']}{', short form' if found['short'] else ''}.")

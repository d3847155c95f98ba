"""Prints the versions of all that is installed, but for what constraints.txt chooses itself."""

import re
from importlib.metadata import distributions
from pathlib import Path

CHOSEN = Path(__file__).parent.parent / "constraints.txt"
OURS = {"fedwca", "pip"}  # pip is the Python's own

print("# Written by `make pins`: versions of what constraints.txt brings along, as tested.")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


chosen = {plain(line.split("==")[0]) for line in CHOSEN.read_text().splitlines() if "==" in line}
found = {plain(d.metadata["Name"]): d.version.partition("+")[0] for d in distributions()}
for name in sorted(found.keys() - chosen - OURS):
    print(f"{name}=={found[name]}")

"""Print the installed versions of all packages that constraints.txt does not pin."""

import re
from importlib.metadata import distributions
from pathlib import Path

PINNED = Path(__file__).parent.parent / "constraints.txt"
OURS = {"fedwca", "pip"}  # pip comes with Python

print("# Written by `make pins`: tested versions of what constraints.txt brings along.")


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


pinned = {
    normalize(line.split("==")[0]) for line in PINNED.read_text().splitlines() if "==" in line
}
installed = {normalize(d.metadata["Name"]): d.version.partition("+")[0] for d in distributions()}
for name in sorted(installed.keys() - pinned - OURS):
    print(f"{name}=={installed[name]}")

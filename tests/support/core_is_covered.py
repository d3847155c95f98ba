"""Fail unless every line and branch of fedwca.core is covered; reads coverage's JSON report."""

import json
import sys
from pathlib import Path


def main(report: str) -> int:
    files = json.loads(Path(report).read_text())["files"]
    core = {name: file for name, file in files.items() if "fedwca/core/" in name}
    bare = {
        name: file["missing_lines"] + file["missing_branches"]
        for name, file in core.items()
        if file["missing_lines"] or file["missing_branches"]
    }
    for name, places in bare.items():
        print(f"{name}: not covered: {places}")
    print(f"core/: {len(core) - len(bare)} of {len(core)} files fully covered")
    return 1 if bare or not core else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

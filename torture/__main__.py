"""Attack our own software and print a Markdown table of attempts, passed and failed.

    python -m torture [ATTACK…] [--short] [--seed 0] [--jobs 2]

Select attacks by a part of their name; without any, all run. The exit code is 1 if an attempt
failed or an attack did nothing; the folder with files and tracebacks then remains for inspection.
"""

import argparse
import shutil
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from torture import crash, deployment_kills, disks, fuzz, hostile, load, soak, sums, workers
from torture.attack import Attack

ATTACKS: list[Attack] = [  # the longest first, so that no core is idle at the end
    *crash.ATTACKS,
    *deployment_kills.ATTACKS,
    *workers.ATTACKS,
    *disks.ATTACKS,
    *fuzz.ATTACKS,
    *hostile.ATTACKS,
    *sums.ATTACKS,
    *load.ATTACKS,
    *soak.ATTACKS,
]

_SHOWN_REASONS = 5  # of an attack; the folder has the tracebacks of all
_REASON_LENGTH = 300  # characters


class Tally(NamedTuple):
    """The result of an attack, with a reason for each failed attempt."""

    name: str
    attempts: int
    passed: int
    failed: int
    seconds: float
    reasons: list[str]


def run_attack(attack: Attack, folder: Path, numbers: range, short: bool = False) -> Tally:
    """Run all attempts of an attack; the folder of a failed attempt remains."""
    folder.mkdir(parents=True)
    attempt = (short and attack.short_attempt) or attack.attempt
    started, attempts, reasons = time.perf_counter(), 0, []
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        try:
            times = attempt(place, number)
            attempts += 1 if times is None else times
            shutil.rmtree(place, ignore_errors=True)
        except Exception as error:
            attempts += 1
            (folder / f"{number}.txt").write_text(traceback.format_exc())
            reasons.append(f"{place}: {type(error).__name__}: {error}")
    if not attempts:  # an attack that did nothing has tested nothing
        attempts, reasons = 1, [f"{folder}: the attack did nothing"]
    failed, seconds = len(reasons), round(time.perf_counter() - started, 1)
    return Tally(attack.name, attempts, attempts - failed, failed, seconds, reasons)


def run_attacks(
    attacks: list[Attack], folder: Path, short: bool, seed: int, jobs: int
) -> Iterator[Tally]:
    """Yield tallies in order: first of attacks that may run in parallel, then of the others."""

    def run(attack: Attack) -> Tally:
        times = attack.short_times if short else attack.times
        name = "".join(c if c.isalnum() else "-" for c in attack.name)
        return run_attack(attack, folder / name, range(seed, seed + times), short)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run, (attack for attack in attacks if not attack.alone))
    for attack in attacks:
        if attack.alone:
            yield run(attack)


def format_tally(tally: Tally) -> Iterator[str]:
    """Yield the table row of an attack, then a line for each reason why an attempt failed."""
    cells = [tally.name.replace("|", "\\|"), *(f"{n:,}" for n in tally[1:4])]
    yield f"| {' | '.join(cells)} | {tally.seconds:.0f} |"
    for reason in tally.reasons[:_SHOWN_REASONS]:
        yield "    " + textwrap.shorten(reason, _REASON_LENGTH, placeholder=" …")
    if (more := len(tally.reasons) - _SHOWN_REASONS) > 0:
        yield f"    and {more} more"


def _parse_options() -> argparse.Namespace:
    """Return the options; `attack` holds the selected attacks themselves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", nargs="*", help="a part of an attack's name")
    parser.add_argument("--short", action="store_true", help="few attempts, as in the tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [a for a in ATTACKS if all(w.lower() in a.name.lower() for w in options.attack)]
    chosen = [a for a in chosen if a.short_times or not options.short]
    if not chosen:
        parser.error(f"no attack has {' '.join(options.attack)!r} in its name")
    options.attack = chosen
    return options


def main() -> int:
    options = _parse_options()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    started, tallies = time.perf_counter(), []
    print("| attack | attempts | passed | failed | seconds |\n|---|---:|---:|---:|---:|")
    for tally in run_attacks(options.attack, folder, options.short, options.seed, options.jobs):
        tallies.append(tally)
        print(*format_tally(tally), sep="\n", flush=True)
    attempts, failed = sum(t.attempts for t in tallies), sum(t.failed for t in tallies)
    seconds = time.perf_counter() - started
    print(*format_tally(Tally("**total**", attempts, attempts - failed, failed, seconds, [])))
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Attacks on our own software: a table of what was tried, what held and what was lost.

    python torture/torture.py [ATTACK…] [--short] [--seed 0] [--jobs 2] [--json FILE]

An attack is named by a part of its name; with none, all are made. Ends with 1 if anything was lost,
or never came to be tried; the folder then stays for a look, with all that was said.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # deployments, sites, mischief

import crash
import deployment_kills
import disks
import fuzz
import hostile
import load
import mounts
import soak
import sums
import workers
from attack import Attack, NotTriedError

ATTACKS: list[Attack] = [  # the longest first, so that none is left over at the end
    *crash.ATTACKS,
    *deployment_kills.ATTACKS,
    *workers.ATTACKS,
    *disks.ATTACKS,
    *mounts.ATTACKS,
    *fuzz.ATTACKS,
    *hostile.ATTACKS,
    *sums.ATTACKS,
    *load.ATTACKS,
    *soak.ATTACKS,
]

_SHOWN = 5  # reasons of an attack that are told; the file has all
_LONGEST = 300  # letters of such a reason


class Tally(NamedTuple):
    """What came of an attack; `not_tried` says why nothing did."""

    name: str
    tried: int
    held: int
    lost: int
    seconds: float
    reasons: list[str]
    not_tried: str = ""


def make(attack: Attack, folder: Path, numbers: range, short: bool = False) -> Tally:
    """All attempts of an attack; a folder in which something was lost is left as it is."""
    folder.mkdir(parents=True)
    attempt = (short and attack.quick) or attack.attempt
    began, tried, reasons, not_tried = time.perf_counter(), 0, [], ""
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        try:
            times = attempt(place, number)
            tried += 1 if times is None else times
            shutil.rmtree(place, ignore_errors=True)
        except NotTriedError as error:
            not_tried = str(error)
        except Exception as error:
            tried += 1
            (folder / f"{number}.txt").write_text(traceback.format_exc())
            reasons.append(f"{place}: {type(error).__name__}: {error}")
    if not tried and not not_tried:  # what was never put to the test has not held
        tried, reasons = 1, [f"{folder}: no attempt came to anything"]
    lost, seconds = len(reasons), round(time.perf_counter() - began, 1)
    return Tally(attack.name, tried, tried - lost, lost, seconds, reasons, not_tried)


def make_all(
    attacks: list[Attack], folder: Path, short: bool, seed: int, jobs: int
) -> Iterator[Tally]:
    """As they end: first those that may run side by side, then those that must be alone."""

    def one(attack: Attack) -> Tally:
        times = attack.short if short else attack.times
        return make(attack, folder / _word(attack.name), range(seed, seed + times), short)

    beside = [a for a in attacks if not a.alone]
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, attack) for attack in beside]):
            yield done.result()
    for attack in attacks:
        if attack.alone:
            yield one(attack)


def _word(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def row(*cells: object) -> str:
    name, *numbers = (str(cell) for cell in cells)
    return f"{name:64}" + "".join(f"{number:>8}" for number in numbers)


def _told(tally: Tally) -> Iterator[str]:
    """The row of an attack, and why it was lost or not tried, a line each."""
    yield row(tally.name, tally.tried, tally.held, tally.lost, f"{tally.seconds:.0f}")
    if tally.not_tried:
        yield f"    not tried: {tally.not_tried}"
    for reason in tally.reasons[:_SHOWN]:
        words = " ".join(reason.split())
        yield "    " + (words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…")
    if (more := len(tally.reasons) - _SHOWN) > 0:
        yield f"    and {more} more"


def _options() -> argparse.Namespace:
    """What was asked for; `attack` are then the attacks themselves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", nargs="*", help="a part of an attack's name")
    parser.add_argument("--short", action="store_true", help="few attempts, as the tests make them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("torture.json"))
    options = parser.parse_args()
    chosen = [a for a in ATTACKS if all(w.lower() in a.name.lower() for w in options.attack)]
    chosen = [a for a in chosen if a.short or not options.short]
    if not chosen:
        parser.error(f"no attack has {' '.join(options.attack)!r} in its name")
    options.attack = chosen
    return options


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    began, tallies = time.perf_counter(), []
    print(row("attack", "tried", "held", "lost", "s"))
    for tally in make_all(options.attack, folder, options.short, options.seed, options.jobs):
        tallies.append(tally)
        print(*_told(tally), sep="\n", flush=True)
    total = [sum(numbers) for numbers in zip(*(t[1:4] for t in tallies), strict=True)]
    print(row("together", *total, f"{time.perf_counter() - began:.0f}"))
    order = [attack.name for attack in options.attack]
    facts = {
        "seed": options.seed,
        "short": options.short,
        "attacks": [t._asdict() for t in sorted(tallies, key=lambda t: order.index(t.name))],
    }
    options.json.write_text(json.dumps(facts, indent=1))
    if not total[2]:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if total[2] else 0


if __name__ == "__main__":
    sys.exit(main())

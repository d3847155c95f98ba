"""A deployment that is mistreated: a site dies in the middle of a round, the server too.

Four sites and a server, real processes on this machine, over TLS with keys; some minutes long.
A site's SuperNode is killed in round 2 and returns; the SuperLink is killed in round 4, and the run
is resumed. At the end every site must have its model.

    python examples/faults.py [FOLDER]
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fedwca.data import Request, load_benchmark
from fedwca.deploy.processes import free_port

FEDWCA = str(Path(sys.executable).with_name("fedwca"))
SITES = ["bay", "hill", "mill", "port"]
CONFIG = """
[data]
benchmark = "mini-digits"
[source]
epochs = 5
[training]
rounds = 6
epochs = 3
[method]
name = "fedwca"
rounds_between_weights = 5
[deploy]
least_sites = 3
return_seconds = 120
"""


def write_images(folder: Path) -> None:
    """Give every site the images of a domain of its own, and some labeled ones to score on."""
    benchmark = load_benchmark("mini-digits", Request(None, folder / "cache"))
    targets = [name for name in benchmark.domains if name != "handwriting"]
    for site, name in zip(SITES, targets, strict=True):
        domain = benchmark.domains[name]
        for row in range(300):
            label = benchmark.classes[domain.labels[row]]
            place = folder / "images" / site if row < 200 else folder / "test" / site / label
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(domain.images[row])).save(place / f"{row:04d}.png")


def deploy(folder: Path, *words: str) -> list[str]:
    return [FEDWCA, "deploy", *words, "--folder", str(folder / "deployment")]


def child_of(process: "subprocess.Popen[bytes]") -> int:
    """The Flower process that a `fedwca deploy` command keeps up."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return int(found.stdout.split()[0])


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 400) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.3)


def say(text: str) -> None:
    print(f"\n*** {text}", flush=True)


def mistreat(folder: Path, started: dict[str, "subprocess.Popen[bytes]"]) -> Path:
    """The run, with its two blows; its folder."""
    config = folder / "run.toml"
    config.write_text(CONFIG)
    run = subprocess.Popen(deploy(folder, "run", str(config), "--cache", str(folder / "cache")))
    runs = folder / "deployment" / "server" / "runs"

    def log() -> str:
        if run.poll() is not None:
            raise SystemExit(f"`fedwca deploy run` has ended with exit code {run.returncode}")
        return "".join(path.read_text() for path in runs.glob("*/log.txt"))

    wait_for("round 1", lambda: "1 round done" in log())
    time.sleep(3)  # into the next round's work
    say("kill -9 the SuperNode of mill, in the middle of a round")
    subprocess.run(["kill", "-9", str(child_of(started["mill"]))], check=True)
    wait_for("the loss of mill", lambda: "mill is lost" in log())
    wait_for("the return of mill", lambda: "mill is back" in log())
    wait_for("round 3", lambda: "3 rounds done" in log())
    time.sleep(3)
    say("kill -9 the SuperLink")
    subprocess.run(["kill", "-9", str(child_of(started["server"]))], check=True)
    code = run.wait(timeout=120)
    say(f"`fedwca deploy run` has ended with exit code {code}; now --resume")
    output = folder / "server.out"
    wait_for("the server's return", lambda: output.read_text().count("the server is up") >= 2)
    subprocess.run(deploy(folder, "run", "--resume", "--cache", str(folder / "cache")), check=True)
    return next(runs.iterdir())


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    write_images(folder)
    where = ["--address", "127.0.0.1", "--listen", "127.0.0.1", "--port", str(free_port())]
    named = [word for site in SITES for word in ("--site", site)]
    subprocess.run(deploy(folder, "init", *where, *named), check=True)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with (folder / "server.out").open("wb") as out:
            started["server"] = subprocess.Popen(deploy(folder, "server"), stdout=out)
        for site in SITES:
            data = ["--data", str(folder / "images" / site), "--test", str(folder / "test" / site)]
            command = deploy(folder, "client", "--site", site, *data)
            with (folder / f"{site}.out").open("wb") as out:
                started[site] = subprocess.Popen(command, stdout=out)
        run = mistreat(folder, started)
        subprocess.run(deploy(folder, "status"), check=True)
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait(timeout=60)
    say(f"what {run.name}/log.txt says")
    print((run / "log.txt").read_text())
    for site in SITES:
        model = folder / "deployment" / "sites" / site / "runs" / run.name / "model.safetensors"
        if not model.exists():
            raise SystemExit(f"{site} has no model")
        print(f"{site}: {model} ({model.stat().st_size:,} bytes)")
    if not (run / "result.json").exists():
        raise SystemExit("the run has not come to its end")
    say("every site is served")
    if len(sys.argv) < 2:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

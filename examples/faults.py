"""Kill a site and the server in the middle of a run, and resume it.

Four sites and a server run on this machine, over TLS with keys; it takes some minutes. The
SuperNode of a site is killed in round 2 and reconnects. The SuperLink is killed in round 4, and the
run is resumed. At the end every site must have its model.

    python examples/faults.py [FOLDER]
"""

import argparse
import os
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

from fedwca.data import DataRequest, load_benchmark
from fedwca.deploy.processes import find_free_port

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
    """Give every site the images of one domain, and labeled test images."""
    benchmark = load_benchmark("mini-digits", DataRequest(None, folder / "cache"))
    targets = [name for name in benchmark.domains if name != "handwriting"]
    for site, name in zip(SITES, targets, strict=True):
        domain = benchmark.domains[name]
        for row in range(300):
            label = benchmark.classes[domain.labels[row]]
            place = folder / "images" / site if row < 200 else folder / "test" / site / label
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(domain.images[row])).save(place / f"{row:04d}.png")


def deploy_command(folder: Path, *words: str) -> list[str]:
    return [FEDWCA, "deploy", *words, "--folder", str(folder / "deployment")]


def kill_child(process: "subprocess.Popen[bytes]") -> None:
    """Kill the Flower process that a `fedwca deploy` command has started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)


def wait_for(event: str, happened: Callable[[], bool], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{event} did not happen in {seconds:.0f} s")
        time.sleep(0.3)


def announce(text: str) -> None:
    print(f"\n*** {text}", flush=True)


def run_with_kills(folder: Path, started: dict[str, "subprocess.Popen[bytes]"]) -> Path:
    """Run the experiment, kill a site and the server, resume; return the run's folder."""
    config = folder / "run.toml"
    config.write_text(CONFIG)
    run = subprocess.Popen(
        deploy_command(folder, "run", str(config), "--cache", str(folder / "cache"))
    )
    runs = folder / "deployment" / "server" / "runs"

    def log() -> str:
        if run.poll() is not None:
            raise SystemExit(f"`fedwca deploy run` ended with exit code {run.returncode}")
        return "".join(path.read_text() for path in runs.glob("*/log.txt"))

    wait_for("round 1", lambda: "1 round done" in log())
    time.sleep(3)  # until the next round is under way
    announce("killing the SuperNode of mill in the middle of a round")
    kill_child(started["mill"])
    wait_for("the loss of mill", lambda: "mill has disconnected" in log())
    wait_for("the return of mill", lambda: "mill has reconnected" in log())
    wait_for("round 3", lambda: "3 rounds done" in log())
    time.sleep(3)
    announce("killing the SuperLink")
    kill_child(started["server"])
    code = run.wait(timeout=120)
    announce(f"`fedwca deploy run` ended with exit code {code}; resuming")
    output = folder / "server.out"
    wait_for("the restart", lambda: output.read_text().count("server listening") >= 2)
    subprocess.run(
        deploy_command(folder, "run", "--resume", "--cache", str(folder / "cache")), check=True
    )
    return next(runs.iterdir())


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the cleanup below
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, help="where to work (default: a temporary folder)"
    )
    given: Path | None = parser.parse_args().folder
    folder = given or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    write_images(folder)
    where = ["--address", "127.0.0.1", "--listen", "127.0.0.1", "--port", str(find_free_port())]
    names = [word for site in SITES for word in ("--site", site)]
    subprocess.run(deploy_command(folder, "init", *where, *names), check=True)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with (folder / "server.out").open("wb") as out:
            started["server"] = subprocess.Popen(deploy_command(folder, "server"), stdout=out)
        for site in SITES:
            data = ["--data", str(folder / "images" / site), "--test", str(folder / "test" / site)]
            command = deploy_command(folder, "client", "--site", site, *data)
            with (folder / f"{site}.out").open("wb") as out:
                started[site] = subprocess.Popen(command, stdout=out)
        run = run_with_kills(folder, started)
        subprocess.run(deploy_command(folder, "status"), check=True)
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait(timeout=60)
    announce(f"{run.name}/log.txt")
    print((run / "log.txt").read_text())
    for site in SITES:
        model = folder / "deployment" / "sites" / site / "runs" / run.name / "model.safetensors"
        if not model.exists():
            raise SystemExit(f"{site} has no model")
        print(f"{site}: {model} ({model.stat().st_size:,} bytes)")
    if not (run / "result.json").exists():
        raise SystemExit("the run is not finished")
    announce("every site has its model")
    if given is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

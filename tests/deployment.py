"""A deployment of real processes on this machine: started, watched, and ended to the last one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from fedwca.data.augment import object_transform
from fedwca.deploy.processes import free_port
from fedwca.models import DomainModel, build_model

FEDWCA = str(Path(sys.executable).with_name("fedwca"))
SITES = ["bay", "hill", "mill"]
SIZE = 24


def source_model(classes: tuple[str, ...]) -> DomainModel:
    torch.manual_seed(3)
    model = build_model(
        "lenet", len(classes), image_size=object_transform(SIZE).crop, bottleneck=16
    )
    model.freeze_classifier()
    return model.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload, no-any-return]


def settings(method: str, weights: Path, rounds: int) -> dict[str, dict[str, object]]:
    return {
        "data": {"benchmark": "images", "image_size": SIZE},
        "model": {"backbone": "lenet", "bottleneck": 16},
        "source": {"weights": str(weights)},
        "method": {"name": method},
        "training": {"rounds": rounds, "epochs": 1, "lr": 0.01, "batch_size": 16},
        "deploy": {"least_sites": 3, "start_seconds": 120, "round_seconds": 120},
    }


def write_toml(path: Path, content: dict[str, dict[str, object]]) -> Path:
    lines = []
    for section, values in content.items():
        lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    path.write_text("\n".join(lines))
    return path


class Deployment:
    """Server and sites as users start them, by the command line."""

    def __init__(self, folder: Path, sites: list[str], images: Path, *options: str) -> None:
        self.folder, self.sites, self.images = folder, sites, images
        self._started: list[subprocess.Popen[bytes]] = []
        named = [word for site in sites for word in ("--site", site)]
        where = ["--address", "127.0.0.1", "--listen", "127.0.0.1", "--port", str(free_port())]
        self.fedwca("init", *where, *named, *options)

    def fedwca(self, *words: str, wait: float = 240) -> subprocess.CompletedProcess[str]:
        """One command of `fedwca deploy`, to its end."""
        done = subprocess.run(
            [FEDWCA, "deploy", *words, "--folder", str(self.folder)],
            capture_output=True,
            text=True,
            timeout=wait,
            env={**os.environ, "FEDWCA_CACHE": str(self.folder / "cache")},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def start(self, environments: Mapping[str, dict[str, str]] = MappingProxyType({})) -> None:
        """The server, and every site with its images and its test images.

        `environments` has variables to add for a site.
        """
        self._spawn("server", self.folder / "server")
        up, until = self.folder / "server.out", time.monotonic() + 60
        while "may connect" not in up.read_text() and time.monotonic() < until:
            time.sleep(0.2)
        for site in self.sites:
            data, test = self.images / "images" / site, self.images / "test" / site
            # One thread, as the simulator has: more would round otherwise.
            words = [str(data), "--test", str(test), "--threads", "1"]
            more = environments.get(site, {})
            self._spawn(site, self.folder / "sites" / site, *words, **more)

    def _spawn(self, name: str, home: Path, *words: str, **environment: str) -> None:
        """A folder's own script, which starts its command again should that be killed."""
        with (self.folder / f"{name}.out").open("wb") as log:
            child = subprocess.Popen(
                [home / "start.sh", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "FEDWCA": FEDWCA, **environment},
            )
        self._started.append(child)

    def stop(self) -> None:
        """End what was started, by its number."""
        for child in self._started:
            child.send_signal(signal.SIGTERM)
        for child in self._started:
            child.wait(timeout=60)

    def left(self, patience: float = 15) -> list[str]:
        """Processes of this deployment that are still there after some seconds."""
        until = time.monotonic() + patience
        while found := self._alive():
            if time.monotonic() > until:
                break
            time.sleep(0.3)
        return found

    def _alive(self) -> list[str]:
        mark = str(self.folder).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes()
                told = words + (process / "environ").read_bytes()
            except OSError:
                continue
            if words and mark in told and int(process.name) != os.getpid():
                found.append(f"{process.name} {words.replace(bytes(1), b' ').decode()}")
        return found

"""A deployment of real processes on this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from fedwca.data.augment import object_transform
from fedwca.deploy.processes import find_free_port
from fedwca.models import DomainModel, build_model

FEDWCA = str(Path(sys.executable).with_name("fedwca"))
SITES = ["bay", "hill", "mill"]
SIZE = 24
RESTART_SECONDS = 5.0


def source_model(classes: tuple[str, ...]) -> DomainModel:
    torch.manual_seed(3)
    crop = object_transform(SIZE).crop
    model = build_model("lenet", len(classes), image_size=crop, bottleneck=16)
    model.freeze_classifier()
    return model.to(memory_format=torch.channels_last).eval()


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
    """Server and sites, started by the scripts in their folders as a service manager would."""

    def __init__(self, folder: Path, sites: list[str], images: Path, *options: str) -> None:
        self.folder, self.sites, self.images = folder, sites, images
        self._services: dict[str, _Service] = {}
        names = [word for site in sites for word in ("--site", site)]
        where = ["--address", "127.0.0.1", "--listen", "127.0.0.1", "--port", str(find_free_port())]
        self.fedwca("init", *where, *names, *options)

    def fedwca(self, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command of `fedwca deploy` to its end."""
        done = subprocess.run(
            [FEDWCA, "deploy", *words, "--folder", str(self.folder)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "FEDWCA_CACHE": str(self.folder / "cache")},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def start(self, environments: Mapping[str, dict[str, str]] = MappingProxyType({})) -> None:
        """Start the server and every site with its images and its test images.

        `environments` holds variables to add for a site.
        """
        self._start("server", [str(self.folder / "server" / "start.sh")], {})
        output, deadline = self.folder / "server.out", time.monotonic() + 300
        while output.read_text().count("may connect") < len(self.sites):
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.2)
        for site in self.sites:
            script = str(self.folder / "sites" / site / "start.sh")
            data, test = self.images / "images" / site, self.images / "test" / site
            # One thread, as in the simulator: more would round differently.
            command = [script, str(data), "--test", str(test), "--threads", "1"]
            self._start(site, command, environments.get(site, {}))

    def _start(self, name: str, command: list[str], variables: dict[str, str]) -> None:
        environment = {**os.environ, "FEDWCA": FEDWCA, **variables}
        self._services[name] = _Service(command, environment, self.folder / f"{name}.out")

    def restart_ended(self) -> None:
        """Restart what has ended, five seconds later, as the systemd units do."""
        for service in self._services.values():
            service.restart_if_ended()

    def stop(self) -> None:
        """Stop all that was started."""
        for service in self._services.values():
            service.process.terminate()
        for service in self._services.values():
            service.process.wait(timeout=60)

    def remaining_processes(self, timeout: float = 15) -> list[str]:
        """Return the deployment's processes that are still alive after some seconds."""
        deadline = time.monotonic() + timeout
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return found

    def processes(self) -> list[str]:
        """Return id and command line of the deployment's processes, Flower's included."""
        mark = str(self.folder).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if command and mark in command + environment and int(process.name) != os.getpid():
                found.append(f"{process.name} {command.replace(bytes(1), b' ').decode()}")
        return found


class _Service:
    """One command that is restarted when it has ended."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self._command, self._environment, self._output = command, environment, output
        self._ended = 0.0
        self._start()

    def _start(self) -> None:
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, env=self._environment
            )

    def restart_if_ended(self) -> None:
        if self.process.poll() is None:
            self._ended = 0.0
        elif not self._ended:
            self._ended = time.monotonic()
        elif time.monotonic() > self._ended + RESTART_SECONDS:
            self._start()

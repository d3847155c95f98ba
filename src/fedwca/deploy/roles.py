"""The long-lived processes of a deployment: SuperLink at the server, SuperNodes at sites."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca.deploy.kit import ServerKit, SiteKit, server_kit
from fedwca.deploy.processes import (
    Tail,
    check_flower,
    free_port,
    is_open,
    keep_running,
    run_flower,
)
from fedwca.errors import UserError
from fedwca.files import read_json, write_atomically, write_json
from fedwca.notes import Note
from fedwca.stopping import StoppedError

__all__ = ["CONNECTION", "SERVER_FOLDER", "SITE_FOLDER", "run_server", "run_site"]

CONNECTION = "deployment"  # what the server's own Flower configuration calls the SuperLink
SERVER_FOLDER = "FEDWCA_SERVER"  # environment: tells the ServerApp its folder
SITE_FOLDER = "FEDWCA_SITE"  # likewise the ClientApp
_LOOK = 10.0  # seconds between looks for new sites


def run_server(kit: ServerKit, note: Note) -> None:
    """Keep the SuperLink up and every site's key registered, until stopped."""
    check_flower()
    with _alone(kit.folder, "the server"):
        _run_server(kit, note)


def _run_server(kit: ServerKit, note: Note) -> None:
    if is_open(kit.own_host, kit.port):
        raise UserError(
            f"something listens on port {kit.port} already: is this server running? stop it first"
        )
    _configure(kit)
    door = _Door(kit, note)
    log = kit.folder / "superlink.log"
    refused = Tail(log, lambda line: _tell_refusal(line, note) if door.open_to_all() else None)

    def look() -> None:
        door.look()
        refused.read()

    try:
        keep_running(
            lambda: _superlink(kit, door),
            kit.home,
            log,
            {SERVER_FOLDER: str(kit.folder)},
            look,
            note,
        )
    except StoppedError as stop:
        note(str(stop))


def _tell_refusal(line: str, note: Note) -> None:
    if "ApiError:2001" in line:
        note("a node without a registered key was refused")
    elif "ApiError:2004" in line:
        note("a node was refused: its key is not known, or its site counts as connected still")


def _superlink(kit: ServerKit, door: "_Door") -> list[str]:
    door.registered.clear()  # a new SuperLink knows nobody
    words = [sys.executable, "-m", "fedwca.deploy.superlink"]
    words += ["--host", kit.listen, "--port", str(kit.port)]
    words.append("--disable-runtime-dependency-installation")
    if kit.plaintext:
        return [*words, "--insecure"]
    tls = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt"}
    tls["--ssl-keyfile"] = "server.key"
    for option, name in tls.items():
        words += [option, str(kit.folder / name)]
    return [*words, "--enable-supernode-auth"]


def _configure(kit: ServerKit) -> None:
    """Tell Flower's command line on this machine where the SuperLink is."""
    kit.home.mkdir(parents=True, exist_ok=True)
    how = (
        "insecure = true"
        if kit.plaintext
        else f"root-certificates = {json.dumps(str(kit.folder / 'ca.crt'))}"
    )
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{kit.own_host}:{kit.port}"\n{how}\n'
    )
    write_atomically(kit.home / "config.toml", text.encode())


class _Door:
    """Lets the sites of the deployment in: registers their keys, those of later ones too."""

    def __init__(self, kit: ServerKit, note: Note) -> None:
        self._kit, self._note = kit, note
        self.registered: set[str] = set()
        self._next = 0.0

    def look(self) -> None:
        if time.monotonic() < self._next or not is_open(self._kit.own_host, self._kit.port):
            return
        if not self.registered:
            self._note(f"the server is up on port {self._kit.port}")
        self._next = time.monotonic() + _LOOK
        for site in self._sites():
            if site not in self.registered:
                self._register(site)

    def _sites(self) -> tuple[str, ...]:
        try:
            return server_kit(self._kit.folder).sites
        except UserError:  # half a file, from a hand that is editing it
            return self._kit.sites

    def open_to_all(self) -> bool:
        """Whether every site may connect by now."""
        return self.registered.issuperset(self._sites())

    def _register(self, site: str) -> None:
        if not self._kit.plaintext:
            key = self._kit.folder / "keys" / f"{site}.pub"
            done = run_flower(self._kit.home, "flwr", "supernode", "register", str(key), CONNECTION)
            said = done.stdout + done.stderr
            if done.returncode and "already in use" not in said:
                self._note(f"{site} could not be registered yet: {_tail(said)}")
                return
        self.registered.add(site)
        self._note(f"{site} may connect")


def _tail(text: str) -> str:
    return " ".join(text.split())[-300:]


def run_site(kit: SiteKit, local: dict[str, Any], note: Note) -> None:
    """Keep the site's SuperNode up, until stopped.

    Args:
        kit: the site's folder.
        local: what only the site knows (its images, its device), kept for the ClientApp.
        note: told what happens.
    """
    check_flower()
    with _alone(kit.folder, f"site {kit.site}"):
        _run_site(kit, local, note)


@contextmanager
def _alone(folder: Path, who: str) -> Iterator[None]:
    """One process for each folder: a second would change what the first one works with."""
    lock = FileLock(folder / ".up", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{who} is running already from {folder}: stop it first") from None
    try:
        yield
    finally:
        lock.release()


def _run_site(kit: SiteKit, local: dict[str, Any], note: Note) -> None:
    write_json(kit.folder / "local.json", local)
    note(f"site {kit.site}: connecting to {kit.address}:{kit.port}")
    log = kit.folder / "supernode.log"
    tail = Tail(log, lambda line: note("connected") if "SuperNode ID:" in line else None)
    try:
        keep_running(
            lambda: _supernode(kit),
            kit.home,
            log,
            {SITE_FOLDER: str(kit.folder)},
            tail.read,
            note,
        )
    except StoppedError as stop:
        note(str(stop))


def _supernode(kit: SiteKit) -> list[str]:
    words = [sys.executable, "-m", "fedwca.deploy.supernode"]
    words += ["--superlink", f"{kit.address}:{kit.port}"]
    # The port is for the processes of this machine only.
    words += ["--host", "127.0.0.1", "--port", str(free_port())]
    words += ["--node-config", f'site="{kit.site}"']
    if kit.plaintext:
        return [*words, "--insecure"]
    words += ["--root-certificates", str(kit.folder / "ca.crt")]
    return [*words, "--auth-supernode-private-key", str(kit.folder / "site.key")]


def local_settings(folder: Path) -> dict[str, Any]:
    """What `run_site` has kept for the ClientApp."""
    try:
        local: dict[str, Any] = read_json(folder / "local.json")
    except (OSError, ValueError):
        raise UserError(f"{folder} was not started by `fedwca deploy client`") from None
    return local

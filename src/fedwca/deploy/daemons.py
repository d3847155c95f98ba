"""The long-lived processes of a deployment: Flower's SuperLink and its SuperNodes."""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca._support.errors import UserError
from fedwca._support.files import read_json, write_atomically, write_json
from fedwca._support.interrupts import StoppedError
from fedwca.deploy.deployment_files import ServerSettings, SiteSettings, load_server
from fedwca.deploy.processes import (
    LogReader,
    find_free_port,
    flower_environment,
    is_listening,
    run_flwr,
    supervise,
)

__all__ = [
    "CONNECTION",
    "SERVER_FOLDER",
    "SITE_FOLDER",
    "read_local_settings",
    "run_server",
    "run_site",
]

logger = logging.getLogger(__name__)

CONNECTION = "deployment"  # name of the SuperLink in Flower's config.toml at the server
SERVER_FOLDER = "FEDWCA_SERVER"  # environment variable: the server's folder, for the ServerApp
SITE_FOLDER = "FEDWCA_SITE"  # the same for the ClientApp
_REGISTER_INTERVAL = 10.0  # seconds between checks for new sites

_REFUSALS = {
    "ApiError:2001": "refused a node without a registered key",
    "ApiError:2004": "refused a node whose key is unknown or whose site still counts as connected",
}


def run_server(server: ServerSettings) -> None:
    """Run the SuperLink and register the keys of sites, until SIGTERM or Ctrl-C."""
    with _lock(server.folder, "the server"):
        if is_listening(server.local_host, server.port):
            raise UserError(
                f"port {server.port} is in use; if this server is running already, stop it first"
            )
        _write_flower_config(server)
        superlink = _SuperLink(server)
        _supervise(server, "superlink.log", SERVER_FOLDER, superlink.make_command, superlink.poll)


def run_site(site: SiteSettings, local_settings: dict[str, Any]) -> None:
    """Run the site's SuperNode until SIGTERM or Ctrl-C.

    Args:
        site: the site's folder and settings.
        local_settings: what stays at the site (folders of images, device), for the ClientApp.
    """
    with _lock(site.folder, f"site {site.site}"):
        write_json(site.folder / "local.json", local_settings)
        logger.info("site %s: connecting to %s:%d", site.site, site.address, site.port)
        log = LogReader(site.folder / "supernode.log")

        def poll() -> None:
            if any("SuperNode ID:" in line for line in log.read_new_lines()):
                logger.info("connected")

        _supervise(site, "supernode.log", SITE_FOLDER, lambda: _supernode_command(site), poll)


def read_local_settings(folder: Path) -> dict[str, Any]:
    """Return the local settings that `run_site` wrote to the site's folder."""
    settings: dict[str, Any] = read_json(folder / "local.json")
    return settings


def _lock(folder: Path, name: str) -> AbstractContextManager[object]:
    """Lock a folder until the `with` block ends, so that no second process works with its files."""
    try:
        return FileLock(folder / ".up", timeout=0).acquire()
    except Timeout:
        raise UserError(f"{name} is already running from {folder}; stop it first") from None


def _supervise(
    settings: ServerSettings | SiteSettings,
    log_name: str,
    folder_variable: str,
    make_command: Callable[[], Sequence[str]],
    poll: Callable[[], None],
) -> None:
    settings.flower_home.mkdir(parents=True, exist_ok=True)
    environment = flower_environment(settings.flower_home)
    environment[folder_variable] = str(settings.folder)
    try:
        supervise(make_command, settings.folder / log_name, environment, poll)
    except StoppedError:
        logger.info("stopped")


def _supernode_command(site: SiteSettings) -> list[str]:
    command = [sys.executable, "-m", "fedwca.deploy.supernode"]
    command += ["--superlink", f"{site.address}:{site.port}"]
    # This port is for the ClientApp on the same machine.
    command += ["--host", "127.0.0.1", "--port", str(find_free_port())]
    command += ["--node-config", f'site="{site.site}"']
    if site.plaintext:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(site.folder / "ca.crt")]
    return [*command, "--auth-supernode-private-key", str(site.folder / "site.key")]


def _write_flower_config(server: ServerSettings) -> None:
    """Write the address of the SuperLink for Flower's own commands on this machine."""
    server.flower_home.mkdir(parents=True, exist_ok=True)
    security = "insecure = true"
    if not server.plaintext:
        security = f"root-certificates = {json.dumps(str(server.folder / 'ca.crt'))}"
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{server.local_host}:{server.port}"\n{security}\n'
    )
    write_atomically(server.flower_home / "config.toml", text.encode())


class _SuperLink:
    """A server's SuperLink: its command, and what to do while it runs."""

    def __init__(self, server: ServerSettings) -> None:
        self._server = server
        self._log = LogReader(server.folder / "superlink.log")
        self._registered: set[str] = set()  # sites whose keys it knows
        self._next_check = 0.0

    def make_command(self) -> list[str]:
        """Return the command to start it; a new SuperLink knows no keys."""
        self._registered.clear()
        server = self._server
        command = [sys.executable, "-m", "fedwca.deploy.superlink"]
        command += ["--host", server.listen, "--port", str(server.port)]
        command.append("--disable-runtime-dependency-installation")
        if server.plaintext:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", str(server.folder / "ca.crt")]
        command += ["--ssl-certfile", str(server.folder / "server.crt")]
        command += ["--ssl-keyfile", str(server.folder / "server.key")]
        return [*command, "--enable-supernode-auth"]

    def poll(self) -> None:
        """Register the keys of sites, including those added later, and log refused nodes."""
        if time.monotonic() > self._next_check:
            self._register_sites()
        lines = self._log.read_new_lines()
        if not self._registered.issuperset(self._sites()):
            return  # before that, refusals are normal
        for line in lines:
            for mark, message in _REFUSALS.items():
                if mark in line:
                    logger.warning(message)

    def _register_sites(self) -> None:
        server = self._server
        if not is_listening(server.local_host, server.port):
            return
        if not self._registered:
            logger.info("server listening on port %d", server.port)
        self._next_check = time.monotonic() + _REGISTER_INTERVAL
        for site in self._sites():
            if site not in self._registered:
                self._register(site)

    def _sites(self) -> tuple[str, ...]:
        try:
            return load_server(self._server.folder).sites
        except UserError:  # the file is being edited
            return self._server.sites

    def _register(self, site: str) -> None:
        if not self._server.plaintext:
            key = str(self._server.folder / "keys" / f"{site}.pub")
            home = self._server.flower_home
            problem = run_flwr(home, "supernode", "register", key, CONNECTION)
            if problem and "already in use" not in problem:
                logger.warning("site %s could not be registered, retrying: %s", site, problem)
                return
        self._registered.add(site)
        logger.info("site %s may connect", site)

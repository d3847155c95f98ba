"""The folders of a deployment: one for the server, and one to copy to each site.

deployment/server/        deployment.toml, certificates, keys/SITE.pub, start.sh, a systemd unit
deployment/sites/SITE/    site.toml, ca.crt, site.key, start.sh, a systemd unit
"""

import ipaddress
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedwca._support.errors import UserError
from fedwca._support.files import write_atomically, write_private
from fedwca._support.text import parse_toml
from fedwca.deploy import templates
from fedwca.deploy.certificates import (
    KeyPair,
    create_authority,
    create_server_certificate,
    create_site_keys,
    openssh_to_pem,
)

__all__ = [
    "DEFAULT_PORT",
    "ServerSettings",
    "SiteSettings",
    "add_sites",
    "create_deployment",
    "load_server",
    "load_site",
    "read_site_keys",
]

DEFAULT_PORT = 9443
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True)

    folder: Path = Field(exclude=True)

    @property
    def flower_home(self) -> Path:
        """Flower's own folder (FLWR_HOME)."""
        return self.folder / "flwr"


class ServerSettings(_Settings):
    """The server's folder and the settings in its deployment.toml."""

    address: str
    listen: str
    port: int
    plaintext: bool = False
    sites: tuple[str, ...]

    @property
    def local_host(self) -> str:
        """The address under which processes on the server's machine reach the server."""
        return "127.0.0.1" if self.listen == "0.0.0.0" else self.listen


class SiteSettings(_Settings):
    """A site's folder and the settings in its site.toml."""

    site: str
    address: str
    port: int
    plaintext: bool = False


def create_deployment(
    folder: Path, address: str, port: int, listen: str, sites: Sequence[str], plaintext: bool
) -> ServerSettings:
    """Create the folders of a new deployment."""
    _validate_site_names(sites)
    _validate_network(address, port, listen)
    if not sites:
        raise UserError("no site is given; name each one: --site clinic-a --site clinic-b")
    server = ServerSettings(
        folder=folder / "server",
        address=address,
        listen=listen,
        port=port,
        plaintext=plaintext,
        sites=tuple(sites),
    )
    _write_server(server)
    for site in sites:
        _write_site(folder / "sites" / site, site, server)
    _write_toml(server.folder / "deployment.toml", server)  # last: everything it names exists
    return server


def add_sites(
    folder: Path, sites: Sequence[str], address: str = "", port: int = 0, plaintext: bool = False
) -> tuple[ServerSettings, list[str]]:
    """Add sites to a deployment; return its settings and the names that are new.

    Address, port and plaintext, if given, must be those of the deployment.
    """
    _validate_site_names(sites)
    server = load_server(folder)
    given = (address or server.address, port or server.port, plaintext or server.plaintext)
    if given != (server.address, server.port, server.plaintext):
        raise UserError(
            f"{folder} is a deployment at {server.address}:{server.port}"
            f"{' in plaintext' if server.plaintext else ''}; omit --address, --port and "
            "--plaintext to add sites, or choose another --folder"
        )
    known = {site.lower(): site for site in server.sites}
    for site in sites:
        if (other := known.get(site.lower(), site)) != site:
            raise UserError(
                f"sites {other} and {site} differ in case only; choose another name for {site}"
            )
    new = [site for site in sites if site not in server.sites]
    server = server.model_copy(update={"sites": (*server.sites, *new)})
    for site in new:
        _write_site(folder / "sites" / site, site, server)
    _write_toml(server.folder / "deployment.toml", server)
    return server, new


def _validate_site_names(sites: Sequence[str]) -> None:
    for site in sites:
        if not _SITE.fullmatch(site):
            raise UserError(
                f"site name {site!r} is invalid; use up to 63 letters, digits, - _ . and start "
                "with a letter or digit"
            )
    folded = [site.lower() for site in sites]  # some file systems ignore case
    if repeated := {site for site in sites if folded.count(site.lower()) > 1}:
        raise UserError(f"--site {min(repeated)} is given twice; name every site once")


def _validate_network(address: str, port: int, listen: str) -> None:
    if not _HOST.fullmatch(address):
        raise UserError(
            f"--address {address!r} is not a hostname or IPv4 address; give the one that sites "
            "connect to, for example fl.example.org or 10.0.0.5"
        )
    if not 1 <= port <= 65_535:
        raise UserError(f"--port {port} is not a port; choose one from 1024 to 65535")
    try:
        ipaddress.IPv4Address(listen)
    except ValueError:
        raise UserError(
            f"--listen {listen!r} is not an IPv4 address; give an address of this machine, or omit "
            "the option to listen on all"
        ) from None


def _write_server(server: ServerSettings) -> None:
    folder = server.folder
    (folder / "keys").mkdir(parents=True, exist_ok=True)
    if not server.plaintext:
        authority = create_authority(f"fedwca {server.address}")
        hosts = [server.address, "localhost", "127.0.0.1", server.local_host]
        certificate = create_server_certificate(authority, list(dict.fromkeys(hosts)))
        _write_pair(folder / "ca.key", folder / "ca.crt", authority)
        _write_pair(folder / "server.key", folder / "server.crt", certificate)
    _write_text(folder / "run.toml", templates.RUN_TOML)
    _write_script(folder / "start.sh", templates.SERVER_SCRIPT)
    _write_text(folder / "fedwca-server.service", templates.SERVER_UNIT)


def _write_site(folder: Path, site: str, server: ServerSettings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not server.plaintext:
        write_atomically(folder / "ca.crt", (server.folder / "ca.crt").read_bytes())
        public_key = server.folder / "keys" / f"{site}.pub"
        _write_pair(folder / "site.key", public_key, create_site_keys())
    settings = SiteSettings(
        folder=folder,
        site=site,
        address=server.address,
        port=server.port,
        plaintext=server.plaintext,
    )
    _write_toml(folder / "site.toml", settings)
    _write_script(folder / "start.sh", templates.SITE_SCRIPT.format(site=site))
    _write_text(folder / f"fedwca-site-{site}.service", templates.SITE_UNIT.format(site=site))


def _write_pair(private: Path, public: Path, pair: KeyPair) -> None:
    write_private(private, pair.private)
    write_atomically(public, pair.public)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_script(path: Path, text: str) -> None:
    _write_text(path, text)
    path.chmod(0o755)


def _write_toml(path: Path, settings: _Settings) -> None:
    # JSON strings, numbers, booleans and lists of strings are valid TOML.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.model_dump().items()]
    write_atomically(path, "".join(lines).encode())


def load_server(folder: Path) -> ServerSettings:
    """Read the server's settings from the deployment's folder or from the server's own."""
    for place in (folder / "server", folder):
        if (place / "deployment.toml").is_file():
            return _read_toml(place / "deployment.toml", ServerSettings)
    raise UserError(
        f"{folder} has no deployment.toml; create a deployment with `fedwca deploy init`, or give "
        "its folder as --folder"
    )


def load_site(folder: Path, site: str) -> SiteSettings:
    """Read a site's settings from the deployment's folder or from the site's own."""
    for place in (folder / "sites" / site, folder / site, folder):
        if (place / "site.toml").is_file():
            settings = _read_toml(place / "site.toml", SiteSettings)
            if settings.site != site:
                raise UserError(f"{place} is the folder of site {settings.site!r}, not of {site!r}")
            for name in () if settings.plaintext else ("ca.crt", "site.key"):
                if not (place / name).is_file():
                    raise UserError(
                        f"{place / name} is missing; copy sites/{site} from the server's "
                        "deployment again"
                    )
            return settings
    raise UserError(
        f"{folder} has no folder of site {site!r}; copy sites/{site} from the server's deployment "
        "and give its path as --folder"
    )


_SettingsType = TypeVar("_SettingsType", bound=_Settings)


def _read_toml(path: Path, kind: type[_SettingsType]) -> _SettingsType:
    try:
        content: dict[str, Any] = parse_toml(path.read_text(encoding="utf-8"))
        return kind.model_validate({**content, "folder": path.parent.resolve()})
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(
            f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}; "
            "correct it, or run `fedwca deploy init` in another folder"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def read_site_keys(folder: Path) -> dict[str, str]:
    """Return each site's public key in PEM; "" in plaintext."""
    server = load_server(folder)
    if server.plaintext:
        return dict.fromkeys(server.sites, "")
    keys = server.folder / "keys"
    return {site: openssh_to_pem((keys / f"{site}.pub").read_bytes()) for site in server.sites}

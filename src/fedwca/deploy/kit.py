"""The folders of a deployment: one for the server, one to take to each site.

deployment/server/        deployment.toml, certificates, keys/SITE.pub, start.sh, a systemd unit
deployment/sites/SITE/    site.toml, ca.crt, site.key, start.sh, a systemd unit
"""

import ipaddress
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedwca.deploy.certificates import (
    Pair,
    authority,
    damaged_secret,
    public_pem,
    server_certificate,
    site_keys,
)
from fedwca.errors import UserError
from fedwca.files import write_atomically, write_private
from fedwca.parsing import parse_toml

__all__ = ["ServerKit", "SiteKit", "expected_sites", "make_kit", "server_kit", "site_kit"]

_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class ServerKit(NamedTuple):
    """The server's folder, and what its deployment.toml says."""

    folder: Path
    address: str
    listen: str
    port: int
    plaintext: bool
    sites: tuple[str, ...]

    @property
    def home(self) -> Path:
        """Where Flower keeps its own files."""
        return self.folder / "flwr"

    @property
    def own_host(self) -> str:
        """What the server's own machine reaches it by."""
        return "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen


class SiteKit(NamedTuple):
    """A site's folder, and what its site.toml says."""

    folder: Path
    site: str
    address: str
    port: int
    plaintext: bool

    @property
    def home(self) -> Path:
        """Where Flower keeps its own files."""
        return self.folder / "flwr"


def make_kit(
    folder: Path,
    address: str,
    port: int,
    listen: str,
    sites: Sequence[str],
    plaintext: bool,
) -> tuple[ServerKit, list[str]]:
    """Make a deployment's folders, or add sites to one; the kit, and the names of new sites."""
    for site in sites:
        if not _SITE.fullmatch(site):
            raise UserError(
                f"a site cannot be called {site!r}: use up to 63 letters, digits, - _ . and begin "
                "with a letter or digit"
            )
    folded = [site.lower() for site in sites]  # folders of some systems know no capitals
    if twice := {site for site in sites if folded.count(site.lower()) > 1}:
        raise UserError(f"--site {min(twice)} is given twice: name every site once")
    server = folder / "server"
    if (server / "deployment.toml").exists():
        before = server_kit(folder)
        _check_unchanged(before, address, port, plaintext)
        _check_apart(before.sites, sites)
        kit = before._replace(sites=(*before.sites, *(s for s in sites if s not in before.sites)))
    else:
        _check_new(address, port, listen, sites)
        before = None
        kit = ServerKit(server, address, listen, port, plaintext, tuple(sites))
        _write_server(kit)
    new = [site for site in kit.sites if before is None or site not in before.sites]
    for site in new:
        _write_site(folder / "sites" / site, site, kit)
    _write_settings(kit)  # last: what it names is there
    return kit, new


def _check_apart(before: Sequence[str], sites: Sequence[str]) -> None:
    """A folder, and a key in it, that differ from others in capitals alone may be the same."""
    known = {site.lower(): site for site in before}
    for site in sites:
        if known.get(site.lower(), site) != site:
            raise UserError(
                f"there is a site {known[site.lower()]} already: a new one must differ from it in "
                f"more than capitals, call {site} otherwise"
            )


def _check_new(address: str, port: int, listen: str, sites: Sequence[str]) -> None:
    if not sites:
        raise UserError("no site is named: give each one, as in --site clinic-a --site clinic-b")
    if not _HOST.fullmatch(address):
        raise UserError(
            f"{address!r} is no name or address of a machine: give what sites reach the server by, "
            "as in --address fl.example.org or --address 10.0.0.5"
        )
    if not 1 <= port <= 65_535:
        raise UserError(f"there is no port {port}: choose one from 1024 to 65535")
    try:
        ipaddress.IPv4Address(listen)
    except ValueError:
        raise UserError(
            f"{listen!r} is no address to listen on: give one of this machine, as 10.0.0.5, or "
            "leave it out to listen on all"
        ) from None


def _check_unchanged(kit: ServerKit, address: str, port: int, plaintext: bool) -> None:
    asked = (address or kit.address, port or kit.port, plaintext or kit.plaintext)
    if asked != (kit.address, kit.port, kit.plaintext):
        raise UserError(
            f"{kit.folder.parent} is a deployment at {kit.address}:{kit.port}"
            f"{' in plaintext' if kit.plaintext else ''}: leave these options out to add sites, or "
            "choose another folder"
        )


def _write_settings(kit: ServerKit) -> None:
    text = _toml(
        address=kit.address,
        listen=kit.listen,
        port=kit.port,
        plaintext=kit.plaintext,
        sites=list(kit.sites),
    )
    write_atomically(kit.folder / "deployment.toml", text.encode())


def _write_server(kit: ServerKit) -> None:
    (kit.folder / "keys").mkdir(parents=True, exist_ok=True)
    if not kit.plaintext:
        ca = authority(f"fedwca {kit.address}")
        hosts = list(dict.fromkeys([kit.address, "localhost", "127.0.0.1", kit.own_host]))
        own = server_certificate(ca, hosts)
        _write_pair(kit.folder / "ca.key", kit.folder / "ca.crt", ca)
        _write_pair(kit.folder / "server.key", kit.folder / "server.crt", own)
    (kit.folder / "run.toml").write_text(_RUN, encoding="utf-8")
    _write_starters(kit.folder, "server", "", 'deploy server --folder "$HERE"')


def _write_site(folder: Path, site: str, kit: ServerKit) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not kit.plaintext:
        write_atomically(folder / "ca.crt", (kit.folder / "ca.crt").read_bytes())
        _write_pair(folder / "site.key", kit.folder / "keys" / f"{site}.pub", site_keys())
    text = _toml(site=site, address=kit.address, port=kit.port, plaintext=kit.plaintext)
    write_atomically(folder / "site.toml", text.encode())
    words = f'deploy client --site {site} --folder "$HERE" --data "$DATA"'
    _write_starters(folder, f"site-{site}", _NEEDS_DATA, words)


def _write_pair(private: Path, public: Path, pair: Pair) -> None:
    write_private(private, pair.private)
    write_atomically(public, pair.public)


def _write_starters(folder: Path, role: str, needs: str, words: str) -> None:
    """A script for any system, and a unit for systemd; both start again what ends."""
    script = folder / "start.sh"
    script.write_text(_SCRIPT.format(needs=needs, words=words), encoding="utf-8")
    script.chmod(0o755)
    setting = "Environment=DATA=/path/to/images\n" if needs else ""
    unit = _UNIT.format(role=role, setting=setting)
    (folder / f"fedwca-{role}.service").write_text(unit, encoding="utf-8")


_RUN = """\
# A run over all sites. Edit it, then: fedwca deploy run run.toml

[data]
benchmark = "images"
image_size = 256              # images are stored so large; the network sees 7/8 of it

[model]
backbone = "resnet18"

[source]
weights = "source.safetensors"    # a model with its class names, as any run of fedwca keeps one

[method]
name = "fedwca"
rounds_between_weights = 5    # the revised variant: two models down instead of one for each cluster

[training]
rounds = 20

[deploy]
least_sites = 2               # a round needs so many answers
start_seconds = 600           # the first round waits so long for all sites
round_seconds = 3600          # a round closes after so long with those who have answered
return_seconds = 90           # a site that was lost is waited for so long
wire = "float32"              # "float16" halves the traffic
"""

_NEEDS_DATA = """\
DATA="${1:-${DATA:?give the folder of the images of this site: ./start.sh /path/to/images}}"
[ $# -gt 0 ] && shift    # what is left goes to the command, such as --test /path --device cuda
"""

_SCRIPT = """\
#!/bin/sh
# Run it by hand, or by the systemd unit beside it. FEDWCA may name the command to use.
HERE="$(cd "$(dirname "$0")" && pwd)"
{needs}child=
trap 'trap - TERM INT; [ -n "$child" ] && kill -TERM "$child" && wait "$child"; exit 130' TERM INT
while true; do
  "${{FEDWCA:-fedwca}}" {words} "$@" &
  child=$!
  wait "$child"
  code=$?
  # 0 and 130: stopped on purpose; 2: something that only a human can mend.
  case $code in 0|2|130) exit $code ;; esac
  sleep 5
done
"""

_UNIT = """\
# Put this folder at /etc/fedwca, set the paths below, copy this file to /etc/systemd/system,
# then: systemctl enable --now fedwca-{role}
[Unit]
Description=fedwca {role}
After=network-online.target
Wants=network-online.target

[Service]
# An account of its own, which may read the images and nothing else.
User=fedwca
Environment=FEDWCA=/opt/fedwca/bin/fedwca
{setting}ExecStart=/etc/fedwca/start.sh
Restart=always
RestartSec=5
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
"""


def _toml(**values: Any) -> str:
    # JSON's strings, numbers, booleans and lists of strings are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def server_kit(folder: Path) -> ServerKit:
    """The server's kit in a folder: that of the whole deployment, or its own."""
    for place in (folder / "server", folder):
        if (place / "deployment.toml").is_file():
            said = _read(place / "deployment.toml", address=str, listen=str, port=int, sites=list)
            return ServerKit(
                place.resolve(),
                said["address"],
                said["listen"],
                said["port"],
                bool(said.get("plaintext")),
                tuple(map(str, said["sites"])),
            )
    raise UserError(
        f"there is no server's folder in {folder}: make one with `fedwca deploy init`, or give "
        "its place as --folder"
    )


def site_kit(folder: Path, site: str) -> SiteKit:
    """A site's kit in a folder: that of the whole deployment, or its own."""
    for place in (folder / "sites" / site, folder / site, folder):
        if (place / "site.toml").is_file():
            said = _read(place / "site.toml", site=str, address=str, port=int)
            if said["site"] != site:
                raise UserError(f"{place} is the folder of site {said['site']!r}, not of {site!r}")
            kit = SiteKit(
                place.resolve(), site, said["address"], said["port"], bool(said.get("plaintext"))
            )
            _check_secrets(kit)
            return kit
    raise UserError(
        f"there is no folder of site {site!r} in {folder}: copy sites/{site} from the server's "
        "deployment, and give its place as --folder"
    )


def _check_secrets(kit: SiteKit) -> None:
    for name in () if kit.plaintext else ("ca.crt", "site.key"):
        if not (kit.folder / name).is_file():
            raise UserError(
                f"{kit.folder} lacks {name}, so the server would not let it in: copy "
                f"sites/{kit.site} from the server's deployment once more"
            )

    if not kit.plaintext and (damaged := damaged_secret(kit.folder)):
        raise UserError(
            f"{kit.folder / damaged} is damaged: copy sites/{kit.site} from the server's "
            "deployment once more"
        )


def _read(path: Path, **kinds: type) -> dict[str, Any]:
    try:
        said = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for key, kind in kinds.items():
        if not isinstance(said.get(key), kind):
            raise UserError(f"{path} does not tell {key!r}: make the deployment anew")
    return said


def expected_sites(folder: Path) -> dict[str, str]:
    """The sites of a deployment, each with its public key as Flower tells it; "" in plaintext."""
    kit = server_kit(folder)
    if kit.plaintext:
        return dict.fromkeys(kit.sites, "")
    return {s: public_pem((kit.folder / "keys" / f"{s}.pub").read_bytes()) for s in kit.sites}

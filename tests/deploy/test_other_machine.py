"""From another machine (a network namespace), sites can connect and nothing else can."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwca.deploy.certificates import create_site_keys
from fedwca.deploy.processes import find_free_port, flower_environment
from tests.support.deployment import FEDWCA

SERVER, OTHER = "10.77.0.1", "10.77.0.2"
NAME = f"fedwca-{os.getpid()}"
ON_OTHER = ["ip", "netns", "exec", NAME]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def create_namespace() -> None:
    ip("netns", "add", NAME)
    ip("link", "add", "fedwca0", "type", "veth", "peer", "name", "fedwca1")
    ip("link", "set", "fedwca1", "netns", NAME)
    ip("addr", "add", f"{SERVER}/24", "dev", "fedwca0")
    ip("link", "set", "fedwca0", "up")
    for words in (f"addr add {OTHER}/24 dev fedwca1", "link set fedwca1 up", "link set lo up"):
        ip("netns", "exec", NAME, "ip", *words.split())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a deployment whose server listens for the other machine."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    try:
        create_namespace()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr.decode().strip()}")
    folder, port = tmp_path_factory.mktemp("other") / "deployment", str(find_free_port())
    words = ["init", "--address", SERVER, "--port", port, "--site", "mill", "--folder", str(folder)]
    subprocess.run([FEDWCA, "deploy", *words], check=True, capture_output=True)
    (folder / "flower").mkdir()
    (folder / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "{SERVER}:{port}"\n'
        f'root-certificates = "{folder / "server" / "ca.crt"}"\n'
    )
    out = folder / "server.out"
    with out.open("wb") as log:
        process = subprocess.Popen(
            [FEDWCA, "deploy", "server", "--folder", str(folder)], stdout=log, stderr=log
        )
    try:
        wait_for(out, "mill may connect")
        yield folder
    finally:
        process.terminate()
        process.wait(timeout=60)
        ip("link", "del", "fedwca0")
        ip("netns", "del", NAME)


def wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 90
    while text not in file.read_text():
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.2)


def flwr(server: Path, *words: str, on_other: bool) -> subprocess.CompletedProcess[str]:
    command = [*(ON_OTHER if on_other else []), "flwr", *words]
    env = flower_environment(server / "flower")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.slow
def test_keys_are_registered_and_nodes_listed_on_the_servers_own_machine_only(
    server: Path,
) -> None:
    key = server / "stranger.pub"
    key.write_bytes(create_site_keys().public)
    for words in (["register", str(key), "x"], ["list", "x"]):
        refused = flwr(server, "supernode", *words, on_other=True)
        assert refused.returncode != 0
        assert "403 Forbidden" in refused.stdout + refused.stderr
        done = flwr(server, "supernode", *words, on_other=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_site_on_another_machine_connects(server: Path) -> None:
    out, site = server / "mill.out", str(server / "sites" / "mill")
    words = ["deploy", "client", "--site", "mill", "--folder", site, "--data", str(server)]
    with out.open("wb") as log:
        process = subprocess.Popen([*ON_OTHER, FEDWCA, *words], stdout=log, stderr=log)
    try:
        wait_for(out, "connected")
    finally:
        process.terminate()
        process.wait(timeout=60)

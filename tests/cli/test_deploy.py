"""The commands of `fedwca deploy` that need no other process."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedwca.deploy.deployment_files import read_site_keys
from fedwca.experiments.config import read_experiment
from tests.cli.conftest import Invoke, assert_error

THREE = ("--site", "a", "--site", "b", "--site", "c")
INIT = ("deploy", "init", "--address", "fl.example.org")


def test_init_creates_a_folder_for_the_server_and_for_each_site(invoke: Invoke) -> None:
    result = invoke(*INIT, *THREE)
    assert result.code == 0, result.err
    assert "fedwca deploy server" in result.out
    root = Path("deployment")
    assert sorted(p.name for p in (root / "server").iterdir()) == [
        "ca.crt",
        "ca.key",
        "deployment.toml",
        "fedwca-server.service",
        "keys",
        "run.toml",
        "server.crt",
        "server.key",
        "start.sh",
    ]
    for site in "abc":
        assert sorted(p.name for p in (root / "sites" / site).iterdir()) == [
            "ca.crt",
            f"fedwca-site-{site}.service",
            "site.key",
            "site.toml",
            "start.sh",
        ]
    secrets = [*root.rglob("*.key")]
    assert len(secrets) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    keys = read_site_keys(root)
    assert list(keys) == ["a", "b", "c"]
    assert len(set(keys.values())) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "--address", "fl.example.org", "--site", "a"),
        ("server",),
        ("client", "--site", "a", "--data", "."),
        ("run", "run.toml"),
        ("stop",),
        ("status",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_flower_every_command_says_what_to_install(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    assert_error(invoke("deploy", *arguments), "fedwca[flower]")


def test_the_authority_signs_the_server_certificate_for_its_names(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE).code == 0
    server = Path("deployment/server")
    ca = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    own = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(ca.public_key(), ec.EllipticCurvePublicKey)
    site = (Path("deployment/sites/a") / "ca.crt").read_bytes()
    assert site == (server / "ca.crt").read_bytes()


def test_sites_are_added_and_nothing_else_changes(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE).code == 0
    root = Path("deployment")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.suffix != ".toml"}
    result = invoke("deploy", "init", "--site", "d")
    assert result.code == 0, result.err
    assert list(read_site_keys(root)) == ["a", "b", "c", "d"]
    assert {p: p.read_bytes() for p in before} == before
    assert_error(invoke("deploy", "init", "--site", "d"), "--site")
    assert_error(invoke("deploy", "init", "--site", "e", "--port", "1234"), "--port")
    assert list(read_site_keys(root)) == ["a", "b", "c", "d"]


def test_the_run_that_init_writes_is_the_revised_variant_and_needs_its_source(
    invoke: Invoke,
) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    config = Path("deployment/server/run.toml")
    experiment = read_experiment(config)
    assert experiment.method_name == "fedwca"
    assert experiment.method.rounds_between_weights == 5
    assert experiment.deploy.wire == "float32"
    assert_error(invoke("deploy", "run", str(config)), "source.safetensors")


def test_plaintext_needs_an_option_and_gives_a_warning(invoke: Invoke) -> None:
    result = invoke(*INIT, *THREE, "--plaintext")
    assert "warning: plaintext" in result.out
    assert not list(Path("deployment").rglob("*.key"))
    assert read_site_keys(Path("deployment")) == {"a": "", "b": "", "c": ""}


def test_a_later_site_differs_in_more_than_case(invoke: Invoke) -> None:
    assert invoke(*INIT, "--site", "clinic").code == 0
    key = Path("deployment/server/keys/clinic.pub").read_bytes()
    assert_error(invoke("deploy", "init", "--site", "Clinic"), "clinic", "Clinic")
    assert Path("deployment/server/keys/clinic.pub").read_bytes() == key
    assert invoke("deploy", "init", "--site", "clinic", "--site", "ward").code == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("deploy", "init", "--site", "a"), "--address"),
        (INIT, "--site"),
        ((*INIT, "--site", "a", "--site", "a"), "--site a"),
        ((*INIT, "--site", "../a"), "../a"),
        ((*INIT, "--site", 'a" b'), 'a" b'),
        (("deploy", "init", "--address", "a b", "--site", "a"), "--address"),
        ((*INIT, "--site", "a", "--port", "70000"), "--port 70000"),
        ((*INIT, "--site", "a", "--site", "A"), "--site A"),
        ((*INIT, "--site", "a", "--listen", "banana"), "--listen"),
        (("deploy", "init", "--address", "fe80::1", "--site", "a"), "--address"),
        (("deploy", "server"), "deployment.toml"),
        (("deploy", "client", "--site", "a", "--data", "."), "site 'a'"),
        (("deploy", "run", "x.toml"), "deployment.toml"),
        (("deploy", "status"), "deployment.toml"),
        (("deploy", "status", "--site", "a"), "site 'a'"),
        (("deploy", "stop"), "deployment.toml"),
    ],
)
def test_a_wrong_option_is_a_user_error(invoke: Invoke, words: tuple[str, ...], named: str) -> None:
    assert_error(invoke(*words), named)
    assert not Path("deployment").exists()


def test_commands_of_a_deployment_that_is_down(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    Path("run.toml").write_text("[training]\nrounds = 1\n")
    assert_error(invoke("deploy", "run", "run.toml"), "port 9", "fedwca deploy server")
    assert_error(invoke("deploy", "run"), "CONFIG")
    assert_error(invoke("deploy", "run", "--resume"), "no run was started")
    assert_error(invoke("deploy", "run", "run.toml", "--resume"), "--resume")
    assert_error(invoke("deploy", "run", "run.toml", "--set", "deploy.wire=float8"), "deploy.wire")
    assert_error(invoke("deploy", "run", "run.toml", "--set", "deploy.wires=1"), "did you mean")
    assert_error(invoke("deploy", "stop"), "no run")
    assert_error(invoke("deploy", "client", "--site", "a", "--data", "nowhere"), "--data nowhere")
    banana = invoke("deploy", "client", "--site", "a", "--data", ".", "--device", "banana")
    assert_error(banana, "--device 'banana'")
    assert_error(
        invoke("deploy", "run", "run.toml", "--set", "deploy.least_sites=4"), "deploy.least_sites"
    )
    domain = "method.clustering=domain"
    assert_error(invoke("deploy", "run", "run.toml", "--set", domain), "method.clustering")
    result = invoke("deploy", "status")
    assert "server fl.example.org:9 (TLS and site keys): down" in result.out
    assert "no run has started" in result.out
    assert result.out.count("not yet") == 3


def test_a_site_s_own_folder_is_found_where_it_was_copied(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    shutil.copytree("deployment/sites/b", "copied/folder")
    result = invoke("deploy", "status", "--site", "b", "--folder", "copied/folder")
    assert result.code == 0
    assert "site b, server fl.example.org:9: not reachable" in result.out
    assert "no model yet" in result.out
    assert_error(
        invoke("deploy", "status", "--site", "a", "--folder", "copied/folder"), "of site 'b'"
    )
    client = ("deploy", "client", "--site", "b", "--data", ".", "--folder", "copied/folder")
    Path("copied/folder/site.key").unlink()
    assert_error(invoke(*client), "site.key")
    Path("copied/folder/site.toml").write_text("site = [")
    assert_error(invoke(*client), "site.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"sites = {'[' * 5000}{']' * 5000}", "deployment.toml"),
        ('address = "a"\nlisten = "b"\nsites = []\n', "port"),
    ],
)
def test_invalid_settings_are_named(invoke: Invoke, tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "deployment.toml").write_text(text)
    assert_error(invoke("deploy", "status", "--folder", str(tmp_path)), "deployment.toml", named)


def test_the_start_script_of_a_site_runs_its_client(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*INIT, *THREE).code == 0
    arguments = tmp_path / "arguments"
    command = tmp_path / "fake fedwca"
    command.write_text(f'#!/bin/sh\necho "$@" > "{arguments}"\nexit 2\n')
    command.chmod(0o755)
    script = Path("deployment/sites/a/start.sh").resolve()
    done = subprocess.run(
        [script, "/my images", "--threads", "1"],
        env={"FEDWCA": str(command), "PATH": "/bin:/usr/bin"},
    )
    assert done.returncode == 2
    words = f"deploy client --site a --folder {script.parent} --data /my images --threads 1"
    assert arguments.read_text().strip() == words
    without_data = subprocess.run([script], capture_output=True, text=True)
    assert without_data.returncode != 0
    assert "folder of images" in without_data.stderr


def test_signals_to_a_start_script_reach_its_command(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    command = tmp_path / "sleeper"
    command.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 60\n")
    command.chmod(0o755)
    script = subprocess.Popen(
        [tmp_path / "deployment/server/start.sh"], env={**os.environ, "FEDWCA": str(command)}
    )
    deadline = time.monotonic() + 20
    while not (Path("pid").exists() and Path("pid").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert int(Path("pid").read_text()) == script.pid
    script.terminate()
    assert script.wait(timeout=20) == -signal.SIGTERM


@pytest.mark.parametrize("damage", [lambda text: text[:9], lambda text: text.replace("3", "4")])
def test_a_run_whose_result_is_corrupt_is_not_finished(
    invoke: Invoke, damage: Callable[[str], str]
) -> None:
    from fedwca._support.files import add_checksum

    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    Path("run.toml").write_text("[training]\nrounds = 1\n")
    run = Path("deployment/server/runs") / read_experiment(Path("run.toml")).deployed_name
    run.mkdir(parents=True)
    result = json.dumps(add_checksum({"round": 3}))
    (run / "result.json").write_text(result)
    assert "this run is finished" in invoke("deploy", "run", "run.toml").out
    (run / "result.json").write_text(damage(result))
    assert_error(invoke("deploy", "run", "run.toml"), "port 9", "fedwca deploy server")


def test_resume_names_the_command_for_a_deployed_run(invoke: Invoke) -> None:
    from fedwca.experiments.config import resolve

    run = Path("runs/deployed-mini_digits")
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"settings": resolve({}).deployed_settings()}))
    assert_error(invoke("resume", str(run)), "`fedwca deploy run --resume`")


def test_status_shows_what_the_run_folder_holds(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    from fedwca.experiments.config import resolve

    experiment = resolve({"training": {"rounds": 4}})
    server = Path("deployment/server")
    run = server / "runs" / experiment.deployed_name
    run.mkdir(parents=True)
    job = {"id": "1", "settings": experiment.settings(), "runs": str(server / "runs")}
    (server / "job.json").write_text(json.dumps(job))
    (server / "outcome.json").write_text(json.dumps({"id": "1", "state": "running"}))
    (run / "config.json").write_text(json.dumps({"settings": experiment.settings()}))
    score = {"domain": "", "accuracy": None, "confidence": 0.5, "correct": 0, "total": 0}
    line = {
        "round": 1,
        "accuracy": {"mean": None, "domains": {}},
        "clients": {"a": score, "b": {**score, "accuracy": 0.25}},
        "server": {"cluster_of/a": 1},
        "bytes_down": 1000,
        "bytes_up": 50,
    }
    (run / "results.jsonl").write_text(json.dumps(line) + "\n")
    facts = {"images": 7, "test_images": 0, "online": False, "answered": 0}
    sites = {
        "a": {**facts, "refused": 0, "problem": "no power"},
        "b": {**facts, "refused": 3, "problem": "round 1: its reply was refused"},
    }
    (run / "sites.json").write_text(json.dumps(sites))
    output = invoke("deploy", "status").out
    assert "1 of 4 rounds, interrupted" in output
    assert "bytes: 1,000 down and 50 up in 1 round;" in output
    row = next(line for line in output.splitlines() if line.startswith("a "))
    assert row.split() == ["a", "lost", "7", "1", "0.50", "round", "0", "no", "power"]
    assert "25.0 %" in output
    row = next(line for line in output.splitlines() if line.startswith("b "))
    assert row.split()[-7:] == ["3", "round", "1:", "its", "reply", "was", "refused"]

"""The commands of a deployment, as far as they need no other process."""

import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedwca.deploy.kit import expected_sites
from fedwca.experiments.config import read_experiment

Invoke = Callable[..., Any]
THREE = ("--site", "a", "--site", "b", "--site", "c")
INIT = ("deploy", "init", "--address", "fl.example.org")


def refused(said: Any, *words: str) -> None:
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err


def test_init_makes_a_folder_for_the_server_and_for_each_site(invoke: Invoke) -> None:
    said = invoke(*INIT, *THREE)
    assert said.code == 0, said.err
    assert "fedwca deploy server" in said.out
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
    keys = expected_sites(root)
    assert list(keys) == ["a", "b", "c"]
    assert len(set(keys.values())) == 3


def test_the_server_s_certificate_is_signed_for_its_names_by_the_authority(invoke: Invoke) -> None:
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
    kept = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.suffix != ".toml"}
    said = invoke("deploy", "init", "--site", "d")
    assert said.code == 0, said.err
    assert list(expected_sites(root)) == ["a", "b", "c", "d"]
    assert {p: p.read_bytes() for p in kept} == kept
    refused(invoke("deploy", "init", "--site", "d"), "name new ones")
    refused(invoke("deploy", "init", "--site", "e", "--port", "1234"), "leave these options out")
    assert list(expected_sites(root)) == ["a", "b", "c", "d"]


def test_the_run_that_init_suggests_is_the_revised_variant_and_needs_its_source(
    invoke: Invoke,
) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    config = Path("deployment/server/run.toml")
    experiment = read_experiment(config)
    assert experiment.method_name == "fedwca"
    assert experiment.method.rounds_between_weights == 5
    assert experiment.deploy.wire == "float32"
    refused(invoke("deploy", "run", str(config)), "no weights file")


def test_plaintext_must_be_asked_for_and_is_warned_of(invoke: Invoke) -> None:
    said = invoke(*INIT, *THREE, "--plaintext")
    assert "warning: plaintext" in said.out
    assert not list(Path("deployment").rglob("*.key"))
    assert expected_sites(Path("deployment")) == {"a": "", "b": "", "c": ""}


def test_a_later_site_differs_in_more_than_capitals(invoke: Invoke) -> None:
    assert invoke(*INIT, "--site", "clinic").code == 0
    key = Path("deployment/server/keys/clinic.pub").read_bytes()
    refused(invoke("deploy", "init", "--site", "Clinic"), "there is a site clinic already")
    assert Path("deployment/server/keys/clinic.pub").read_bytes() == key
    assert invoke("deploy", "init", "--site", "clinic", "--site", "ward").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("deploy", "init", "--site", "a"), "--address fl.example.org"),
        (INIT, "no site is named"),
        ((*INIT, "--site", "a", "--site", "a"), "given twice"),
        ((*INIT, "--site", "../a"), "cannot be called"),
        ((*INIT, "--site", 'a" b'), "cannot be called"),
        (("deploy", "init", "--address", "a b", "--site", "a"), "no name or address"),
        ((*INIT, "--site", "a", "--port", "70000"), "no port 70000"),
        ((*INIT, "--site", "a", "--site", "A"), "given twice"),
        ((*INIT, "--site", "a", "--listen", "banana"), "no address to listen on"),
        (("deploy", "init", "--address", "fe80::1", "--site", "a"), "no name or address"),
        (("deploy", "server"), "make one with `fedwca deploy init`"),
        (("deploy", "client", "--site", "a", "--data", "."), "no folder of site 'a'"),
        (("deploy", "run", "x.toml"), "make one with `fedwca deploy init`"),
        (("deploy", "status"), "make one with `fedwca deploy init`"),
        (("deploy", "status", "--site", "a"), "no folder of site 'a'"),
        (("deploy", "stop"), "make one with `fedwca deploy init`"),
    ],
)
def test_what_is_asked_wrongly_gets_a_sentence(
    invoke: Invoke, words: tuple[str, ...], told: str
) -> None:
    refused(invoke(*words), told)
    assert not Path("deployment").exists()


def test_a_deployment_that_is_not_up_says_what_to_start(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    Path("run.toml").write_text("[training]\nrounds = 1\n")
    refused(invoke("deploy", "run", "run.toml"), "start it with `fedwca deploy server")
    refused(invoke("deploy", "run"), "give a config file, or --resume")
    refused(invoke("deploy", "run", "--resume"), "no run was started")
    refused(invoke("deploy", "run", "run.toml", "--resume"), "leave CONFIG and --set out")
    refused(invoke("deploy", "run", "run.toml", "--set", "deploy.wire=float8"), "deploy.wire")
    refused(invoke("deploy", "run", "run.toml", "--set", "deploy.wires=1"), "did you mean")
    refused(invoke("deploy", "stop"), "no run is under way")
    refused(invoke("deploy", "client", "--site", "a", "--data", "nowhere"), "no folder nowhere")
    banana = invoke("deploy", "client", "--site", "a", "--data", ".", "--device", "banana")
    refused(banana, "there is no device 'banana'")
    refused(
        invoke("deploy", "run", "run.toml", "--set", "deploy.least_sites=4"), "wait for 4 sites"
    )
    domain = "method.clustering=domain"
    refused(invoke("deploy", "run", "run.toml", "--set", domain), "only a simulation knows")
    said = invoke("deploy", "status")
    assert "server fl.example.org:9 (TLS and node keys): down" in said.out
    assert "no run has begun yet" in said.out
    assert said.out.count("not yet") == 3


def test_a_site_s_own_folder_is_found_wherever_it_was_copied(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    shutil.copytree("deployment/sites/b", "taken/away")
    said = invoke("deploy", "status", "--site", "b", "--folder", "taken/away")
    assert said.code == 0
    assert "site b, server fl.example.org:9: not reached" in said.out
    assert "no model yet" in said.out
    refused(invoke("deploy", "status", "--site", "a", "--folder", "taken/away"), "of site 'b'")
    Path("taken/away/ca.crt").write_text("junk")
    junk = invoke("deploy", "client", "--site", "b", "--data", ".", "--folder", "taken/away")
    refused(junk, "ca.crt is damaged")
    Path("taken/away/site.key").unlink()
    keyless = invoke("deploy", "client", "--site", "b", "--data", ".", "--folder", "taken/away")
    refused(keyless, "lacks site.key, so the server would not let it in")
    Path("taken/away/site.toml").write_text("site = [")
    refused(invoke("deploy", "status", "--site", "b", "--folder", "taken/away"), "cannot be read")


def test_a_deployment_nested_without_end_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "deployment.toml").write_text(f"sites = {'[' * 5000}{']' * 5000}")
    refused(invoke("deploy", "status", "--folder", str(tmp_path)), "cannot be read")


def test_the_scripts_start_the_command_again_until_it_is_stopped(
    invoke: Invoke, tmp_path: Path
) -> None:
    assert invoke(*INIT, *THREE).code == 0
    counter = tmp_path / "count"
    fake = tmp_path / "fake fedwca"
    fake.write_text(f'#!/bin/sh\necho "$@" >> "{counter}"\nexit 2\n')
    fake.chmod(0o755)
    script = Path("deployment/sites/a/start.sh").resolve()
    done = subprocess.run(
        [script, "/my images"], env={"FEDWCA": str(fake), "PATH": "/bin:/usr/bin"}
    )
    assert done.returncode == 2
    folder = script.parent
    line = f"deploy client --site a --folder {folder} --data /my images\n"
    assert counter.read_text() == line
    nameless = subprocess.run([script], capture_output=True, text=True)
    assert nameless.returncode != 0
    assert "give the folder of the images" in nameless.stderr


def test_a_script_that_is_ended_ends_its_command(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    command = tmp_path / "sleeper"
    command.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 60\n")
    command.chmod(0o755)
    script = subprocess.Popen(
        [tmp_path / "deployment/server/start.sh"], env={**os.environ, "FEDWCA": str(command)}
    )
    until = time.monotonic() + 20
    while not (Path("pid").exists() and Path("pid").read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.05)
    script.terminate()
    assert script.wait(timeout=20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


@pytest.mark.parametrize("damage", [lambda text: text[:9], lambda text: text.replace("3", "4")])
def test_a_run_whose_result_is_damaged_is_not_done(
    invoke: Invoke, damage: Callable[[str], str]
) -> None:
    from fedwca.deploy.server import deployed_name
    from fedwca.files import seal

    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    Path("run.toml").write_text("[training]\nrounds = 1\n")
    run = Path("deployment/server/runs") / deployed_name(read_experiment(Path("run.toml")))
    run.mkdir(parents=True)
    result = json.dumps(seal({"round": 3}))
    (run / "result.json").write_text(result)
    assert "this run is done" in invoke("deploy", "run", "run.toml").out
    (run / "result.json").write_text(damage(result))
    refused(invoke("deploy", "run", "run.toml"), "start it with `fedwca deploy server")


def test_a_deployed_run_is_resumed_by_another_command(invoke: Invoke) -> None:
    from fedwca.experiments.config import resolve

    run = Path("runs/deployed-mini_digits")
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"settings": resolve({}).deployed_settings()}))
    refused(invoke("resume", str(run)), "`fedwca deploy run --resume`")


def test_status_tells_what_the_run_folder_holds(invoke: Invoke) -> None:
    assert invoke(*INIT, *THREE, "--port", "9").code == 0
    from fedwca.deploy.server import deployed_name
    from fedwca.experiments.config import resolve

    experiment = resolve({"training": {"rounds": 4}})
    server = Path("deployment/server")
    run = server / "runs" / deployed_name(experiment)
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
        "b": {**facts, "refused": 3, "problem": "round 1: its answer is refused"},
    }
    (run / "sites.json").write_text(json.dumps(sites))
    said = invoke("deploy", "status").out
    assert "1 of 4 rounds, cut short; go on with `fedwca deploy run --resume`" in said
    assert "bytes: 1,000 down and 50 up in 1 round;" in said
    row = next(line for line in said.splitlines() if line.startswith("a "))
    assert row.split() == ["a", "lost", "7", "1", "0.50", "round", "0", "no", "power"]
    assert "25.0 %" in said
    row = next(line for line in said.splitlines() if line.startswith("b "))
    assert row.split()[-7:] == ["3", "round", "1:", "its", "answer", "is", "refused"]

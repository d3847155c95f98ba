"""The secrets of a site: what is none is named."""

from pathlib import Path

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedwca.deploy.certificates import authority, damaged_secret, site_keys


def test_a_damaged_secret_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_bytes(authority("here").public)
    (tmp_path / "site.key").write_bytes(site_keys().private)
    assert damaged_secret(tmp_path) == ""

    def unknown(*_: object) -> None:  # as a flipped bit in the name of the cipher makes it
        raise UnsupportedAlgorithm("Unsupported cipher")

    monkeypatch.setattr(serialization, "load_ssh_private_key", unknown)
    assert damaged_secret(tmp_path) == "site.key"
    (tmp_path / "ca.crt").write_bytes(b"none")
    assert damaged_secret(tmp_path) == "ca.crt"

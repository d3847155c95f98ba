"""The secrets of a site: an invalid one is named."""

from pathlib import Path

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedwca.deploy.certificates import create_authority, create_site_keys, find_invalid_secret


def test_an_invalid_secret_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_bytes(create_authority("here").public)
    (tmp_path / "site.key").write_bytes(create_site_keys().private)
    assert find_invalid_secret(tmp_path) == ""

    def raise_unsupported(*_: object) -> None:  # a flipped bit in the cipher's name
        raise UnsupportedAlgorithm("Unsupported cipher")

    monkeypatch.setattr(serialization, "load_ssh_private_key", raise_unsupported)
    assert find_invalid_secret(tmp_path) == "site.key"
    (tmp_path / "ca.crt").write_bytes(b"junk")
    assert find_invalid_secret(tmp_path) == "ca.crt"

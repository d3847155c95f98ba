"""Certificates of a deployment's own authority, and a key pair for each site."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = [
    "Pair",
    "authority",
    "damaged_secret",
    "public_pem",
    "server_certificate",
    "site_keys",
]

_YEARS = 10
_Key = ec.EllipticCurvePrivateKey


class Pair(NamedTuple):
    """A private key, and the certificate or public key that goes with it; both as bytes."""

    private: bytes
    public: bytes


def authority(name: str) -> Pair:
    """A new certificate authority: whoever has its certificate believes what it has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(name), _name(name), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_private(key), certificate.public_bytes(serialization.Encoding.PEM))


def server_certificate(ca: Pair, hosts: list[str]) -> Pair:
    """A certificate for the server under all the names and addresses that it is reached by."""
    ca_key = serialization.load_pem_private_key(ca.private, password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(ca.public).subject
    key = ec.generate_private_key(ec.SECP256R1())
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _builder(_name(hosts[0]), issuer, key)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority_key, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Pair(_private(key), certificate.public_bytes(serialization.Encoding.PEM))


def site_keys() -> Pair:
    """A key pair in the form that Flower wants: OpenSSH, on the curve P-384."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Pair(private, public)


def public_pem(openssh: bytes) -> str:
    """A public key as Flower's server tells it."""
    key = serialization.load_ssh_public_key(openssh)
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of two machines may differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )


def damaged_secret(folder: Path) -> str:
    """The file of a site's folder that is no certificate or no key; empty if both are sound."""
    try:
        x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        return "ca.crt"
    try:
        serialization.load_ssh_private_key((folder / "site.key").read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "site.key"
    return ""


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

"""The certificate authority of a deployment, the server's certificate, and a key pair per site."""

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = [
    "KeyPair",
    "create_authority",
    "create_server_certificate",
    "create_site_keys",
    "openssh_to_pem",
]

_VALIDITY = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(days=1)  # the clocks of two machines may differ


class KeyPair(NamedTuple):
    """An encoded private key with its encoded certificate or public key."""

    private: bytes
    public: bytes


def create_authority(name: str) -> KeyPair:
    """Return the key and self-signed certificate of a new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _certificate_builder(_common_name(name), _common_name(name), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_private_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def create_server_certificate(authority: KeyPair, hosts: list[str]) -> KeyPair:
    """Return a key and a certificate, signed by the authority, for hostnames and IP addresses."""
    authority_key = serialization.load_pem_private_key(authority.private, password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.public).subject
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _certificate_builder(_common_name(hosts[0]), issuer, key)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return KeyPair(_private_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def create_site_keys() -> KeyPair:
    """Return a key pair in the format that Flower requires: OpenSSH, on the curve P-384."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(private, public)


def openssh_to_pem(public_key: bytes) -> str:
    """Convert an OpenSSH public key to the PEM text that Flower reports for a node."""
    key = serialization.load_ssh_public_key(public_key)
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

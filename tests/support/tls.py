"""Certificates for tests."""

from __future__ import annotations

import datetime as dt
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queuectl.api.server import Certificate

LOOPBACK = IPv4Address("127.0.0.1")


HOUR = dt.timedelta(hours=1)


def write_certificate(
    folder: Path, name: str, dns: str | None = None, remaining: dt.timedelta = HOUR
) -> Certificate:
    """A self-signed certificate of subject ``name``, for a DNS name or for 127.0.0.1.

    ``remaining``: of its validity, which began an hour before now, or an hour before its end if that is past.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    valid_for = x509.DNSName(dns) if dns else x509.IPAddress(LOOPBACK)
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + remaining) - HOUR)
        .not_valid_after(now + remaining)
        .add_extension(x509.SubjectAlternativeName([valid_for]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = Certificate(folder / "tls.crt", folder / "tls.key")
    files.chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files

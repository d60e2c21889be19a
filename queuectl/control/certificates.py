"""The certificates that queuectl creates for its servers: self-signed, and renewed in two steps.

Each certificate is its own authority. A successor is created, then clients trust it, and later the replicas serve it. The
certificates that are not expired stay trusted, so a replica that still serves the last one is also trusted.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from queuectl.domain.errors import BadInput
from queuectl.domain.words import comma_separated

VALID: Final = dt.timedelta(days=90)
RENEWED: Final = dt.timedelta(days=30)
"""The remaining time at which a successor is created."""
SETTLED: Final = dt.timedelta(hours=1)
"""The age at which a successor is served. By then each client that reads the trusted certificates has it."""
MOST_TRUSTED: Final = 10
"""Certificates that clients trust at a time. Replicas with different names replace each other's certificate."""
_NOT_USABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The errors of the library for certificates and keys that other tools wrote."""
_DNS_NAME: Final = re.compile(r"(\*\.)?\w[-\w]*(\.\w[-\w]*)*", re.ASCII)
_CLOCK_SKEW: Final = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class CertificateFiles:
    """Files of a certificate with its chain, and of its key, both PEM."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes

    @property
    def read(self) -> x509.Certificate:
        """The certificate."""
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def usable(self) -> bool:
        """Whether a server can use it: both can be read, and the key belongs to the certificate."""
        try:
            key = serialization.load_pem_private_key(self.key, password=None)
            return bool(_names(self)) and key.public_key() == self.read.public_key()
        except _NOT_USABLE:
            return False


@dataclass(frozen=True)
class Certificates:
    """The certificates that all replicas share.

    Attributes:
        served: the pair that the replicas serve; None before the first start.
        successor: the pair that they serve next; None if none is due.
        trusted: the certificates that clients trust, as PEM.
    """

    served: Pair | None = None
    successor: Pair | None = None
    trusted: tuple[bytes, ...] = ()


def readable(certificate: bytes) -> bool:
    """Whether it is a certificate in PEM with a time at which it ends."""
    try:
        return bool(x509.load_pem_x509_certificate(certificate).not_valid_after_utc)
    except _NOT_USABLE:
        return False


def advance(certificates: Certificates, names: Sequence[str], now: dt.datetime) -> Certificates:
    """The certificates that are due now; the same object if nothing is due.

    Args:
        certificates: the current ones.
        names: DNS names and IP addresses of the server.
        now: with a time zone.
    """
    served, successor = certificates.served, certificates.successor
    if (
        served is None
        or served.read.not_valid_after_utc <= now
        or not _names(served) >= _canonical(names)
    ):
        served, successor = issue(names, now), None
    elif successor is not None and _created(successor) + SETTLED <= now:
        served, successor = successor, None
    elif successor is None and served.read.not_valid_after_utc - RENEWED <= now:
        successor = issue(names, now)
    pairs = [pair.certificate for pair in (served, successor) if pair is not None]
    every = dict.fromkeys([*certificates.trusted, *pairs])
    valid = [one for one in every if x509.load_pem_x509_certificate(one).not_valid_after_utc > now]
    others = [one for one in valid if one not in pairs]
    dropped = set(others[: max(0, len(valid) - MOST_TRUSTED)])  # the oldest are the first
    trusted = tuple(one for one in valid if one not in dropped)
    return replace(certificates, served=served, successor=successor, trusted=trusted)


def server_names(text: str) -> tuple[str, ...]:
    """The names in a list that is separated by commas.

    Raises:
        BadInput: the list is empty, or one is neither a DNS name nor an IP address.
    """
    names = comma_separated(text)
    for one in names:
        _name(one)
    if not names:
        raise BadInput("a certificate needs a DNS name or an IP address")
    return names


def issue(names: Sequence[str], now: dt.datetime) -> Pair:
    """A new pair for a server with these names, the first of which is its subject."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        # Clients find the issuer among certificates with the same subject by the identifier of its key.
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(one) for one in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(encoding), private)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        if not _DNS_NAME.fullmatch(text):
            raise BadInput(f"{text!r} is neither a DNS name nor an IP address") from None
        return x509.DNSName(text)


def _names(pair: Pair) -> set[str]:
    found = pair.read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def _canonical(names: Sequence[str]) -> set[str]:
    """The names as a certificate has them: an address can be written in several ways."""
    return {str(_name(one).value) for one in names}


def _created(pair: Pair) -> dt.datetime:
    return pair.read.not_valid_before_utc + _CLOCK_SKEW

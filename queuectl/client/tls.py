"""The certificates that a client trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

from queuectl.client.errors import InvalidOption
from queuectl.kubeconfig import expanded


def trusted(path: Path | None, option: str, *, secure: bool) -> ssl.SSLContext | bool:
    """The CA certificates for the server's certificate.

    Without TLS it reads none, because that takes 30 ms.

    Args:
        path: file with the certificates; None = those of this machine.
        option: the option that names the file, for the message.
        secure: whether the address is https.

    Raises:
        InvalidOption: the file holds no certificate.
    """
    if path is None:
        return secure
    try:
        context = ssl.create_default_context(cafile=expanded(path))
    except OSError as error:
        invalid = isinstance(error, ssl.SSLError)  # a subclass of OSError
        reason = "holds no certificate" if invalid else error.strerror
        raise InvalidOption(f"{option} {path}: {reason}") from error
    return lenient(context)


def lenient(tls: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, without a check of two extensions that the CA certificates of many clusters lack. Go omits it too."""
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets since 3.13
    return tls

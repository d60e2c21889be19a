"""A short-lived token of a ServiceAccount, which the cluster issues to the user of the kubeconfig.

queuectl's API accepts only tokens. Administrators of small clusters often have a client certificate and no token. The API
server issues them a token of each ServiceAccount for which they can create tokens (``kubectl create token``).
"""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2

from queuectl.client import credentials
from queuectl.client.errors import InvalidOption, NoAnswer, TokenNotIssued, refused
from queuectl.client.tls import lenient
from queuectl.kubeconfig import KubeconfigContext

LASTS_SECONDS: Final = 600  # the minimum of Kubernetes; a longer command requests another token
_TIMEOUT_SECONDS: Final = 30.0
_OWN: Final = (401, 403, 404)  # answers whose cause is the caller, or the name


def made_for(account: str, context: KubeconfigContext | None, option: str) -> str:
    """A new token.

    Args:
        account: ``namespace/name`` of the ServiceAccount.
        context: the user and the cluster of the kubeconfig.
        option: the option that names the ServiceAccount, for messages.

    Raises:
        ClientError: the cluster issues no token; the message has the reason.
    """
    namespace, _, name = account.partition("/")
    if not (namespace and name) or "/" in name:
        message = f"{option} {account!r}: not of the form NAMESPACE/NAME"
        raise InvalidOption(message)
    if context is None or not context.cluster.get("server"):
        message = f"{option} {account}: needs a kubeconfig with a cluster"
        raise InvalidOption(message)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{quote(name, safe='')}/token"
    status, answer = _asked(context, path)
    if status >= httpx2.codes.BAD_REQUEST:
        why = answer.get("message") or f"HTTP {status}"
        message = f"no token of ServiceAccount {account}: {why}"
        raise refused({"detail": message}, status) if status in _OWN else TokenNotIssued(message)
    made = answer.get("status")
    token = made.get("token") if isinstance(made, dict) else None
    if not isinstance(token, str) or not token:
        raise TokenNotIssued(
            f"{context.cluster['server']}: the answer has no token: this isn't a Kubernetes API server"
        )
    return token


def _asked(context: KubeconfigContext, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of the API server's answer."""
    address = httpx2.URL(str(context.cluster["server"]))
    credentials.only_encrypted(str(address))
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": LASTS_SECONDS},
    }
    name, identity = context.cluster.get("tls-server-name"), _identity(context)
    try:
        with httpx2.Client(
            base_url=address,
            verify=_tls(context, identity),
            headers={"Authorization": f"Bearer {identity.token}"} if identity.token else {},
            timeout=_TIMEOUT_SECONDS,
            trust_env=not credentials.loopback(address.host),
            proxy=_proxy(context),
        ) as http:
            response = http.post(path, json=body, extensions={"sni_hostname": name} if name else {})
    except httpx2.TransportError as error:
        raise NoAnswer(f"no answer from the Kubernetes API server {address} ({error})") from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    return response.status_code, answer if isinstance(answer, dict) else {}


def _proxy(context: KubeconfigContext) -> str | None:
    """The proxy of the cluster; None = the proxy of the environment."""
    stated = str(context.cluster.get("proxy-url") or "")
    scheme = urlsplit(stated).scheme
    if stated and scheme not in (
        "http",
        "https",
    ):  # the message does not quote it: it can hold a password
        message = (
            f"kubeconfig {context.cluster_file}: context {context.name!r}: proxy-url of its cluster: the scheme is "
            f"{scheme or 'missing'}, but only http and https are supported"
        )
        raise InvalidOption(message)
    return stated or None


@dataclass(frozen=True, slots=True)
class _Identity:
    """Credentials of the user: a token, or a certificate with its key as PEM."""

    token: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)


def _identity(context: KubeconfigContext) -> _Identity:
    login = context.login
    if credentials.has_certificate(login):
        parts = (_pem(login, f"client-{part}", context.folder) for part in ("certificate", "key"))
        return _Identity("", *parts)
    if not (login.get("token") or login.get("tokenFile")):
        given = credentials.of_plugin(context)
        certificate, key = (given.get(f"client{part}Data") for part in ("Certificate", "Key"))
        if certificate:
            return _Identity(certificate=str(certificate).encode(), key=str(key or "").encode())
        if given:
            return _Identity(
                credentials.checked_token(str(given["token"]), "the output of the plugin")
            )
    return _Identity(credentials.of_context(context))


def _tls(context: KubeconfigContext, identity: _Identity) -> ssl.SSLContext:
    """A TLS context with the cluster's CA, and with the user's certificate if there is one."""
    authority = _pem(context.cluster, "certificate-authority", context.cluster_file.parent)
    try:
        pem = authority.decode() if authority else None
        found = lenient(ssl.create_default_context(cadata=pem))
        if context.cluster.get("insecure-skip-tls-verify"):
            found.check_hostname = False
            found.verify_mode = ssl.CERT_NONE
        if identity.certificate:
            _add_certificate(found, identity)
    except (ssl.SSLError, ValueError) as error:
        message = f"kubeconfig: context {context.name!r}: a certificate or a key cannot be read"
        raise InvalidOption(message) from error
    return found


def _add_certificate(tls: ssl.SSLContext, identity: _Identity) -> None:
    """Add the user's certificate."""
    # OpenSSL loads keys only from files; this one is private and deleted at once. An empty password avoids a prompt.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(identity.certificate + b"\n" + identity.key)
        file.flush()
        tls.load_cert_chain(file.name, password="")


def _pem(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """The data in a field, otherwise the file that it names, in the precedence of kubectl; empty = neither."""
    held, named = entry.get(f"{name}-data"), entry.get(name)
    if held:
        try:
            return base64.b64decode(str(held), validate=True)
        except binascii.Error:
            raise InvalidOption(f"kubeconfig: {name}-data is not base64") from None
    if not named:
        return b""
    path = folder / str(named)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidOption(f"kubeconfig: {name} {path}: {error.strerror}") from error

"""A short token of a ServiceAccount, made by the cluster for whoever the kubeconfig says we are.

queuectl's own API takes tokens alone. Who proves himself to the API server by a client certificate, as admins of small clusters
do, has none; but the API server makes him one of any account for which he may create tokens (``kubectl create token``).
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

from queuectl.cli import credentials
from queuectl.cli.connection import lenient
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.kubeconfig import Context

LASTS_SECONDS: Final = 600  # the shortest that a cluster makes; a command that goes on asks anew
_TIMEOUT_SECONDS: Final = 30.0
_CODES: Final = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND}


def made_for(account: str, context: Context | None) -> str:
    """A fresh token.

    Args:
        account: ``namespace/name`` of the ServiceAccount.
        context: who asks which cluster.

    Raises:
        CommandFailed: there is none, and why.
    """
    namespace, _, name = account.partition("/")
    if not (namespace and name) or "/" in name:
        message = f"--as-serviceaccount {account}: write NAMESPACE/NAME"
        raise CommandFailed(message, Exit.BAD_INPUT)
    if context is None or not context.cluster.get("server"):
        message = f"--as-serviceaccount {account}: no kubeconfig names a cluster that could make its token"
        raise CommandFailed(message, Exit.BAD_INPUT)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{quote(name, safe='')}/token"
    status, answer = _asked(context, path)
    if status >= httpx2.codes.BAD_REQUEST:
        why = answer.get("message") or f"HTTP {status}"
        message = f"no token of the service account {account}: {why}"
        raise CommandFailed(message, _CODES.get(status, Exit.FAILURE))
    made = answer.get("status")
    token = made.get("token") if isinstance(made, dict) else None
    if not isinstance(token, str) or not token:
        raise CommandFailed(f"{context.cluster['server']} made no token: is it an API server?")
    return token


def _asked(context: Context, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of what the API server answers."""
    address = httpx2.URL(str(context.cluster["server"]))
    credentials.only_encrypted(address)
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": LASTS_SECONDS},
    }
    name, proof = context.cluster.get("tls-server-name"), _proof(context)
    try:
        with httpx2.Client(
            base_url=address,
            verify=_tls(context, proof),
            headers={"Authorization": f"Bearer {proof.token}"} if proof.token else {},
            timeout=_TIMEOUT_SECONDS,
            trust_env=not credentials.loopback(address.host),
            proxy=_proxy(context),
        ) as http:
            response = http.post(path, json=body, extensions={"sni_hostname": name} if name else {})
    except httpx2.TransportError as error:
        raise CommandFailed(f"the API server {address} gives no answer ({error})") from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    return response.status_code, answer if isinstance(answer, dict) else {}


def _proxy(context: Context) -> str | None:
    """Through which the cluster is reached; None = as the environment says."""
    stated = str(context.cluster.get("proxy-url") or "")
    scheme = urlsplit(stated).scheme
    if stated and scheme not in ("http", "https"):  # it may hold a password
        message = (
            f"kubeconfig {context.cluster_file}, context {context.name!r}: its cluster's proxy-url is no http:// or "
            f"https:// address but {scheme or 'without a scheme'}: others are not supported"
        )
        raise CommandFailed(message, Exit.BAD_INPUT)
    return stated or None


@dataclass(frozen=True, slots=True)
class _Proof:
    """Of who asks: a token, or a certificate and its key as PEM."""

    token: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)


def _proof(context: Context) -> _Proof:
    login = context.login
    if credentials.has_certificate(login):
        parts = (_pem(login, f"client-{part}", context.folder) for part in ("certificate", "key"))
        return _Proof("", *parts)
    if not (login.get("token") or login.get("tokenFile")):
        given = credentials.of_plugin(context)
        certificate, key = (given.get(f"client{part}Data") for part in ("Certificate", "Key"))
        if certificate:
            return _Proof(certificate=str(certificate).encode(), key=str(key or "").encode())
        if given:
            return _Proof(credentials.sound(str(given["token"]), "what the plugin printed"))
    return _Proof(credentials.of_context(context))


def _tls(context: Context, proof: _Proof) -> ssl.SSLContext:
    """What the cluster proves itself by, and who asks, if he has a certificate."""
    authority = _pem(context.cluster, "certificate-authority", context.cluster_file.parent)
    try:
        pem = authority.decode() if authority else None
        found = lenient(ssl.create_default_context(cadata=pem))
        if context.cluster.get("insecure-skip-tls-verify"):
            found.check_hostname = False
            found.verify_mode = ssl.CERT_NONE
        if proof.certificate:
            _show(found, proof)
    except (ssl.SSLError, ValueError) as error:
        message = (
            f"kubeconfig, context {context.name!r}: a certificate or a key in it cannot be read"
        )
        raise CommandFailed(message, Exit.BAD_INPUT) from error
    return found


def _show(tls: ssl.SSLContext, proof: _Proof) -> None:
    """Have a connection show the certificate."""
    # OpenSSL loads keys from files alone; this one is private and gone at once. No password: it would ask the terminal.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(proof.certificate + b"\n" + proof.key)
        file.flush()
        tls.load_cert_chain(file.name, password="")


def _pem(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """What a field holds, or the file that it names; empty = neither. kubectl, too, lets what it holds go first."""
    held, named = entry.get(f"{name}-data"), entry.get(name)
    if held:
        try:
            return base64.b64decode(str(held), validate=True)
        except binascii.Error:
            raise CommandFailed(f"kubeconfig: {name}-data is no base64", Exit.BAD_INPUT) from None
    if not named:
        return b""
    path = folder / str(named)
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(
            f"kubeconfig: {name} {path}: {error.strerror}", Exit.BAD_INPUT
        ) from error

"""Requests to the API server of the kubeconfig's cluster, with the rights of its user: the connection, and the errors of answers.

The base package has no Kubernetes client. The few requests of a user's command need none.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from queuectl.client import credentials
from queuectl.client.errors import InvalidOption, NoAnswer, RequestRefused, refused
from queuectl.client.options import IN_CLUSTER, ClientOptions
from queuectl.client.tls import lenient
from queuectl.kubeconfig import ANOTHER_FILE, KubeconfigContext, missing_files

TIMEOUT_SECONDS: Final = 30.0
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid"}


@dataclass(frozen=True)
class KubernetesServer:
    """An API server, and how an HTTP client of the library connects to it.

    Attributes:
        address: its URL.
        context: name of the kubeconfig's context.
        arguments: of the HTTP client, synchronous or not.
        extensions: of each request.
    """

    address: str
    context: str
    arguments: Mapping[str, Any] = field(repr=False)  # they hold a token
    extensions: Mapping[str, Any]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an error of the HTTP library into NoAnswer."""
        try:
            yield
        except httpx2.RequestError as error:
            why = str(error) or type(error).__name__
            raise NoAnswer(
                f"no answer from the Kubernetes API server {self.address} ({why})"
            ) from error


def context_of(options: ClientOptions) -> KubeconfigContext:
    """The cluster that kubectl would use: that of the kubeconfig, otherwise that of the pod in which the program runs.

    Raises:
        InvalidOption: neither exists.
    """
    context = options.kubeconfig_context()
    if context is None and os.environ.get(_HOST):
        host, port = os.environ[_HOST], os.environ.get(_PORT) or "443"
        context = KubeconfigContext(
            name="the service account of this pod",
            namespace=None,
            user="",
            login={"tokenFile": "token"},
            cluster={
                "server": f"https://{f'[{host}]' if ':' in host else host}:{port}",
                "certificate-authority": "ca.crt",
            },
            folder=IN_CLUSTER,
            cluster_file=IN_CLUSTER / "ca.crt",
        )
    if context is None or not context.cluster.get("server"):
        if context is None and (missing := missing_files()):
            raise InvalidOption(f"KUBECONFIG: {missing}: not found: {ANOTHER_FILE}")
        raise InvalidOption(
            "no kubeconfig with a cluster: set KUBECONFIG to the kubeconfig of the cluster, or give --kubeconfig"
        )
    return context


def server_of(context: KubeconfigContext) -> KubernetesServer:
    """The API server of a context, under the identity of its user.

    Raises:
        ClientError: the credentials or the certificates cannot be used.
    """
    address = str(context.cluster["server"])
    credentials.only_encrypted(address)
    identity = _identity(context)
    token = [("Authorization", f"Bearer {identity.token}")] if identity.token else []
    name = context.cluster.get("tls-server-name")
    return KubernetesServer(
        address,
        context.name,
        {
            "base_url": address,
            "verify": _tls(context, identity),
            "headers": [*token, *_impersonation(context.login)],
            "timeout": TIMEOUT_SECONDS,
            "trust_env": not credentials.loopback(urlsplit(address).hostname or ""),
            "proxy": _proxy(context),
        },
        {"sni_hostname": name} if name else {},
    )


def document(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer that is read; empty for another body, for example a page of a proxy."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {}


def failure(response: httpx2.Response, what: str = "") -> RequestRefused:
    """The error of an unsuccessful answer that is read. ``what``: the beginning of the message."""
    status = document(response)
    unknown = f"HTTP {response.status_code}: the answer is not from a Kubernetes API server"
    message = str(status.get("message") or status.get("reason") or unknown)
    return refused({"detail": f"{what}{message}"}, response.status_code)


def _proxy(context: KubeconfigContext) -> str | None:
    """The proxy of the cluster; None = the proxy of the environment."""
    stated = str(context.cluster.get("proxy-url") or "")
    scheme = urlsplit(stated).scheme
    if stated and scheme not in ("http", "https"):
        # The message does not quote the URL: it can hold a password.
        raise InvalidOption(
            f"kubeconfig {context.cluster_file}: context {context.name!r}: proxy-url of its cluster: the scheme is "
            f"{scheme or 'missing'}, but only http and https are supported"
        )
    return stated or None


def _impersonation(login: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The headers with which a user acts as another one. Without them, a request would have other rights than with kubectl."""
    for name, header in _IMPERSONATION.items():
        if login.get(name):
            yield header, str(login[name])
    groups = login.get("as-groups")
    for group in groups if isinstance(groups, list) else ():
        yield "Impersonate-Group", str(group)
    extra = login.get("as-user-extra")
    for name, texts in extra.items() if isinstance(extra, dict) else ():
        for text in texts if isinstance(texts, list) else ():
            yield f"Impersonate-Extra-{name}", str(text)


# ---- Credentials


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

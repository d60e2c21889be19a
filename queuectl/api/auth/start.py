"""Checks before and between requests that depend on the address: what may listen where, and protection without authentication.

At the start, before anything listens, authentication and TLS must fit the address. Without authentication, only programs of this
machine get answers, and no page of another site. Such a site can resolve its own name to 127.0.0.1, and its pages can send
simple POSTs there: the first is refused by its Host, the second by the origin that the browser states.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.auth import authentication
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.server import Certificate
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.errors import BadInput
from queuectl.domain.words import comma_separated

# ---- Checks at the start


@dataclass(frozen=True, slots=True)
class Offer:
    """How the API is served.

    Attributes:
        address: where it listens.
        authenticated: callers authenticate.
        certificate: None = without TLS.
        secure: browsers use TLS, which an ingress can terminate.
        proxies: addresses and networks whose X-Forwarded-For is trusted.
    """

    address: ListenAddress
    authenticated: bool
    certificate: Certificate | None
    secure: bool
    proxies: tuple[str, ...] = ()


def offer(
    listen: str,
    *,
    auth: str | None,
    cert_file: Path | None,
    key_file: Path | None,
    tls: bool,
    secret: str = "",
    trusted_proxies: str = "",
    issuer: str = "",
) -> Offer:
    """Check the settings.

    Args:
        listen: the address.
        auth: of callers; None = by the address.
        cert_file: of the certificate with its chain.
        key_file: of its key.
        tls: false = an ingress terminates it.
        secret: in which queuectl keeps the certificate of these files; empty = an administrator writes them.
        trusted_proxies: addresses and networks, separated by commas.
        issuer: of OpenID Connect; empty = none.

    Raises:
        BadInput: settings contradict each other, or other machines could change everything, or read tokens.
    """
    address = ListenAddress.parse(listen)
    if (cert_file is None) != (key_file is None):
        raise BadInput("QUEUECTL_TLS_CERT_FILE and QUEUECTL_TLS_KEY_FILE go together")
    certificate = Certificate(cert_file, key_file) if cert_file and key_file else None
    if secret and certificate is None:
        raise BadInput(
            "QUEUECTL_TLS_SECRET needs QUEUECTL_TLS_CERT_FILE and QUEUECTL_TLS_KEY_FILE, which queuectl writes"
        )
    if certificate is not None and not tls:
        raise BadInput("QUEUECTL_TLS=off, but QUEUECTL_TLS_CERT_FILE names a certificate")
    proxies = _networks(trusted_proxies)
    authenticated = auth == "kubernetes" or (auth is None and not address.loopback)
    if issuer and not authenticated:
        raise BadInput(
            "QUEUECTL_OIDC__ISSUER is set, but callers on loopback are not authenticated: set QUEUECTL_AUTH=kubernetes"
        )
    if address.loopback:
        return Offer(
            address, authenticated, certificate, certificate is not None or not tls, proxies
        )
    if not authenticated:
        raise BadInput(
            f"refusing to serve the API on {address} with QUEUECTL_AUTH=none: each client could do everything. "
            "Unset QUEUECTL_AUTH, or listen on 127.0.0.1"
        )
    if certificate is None and tls:
        raise BadInput(
            f"refusing to serve the API on {address} without TLS: tokens would not be encrypted. Name a certificate "
            "by QUEUECTL_TLS_CERT_FILE and QUEUECTL_TLS_KEY_FILE; if an ingress terminates TLS, set QUEUECTL_TLS=off"
        )
    return Offer(address, True, certificate, secure=True, proxies=proxies)


def _networks(text: str) -> tuple[str, ...]:
    found = comma_separated(text)
    for one in found:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise BadInput(f"QUEUECTL_TRUSTED_PROXIES: {error}") from error
    return found


# ---- Requests without authentication


class ThisMachine:
    """Refuses requests whose Host is not a loopback address, and changes by pages of other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await problems.respond(Request(scope), refusal)(scope, receive, send)


def _refusal(scope: Scope) -> ApiProblem | None:
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not ListenAddress(_hostname(host), 0).loopback:
        detail = f"the Host {host!r} is not this machine; use 127.0.0.1 or localhost"
        return ApiProblem(ProblemType.MISDIRECTED, detail)
    if scope["method"] in authentication.CHANGES and authentication.from_another_site(headers):
        return ApiProblem(ProblemType.FOREIGN_ORIGIN, "a page of another site cannot make changes")
    return None


def _hostname(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()

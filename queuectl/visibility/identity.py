"""The user of a request, whom kube-apiserver names in headers, believed only from its own client certificate.

kube-apiserver authenticates the user, and passes the request on with a certificate of the request-header authority. The ConfigMap
extension-apiserver-authentication has this authority, the names that its certificates can have, and the names of the headers.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import structlog

from queuectl.api.connections import connection_of
from queuectl.api.server import WebServer
from queuectl.cluster.client import Api, document_in
from queuectl.domain.errors import BadInput, ClusterError, QueuectlError
from queuectl.domain.identity import Caller

CONFIG_MAP: Final = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
MOST_GROUPS: Final = 1_000
"""Groups of a user. A SubjectAccessReview has all of them."""
LONGEST_IDENTITY: Final = 64 * 1024
"""Bytes of all values that name a user."""
_AUTHORITY: Final = "requestheader-client-ca-file"
_log = structlog.get_logger(source="queuectl.visibility")


class NotIdentified(QueuectlError):
    """The request is not from kube-apiserver, or it names no user."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """How kube-apiserver names the users of the requests that it passes on. Names of headers are in lower case.

    Attributes:
        authority: the certificates of the authority of its client certificate, PEM.
        allowed: the common names that this certificate can have; empty = any.
        user, group, uid: headers.
        extra: prefixes of headers.
    """

    authority: str
    allowed: frozenset[str]
    user: tuple[str, ...]
    group: tuple[str, ...]
    uid: tuple[str, ...]
    extra: tuple[str, ...]

    @classmethod
    def read(cls, config_map_data: object) -> RequestHeaders:
        """From the data of the ConfigMap.

        Raises:
            BadInput: kube-apiserver runs without an authority for requests that it passes on, or a value is malformed.
        """
        entries = config_map_data if isinstance(config_map_data, Mapping) else {}
        authority = entries.get(_AUTHORITY)
        if not isinstance(authority, str) or not authority.strip():
            raise BadInput(f"{CONFIG_MAP} has no {_AUTHORITY}: kube-apiserver passes no request on")
        return cls(
            authority,
            frozenset(_names(entries, "requestheader-allowed-names")),
            _lower(_names(entries, "requestheader-username-headers")),
            _lower(_names(entries, "requestheader-group-headers")),
            _lower(_names(entries, "requestheader-uid-headers")),
            _lower(_names(entries, "requestheader-extra-headers-prefix")),
        )

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """The user whom the headers of a request name.

        Raises:
            NotIdentified: they name no user, several users, or too much.
        """
        users: list[str] = []
        groups: list[str] = []
        uids: list[str] = []
        extra: dict[str, list[str]] = {}
        size = 0
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1").lower()
            prefix = next((one for one in self.extra if name.startswith(one)), None)
            if prefix is None and name not in (*self.user, *self.group, *self.uid):
                continue
            size += len(raw_value)
            value = _text(raw_value)
            if name in self.user:
                users.append(value)
            elif name in self.group:
                groups.append(value)
            elif name in self.uid:
                uids.append(value)
            elif prefix is not None:
                extra.setdefault(unquote(name.removeprefix(prefix)), []).append(value)
        if len(users) != 1 or not users[0] or len(uids) > 1:
            raise NotIdentified("the headers do not name exactly one user")
        if len(groups) > MOST_GROUPS or size > LONGEST_IDENTITY:
            raise NotIdentified(
                f"a user can have {MOST_GROUPS} groups, and {LONGEST_IDENTITY} bytes in all"
            )
        return Caller(
            users[0],
            tuple(groups),
            "".join(uids),
            {key: tuple(values) for key, values in extra.items()},
        )


def _names(entries: Mapping[Any, Any], key: str) -> list[str]:
    """A list in JSON; empty if it is missing."""
    text = entries.get(key, "[]")
    try:
        names = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{CONFIG_MAP}: {key} is not a list of names")
    return names


def _lower(names: Sequence[str]) -> tuple[str, ...]:
    """An empty prefix would match each header."""
    return tuple(name.lower() for name in names if name)


def _text(raw_value: bytes) -> str:
    try:
        return raw_value.decode()
    except UnicodeDecodeError:
        raise NotIdentified("a header that names the user is not UTF-8") from None


class FrontProxy:
    """The identity of callers of one server."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.time) -> None:
        """``api``: under the identity of queuectl. ``clock``: unix seconds."""
        self._api = api
        self._clock = clock
        self._known: RequestHeaders | None = None
        self._context: ssl.SSLContext | None = None

    async def follow(self, server: WebServer) -> None:
        """Take over the ConfigMap as it is now. Without a readable one the last stays in force.

        Connections of an authority that it no longer has are not believed.
        """
        try:
            document = document_in(CONFIG_MAP, await self._api.request("GET", CONFIG_MAP))
        except ClusterError as error:
            _log.warning("request_header_authority_not_read", error=str(error))
            return
        try:
            read = RequestHeaders.read(document.get("data"))
            if self._known is None or read.authority != self._known.authority:
                server.trust_clients(read.authority)
                self._context = server.tls_context
                _log.info("request_header_authority_changed", names=sorted(read.allowed))
        except BadInput as error:
            self._known = None
            _log.warning("request_header_authority_not_usable", error=str(error))
            return
        self._known = read

    def caller_of(self, scope: Mapping[str, Any]) -> Caller:
        """The user of a request.

        Raises:
            NotIdentified: its connection has no certificate of kube-apiserver, or the headers name no user.
        """
        trusted, connection = self._known, connection_of(scope)
        session = connection.tls if connection is not None else None
        if trusted is None:
            raise NotIdentified("the authority of kube-apiserver's certificate is not known")
        if session is None or session.context is not self._context:
            raise NotIdentified("the connection has no certificate of kube-apiserver's authority")
        certificate = session.getpeercert()
        if not certificate:  # none was sent: the TLS library has refused all that it cannot verify
            raise NotIdentified("the connection has no client certificate")
        names = _common_names(certificate)
        if not names or (trusted.allowed and not trusted.allowed.issuperset(names)):
            raise NotIdentified("the name of the client certificate is not one of kube-apiserver's")
        if ssl.cert_time_to_seconds(str(certificate["notAfter"])) <= self._clock():
            raise NotIdentified("the client certificate has expired")
        return trusted.caller(scope["headers"])


def _common_names(certificate: Mapping[str, Any]) -> set[str]:
    pairs = (pair for part in certificate.get("subject", ()) for pair in part)
    return {value for key, value in pairs if key == "commonName"}

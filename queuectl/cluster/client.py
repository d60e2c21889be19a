"""All requests to the API server.

The module uses the transport and the credentials of the client library, but neither its models nor its ``call_api``, which converts
each body: the controller sends thousands of writes a minute. The transport does not check status codes. :meth:`Api._send` does, and
raises an error of :mod:`queuectl.domain.errors`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, Literal

import aiohttp
import msgspec

from queuectl.cluster.connection import Connection, Sockets, open_client
from queuectl.cluster.library import ApiClient, ConfigException
from queuectl.domain.errors import (
    ClusterBusy,
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = Sequence[tuple[str, str]]

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)
"""For writes: only the resourceVersion of the response is needed, and a job can be large."""

_NO_LIMITS: Final = aiohttp.ClientTimeout(total=None)  # asyncio.timeout limits the whole request


class Expired(ClusterError):
    """410, or a resourceVersion that is unknown to the server: list again."""


class StreamTimeout(ClusterUnavailable):
    """An open stream was silent for too long."""


class Forbidden(WriteRefused):
    """403: the identity of queuectl lacks the permission."""


class NotServed(ObjectGone):
    """A 404 that names no object: the server does not serve this path, or the response is not from the API server."""


class _Cause(msgspec.Struct):
    reason: str | None = None
    field: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    # Of 32 bits in Kubernetes. A longer number of a proxy is not a Status.
    retry_after_seconds: Annotated[int, msgspec.Meta(lt=2**31)] | None = None


class _Status(msgspec.Struct):
    """``v1.Status``: the error of the API server."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None

    def causes(self) -> list[_Cause]:
        return (self.details and self.details.causes) or []


_read_status = msgspec.json.Decoder(_Status).decode


class ResponseBody:
    """The body of one response, read in parts."""

    def __init__(self, response: aiohttp.ClientResponse, path: str) -> None:
        self._response = response
        self._path = path

    async def read(self, seconds: float) -> bytes:
        """The bytes that have arrived, at least one; empty at the end of the stream.

        Raises:
            StreamTimeout: nothing for ``seconds``.
            ClusterUnavailable: the connection broke.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._response.content.readany()
        except TimeoutError:
            raise StreamTimeout(f"{self._path}: silent for {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterUnavailable(f"{self._path}: {_words(error)}") from error


class Api:
    """Requests to one API server under one identity."""

    def __init__(self, client: ApiClient, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._sockets = Sockets(client)

    @classmethod
    async def connect(cls, connection: Connection, watches: int = 0) -> Api:
        """Read the configuration; no request is made yet. ``watches``: streams at a time.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        return cls(await open_client(connection, watches), connection.timeout)

    @property
    def address(self) -> str:
        """The URL of the API server."""
        return str(self._client.configuration.host)

    async def request(
        self,
        method: Method,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Send one request and return the body of a successful response.

        Raises:
            ClusterUnavailable: no usable response; it is unknown whether the request took effect.
            ClusterBusy: 401 or 429; it had no effect.
            WriteConflict: 409.
            ObjectGone: 404, or the uid in the body is of another object; :class:`NotServed` if the 404 names no object.
            Forbidden: 403.
            WriteRefused: any other 4xx, or a PodDisruptionBudget denies an Eviction.
            Expired: 410.
        """
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._send(
                    method, path, query, body, content_type, accept, _NO_LIMITS
                )
                return await response.read()
        except TimeoutError:
            text = f"{method} {path}: no answer in {self._timeout:.0f} s"
            raise ClusterUnavailable(text) from None
        except aiohttp.ClientError as error:
            raise ClusterUnavailable(f"{method} {path}: {_words(error)}") from error

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, *, accept: str = JSON, patient: bool = False
    ) -> AsyncIterator[ResponseBody]:
        """GET with a streamed response. Raises the errors of :meth:`request`.

        ``patient``: the response begins with its first bytes, which can come at any time.
        """
        try:
            async with asyncio.timeout(None if patient else self._timeout):
                response = await self._send("GET", path, query, None, JSON, accept, _NO_LIMITS)
        except TimeoutError:
            text = f"GET {path}: no answer in {self._timeout:.0f} s"
            raise ClusterUnavailable(text) from None
        try:
            yield ResponseBody(response, path)
        finally:
            # No TLS close: the rest of the stream is not needed.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        await self._sockets.closed()

    def _check(self, method: Method, path: str) -> None:
        """Raise WriteRefused for a request that this client does not send."""

    async def _send(
        self,
        method: Method,
        path: str,
        query: Query,
        body: Any,
        content_type: str,
        accept: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The only caller of the client library. It returns successful responses only."""
        self._check(method, path)
        # identity: compression of lists costs the server more than it saves on the network of a cluster.
        headers = {
            **self._client.default_headers,
            "Accept": accept,
            "Content-Type": content_type,
            "Accept-Encoding": "identity",
        }
        try:
            await self._client.update_params_for_auth(headers, [], ["BearerToken"])  # fresh ones
            response: aiohttp.ClientResponse = await self._client.rest_client.request(
                method,
                f"{self._client.configuration.host}{path}",
                query_params=dict(query),
                headers=headers,
                body=body,
                _preload_content=False,
                _request_timeout=limits,
            )
            if response.status < 300:
                return response
            text = await response.read()
        except (aiohttp.ClientError, ConfigException, OSError) as error:
            raise ClusterUnavailable(f"{method} {path}: {_words(error)}") from error
        after = response.headers.get("Retry-After", "")
        raise failure(f"{method} {path}", response.status, text, after)


Permits = Callable[[Method, str], bool]
"""Whether a method, other than GET, is allowed on a path."""


class ReadOnlyApi(Api):
    """Sends reads, and of all other requests only those that are permitted.

    The check is where all requests pass, so no code of the process can get around it.
    """

    def __init__(self, client: ApiClient, timeout: float, permits: Permits) -> None:
        super().__init__(client, timeout)
        self._permits = permits

    @classmethod
    async def open(cls, connection: Connection, permits: Permits, watches: int = 0) -> ReadOnlyApi:
        """Read the configuration; no request is made yet. ``watches``: streams at a time.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        return cls(await open_client(connection, watches), connection.timeout, permits)

    def _check(self, method: Method, path: str) -> None:
        if method != "GET" and not self._permits(method, path):
            raise WriteRefused(f"{method} {path}: this client of queuectl does not send it")


_read_document = msgspec.json.Decoder(dict[str, Any]).decode


def document_in(what: str, body: bytes, *fields: str) -> dict[str, Any]:
    """The JSON object in a successful response.

    Args:
        what: request, for the message.
        body: of the response.
        fields: that it must have, each an object; ``status.userInfo`` is a field of ``status``.

    Raises:
        ClusterUnavailable: it is something else, for example a page of a proxy.
    """
    try:
        document = _read_document(body)
    except (ValueError, RecursionError) as error:
        text = body[:100].decode(errors="replace")
        raise ClusterUnavailable(f"{what}: the answer is not an object: {error}: {text}") from error
    for field in fields:
        found: Any = document
        for name in field.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ClusterUnavailable(f"{what}: the answer has no {field}")
    return document


def failure(what: str, code: int, body: bytes, after: str = "") -> ClusterError:
    """The error for an unsuccessful response.

    Args:
        what: request, for the message.
        code: HTTP status.
        body: a ``v1.Status`` from the API server; any text from a proxy.
        after: the ``Retry-After`` header.
    """
    try:
        status = _read_status(body)
    except (ValueError, RecursionError):
        status = _Status(message=body[:300].decode(errors="replace").strip())
    message = f"{what}: {code}: {status.message or status.reason or 'no reason given'}"
    reasons = {cause.reason for cause in status.causes()}
    if code == 410 or "ResourceVersionTooLarge" in reasons:
        return Expired(message)
    if "DisruptionBudget" in reasons or _has_two_budgets(code, status):
        return WriteRefused(message)
    if code in (401, 429):  # a token can be renewed in the meantime
        return ClusterBusy(message, _retry_after(status, after))
    if code >= 500 or code == 408:
        return ClusterUnavailable(message, _retry_after(status, after))
    if code == 404 and status.reason != "NotFound":
        return NotServed(message)
    if code == 404 or any(cause.field == "metadata.uid" for cause in status.causes()):
        return ObjectGone(message)
    return {409: WriteConflict, 403: Forbidden}.get(code, WriteRefused)(message)


def _has_two_budgets(code: int, status: _Status) -> bool:
    """Whether it is the answer to an Eviction of a pod with several PodDisruptionBudgets: 500, without a reason."""
    named = "PodDisruptionBudget" in (status.message or "")
    return code == 500 and not status.reason and named


def _retry_after(status: _Status, header: str) -> float | None:
    if header.isdecimal():
        return float(header)
    seconds = status.details.retry_after_seconds if status.details else None
    return float(seconds) if seconds else None


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"cannot resolve {error.host} ({error.strerror})"
    # A failure of TLS also has this class; it has no number of the system, and its own text is the cause.
    if (
        isinstance(error, aiohttp.ClientConnectorError)
        and (number := error.os_error.errno or 0) > 1
    ):
        return f"cannot connect to {error.host}:{error.port} ({os.strerror(number)})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

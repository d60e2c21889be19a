"""The one way requests go to the API server.

Only the client library's transport and its credentials are used, never its models, and not its ``call_api``, which walks
through every body: thousands of writes a minute leave here. The transport looks at no status code, so :meth:`Api._send`
does, and turns what the server says into one of :mod:`queuectl.domain.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import aiohttp
import msgspec

from queuectl.cluster.connection import Connection, Sockets, open_client
from queuectl.cluster.library import ApiClient, ConfigException
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Query = Sequence[tuple[str, str]]

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)
"""For writes: of the answer only the resourceVersion is read, and a job can be large."""

_NO_LIMITS: Final = aiohttp.ClientTimeout(
    total=None
)  # asyncio.timeout rules, over the whole request


class Expired(ClusterError):
    """410, or a resourceVersion the server does not know: list again."""


class StreamTimeout(ClusterUnavailable):
    """An open stream brought nothing for too long."""


class Forbidden(WriteRefused):
    """403: our identity may not."""


class NotServed(ObjectGone):
    """A 404 that says nothing of an object: the server does not serve this path, or it was not the API server that answered."""


class _Cause(msgspec.Struct):
    reason: str | None = None
    field: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int | None = None


class _Status(msgspec.Struct):
    """``v1.Status``: how the API server says no."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None

    def causes(self) -> list[_Cause]:
        return (self.details and self.details.causes) or []


_read_status = msgspec.json.Decoder(_Status).decode


class Stream:
    """The body of one answer, read piece by piece."""

    def __init__(self, response: aiohttp.ClientResponse, path: str) -> None:
        self._response = response
        self._path = path

    async def read(self, seconds: float) -> bytes:
        """What has arrived, at least a byte; empty at the end of the stream.

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
    async def connect(cls, connection: Connection) -> Api:
        """Read the configuration; no request is made yet.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        return cls(await open_client(connection), connection.timeout)

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
        """Send one request and return the body of a successful answer.

        Raises:
            ClusterUnavailable: no usable answer; the request may or may not have had its effect.
            WriteConflict: 409.
            ObjectGone: 404, or the uid in the body is another's; :class:`NotServed` where the 404 names no object.
            Forbidden: 403.
            WriteRefused: any other 4xx.
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
    async def stream(self, path: str, query: Query) -> AsyncIterator[Stream]:
        """GET whose answer is read as it comes. Raises what :meth:`request` raises."""
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._send("GET", path, query, None, JSON, JSON, _NO_LIMITS)
        except TimeoutError:
            text = f"GET {path}: no answer in {self._timeout:.0f} s"
            raise ClusterUnavailable(text) from None
        try:
            yield Stream(response, path)
        finally:
            # Not a polite TLS farewell, for which nobody would wait: the rest of the stream is not wanted.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def close(self) -> None:
        """Give back all connections."""
        await self._client.close()
        await self._sockets.closed()

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
        """The only caller of the client library. The answer is one of success."""
        # identity: the server would compress lists, which costs it more than it saves on a cluster's network.
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


def failure(what: str, code: int, body: bytes, after: str = "") -> ClusterError:
    """The error for an unsuccessful answer.

    Args:
        what: request, for the message.
        code: HTTP status.
        body: a ``v1.Status`` if the API server itself answered; anything from a proxy.
        after: the ``Retry-After`` header.
    """
    try:
        status = _read_status(body)
    except msgspec.MsgspecError:
        status = _Status(message=body[:300].decode(errors="replace").strip())
    message = f"{what}: {code}: {status.message or status.reason or 'no reason given'}"
    reasons = {cause.reason for cause in status.causes()}
    if code == 410 or "ResourceVersionTooLarge" in reasons:
        return Expired(message)
    if code >= 500 or code in (401, 408, 429):  # a token may be renewed meanwhile
        return ClusterUnavailable(message, _retry_after(status, after))
    if code == 404 and status.reason != "NotFound":
        return NotServed(message)
    if code == 404 or any(cause.field == "metadata.uid" for cause in status.causes()):
        return ObjectGone(message)
    return {409: WriteConflict, 403: Forbidden}.get(code, WriteRefused)(message)


def _retry_after(status: _Status, header: str) -> float | None:
    if header.isdecimal():
        return float(header)
    seconds = status.details.retry_after_seconds if status.details else None
    return float(seconds) if seconds else None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

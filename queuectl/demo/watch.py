"""List and watch of one resource over plain HTTP, for the recorder. No event is lost or merged.

The audit of the controller must not use the controller's code, so this is not its reflector.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import yaml

from queuectl.cluster.stream import LEVELS, decoded

_PAGE: Final = "500"
# After this time the server ends a watch, and the next watch continues.
_SILENCE_SECONDS: Final = 300
_RETRY_SECONDS: Final = 0.5


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    uid: str = ""
    next: str = msgspec.field(default="", name="continue")


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode
_object = msgspec.json.Decoder(_Object).decode
_list = msgspec.json.Decoder(_List).decode


@dataclass(frozen=True, slots=True)
class WatchedObject:
    """One event of a watch, or one object of a list. ``version``: the resourceVersion of the event."""

    uid: str
    version: int
    gone: bool
    raw: msgspec.Raw


@dataclass(frozen=True, slots=True)
class ListEnd:
    """A list is complete: an object that is not in ``versions`` (uid to resourceVersion) is deleted.

    ``first`` is False after an expired watch: revisions in between can be missing.
    """

    version: int
    versions: dict[str, int]
    first: bool


class KubeconfigServer:
    """The API server of a kubeconfig, with a client certificate or a token."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        context = _named(document, "context", document["current-context"])
        cluster = _named(document, "cluster", context["cluster"])
        user = _named(document, "user", context["user"])
        headers = {"authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._client = httpx2.AsyncClient(
            base_url=cluster["server"],
            verify=_tls(cluster, user),
            headers=headers,
            timeout=httpx2.Timeout(30.0, read=_SILENCE_SECONDS + 30.0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def list(self, path: str) -> ListEnd:
        """The current objects of a collection."""
        return (await self._read(path, first=True))[1]

    async def follow(self, path: str) -> AsyncIterator[WatchedObject | ListEnd]:
        """The current objects of a collection, then all its events, until the task is canceled."""
        first = True
        while True:
            try:
                seen, relisted = await self._read(path, first=first)
            except httpx2.HTTPError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for one in seen:
                yield one
            yield relisted
            first = False
            async for event in self._onward(path, relisted.version):
                yield event

    async def _onward(self, path: str, version: int) -> AsyncIterator[WatchedObject]:
        """Watch from a version on, with reconnections, until the version expires on the server."""
        while True:
            try:
                async for event in self._watch(path, version):
                    version = event.version
                    if event.uid:
                        yield event
            except httpx2.HTTPError:
                await asyncio.sleep(_RETRY_SECONDS)
            except _Expired:
                return

    async def _read(self, path: str, *, first: bool) -> tuple[tuple[WatchedObject, ...], ListEnd]:
        objects = []
        query = {"limit": _PAGE}
        while True:
            answer = await self._client.get(path, params=query, extensions=_interruptible())
            # The kind is not installed, so no objects exist; the watch tries again.
            if answer.status_code == 404:
                return (), ListEnd(0, {}, first)
            answer.raise_for_status()
            page = decoded(_list, answer.content, LEVELS + 2)
            objects += [_seen(raw, gone=False) for raw in page.items]
            if not page.metadata.next:
                break
            query["continue"] = page.metadata.next
        version = int(page.metadata.resource_version)
        return tuple(objects), ListEnd(version, {one.uid: one.version for one in objects}, first)

    async def _watch(self, path: str, version: int) -> AsyncIterator[WatchedObject]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(_SILENCE_SECONDS),
        }
        tail = b""
        async with self._client.stream(
            "GET", path, params=query, extensions=_interruptible()
        ) as answer:
            if answer.is_error:
                # Only then is the connection used again. The watch of a kind that is not installed tries again all the time.
                await answer.aread()
            if answer.status_code == 410:
                raise _Expired
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                *lines, tail = (tail + piece).split(b"\n")
                for line in lines:
                    event = decoded(_event, line, LEVELS + 1)
                    if event.type == "ERROR":
                        raise _Expired
                    if event.type == "BOOKMARK":
                        meta = _object(event.object).metadata
                        yield WatchedObject("", int(meta.resource_version), False, event.object)
                    else:
                        yield _seen(event.object, gone=event.type == "DELETED")


class _Expired(Exception):
    """The version of the watch has expired on the server: list again."""


def _interruptible() -> dict[str, Any]:
    """Extensions of a request whose cancellation closes the connection that it is opening.

    Without it, httpcore leaves a connection open if the task is canceled during the TLS handshake.
    """
    opened: list[Any] = []  # streams of httpcore

    async def trace(event: str, details: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(details["return_value"])
        elif event == "connection.start_tls.failed":
            await opened.pop().aclose()

    return {"trace": trace}


def _seen(raw: msgspec.Raw, *, gone: bool) -> WatchedObject:
    meta = _object(raw).metadata
    return WatchedObject(meta.uid, int(meta.resource_version), gone, raw)


def _named(document: dict[str, Any], what: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one[what] for one in document[f"{what}s"] if one["name"] == name)
    return found


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    if "client-certificate-data" in user:
        pair = (user["client-certificate-data"], user["client-key-data"])
        # OpenSSL loads client keys only from files; this file is private and deleted at once.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(b"\n".join(base64.b64decode(part) for part in pair))
            file.flush()
            context.load_cert_chain(file.name)
    return context

"""Logs of pods for the dashboard, over separate connections: streams that stay open must not block those of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from queuectl.cluster.client import (
    Api,
    Forbidden,
    ReadOnlyApi,
    ResponseBody,
    StreamTimeout,
    document_in,
)
from queuectl.cluster.connection import Connection
from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.domain.pod_logs import LogRequest, PodIdentity
from queuectl.objects.kubernetes.containers import PodContainers, containers_of

_BUFFER: Final = 1 << 15
_SECONDS: Final = 5.0  # for one request, because a user waits for it
_IN_FLIGHT: Final = 8
_NO_RIGHT: Final = "queuectl's own account may not read logs in this namespace: deploy/optional/pod-logs.yaml has the right"
_ANY: Final = "application/json, */*"  # an error is JSON, a log is text


class KubernetesPodLogs:
    """Reads under queuectl's own identity, with the right of the opt-in ``pod-logs``. It checks no right of a user."""

    def __init__(self, api: Api) -> None:
        self._api = api

    @classmethod
    async def connect(cls, kubeconfig: Path | None, streams: int) -> Self:
        """Read the configuration. ``streams``: open logs at a time.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        connection = Connection(
            kubeconfig=kubeconfig, in_flight=_IN_FLIGHT, timeout=_SECONDS, buffer_bytes=_BUFFER
        )
        return cls(await ReadOnlyApi.open(connection, lambda *_: False, watches=streams))

    async def close(self) -> None:
        """Give back all connections."""
        await self._api.close()

    async def containers(self, pod: PodIdentity) -> PodContainers:
        """The containers of the pod.

        Raises:
            ObjectGone: it is deleted, or another pod has its name now.
            ClusterError: the API server refuses, or does not answer.
        """
        path = _path(pod)
        body = await self._api.request("GET", path)
        containers = containers_of(document_in(f"GET {path}", body, "metadata", "spec"))
        if containers.uid != pod.uid:
            raise ObjectGone(f"pod {pod.namespace}/{pod.name} is another one now")
        return containers

    @asynccontextmanager
    async def opened(self, request: LogRequest) -> AsyncIterator[OpenPodLog]:
        """A context in which the log is read. Call :meth:`containers` before: only both together show whose log it is."""
        async with AsyncExitStack() as stack:
            opening = asyncio.create_task(self._open(stack, request), name="open a pod log")
            try:
                yield OpenPodLog(opening)
            finally:
                opening.cancel()
                await asyncio.wait({opening})
                if not opening.cancelled():
                    opening.exception()  # retrieved, in case that the viewer has left before

    async def _open(self, stack: AsyncExitStack, request: LogRequest) -> ResponseBody:
        query = [("container", request.container), ("tailLines", str(request.tail))]
        query += [("follow", "true")] if request.follow else []
        query += [("previous", "true")] if request.previous else []
        stream = self._api.stream(
            f"{_path(request.pod)}/log", query, accept=_ANY, patient=request.follow
        )
        try:
            body = await stack.enter_async_context(stream)
        except Forbidden as error:
            raise WriteRefused(_NO_RIGHT) from error
        except WriteRefused as error:  # without the request, which means nothing to a viewer
            raise WriteRefused(str(error).split(": ", 2)[-1]) from error
        # The name led to this log. A uid does not come back, so a pod that had the name before and has it now had it in between.
        await self.containers(request.pod)
        return body


class OpenPodLog:
    """The bytes of one log."""

    def __init__(self, opening: asyncio.Task[ResponseBody]) -> None:
        self._opening = opening

    async def read(self, seconds: float) -> bytes | None:
        """The bytes that have arrived, at least one; empty at the end; None = none in this time.

        Raises:
            WriteRefused: the API server or the kubelet refuses, for example because the container has not started.
            ObjectGone: the pod is deleted, or is another one now.
            ClusterUnavailable: no answer, or the connection broke.
        """
        if not self._opening.done():
            await asyncio.wait({self._opening}, timeout=seconds)
            if not self._opening.done():
                return None
        try:
            return await self._opening.result().read(seconds)
        except StreamTimeout:
            return None


def _path(pod: PodIdentity) -> str:
    return f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"

"""Logs of pods from the API server, to standard output: one after another, or all together as they grow."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol
from urllib.parse import quote

import httpx2

from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.log_pods import RankedPod
from queuectl.cli.terminal import raw_output
from queuectl.client.errors import ClientError, ObjectNotFound, RequestRefused
from queuectl.client.kubernetes import KubernetesServer, document, failure
from queuectl.domain.log_text import LogText
from queuectl.objects.kubernetes.containers import containers_of

MOST_STREAMS: Final = 256
"""Logs that are followed together: each has its own connection."""
_LONGEST_LINE: Final = 1 << 16
"""Bytes of a line that are kept until its end arrives."""
_UNNAMED: Final = "a container name must be specified"


# ---- Output


class LogSink(Protocol):
    """Takes the parts of one log. Can raise BrokenPipeError."""

    def add(self, part: bytes) -> None:
        """The next part."""

    def end(self) -> None:
        """The log has ended."""


class Copied:
    """Copies one log: unchanged to a file or a pipe, and as printable text without colors to a terminal."""

    def __init__(self) -> None:
        self._raw = raw_output()
        self._text = LogText()

    def add(self, part: bytes) -> None:
        if self._raw is not None:
            self._raw.write(part)
            self._raw.flush()
            return
        sys.stdout.write(self._text.add(part))
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.write(self._text.end())


class Prefixed:
    """Writes the lines of one of several logs, each after the same text."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._copied = Copied()
        self._rest = b""

    def add(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            self._copied.add(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        if self._rest:
            self.add(b"\n")


# ---- Requests


class LogReader:
    """Reads logs of the pods of one namespace."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        server: KubernetesServer,
        namespace: str,
        query: Mapping[str, str],
    ) -> None:
        """``query``: parameters of each request, as the API server names them."""
        self._http = http
        self._server = server
        self._namespace = namespace
        self._query = query

    async def copy(self, pod: RankedPod, sink: LogSink) -> None:
        """Give the log of a pod to a sink.

        Raises:
            CommandFailed: the pod has no log yet, or has several containers.
            ClientError: the API server refuses the request, or does not answer.
        """
        if pod.reason:
            raise CommandFailed(f"pod {pod.name} has no log yet: {pod.reason}", Exit.CONFLICT)
        refusal = await self._copied(pod, self._query, sink)
        if refusal is not None and _UNNAMED in str(refusal) and "container" not in self._query:
            container = await self._container(pod)
            refusal = await self._copied(pod, {**self._query, "container": container}, sink)
        if isinstance(refusal, ObjectNotFound):
            text = (
                f"pod {pod.name} is deleted, and its log with it; or the kubeconfig's context {self._server.context!r} "
                "is of another cluster than the server"
            )
            raise CommandFailed(text, Exit.NOT_FOUND)
        if refusal is not None:
            raise refusal

    async def _copied(
        self, pod: RankedPod, query: Mapping[str, str], sink: LogSink
    ) -> RequestRefused | None:
        """Copy a log. Returns why the API server refuses it; None if it does not."""
        async with self._answer(pod, "/log", query) as response:
            if not response.is_success or _is_web_page(response):
                await response.aread()
                return failure(response)
            async for part in response.aiter_bytes():
                sink.add(part)
            sink.end()
        return None

    async def _container(self, pod: RankedPod) -> str:
        """The container that the pod names as its default one. Raises CommandFailed with the names of all."""
        async with self._answer(pod, "", {}) as response:
            await response.aread()
        if not response.is_success:
            raise failure(response)
        pod_containers = containers_of(document(response))
        if pod_containers.default is not None:
            return pod_containers.default
        raise CommandFailed(
            f"pod {pod.name} has several containers: choose one with -c: {', '.join(pod_containers.names)}",
            Exit.BAD_INPUT,
        )

    @asynccontextmanager
    async def _answer(
        self, pod: RankedPod, subresource: str, query: Mapping[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        path = (
            f"/api/v1/namespaces/{quote(self._namespace, safe='')}/pods/{quote(pod.name, safe='')}"
        )
        # A log that is followed can be silent for hours.
        silence = None if query.get("follow") else self._http.timeout.read
        with self._server.errors():
            async with self._http.stream(
                "GET",
                path + subresource,
                params=dict(query),
                headers={"Accept": "application/json, */*"},
                timeout=httpx2.Timeout(self._http.timeout.connect, read=silence),
                extensions=dict(self._server.extensions),
            ) as response:
                yield response


def _is_web_page(response: httpx2.Response) -> bool:
    """Whether a proxy answers, for example with a page to sign in."""
    return response.headers.get("content-type", "").startswith("text/html")


# ---- Several pods


async def print_logs(
    server: KubernetesServer,
    namespace: str,
    pods: Sequence[RankedPod],
    query: Mapping[str, str],
    *,
    prefixed: bool,
) -> Exit:
    """Print the logs of pods: together if they are followed, otherwise one after another.

    Args:
        server: the API server.
        namespace: of the pods.
        pods: at least one.
        query: parameters of each request.
        prefixed: each line begins with the rank. A log that cannot be read then becomes a line on standard error.

    Returns:
        The exit code.

    Raises:
        QueuectlError: the only log cannot be read.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8)
    async with httpx2.AsyncClient(**server.arguments, limits=limits) as http:
        reader = LogReader(http, server, namespace, query)
        if not prefixed:
            await reader.copy(pods[0], Copied())
            return Exit.OK
        if query.get("follow"):
            return max(await _together(reader, pods))
        return max([await _one(reader, pod) for pod in pods])


async def _together(reader: LogReader, pods: Sequence[RankedPod]) -> list[Exit]:
    """Print logs at once. An error that ends one, such as a closed pipe, ends all before their connections are closed."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_one(reader, pod)) for pod in pods]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _one(reader: LogReader, pod: RankedPod) -> Exit:
    """Print the log of one pod of several."""
    try:
        await reader.copy(pod, Prefixed(f"[{pod.label}] "))
    except (ClientError, CommandFailed) as error:
        if exit_code(error) is Exit.BAD_INPUT:  # of the command line, so the same for each pod
            raise
        print(f"error: {pod.label}: {error}", file=sys.stderr)
        return exit_code(error)
    return Exit.OK

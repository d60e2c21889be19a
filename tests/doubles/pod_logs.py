"""Logs of pods in memory, instead of the API server and the kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.domain.pod_logs import LogRequest, PodIdentity
from queuectl.objects.kubernetes.containers import PodContainers


@dataclass
class MemoryLog:
    """The output of one container. ``waiting``: the reason why it has not started and has no log."""

    written: bytes = b""
    ended: bool = False
    waiting: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, part: bytes) -> None:
        self.written += part
        self._ring()

    def end(self) -> None:
        self.ended = True
        self._ring()

    def _ring(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


@dataclass
class MemoryPod:
    uid: str
    logs: dict[str, MemoryLog]
    previous: dict[str, MemoryLog] = field(default_factory=dict)
    default: str | None = None


@dataclass
class MemoryPodLogs:
    """Same methods and meanings as KubernetesPodLogs.

    Attributes:
        pods: by namespace and name.
        forbidden: namespaces in which queuectl may not read logs.
        down: the error of each call; None = none.
        open: the logs that are read now.
    """

    pods: dict[tuple[str, str], MemoryPod] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    down: Exception | None = None
    open: list[LogRequest] = field(default_factory=list)

    async def containers(self, pod: PodIdentity) -> PodContainers:
        await asyncio.sleep(0)
        if self.down is not None:
            raise self.down
        known = self.pods.get((pod.namespace, pod.name))
        if known is None or known.uid != pod.uid:
            raise ObjectGone(f"pod {pod.namespace}/{pod.name}")
        restarted = frozenset(known.previous)
        return PodContainers(known.uid, tuple(known.logs), known.default, restarted)

    @asynccontextmanager
    async def opened(self, request: LogRequest) -> AsyncIterator[MemoryOpenLog]:
        self.open.append(request)
        try:
            yield MemoryOpenLog(self, request)
        finally:
            self.open.remove(request)


class MemoryOpenLog:
    def __init__(self, logs: MemoryPodLogs, request: LogRequest) -> None:
        self._logs = logs
        self._request = request
        self._log: MemoryLog | None = None
        self._position = 0

    async def read(self, seconds: float) -> bytes | None:
        if self._logs.down is not None:
            raise self._logs.down
        log = self._log or await self._opened()
        if self._position == len(log.written) and not log.ended and self._request.follow:
            try:
                async with asyncio.timeout(seconds):
                    await log.changed.wait()
            except TimeoutError:
                return None
        part = log.written[self._position :]
        self._position += len(part)
        return part

    async def _opened(self) -> MemoryLog:
        request = self._request
        if request.pod.namespace in self._logs.forbidden:
            raise WriteRefused("queuectl's own account may not read logs in this namespace")
        await self._logs.containers(request.pod)
        pod = self._logs.pods[request.pod.namespace, request.pod.name]
        log = (pod.previous if request.previous else pod.logs).get(request.container)
        if log is None:
            raise WriteRefused(f"previous terminated container {request.container!r} not found")
        if log.waiting:
            raise WriteRefused(
                f"container {request.container!r} is waiting to start: {log.waiting}"
            )
        lines = log.written.splitlines(keepends=True)
        self._position = len(b"".join(lines[: max(0, len(lines) - request.tail)]))
        self._log = log
        return log

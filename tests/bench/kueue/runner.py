"""Plays users, kubelets and the job controller for thousands of Jobs at once: creates them on time, sees each resumed, and
ends it through its status when its run time is over; after an eviction it confirms the suspension.

One process, as few cycles of it as possible: it shares two cores with what is measured. Requests are bytes made before the
clock starts, answers are not decoded, and of a watch event few fields are read.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
import msgspec

from queuectl.objects.keys import ATTEMPT_LABEL
from tests.bench.kueue.mix import Arrival, Mix

_CONNECTIONS: Final = 32
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_JOBS: Final = "/apis/batch/v1/namespaces/{}/jobs"
_SUSPENDED: Final = json.dumps(
    {
        "status": {
            "startTime": None,
            "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}],
        }
    }
).encode()


class _Meta(msgspec.Struct):
    name: str
    namespace: str


class _Labels(msgspec.Struct):
    labels: dict[str, str] = {}


class _Template(msgspec.Struct):
    metadata: _Labels = msgspec.field(default_factory=_Labels)


class _Spec(msgspec.Struct):
    template: _Template
    suspend: bool = False


class _Condition(msgspec.Struct):
    type: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Object(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def unconfirmed(self) -> bool:
        """Suspended after it was resumed once, whether or not that was seen, and the job controller has not said so."""
        once = self.spec.template.metadata.labels.get(ATTEMPT_LABEL, "0") != "0"
        return self.spec.suspend and once and not self.status.conditions


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass(slots=True)
class Life:
    """What became of one workload, in seconds since the start.

    Attributes:
        created: when its creation was answered.
        admissions: when it was seen resumed, each time.
        held: seconds it held quota, evicted runs included.
    """

    arrival: Arrival
    created: float = 0.0
    admissions: list[float] = field(default_factory=list)
    evictions: int = 0
    held: float = 0.0
    finished: float | None = None
    timer: asyncio.TimerHandle | None = None
    ending: bool = False  # its run time is over: whatever is decided now comes too late

    @property
    def running(self) -> bool:
        return self.timer is not None and self.finished is None


@dataclass
class Runner:
    """One run of a mix against one API server, as a client with all rights.

    Attributes:
        writes: requests sent, by kind.
        late: seconds the latest creation was behind its time.
        cut_off: times the API server ended the watch.
    """

    mix: Mix
    server: str
    tls: ssl.SSLContext
    say: Callable[[str], None]
    lives: dict[tuple[str, str], Life] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    late: float = 0.0
    cut_off: int = 0
    _left: int = 0
    _began: float = 0.0

    def run(self, seconds: float) -> float:
        """Play it; returns the wall time.

        Raises:
            TimeoutError: not all workloads ended in ``seconds``.
        """
        return asyncio.run(self._run(seconds))

    async def _run(self, seconds: float) -> float:
        self._done = asyncio.Event()
        self._gate = asyncio.Semaphore(_CONNECTIONS)
        self._left = len(self.mix.arrivals)
        bodies = [json.dumps(one.document).encode() for one in self.mix.arrivals]
        for one in self.mix.arrivals:
            self.lives[one.queue, one.name] = Life(one)
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=_CONNECTIONS + 4)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with aiohttp.ClientSession(
            self.server, connector=connector, timeout=timeout
        ) as session:
            self._session = session
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                self._group = group
                others = [group.create_task(self._watch()), group.create_task(self._tell())]
                self._began = time.monotonic()
                await self._create(bodies)
                await self._done.wait()
                wall = self._now()
                for task in others:
                    task.cancel()
            return wall

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(10)
            running = sum(life.running for life in self.lives.values())
            total = len(self.lives)
            self.say(f"{total - self._left} of {total} done, {running} running")

    # ---- users

    async def _create(self, bodies: list[bytes]) -> None:
        for arrival, body in zip(self.mix.arrivals, bodies, strict=True):
            wait = arrival.at - self._now()
            if wait > 0.001:
                await asyncio.sleep(wait)
            await self._gate.acquire()
            self.late = max(self.late, self._now() - arrival.at)
            self._spawn(self._create_one(self.lives[arrival.queue, arrival.name], body))

    async def _create_one(self, life: Life, body: bytes) -> None:
        try:
            await self._send(
                "create",
                "POST",
                _JOBS.format(life.arrival.queue),
                body,
                {"content-type": "application/json"},
            )
            life.created = self._now()
        finally:
            self._gate.release()

    # ---- the job controller and the kubelets

    async def _watch(self) -> None:
        """Follow all Jobs. A server that cuts a slow watcher off is asked for everything again; what is known stays known."""
        while True:
            await self._follow()

    async def _follow(self) -> None:
        decode = msgspec.json.Decoder(_Event).decode
        url = "/apis/batch/v1/jobs?watch=true&resourceVersion=0&timeoutSeconds=3600"
        async with self._session.get(url) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    self._see(decode(line))
        self.cut_off += 1

    def _see(self, event: _Event) -> None:
        meta = event.object.metadata
        life = self.lives.get((meta.namespace, meta.name))
        if life is None or life.ending or event.type == "DELETED":
            return
        if not event.object.spec.suspend and not life.running:
            now = self._now()
            life.admissions.append(now)
            loop = asyncio.get_running_loop()
            life.timer = loop.call_later(life.arrival.runtime, self._end, life)
        elif event.object.spec.suspend and life.timer is not None:
            life.timer.cancel()
            life.timer = None
            life.evictions += 1
            life.held += self._now() - life.admissions[-1]
        if event.object.unconfirmed:
            self._spawn(self._status("suspend", life, _SUSPENDED))

    def _end(self, life: Life) -> None:
        life.ending = True
        self._spawn(self._finish(life))

    async def _finish(self, life: Life) -> None:
        await self._status("finish", life, _complete(life.arrival.runtime))
        life.finished = self._now()
        life.held += life.finished - life.admissions[-1]
        self._left -= 1
        if not self._left:
            self._done.set()

    async def _status(self, kind: str, life: Life, body: bytes) -> None:
        path = f"{_JOBS.format(life.arrival.queue)}/{life.arrival.name}/status"
        await self._send(kind, "PATCH", path, body, _MERGE)

    # ---- requests

    async def _send(
        self, kind: str, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> None:
        self.writes[kind] = self.writes.get(kind, 0) + 1
        async with self._session.request(method, path, data=body, headers=headers) as answer:
            text = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._group.create_task(work)  # what fails ends the run


def _complete(runtime: float) -> bytes:
    now = datetime.now(UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    start = datetime.fromtimestamp(now.timestamp() - runtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"status": "True", "lastTransitionTime": stamp, "reason": "CompletionsReached"}
    conditions = [{"type": "SuccessCriteriaMet", **done}, {"type": "Complete", **done}]
    status = {"startTime": start, "completionTime": stamp, "conditions": conditions}
    return json.dumps({"status": status}).encode()

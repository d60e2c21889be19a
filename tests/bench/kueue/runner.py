"""Simulates users, kubelets and the job controller for thousands of Jobs at once: creates them on time, sees each resumed, and
ends it through its status when its run time is over; after an eviction it confirms the suspension.

The same runner for each controller. One process, as few cycles of it as possible: it shares two cores with what
is measured. Requests are bytes made before the clock starts, answers are not decoded, and of a watch event few fields are
read. Creations and status changes have their own connections, so that no end of a Job waits behind a creation; how late
the runner itself is, it reports (:class:`Life`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from queuectl.objects.keys import ATTEMPT_LABEL
from tests.bench.kueue.mix import Arrival, Mix
from tests.bench.kueue.wire import Address, Answered, Pool, Watch, request

_CREATORS: Final = 16
_ENDERS: Final = 32
_JOBS: Final = "/apis/batch/v1/namespaces/{}/jobs"
_WATCHED: Final = "/apis/batch/v1/jobs?watch=true&timeoutSeconds=3600&resourceVersion="
_ERROR: Final = b'{"type":"ERROR"'
_JSON: Final = {"content-type": "application/json"}
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_SUSPENDED: Final = json.dumps(
    {
        "status": {
            "startTime": None,
            "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}],
        }
    }
).encode()


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    resource_version: str


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
    def resumed_once(self) -> bool:
        """Whether queuectl has resumed it before, or the runner has seen it resumed."""
        return self.spec.template.metadata.labels.get(ATTEMPT_LABEL, "0") != "0"


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass(slots=True)
class Life:
    """The times of one workload, in seconds since the start.

    Attributes:
        created: when its creation was answered.
        seen: its first watch event.
        admissions: when it was seen resumed, each time.
        held: seconds it held quota, evicted runs included.
        ended: when its end was asked for; due was that ``runtime`` after the last admission.
        finished: when its end was answered.
    """

    arrival: Arrival
    created: float = 0.0
    seen: float = 0.0
    admissions: list[float] = field(default_factory=list)
    evictions: int = 0
    held: float = 0.0
    ended: float | None = None  # from then on whatever is decided comes too late
    finished: float | None = None
    timer: asyncio.TimerHandle | None = None
    confirming: bool = False

    @property
    def running(self) -> bool:
        return self.timer is not None and self.finished is None

    @property
    def due(self) -> float:
        """When it had to end."""
        return self.admissions[-1] + self.arrival.runtime


@dataclass
class Runner:
    """One run of a mix against one API server, as a client with all rights.

    Attributes:
        writes: requests sent, by kind.
        cut_off: times the API server ended the watch.
    """

    mix: Mix
    server: str
    tls: ssl.SSLContext
    say: Callable[[str], None]
    lives: dict[tuple[str, str], Life] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    cut_off: int = 0
    _version: str = "0"  # of the newest event; no Job is there at the beginning
    _resumable: bool = True  # the server still knows what came since then
    _left: int = 0
    _began: float = 0.0

    def run(self, seconds: float) -> float:
        """Run the mix. Returns the wall time.

        Raises:
            TimeoutError: not all workloads ended in ``seconds``.
        """
        return asyncio.run(self._run(seconds))

    async def _run(self, seconds: float) -> float:
        self._over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._left = len(self.mix.arrivals)
        for one in self.mix.arrivals:
            self.lives[one.queue, one.name] = Life(one)
        creations = [
            request("POST", _JOBS.format(one.queue), json.dumps(one.document).encode(), _JSON)
            for one in self.mix.arrivals
        ]
        address = Address.of(self.server, self.tls)
        self._creators = Pool(address, _CREATORS, self._fail)
        self._enders = Pool(address, _ENDERS, self._fail)
        gc.collect()
        gc.freeze()  # all that is long-lived is there now
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                self._began = time.monotonic()
                others = [
                    group.create_task(one)
                    for one in (self._watch(address), self._report(), self._create(creations))
                ]
                wall = await self._over
                for task in others:
                    task.cancel()
        finally:
            gc.unfreeze()
            self._creators.close()
            self._enders.close()
        return wall

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(10)
            running = sum(life.running for life in self.lives.values())
            total = len(self.lives)
            self.say(
                f"{self._now():.0f} s: {total - self._left} of {total} done, {running} running"
            )

    # ---- users

    async def _create(self, creations: list[bytes]) -> None:
        for arrival, creation in zip(self.mix.arrivals, creations, strict=True):
            wait = arrival.at - self._now()
            if wait > 0.001:
                await asyncio.sleep(wait)
            life = self.lives[arrival.queue, arrival.name]
            self._send("create", self._creators, creation, partial(self._created, life))

    def _created(self, life: Life) -> None:
        life.created = self._now()

    # ---- the job controller and the kubelets

    async def _watch(self, address: Address) -> None:
        """Follow all Jobs. A server that cuts a slow watcher off is asked for what came since."""
        decode = msgspec.json.Decoder(_Event).decode

        def line(text: bytes) -> None:
            if text.startswith(_ERROR):
                self._resumable = False
            else:
                self._see(decode(text))

        while True:
            # From 0 everything comes again, in no order that one could go on from; what is known stays known.
            since = self._version if self._resumable else "0"
            await Watch.follow(address, f"{_WATCHED}{since}", line)
            self.cut_off += 1

    def _see(self, event: _Event) -> None:
        job = event.object
        self._version = job.metadata.resource_version
        life = self.lives.get((job.metadata.namespace, job.metadata.name))
        if life is None or event.type == "DELETED":
            return
        life.seen = life.seen or self._now()
        if life.ended is not None:
            return
        if not job.spec.suspend and not life.running:
            now = self._now()
            life.admissions.append(now)
            loop = asyncio.get_running_loop()
            life.timer = loop.call_later(life.arrival.runtime, self._end, life)
        elif job.spec.suspend and life.timer is not None:
            life.timer.cancel()
            life.timer = None
            life.evictions += 1
            life.held += self._now() - life.admissions[-1]
        if job.spec.suspend and (life.admissions or job.resumed_once) and not job.status.conditions:
            self._confirm(life)

    def _confirm(self, life: Life) -> None:
        """Confirm a suspension as the job controller does; a resumption without an event counts as well."""
        if not life.confirming:
            life.confirming = True
            self._status("suspend", life, _SUSPENDED, lambda: setattr(life, "confirming", False))

    def _end(self, life: Life) -> None:
        life.ended = self._now()
        self._status("finish", life, _complete(life.arrival.runtime), partial(self._finished, life))

    def _finished(self, life: Life) -> None:
        life.finished = self._now()
        life.held += life.finished - life.admissions[-1]
        self._left -= 1
        if not self._left and not self._over.done():
            self._over.set_result(life.finished)

    def _status(self, kind: str, life: Life, body: bytes, then: Callable[[], None]) -> None:
        path = f"{_JOBS.format(life.arrival.queue)}/{life.arrival.name}/status"
        self._send(kind, self._enders, request("PATCH", path, body, _MERGE), then)

    # ---- requests

    def _send(self, kind: str, pool: Pool, data: bytes, then: Callable[[], None]) -> None:
        self.writes[kind] = self.writes.get(kind, 0) + 1
        pool.send(data, self._answered(data, then))

    def _answered(self, data: bytes, then: Callable[[], None]) -> Answered:
        def check(status: int, answer: bytes) -> None:
            if status < 300:
                then()
            else:
                self._fail(RuntimeError(f"{data[:200]!r}: {answer[:1000]!r}"))

        return check

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def _complete(runtime: float) -> bytes:
    now = datetime.now(UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    start = datetime.fromtimestamp(now.timestamp() - runtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"status": "True", "lastTransitionTime": stamp, "reason": "CompletionsReached"}
    conditions = [{"type": "SuccessCriteriaMet", **done}, {"type": "Complete", **done}]
    status = {"startTime": start, "completionTime": stamp, "conditions": conditions}
    return json.dumps({"status": status}).encode()

"""Pages and streams of logs over a double of the API server and the kubelets, on a real port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import httpx2
from fastapi import FastAPI

from queuectl.api.access import Access
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.planner.cache import PlannerCache
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from queuectl.web.log_streams import LogLimits, PodLogs
from tests.api.conftest import Delegate, commit
from tests.api.serving import running
from tests.api.signed import ADMIN, bearer, signed_app
from tests.api.support import LIVES, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.pod_logs import MemoryLog, MemoryPod, MemoryPodLogs
from tests.doubles.store import MemoryStore

PATIENCE: Final = 30.0
TEAM, WORKLOAD, POD = "team-a", "uid-job-train", "uid-train-0"
PATH: Final = f"/ui/workloads/{WORKLOAD}/pods/{POD}/logs"
OF_WORKLOAD: Final = Right("get", "workloads", TEAM)
OF_LOG: Final = Right("get", "pods/log", TEAM, group="")
QUICK: Final = LogLimits(first_seconds=0.2, known_seconds=0.05, trust_seconds=0.1)
"""The rights and the session are checked all the time."""


@dataclass
class WatchedPods:
    """The pods of workloads as this replica watches them, by the uid of the workload; ``None`` = it watches none yet."""

    of: dict[str, tuple[PodRecord, ...]] | None = field(default_factory=dict)
    cache: PlannerCache = field(default_factory=PlannerCache)

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        return self.of.get(entry.uid, ()) if self.of is not None else None

    async def current_snapshot(self) -> None:
        return None

    async def checkpoint_at(self, entry: Entry) -> None:
        return None

    async def related(self, entry: Entry) -> None:
        return None


@dataclass
class LogPages:
    """A dashboard with the opt-in."""

    client: httpx2.AsyncClient
    access: MemoryAccess
    store: MemoryStore
    source: MemoryPodLogs
    watched: WatchedPods
    pod_logs: PodLogs

    @property
    def log(self) -> MemoryLog:
        """Of the container ``main`` of the pod."""
        return self.source.pods[TEAM, "train-0"].logs["main"]

    @asynccontextmanager
    async def opened(self, token: str = ADMIN, **query: str) -> AsyncIterator[LogEvents]:
        """A stream that is followed."""
        headers = {**bearer(token), "Accept": "text/event-stream"}
        query = {"follow": "on", **query}
        async with (
            asyncio.timeout(PATIENCE),
            self.client.stream("POST", PATH, params=query, headers=headers) as answer,
        ):
            yield LogEvents(answer)

    async def refused(self, path: str = PATH, token: str = ADMIN, **query: str) -> Any:
        """The problem of a stream that is not opened."""
        headers = {**bearer(token), "Accept": "text/event-stream"}
        answer = await self.client.post(path, params=query, headers=headers)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        return answer.json()

    async def until_closed(self) -> None:
        """Wait until no log is read."""
        async with asyncio.timeout(PATIENCE):
            while self.source.open:  # noqa: ASYNC110 - the server closes it a moment after the client
                await asyncio.sleep(0.005)


class LogEvents:
    """The events of one stream."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self._parts = answer.aiter_text()
        self._rest = ""
        self._events: list[str] = []

    async def text(self, end: str = "") -> str:
        """The text until it ends with ``end``, of at least one event."""
        found = ""
        while not (found and found.endswith(end)):
            name, content = await self.next()
            assert name == "", content
            found += content["text"]
        return found

    async def rest(self) -> tuple[str, str]:
        """The rest of the text, and why the stream ends."""
        found = ""
        while True:
            name, content = await self.next()
            if name == "end":
                return found, content["reason"]
            found += content["text"]

    async def next(self) -> tuple[str, Any]:
        """The name and the content of the next event."""
        while True:
            while not self._events:
                self._rest += await anext(self._parts)
                *self._events, self._rest = self._rest.split("\n\n")
            lines = self._events.pop(0).split("\n")
            fields = dict(line.split(": ", 1) for line in lines)
            if "data" in fields:
                return fields.get("event", ""), json.loads(fields["data"])


def pod_of(uid: str, name: str, namespace: str = TEAM) -> PodRecord:
    return PodRecord(namespace, name, uid, 1, attempt=1, podset="worker", rank=0)


def workload(name: str, namespace: str = TEAM) -> Sequence[Any]:
    return live_through(job(name, namespace=namespace), *LIVES["running"])


@asynccontextmanager
async def log_pages(limits: LogLimits = QUICK) -> AsyncIterator[LogPages]:
    """A gang ``train`` with a pod of two containers, and pods of others."""
    store, access, source, watched = MemoryStore(), MemoryAccess(), MemoryPodLogs(), WatchedPods()
    access.know(ADMIN, "admin", master=True)
    for changes in (workload("train"), workload("other"), workload("foreign", "team-b")):
        await commit(store, changes)
    logs = {"main": MemoryLog(b"one\ntwo\n"), "side": MemoryLog(b"side\n")}
    source.pods[TEAM, "train-0"] = MemoryPod(POD, logs, {"side": MemoryLog(b"before\n")})
    source.pods[TEAM, "other-0"] = MemoryPod("uid-other-0", {"main": MemoryLog(b"secret")})
    source.pods["team-b", "foreign-0"] = MemoryPod("uid-foreign-0", {"main": MemoryLog(b"secret")})
    watched.of = {
        WORKLOAD: (pod_of(POD, "train-0"),),
        "uid-job-other": (pod_of("uid-other-0", "other-0"),),
        "uid-job-foreign": (pod_of("uid-foreign-0", "foreign-0", "team-b"),),
    }
    pod_logs = PodLogs(source, limits)
    async with served(store, access, watched, pod_logs) as client:
        yield LogPages(client, access, store, source, watched, pod_logs)


@asynccontextmanager
async def served(
    store: MemoryStore, access: Access, watched: WatchedPods, pod_logs: PodLogs
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a dashboard over these parts."""
    _PARTS.update(store=store, access=access, watched=watched, pod_logs=pod_logs)
    server = WebServer(_app(), ListenAddress("127.0.0.1", 0))
    pool = httpx2.Limits(max_connections=None)
    async with (
        running(server),
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=pool) as client,
    ):
        yield client


_PARTS: Final[dict[str, Any]] = {}
"""Of the current test."""


@cache
def _app() -> FastAPI:
    """One application for all tests, because it takes longer to make than most of them."""

    def part(name: str) -> Any:
        return Delegate(lambda: _PARTS[name])

    store, access = part("store"), part("access")
    store.audit = Delegate(lambda: _PARTS["store"].audit)
    store.sessions = Delegate(lambda: _PARTS["store"].sessions)
    app = signed_app(
        store,
        access,
        secure=False,
        open_paths=OpenPaths(OPEN, SIGN_IN),
        per_second=1e6,
        burst=10**6,
    )
    guard, watched = app.state.guard, part("watched")
    add_dashboard(app, store, guard, watched, signs_in=True, pod_logs=part("pod_logs"))
    return app


def limited(**values: Any) -> LogLimits:
    """Limits with other values."""
    return replace(QUICK, **values)


def fields(line: Any) -> Mapping[str, Any]:
    """The fields of a line of the audit log."""
    return {
        "caller": line.caller,
        "method": line.method,
        "path": line.path,
        "operation": line.operation,
        "status": line.status,
        "detail": line.detail,
    }

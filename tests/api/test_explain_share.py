"""Explanations are computed one at a time, with a share of one core, and a limited number of requests wait for one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.control.questions import diagnosis
from queuectl.control.questions.diagnosis import LeaderDiagnoser
from queuectl.control.questions.throttle import MOST_WAITING, PlannerThrottle
from queuectl.domain.diagnosis import Diagnosis
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import commit, talking_to
from tests.api.support import LIVES, FixedDiagnoser, FixedHealth, job, live_through
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, node, podset, world

GANGS = 30
SHARE = 0.25


class Consulting(FixedDiagnoser):
    """Diagnoses as the process that leads does."""

    def __init__(self, consultation: LeaderDiagnoser) -> None:
        super().__init__()
        self._consultation = consultation

    async def diagnose(self, uid: str) -> Diagnosis | None:
        return await self._consultation.diagnose(uid)


class Worked:
    """Counts diagnoses that are worked on, and the CPU time of each. They take 20 ms."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self.cpu = 0.0
        self._lock = threading.Lock()

    def __call__(
        self, checked: CheckedPlan, uids: frozenset[str], stop: StopSignal, *_: object
    ) -> Iterator[Diagnosis]:
        del checked, stop
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        with self._lock:
            self.cpu += time.thread_time() - began
            self.now -= 1
            self.done += 1
        return map(Diagnosis, iter(uids))


@pytest.fixture
async def explaining(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[FastAPI, Worked]:
    worked = Worked()
    monkeypatch.setattr(diagnosis, "explained", worked)
    waiting = [gang(f"uid-job-g{i}", podset(count=9, gpu=8)) for i in range(GANGS)]
    snapshot = world([node("n1", "r1", gpu=8)], waiting)
    consultation = LeaderDiagnoser(PlannerThrottle(SHARE), PlannerCache())
    consultation.planned(checked_plan(snapshot))
    for number in range(GANGS):
        await commit(memory, live_through(job(f"g{number}"), *LIVES["pending"]))
    app = create_app(memory, FixedHealth(), MetricsRecorder().registry, Consulting(consultation))
    return app, worked


async def test_many_explanations_at_once_are_bounded(
    explaining: tuple[FastAPI, Worked],
) -> None:
    app, worked = explaining
    began = time.monotonic()
    async with talking_to(app) as client:
        asked = [client.get(f"/api/v1/workloads/uid-job-g{i}/explain") for i in range(GANGS)]
        answers = await asyncio.gather(*asked)
        took = time.monotonic() - began
        again = await client.get("/api/v1/workloads/uid-job-g0/explain")
    assert {answer.status_code for answer in [*answers, again]} == {200}
    assert worked.most == 1
    assert worked.done == MOST_WAITING
    # A pause follows each but the last.
    assert worked.cpu * (MOST_WAITING - 1) / MOST_WAITING <= took * SHARE * 1.2

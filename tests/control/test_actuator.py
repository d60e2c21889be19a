"""The actuator's memory of writes that were answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from queuectl.control.leader.actuator import Actuator
from queuectl.domain.ledger import Purpose
from queuectl.lifecycle.outstanding_writes import POD, Write
from queuectl.telemetry.metrics import Metrics
from tests.doubles.cluster import FakeCluster

GANGS = [f"gang-{number}" for number in range(50)]


class Pods(FakeCluster):
    """Accepts every pin and returns version 5 of the pod."""

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        await asyncio.sleep(0)
        return 5


class Ledger:
    """Each gang has one pin to write until the watch shows it."""

    def __init__(self) -> None:
        self.owing = set(GANGS)
        self.asked = asyncio.Event()

    def due(self, uid: str) -> list[Write]:
        self.asked.set()
        if uid not in self.owing:
            return []
        return [Write(POD, "n", uid, f"pod-of-{uid}", 1, {"metadata": {}}, Purpose.PIN, 1)]


@asynccontextmanager
async def acting(ledger: Ledger) -> AsyncIterator[Actuator]:
    actuator = Actuator(Pods(), ledger.due, Metrics(), 4)
    task = asyncio.create_task(actuator.run())
    yield actuator
    task.cancel()
    await asyncio.wait({task})


async def poked(actuator: Actuator) -> None:
    actuator.poke(GANGS)
    await actuator.settled()


@pytest.mark.parametrize("ends", ["the watch shows the pins", "the jobs are deleted"])
async def test_a_write_that_is_no_longer_due_is_forgotten(ends: str) -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        await poked(actuator)
        assert len(actuator._assumed) == len(GANGS), "a write is not sent twice before its echo"
        if ends == "the watch shows the pins":
            ledger.owing.clear()
            await poked(actuator)
        else:
            for uid in GANGS:
                actuator.forget(uid)
        assert actuator._assumed == {}


async def test_a_job_that_is_deleted_during_a_write_leaves_no_memory() -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        actuator.poke(GANGS)
        await ledger.asked.wait()
        ledger.owing.clear()
        for uid in GANGS:
            actuator.forget(uid)
        await actuator.settled()
        assert actuator._assumed == {}

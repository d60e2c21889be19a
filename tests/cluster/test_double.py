"""The double fulfills the contract of the real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from queuectl.domain.jobs import PodRecord
from queuectl.localcluster import NodeSpec
from tests.cluster.conformance import ClusterConformance
from tests.cluster.world import View, scheduled
from tests.doubles.apiserver import CLUSTER_WIDE
from tests.doubles.cluster import FakeCluster


class FakeWorld:
    """See :class:`tests.cluster.world.World`."""

    namespace = "default"

    def __init__(self) -> None:
        self.cluster = FakeCluster(
            NodeSpec(racks_per_block=2, hosts_per_rack=2).documents(), clock=time.time
        )
        self.view = View()

    async def submit(self, document: Mapping[str, Any]) -> str:
        return self.cluster.submit(document)

    async def user_patch(self, resource: str, name: str, patch: Mapping[str, Any]) -> None:
        self.cluster.user_patch(resource, self.namespace, name, patch)

    async def delete_job(self, kind: str, name: str) -> None:
        [job] = [j for j in self.view.jobs.values() if (j.kind, j.name) == (kind, name)]
        self.cluster.delete_job(job.uid)

    async def finish(self, uid: str) -> None:
        self.cluster.finish(uid)

    async def fail(self, pod: PodRecord) -> None:
        self.cluster.fail_pod(pod.name, pod.namespace)

    async def delete_node(self, name: str) -> None:
        self.cluster.delete_node(name)

    async def create(self, resource: str, document: Mapping[str, Any]) -> None:
        meta = dict(document["metadata"])
        if resource not in CLUSTER_WIDE:
            meta["namespace"] = self.namespace
        self.cluster.server.create(resource, {**document, "metadata": meta})

    async def protect(self, pod: PodRecord, budgets: int) -> None:
        self.cluster.budgets[pod.name] = budgets

    async def scheduled(self, pod: PodRecord) -> Mapping[str, Any]:
        return scheduled(self.cluster.server.get("pods", pod.namespace, pod.name))

    async def interrupt(self) -> None:
        self.cluster.down = True
        await asyncio.sleep(0)
        self.cluster.down = False

    async def events_of(self, uid: str) -> list[tuple[str, str, str]]:
        return [(e.kind, e.reason, e.message) for e in self.cluster.events if e.uid == uid]

    def pods_end(self, *, slowly: bool) -> None:
        self.cluster.controllers.hold_ends = slowly

    async def until(self, holds: Callable[[], object], what: str) -> None:
        for _ in range(50):
            if holds():
                return
            self.cluster.step()
            await asyncio.sleep(0)
        raise AssertionError(f"timeout while waiting for {what}")


@pytest.fixture
async def world() -> AsyncIterator[FakeWorld]:
    one = FakeWorld()
    watch = asyncio.create_task(one.cluster.watch(one.view.sink, one.view.synced.append))
    await asyncio.sleep(0)
    yield one
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


class TestDouble(ClusterConformance):
    pass

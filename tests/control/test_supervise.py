"""A process reports a missing permission on /readyz and continues once it has it. A standby prepares for requests."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from queuectl.control import kueue, supervisor
from queuectl.control.leader.loop import Loop
from queuectl.control.questions import viewer
from queuectl.control.questions.standby import Standby
from queuectl.control.settings import Settings
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.errors import StoreUnavailable, WriteRefused
from queuectl.domain.quantity import CPU
from queuectl.domain.records import LeaderRecord
from queuectl.domain.snapshot import Snapshot
from tests.control.process import running, until
from tests.control.rig import configuration, nodes
from tests.control.test_limit_range import limit_range, silent
from tests.control.test_pod_groups import pod
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore

REFUSAL = "GET validatingadmissionpolicies: 403: queuectl may not get this"


class Restricted(FakeCluster):
    """Refuses the probe of the policies while ``refused``."""

    refused = False

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        if self.refused:
            raise WriteRefused(REFUSAL)
        return await super().probe_policies(kueue=kueue)


def led_by_another() -> FakeCluster:
    """Another process holds its lease for a minute."""
    cluster = FakeCluster()
    cluster.leader = LeaderRecord("another", 1, 0.0, 60.0, "1")
    return cluster


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(kueue, "POLL_SECONDS", 0.01)


async def test_a_process_waits_for_the_end_of_a_refusal(database_url: str) -> None:
    cluster = Restricted()
    cluster.refused = True
    async with running(database_url, cluster) as supervisor:
        await until(
            lambda: any(REFUSAL in b for b in supervisor.blockers()), "the blocker is reported"
        )
        assert cluster.leader is None
        cluster.refused = False
        await until(lambda: cluster.leader is not None, "it leads")
        await until(lambda: not supervisor.blockers(), "it is ready")


async def test_a_process_that_waits_to_begin_keeps_nothing_of_deleted_pods(
    database_url: str,
) -> None:
    cluster = Restricted()
    cluster.refused = True
    async with running(database_url, cluster) as supervisor:
        await until(
            lambda: any(REFUSAL in b for b in supervisor.blockers()), "the blocker is reported"
        )
        mirror = supervisor._mirror
        uid = cluster.submit_pod(pod("g-1", "g", 2))
        await until(lambda: uid in mirror.pods, "the watch has shown the pod")
        cluster.server.remove("pods", cluster.server.get("pods", "default", "g-1"))
        await until(lambda: uid not in mirror.pods, "the watch has shown the deletion")
        assert (mirror.moved_pods, mirror.touched, mirror.edited) == (set(), set(), set())


async def test_a_process_continues_by_itself_to_compute_the_requests_of_many_jobs(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_ASKED", 1)
    cluster = led_by_another()
    async with running(database_url, cluster) as process:
        for number in range(4):
            cluster.submit(silent("Job", f"job-{number}", 1))
        jobs = process._mirror.jobs
        await until(lambda: len(jobs) == 4, "the watch has shown the jobs")
        cluster.server.create("limitranges", limit_range(defaultRequest={"cpu": "40"}))
        await until(
            lambda: {job.podsets[0].shape.requests[CPU] for job in jobs.values()} == {40_000},
            "all have the requests that the LimitRange gives them",
        )


async def test_a_leader_waits_for_the_end_of_a_refusal_after_kueue_is_installed(
    database_url: str,
) -> None:
    cluster = Restricted()
    async with running(database_url, cluster) as supervisor:
        await until(lambda: cluster.leader is not None, "it leads")
        cluster.refused = True
        cluster.kueue = True
        await until(
            lambda: any(REFUSAL in b for b in supervisor.blockers()), "the blocker is reported"
        )
        cluster.refused = False
        await until(lambda: not supervisor.blockers(), "it is ready")


async def test_pods_with_kueues_keys_are_read_again_when_these_keys_begin_to_count(
    database_url: str,
) -> None:
    """They do not change by themselves: they wait behind the gate of a policy."""
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    for document in configuration(16):
        await store.put_config(document)
    await store.close()
    cluster = FakeCluster(nodes(2))
    cluster.kueue_keys = False
    async with running(database_url, cluster) as supervisor:
        await until(lambda: cluster.leader is not None, "it leads")
        uid = cluster.submit_pod(pod("early", gpus=1))
        await until(lambda: uid in supervisor._mirror.pods, "the watch has shown the pod")
        assert not supervisor._mirror.jobs
        cluster.kueue_keys = True
        await until(lambda: bool(supervisor._mirror.jobs), "the pod is a workload")
        cluster.kueue_keys = False
        await until(lambda: not supervisor._mirror.jobs, "it is not a workload")


class Unanswering(FakeCluster):
    """One resource cannot be compared with the API server."""

    why = ""

    async def catch_up(self) -> None:
        while self.why:  # noqa: ASYNC110 - as the real one asks again
            await asyncio.sleep(0.001)
        await super().catch_up()

    def uncompared(self) -> list[str]:
        return [self.why] if self.why else []


async def test_a_leader_that_waits_for_one_resource_is_not_ready(database_url: str) -> None:
    cluster = Unanswering()
    cluster.why = "rayjobs: not compared with the API server: 500: a conversion webhook"
    async with running(database_url, cluster) as supervisor:
        await until(lambda: bool(supervisor.blockers()), "it is not ready")
        await until(
            lambda: supervisor.blockers() == [f"watch: {cluster.why}"], "the reason is reported"
        )
        cluster.why = ""
        await until(lambda: not supervisor.blockers(), "it is ready")


async def test_a_standby_copies_the_ledger_before_the_first_request(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Snapshot | None] = []
    copied = Standby.snapshot

    async def noted(standby: Standby) -> Snapshot | None:
        copies.append(await copied(standby))
        return copies[-1]

    monkeypatch.setattr(Standby, "snapshot", noted)
    monkeypatch.setattr(viewer, "STANDBY_SECONDS", 0.01)
    async with running(database_url, led_by_another()):
        await until(lambda: len(copies) == 1, "the standby has a copy")


async def test_a_standby_whose_database_does_not_answer_waits_for_a_request(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Standby] = []

    async def unanswered(standby: Standby) -> Snapshot:
        asked.append(standby)
        raise StoreUnavailable("down")

    monkeypatch.setattr(Standby, "snapshot", unanswered)
    monkeypatch.setattr(viewer, "STANDBY_SECONDS", 0.01)
    async with running(database_url, led_by_another()) as standby:
        await until(lambda: len(asked) == 1, "the database was asked")
        assert not standby.blockers()


async def test_a_leader_that_loses_its_lease_frees_what_it_led_with(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby it allocates little, so the interpreter would collect these objects hours later."""
    led_with: list[ref[object]] = []

    class Seen(Loop):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            led_with.extend(map(ref, (self, self.leader_state, self.leader_state.ledger)))

    monkeypatch.setattr(supervisor, "Loop", Seen)
    cluster = FakeCluster()
    gc.disable()
    try:
        async with running(database_url, cluster, Settings(lease_renew=0.05)):
            await until(lambda: len(led_with) > 0, "it leads")
            cluster.leader = LeaderRecord("another", 9, 0.0, 60.0, "1")
            await until(lambda: not any(each() for each in led_with), "it follows, and all is free")
    finally:
        gc.enable()

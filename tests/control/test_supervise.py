"""A process reports a missing permission on /readyz and continues once it has it. A standby prepares for requests."""

from __future__ import annotations

import pytest

from queuectl.control import kueue, supervisor
from queuectl.control.questions import viewer
from queuectl.control.questions.standby import Standby
from queuectl.domain.errors import StoreUnavailable, WriteRefused
from queuectl.domain.records import LeaderRecord
from queuectl.domain.snapshot import Snapshot
from tests.control.process import running, until
from tests.doubles.cluster import FakeCluster

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

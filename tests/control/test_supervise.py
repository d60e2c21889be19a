"""A process without a permission reports it on /readyz, and continues once it has the permission."""

from __future__ import annotations

import pytest

from queuectl.control import kueue, supervisor
from queuectl.domain.errors import WriteRefused
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

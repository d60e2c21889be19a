"""After a loss of the database with gangs in every state, the ledger is rebuilt from the cluster; no gang starts twice."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.control import composition, supervisor
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.recovery import Recovered, recover
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.commands import BY_ADMIN, Action
from queuectl.domain.errors import BadInput, WriteRefused
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.objects.keys import (
    ATTEMPT_LABEL,
    ORIGINAL_PRIORITY_CLASS,
    PREEMPT_REQUESTED,
    STATUS_ANNOTATION,
)
from queuectl.objects.kinds import KINDS
from tests.control.alike import ALIKE
from tests.control.process import running, until
from tests.control.rig import Rig, gang, live, rig
from tests.doubles.cluster import FakeCluster
from tests.support.postgres import TestPostgres

NAMES = ("runs", "starts", "leaves", "held", "held-later", "given-up", "waits")


async def recovered(world: Rig) -> Recovered:
    clock = SteadyClock()
    leadership = Leadership(
        world.cluster, world.store, clock, holder="recover", duration=15.0, renew=2.0
    )

    async def configured() -> None:
        """The rig has stored the configuration already."""

    return await recover(
        world.store, world.cluster, world.settings, clock, leadership, KINDS, configured
    )


async def in_every_state(world: Rig, kind: str) -> dict[str, str]:
    """Gangs by their state at the loss of the controller and its database."""
    uids = {name: world.cluster.submit(gang(kind, name, 2)) for name in NAMES[:1]}
    await world.until_state(uids["runs"], State.RUNNING)
    for name, action in (("held", Action.HOLD), ("given-up", Action.DEACTIVATE)):
        uids[name] = world.cluster.submit(gang(kind, name, 2))
        await world.until_state(uids[name], State.RUNNING)
        await world.ask(uids[name], action)
        await shows(world, uids[name], "Held: Held" if action is Action.HOLD else "Deactivated: ")
    for name in ("leaves", "held-later"):
        uids[name] = world.cluster.submit(gang(kind, name, 2))
        await world.until_state(uids[name], State.RUNNING)
    uids["waits"] = world.cluster.submit(gang(kind, "waits", 90))
    await world.until_entry(uids["waits"], lambda e: e.reason.code is not Code.QUEUED, "refused")
    world.cluster.controllers.hold_ends = True
    await world.ask(uids["leaves"], Action.REQUEUE)
    await world.ask(uids["held-later"], Action.HOLD)
    for name in ("leaves", "held-later"):
        uid = uids[name]
        await world.until(partial(suspended, world, uid), f"{name} is suspended")
    uids["starts"] = world.cluster.submit(gang(kind, "starts", 2))
    await world.until(lambda: not suspended(world, uids["starts"]), "it is resumed")
    await world.stop()
    return uids


def suspended(world: Rig, uid: str) -> bool:
    return world.cluster.job(uid).suspended


async def shows(world: Rig, uid: str, begins: str) -> None:
    await world.until(
        lambda: world.cluster.job(uid).status.startswith(begins), f"its status begins with {begins}"
    )


PARKED: Final = {"claims-held": State.HELD, "claims-deactivated": State.DEACTIVATED}
CLAIMS: Final = {
    "claims-running": "Running: Running",
    "claims-starting": "Starting: Admitted",
    "claims-leaving": "Evicting: Preempted",
    "claims-held": "Held: Held",
    "claims-deactivated": "Deactivated: Deactivated",
}
"""Status annotations that tenants write on new jobs."""


def forge(world: Rig, kind: str, name: str) -> str:
    """A job whose annotations claim a running attempt with a priority that its label does not give."""
    document = gang(kind, name, 2)
    document["metadata"]["annotations"] = {
        STATUS_ANNOTATION: CLAIMS[name],
        ORIGINAL_PRIORITY_CLASS: "claimed",
        PREEMPT_REQUESTED: "2026-01-01T00:00:00Z",
    }
    spec = document["spec"]
    policy = spec if kind == "Job" else spec.setdefault("runPolicy", {})
    policy["suspend"] = False
    parts = [spec] if kind == "Job" else spec["pytorchReplicaSpecs"].values()
    for part in parts:
        metadata = part["template"].setdefault("metadata", {})
        metadata["labels"] = {**metadata.get("labels", {}), ATTEMPT_LABEL: "7"}
    return world.cluster.submit(document)


@pytest.mark.parametrize("kind", ALIKE)
async def test_annotations_of_a_tenant_neither_admit_nor_release_nor_set_a_priority(
    database_url: str, postgres: TestPostgres, kind: str
) -> None:
    """A job that claims to be held is held: that is not an advantage for its tenant."""
    async with rig(database_url, 8) as world:
        held = world.cluster.submit(gang(kind, "held", 2))
        await world.ask(held, Action.HOLD)
        await shows(world, held, "Held: Held")
        await world.stop()
        cluster = world.cluster
        cluster.server.create(
            "priorityclasses", {"metadata": {"name": "claimed"}, "value": 1_000_000}
        )
    running = {"metadata": {"annotations": {STATUS_ANNOTATION: CLAIMS["claims-running"]}}}
    with pytest.raises(WriteRefused):
        cluster.user_patch(kind, "default", "held", running)
    name = await postgres.fresh()
    async with rig(postgres.server.url(name), 8, cluster=cluster) as world:
        world.running = False
        uids = {claim: forge(world, kind, claim) for claim in CLAIMS}
        await recovered(world)
        entries = {e.name: e for e in (await world.store.load()).entries}
        assert {each.name: each.state for each in entries.values()} == {
            "held": State.HELD,
            **{claim: PARKED.get(claim, State.PENDING) for claim in CLAIMS},
        }
        for claim in CLAIMS:
            entry = entries[claim]
            assert (entry.attempt, entry.placement, entry.priority) == (
                0,
                None,
                entries["held"].priority,
            )
        assert [pod for uid in uids.values() for pod in cluster.pods_of(uid)] == []
    await postgres.drop(name)


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_lost_database_loses_no_gang_and_starts_none_twice(
    database_url: str, postgres: TestPostgres, kind: str
) -> None:
    async with rig(database_url, 8) as world:
        uids = await in_every_state(world, kind)
        before = {pod.uid: pod.node for pod in live(world.cluster.pods_of(uids["runs"]))}
        cluster = world.cluster
    name = await postgres.fresh()
    async with rig(postgres.server.url(name), 8, cluster=cluster) as world:
        world.running = False
        found = await recovered(world)
        entries = {e.name: e for e in (await world.store.load()).entries}
        assert {name: entry.state for name, entry in entries.items()} == {
            "runs": State.RUNNING,
            "starts": State.EVICTING,
            "leaves": State.EVICTING,
            "held": State.HELD,
            "held-later": State.EVICTING,
            "given-up": State.DEACTIVATED,
            "waits": State.PENDING,
        }
        assert sum(found.states.values()) == len(NAMES)
        assert entries["runs"].attempt == 1
        for parked in ("held", "held-later", "given-up"):
            why = entries[parked].parked
            assert why is not None
            assert why.details[BY_ADMIN], "a tenant does not end a hold that can be from an admin"
        with pytest.raises(BadInput, match="has workloads"):
            await recovered(world)

        world.running = True
        cluster.controllers.hold_ends = False
        for again in ("starts", "leaves"):
            assert (await world.until_state(uids[again], State.RUNNING)).attempt == 2
        await world.until_state(uids["held-later"], State.HELD)
        assert {pod.uid: pod.node for pod in live(cluster.pods_of(uids["runs"]))} == before
        for still in ("held", "held-later", "given-up", "waits"):
            assert live(cluster.pods_of(uids[still])) == []
        assert world.kills == 0
        await world.ask(uids["held"], Action.RELEASE, admin=True)
        await world.until_state(uids["held"], State.RUNNING)
    await postgres.drop(name)


async def test_no_process_leads_on_an_empty_database_with_running_gangs_until_recovery(
    database_url: str, postgres: TestPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PROBE_SECONDS", 0.01)
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", "runs", 2))
        await world.until_state(uid, State.RUNNING)
        cluster = world.cluster
    written, pods = len(cluster.writes), {pod.uid for pod in live(cluster.pods_of(uid))}
    name = await postgres.fresh()
    async with rig(postgres.server.url(name), 4, cluster=cluster) as world:
        world.running = False
        async with running(postgres.server.url(name), cluster) as process:
            blocker = "has started 1 job that did not end (Job default/runs)"
            await until(
                lambda: any(blocker in b for b in process.blockers()), "the blocker is reported"
            )
            assert any("queuectl recover" in b for b in process.blockers())
            assert (cluster.leader, len(cluster.writes)) == (None, written)
            await recovered(world)
            await until(lambda: not process.blockers(), "it is ready")
            await until(lambda: bool(cluster.leader and cluster.leader.holder), "it leads")
            assert (await world.until_state(uid, State.RUNNING)).attempt == 1
        assert {pod.uid for pod in live(cluster.pods_of(uid))} == pods
    await postgres.drop(name)


SLOW: Final = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE TRIGGER slow AFTER INSERT ON workloads EXECUTE FUNCTION slow();
"""


async def test_a_database_that_takes_long_for_all_workloads_is_recovered(
    database_url: str, postgres: TestPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that writes them all can take longer than a statement of a leader may."""
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "runs", 2))
        await world.until_state(uid, State.RUNNING)
        cluster = world.cluster

    async def connect(*_: object, **__: object) -> FakeCluster:
        return cluster

    name = await postgres.fresh()
    for statement in SLOW.strip().split(";\n"):
        await postgres.execute(statement.removesuffix(";"), name)
    url = postgres.server.url(name)
    hasty = DatabaseSettings(url, statement_timeout=0.2, answer_timeout=0.3)
    monkeypatch.setattr(DatabaseSettings, "from_environment", lambda *_, **__: hasty)
    monkeypatch.setattr(KubernetesCluster, "connect", connect)
    found = await composition.recovered(Settings(database_url=url), [])
    assert found.states == {State.RUNNING: 1}
    await postgres.drop(name)

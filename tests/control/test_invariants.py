"""A violated invariant is in the metric, in an Event and in the complete check. Without a violation there is nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from queuectl.api.app import create_app
from queuectl.cli.doctor import judge
from queuectl.cli.doctor.findings import Level
from queuectl.control.leader.invariants import InvariantChecker
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.domain.ledger import VIOLATED, Document, Entry, EntryChange, Invariant, State
from queuectl.domain.workload import Placement
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedDiagnoser, FixedHealth
from tests.control.rig import Rig, gang, rig
from tests.doubles.store import MemoryStore

Fault = Callable[[Rig, str], None]
ATTEMPT = "queuectl.dev/attempt"


def believe(world: Rig, uid: str, change: Callable[[Entry], Entry]) -> None:
    """Change a gang in the leader's memory."""
    assert world.loop is not None
    ledger = world.loop.leader_state.ledger
    entry = ledger.get(uid)
    assert entry is not None
    ledger.apply([EntryChange(entry, change(entry), 0.0)])


def fields_disagree(world: Rig, uid: str) -> None:
    believe(world, uid, lambda entry: replace(entry, stop_at=5.0))


def slots_for_two_on_a_node(world: Rig, uid: str) -> None:
    def doubled(entry: Entry) -> Entry:
        assert entry.placement is not None
        [podset] = entry.placement.podsets
        nodes = tuple((node, count * 2) for node, count in podset.nodes)
        return replace(entry, placement=Placement((replace(podset, nodes=nodes),)))

    believe(world, uid, doubled)


def second_pod(world: Rig, uid: str, **labels: str) -> Document:
    """A copy of the first pod with other labels."""
    [pod] = world.cluster.server.owned(uid)
    twin: dict[str, Any] = copy.deepcopy(dict(pod))
    twin["metadata"]["labels"].update(labels)
    for name in ("uid", "resourceVersion"):
        twin["metadata"].pop(name, None)
    twin["metadata"]["name"] += "-twin"
    return world.cluster.server.create("pods", twin)


def another_attempt_runs_too(world: Rig, uid: str) -> None:
    second_pod(world, uid, **{ATTEMPT: "7"})


def only_another_attempt_runs(world: Rig, uid: str) -> None:
    [pod] = world.cluster.server.owned(uid)
    world.cluster.server.edit(
        "pods", pod, lambda document: document["metadata"]["labels"].update({ATTEMPT: "7"})
    )


def pod_on_another_node(world: Rig, uid: str) -> None:
    [pod] = world.cluster.server.owned(uid)
    other = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
    world.cluster.server.edit("pods", pod, lambda document: document["spec"].update(nodeName=other))


FAULTS: dict[str, tuple[Invariant, Fault]] = {
    "entry": (Invariant.ENTRY, fields_disagree),
    "capacity": (Invariant.CAPACITY, slots_for_two_on_a_node),
    "once": (Invariant.ONCE, another_attempt_runs_too),
    "whole": (Invariant.WHOLE, only_another_attempt_runs),
    "placed": (Invariant.PLACED, pod_on_another_node),
}


def counted(world: Rig, invariant: Invariant) -> float:
    name = "queuectl_invariant_violations_total"
    return world.metrics.registry.get_sample_value(name, {"reason": invariant}) or 0.0


def event_of(world: Rig, uid: str, invariant: Invariant) -> bool:
    return any(
        (event.uid, event.kind, event.reason) == (uid, "Warning", VIOLATED)
        and event.message.startswith(f"{invariant}: ")
        for event in world.cluster.events
    )


async def test_each_violated_invariant_is_in_the_metric_the_event_and_the_check(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.control.leader.invariants.EVERY_SECONDS", 0.02)
    monkeypatch.setattr("queuectl.control.leader.invariants.CPU_SHARE", 1.0)
    monkeypatch.setattr("queuectl.control.leader.invariants.AGAIN_SECONDS", 0.02)
    with capture_logs() as logs:
        async with rig(database_url, 6) as world:
            names = [*FAULTS, "database"]
            uids = {name: world.cluster.submit(gang("Job", name, 1)) for name in names}
            for uid in uids.values():
                await world.until_state(uid, State.RUNNING)
            assert world.loop is not None
            clean = await world.loop.check()
            assert (clean.workloads, clean.pods, clean.nodes, clean.violations) == (6, 6, 6, ())
            assert [counted(world, invariant) for invariant in Invariant] == [0.0] * len(Invariant)

            monkeypatch.setattr(
                world, "check", lambda: None
            )  # the cluster violates the invariants on purpose
            for name, (invariant, fault) in FAULTS.items():
                fault(world, uids[name])
                await seen(world, uids[name], invariant)
            await edit_row(database_url, uids["database"])
            await seen(world, uids["database"], Invariant.DATABASE)
    assert {line["invariant"] for line in logs if line["event"] == "invariant_violated"} == {
        *Invariant
    }


async def seen(world: Rig, uid: str, invariant: Invariant) -> None:
    """Wait for it in the metric, in an Event and in a complete check, which REST and the doctor use."""
    await world.until(
        lambda: counted(world, invariant) and event_of(world, uid, invariant), f"{invariant} seen"
    )
    assert world.loop is not None
    checked = await world.loop.check()
    assert (invariant, uid) in {one.key for one in checked.violations}
    diagnoser = FixedDiagnoser()
    diagnoser.checked = checked
    app = create_app(world.store, FixedHealth(), world.metrics.registry, diagnoser)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = (await client.get("/api/v1/invariants")).json()
    found = [one for one in judge.audit(answer) if f": {invariant}: " in one.message]
    assert {one.level for one in found} == {Level.PROBLEM}


async def edit_row(url: str, uid: str) -> None:
    """Write to the database without the leader."""
    engine = make_engine(DatabaseSettings(url))
    async with engine.begin() as connection:
        edit = text("UPDATE workloads SET priority = 77 WHERE uid = :uid")
        await connection.execute(edit, {"uid": uid})
    await engine.dispose()


async def test_a_process_that_does_not_lead_names_the_leader() -> None:
    diagnoser = FixedDiagnoser()
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry, diagnoser)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/api/v1/invariants")
    assert answer.status_code == 503
    assert "queuectl-1 leads" in answer.json()["detail"]


@pytest.mark.parametrize("unwritten", [True, False])
async def test_a_row_differs_from_an_entry_whose_change_is_being_written(unwritten: bool) -> None:
    entry = Entry("u1", "Job", "a", "train", State.PENDING)

    class Store:
        async def get_workload(self, uid: str) -> Entry:
            return replace(entry, priority=7)

    checker: Any = object.__new__(InvariantChecker)
    writing = {entry.uid} if unwritten else set()
    checker._leader_state = SimpleNamespace(ledger={entry.uid: entry}, unwritten=writing)
    checker._store = Store()
    assert bool(await checker._of_rows([entry])) is not unwritten

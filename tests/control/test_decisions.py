"""Each cycle that changes something leaves a record, and one that changes nothing leaves none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from queuectl.control.leader.decisions import Decider, with_relocations
from queuectl.control.leader.planning import record_of
from queuectl.domain.checks import CheckState, CheckStatus
from queuectl.domain.events import Event, Evict, NoteAdded
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State, check_once
from queuectl.domain.plan import Admission, Cost, Move, Plan, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.lifecycle.machine import handle
from tests.control.rig import gang, rig
from tests.db.histories import submitted
from tests.planner.build import world as snapshot_of
from tests.unit.test_state import (
    CONFIG,
    EDITED,
    ENTRY,
    JOB,
    PLACEMENT,
    READY,
    RESUMED,
    RUNNING,
    World,
    held_for_checks,
)

DOUBLE_GPUS = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "queuectl": {"accounting": {"gpuWeights": {"nvidia.com/gpu": 2}}},
}


async def test_a_cycle_that_starts_a_gang_is_recorded_with_its_steps(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        (started,) = [d for d in await world.store.decisions() if d.decision.started]
        assert (started.decision.gpus, started.decision.nodes, started.decision.waiting) == (
            16,
            2,
            0,
        )
        lines = await world.store.history(None, started.after)
        own = [line for line in lines if line.id <= started.upto]
        assert [(line.uid, line.to_state) for line in own] == [(first, State.STARTING)]
        assert {(line.epoch, line.cycle) for line in own} == {(started.epoch, started.cycle)}


async def test_a_gang_starts_whose_size_differs_from_the_number_of_its_units(
    database_url: str,
) -> None:
    """A unit of its resource is two GPUs."""
    async with rig(database_url, 2) as world:
        await world.store.put_config(DOUBLE_GPUS)
        first = world.cluster.submit(gang("Job", "first", 2))
        entry = await world.until_state(first, State.RUNNING)
        assert entry.gpus == 32


async def test_a_cycle_that_evicts_is_recorded_with_the_preemptor_and_the_victim(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        (evicted,) = [d.decision for d in await world.store.decisions() if d.decision.evicted]
        assert (evicted.evicted, evicted.started, evicted.running, evicted.pending) == (1, 0, 1, 1)
        assert evicted.reasons == {"WaitingForPreemptedWorkloads": 1}


async def test_cycles_that_find_nothing_new_leave_no_record(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 1))

        async def has_reason() -> bool:
            return any(line.event != "Queued" for line in await world.store.history(waits))

        await world.until(has_reason, "the second gang is pending with a reason")
        before = await world.store.decisions()
        loop = world.loop
        assert loop is not None
        cycle = loop._writer.cycle

        def planned() -> bool:
            loop._wakeup.plan()
            return loop._writer.cycle > cycle + 5

        await world.until(planned, "five more plans")
        assert await world.store.decisions() == before


def test_changes_without_a_line_of_history_have_no_record() -> None:
    new = submitted("u1")
    quiet = EntryChange(new.after, new.after, new.at, note=None)
    assert record_of(snapshot_of([]), Plan(), [quiet], 0.1) is None
    assert record_of(snapshot_of([]), Plan(), [quiet, new], 0.1) is not None


RUNS = Entry(
    "u1", "Job", "team", "train", State.RUNNING, cluster_queue="pool", attempt=1, version=4
)
MIGRATED = Reason(Code.DEFRAGMENTED, "migrated", {"clusterQueue": "pool", "lostGpuSeconds": 1})


def changed(event: Event, entry: Entry = RUNS) -> EntryChange:
    change = handle(entry, event, 1.0)
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("decided", "kept"),
    [
        ([NoteAdded(Reason(Code.WOULD_RECLAIM, "idle"))], [Code.DEFRAGMENTED]),
        ([Evict(Reason(Code.PREEMPTED, "preempted"))], [Code.PREEMPTED]),
        ([], [Code.DEFRAGMENTED]),
    ],
    ids=["a note", "an eviction", "nothing"],
)
def test_a_gang_that_is_moved_off_a_node_alongside_a_plan_has_one_change(
    decided: list[Event], kept: list[Code]
) -> None:
    other = changed(NoteAdded(Reason(Code.WOULD_RECLAIM, "idle")), replace(RUNS, uid="u2"))
    changes = with_relocations(
        [other, *map(changed, decided)],
        [changed(Evict(MIGRATED)), changed(Evict(MIGRATED), replace(RUNS, uid="u3"))],
    )
    check_once(changes)
    assert other in changes
    assert [c.note.reason.code for c in changes if c.note and c.after.uid == "u1"] == kept
    assert ("u3" in {c.after.uid for c in changes}) == (kept == [Code.DEFRAGMENTED])


def test_gangs_are_relocated_only_if_each_of_them_runs_as_it_did() -> None:
    """None of them leaves its nodes for less than the nodes that the plan needs."""
    world = World(RUNNING, records=[RESUMED, *READY])
    workload = Workload("u1", "Job", "a", "train", JOB.podsets)
    snapshot = Snapshot(
        100.0, world.mirror.fleet, CONFIG, admitted=(Admitted(workload, PLACEMENT),)
    )
    decider = Decider(world.mirror, world.ledger)
    moves = [Move(uid, "u3", PLACEMENT, Cost(0, 0, Fraction(16))) for uid in ("u1", "u2")]
    (change,) = decider.relocations(snapshot, moves[:1], 200.0, 100.0)
    assert (change.after.uid, change.after.state) == ("u1", State.EVICTING)
    assert decider.relocations(snapshot, moves, 200.0, 100.0) == []


@pytest.mark.parametrize(
    ("known", "written"),
    [
        (Code.QUEUED, True),
        (Code.UNDECIDED, True),
        (Code.WAITING_FOR_QUOTA, False),
        (Code.TOPOLOGY_PLACEMENT_FAILED, False),
    ],
)
def test_a_gang_that_a_plan_leaves_out_keeps_the_reason_of_an_earlier_plan(
    known: Code, written: bool
) -> None:
    entry = replace(ENTRY, reason=Reason(known, "of an earlier plan"))
    world = World(entry, records=[replace(JOB, suspended=True)])
    refused = Refusal("u1", (Reason(Code.PENDING_EVALUATION, "not evaluated yet"),))
    workload = Workload("u1", "Job", "a", "train", JOB.podsets, queue="q")
    snapshot = Snapshot(100.0, world.mirror.fleet, CONFIG, pending=(Pending(workload),))
    decider = Decider(world.mirror, world.ledger)
    changes = decider.changes(snapshot, Plan(pending=(refused,)), 100.0)
    assert bool(changes) == written
    refused = Refusal("u1", (Reason(Code.WAITING_FOR_QUOTA, "16 used of 16"),))
    assert decider.changes(snapshot, Plan(pending=(refused,)), 200.0) != []


@pytest.mark.parametrize(("job", "states"), [(JOB, [State.STARTING]), (EDITED, [])])
def test_an_approval_starts_no_gang_whose_request_was_edited_and_is_not_observed_yet(
    job: JobRecord, states: list[State]
) -> None:
    world = World(held_for_checks(CheckStatus("c", CheckState.READY)), records=[job])
    workload = Workload("u1", "Job", "a", "train", job.podsets, queue="q")
    snapshot = Snapshot(20.0, world.mirror.fleet, CONFIG, pending=(Pending(workload),))
    plan = Plan(admitted=(Admission("u1", PLACEMENT),))
    changes = Decider(world.mirror, world.ledger).changes(snapshot, plan, 20.0)
    assert [change.after.state for change in changes] == states

"""Properties of every snapshot: the verifier accepts, brute force agrees, the same input gives the same bytes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from tests.planner import cases, generate
from tests.planner.build import gang, holding, node, podset, world
from tests.planner.mixed import mixed
from tests.planner.oracle import starts
from tests.support.examples import examples

MANY = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))

batches = st.integers(1, 4).flatmap(lambda n: generate.snapshots(gangs=n, tenants=4))


def under(
    snapshot: Snapshot,
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    within: WithinClusterQueue = WithinClusterQueue.NEVER,
) -> Snapshot:
    """The same snapshot with other policies."""
    config = snapshot.config
    queues = {
        name: replace(q, strategy=strategy, within_cluster_queue=within)
        for name, q in config.cluster_queues.items()
    }
    return replace(snapshot, config=replace(config, cluster_queues=queues))


def started(made: Plan) -> frozenset[str]:
    return frozenset(a.uid for a in made.admitted)


@MANY
@given(batches)
def test_every_plan_is_whole_within_capacity_and_in_order(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert made.proof is not Proof.UNDECIDED


@MANY
@given(batches)
def test_brute_force_starts_the_same_gangs(snapshot: Snapshot) -> None:
    """With one flavor the walk is the lexicographic optimum; with more, a kept gang never changes its flavor."""
    calm = under(snapshot)
    wanted = starts(calm)
    got = started(plan(calm))
    vector = [uid in got for uid in wanted]
    if len(calm.config.flavors) == 1:
        assert vector == list(wanted.values())
    else:
        assert vector <= list(wanted.values())


@MANY
@given(batches)
def test_the_first_gang_starts_if_it_fits_in_any_flavor(snapshot: Snapshot) -> None:
    calm = under(snapshot)
    first, fits = next(iter(starts(calm).items()))
    assert (first in started(plan(calm))) == fits


@settings(MANY, max_examples=examples(100))
@given(batches)
def test_state_of_earlier_cycles_changes_nothing(snapshot: Snapshot) -> None:
    fresh = copy.deepcopy(snapshot)
    cache = PlannerCache()
    first = plan(snapshot, cache=cache)
    again = plan(snapshot, cache=cache)
    elsewhere = plan(fresh)
    assert repr(first) == repr(again) == repr(elsewhere)


def after(snapshot: Snapshot, made: Plan) -> Snapshot:
    """The snapshot one cycle later: started gangs run, victims are leaving, leases are held, evicted gangs are leaving."""
    leaving = {p.victim for p in made.preempted} | {e.uid for e in made.evicted}
    repaired = {a.uid: a.placement for a in made.admitted if a.repaired}
    waiting = {p.workload.uid: p for p in snapshot.pending}
    running = [
        replace(
            a,
            leaving=a.leaving or a.workload.uid in leaving,
            placement=repaired.get(a.workload.uid, a.placement),
            lost=() if a.workload.uid in repaired else a.lost,
        )
        for a in snapshot.admitted
    ]
    running += [
        Admitted(waiting[a.uid].workload, a.placement) for a in made.admitted if not a.repaired
    ]
    pending = tuple(replace(waiting[r.uid], lease=r.lease) for r in made.pending)
    return replace(snapshot, pending=pending, admitted=tuple(running))


def gone(snapshot: Snapshot) -> Snapshot:
    """All leaving gangs have left."""
    return replace(snapshot, admitted=tuple(a for a in snapshot.admitted if not a.leaving))


@settings(MANY, max_examples=examples(150))
@given(batches)
def test_a_preemptor_starts_where_it_was_leased_once_its_victims_left(
    snapshot: Snapshot,
) -> None:
    """Whatever else is pending, and in whatever order the victims leave."""
    made = plan(snapshot)
    leased = {r.uid: r.lease for r in made.pending if r.lease is not None}
    waiting = after(snapshot, made)
    between = plan(waiting)
    assert verify(waiting, between) == ()
    still = {r.uid: r.lease for r in between.pending}
    for uid, lease in leased.items():
        assert uid in started(between) or still[uid] == lease
    last = gone(after(waiting, between))
    ended = plan(last)
    assert verify(last, ended) == ()
    placements = {a.uid: a.placement for made in (between, ended) for a in made.admitted}
    for uid, lease in leased.items():
        assert lease is not None
        assert placements[uid] == lease.placement


@pytest.mark.seeds
def test_processes_with_different_hash_seeds_give_the_same_bytes() -> None:
    code = (
        f"from tests.planner.test_plan_properties import print_plans; print_plans({examples(60)})"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    output = outputs.pop()
    assert all(word in output for word in (b"Admission", b"Preemption", b"'consolidated': 2"))


def print_plans(seeds: int) -> None:
    """Plans of all known cases, of clusters that combine all features, and of a consolidated batch; with their statistics."""
    for batch in cases.BATCH:
        print(plan(batch.snapshot))
    for preempt in cases.PREEMPT:
        print(plan(preempt.snapshot(cases.DEFAULT)))
    for seed in range(seeds):
        print(plan(mixed(seed)))
        print(plan(generate.crowded(seed, mixed=seed % 2 == 0)))


def test_pending_entries_keep_queue_order() -> None:
    case = cases.BATCH[-1]
    shuffled = replace(case.snapshot, pending=tuple(reversed(case.snapshot.pending)))
    assert repr(plan(shuffled)) == repr(plan(case.snapshot))
    refused = [r.uid for r in plan(shuffled).pending]
    assert refused == sorted(refused)


def test_the_order_of_running_gangs_changes_nothing() -> None:
    """The victims of a reservation have their own order."""
    running = [holding(gang(uid, podset(gpu=4)), {"n0": 1}) for uid in ("a", "b")]
    first = gang("first", podset(gpu=8), priority=1)
    snapshot = world([node("n0", gpu=8)], [first], running)
    (refusal,) = plan(snapshot).pending
    assert refusal.lease is not None
    assert refusal.lease.victims == ("a", "b")
    assert plan(replace(snapshot, admitted=tuple(reversed(running)))) == plan(snapshot)


def test_blocked_entries_pass_through() -> None:
    case = cases.BATCH[0]
    entry: Pending = case.snapshot.pending[0]
    held = replace(entry, blocked=Reason(Code.HELD, "by the user"))
    (refusal,) = plan(replace(case.snapshot, pending=(held,))).pending
    assert refusal.reasons == (held.blocked,)

"""``maxPending`` of a LocalQueue: the oldest gangs up to the limit are considered, and the others wait beyond it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.domain.ledger import Entry, State
from queuectl.domain.pending_limits import beyond_limits, considered, with_reasons
from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    LocalQueue,
    QueueConfig,
    QueueingStrategy,
    StopPolicy,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import MAX_PENDING, Rules
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Growth, Placement
from tests.planner import build
from tests.planner.generate_features import snapshot_of
from tests.support.examples import examples

LEASE = CapacityLease(Placement(()), (), 0.0, 1e12)


def limited(snapshot: Snapshot, limits: Mapping[str, int], default: int = MAX_PENDING) -> Snapshot:
    """``limits``: by name of the LocalQueue."""
    config = snapshot.config
    queues = {
        key: replace(one, max_pending=limits.get(one.name))
        for key, one in config.local_queues.items()
    }
    rules = replace(config.rules, max_pending=default)
    return replace(snapshot, config=replace(config, local_queues=queues, rules=rules))


def waiting(name: str, at: float, queue: str = "main", priority: int = 0, gpu: int = 8) -> Pending:
    shape = build.podset("w", 1, gpu=gpu)
    return Pending(build.gang(name, shape, queue=queue, queued_at=at, priority=priority))


def blocked(pending: Pending, code: Code = Code.HELD) -> Pending:
    return replace(pending, blocked=Reason(code, "not now"))


def reserved(pending: Pending) -> Pending:
    return replace(pending, lease=LEASE)


def growing(pending: Pending) -> Pending:
    return replace(pending, workload=replace(pending.workload, growth=Growth("base", 3)))


A, B, C, D = (waiting(name, at) for at, name in enumerate("abcd"))
OTHER = waiting("o", 9.0, "other")


@pytest.mark.parametrize(
    ("pending", "limits", "default", "beyond"),
    [
        pytest.param([A, B, C], {}, MAX_PENDING, "", id="no limit is reached"),
        pytest.param([A, B, C], {"main": 3}, MAX_PENDING, "", id="as many as the limit"),
        pytest.param([C, A, B], {"main": 2}, MAX_PENDING, "c", id="the newest waits"),
        pytest.param([C, A, B], {}, 2, "c", id="the limit of the Configuration"),
        pytest.param([C, A, B], {"main": 3}, 1, "", id="the limit of the LocalQueue precedes it"),
        pytest.param([A, B, C, OTHER], {"main": 1}, MAX_PENDING, "bc", id="of one LocalQueue only"),
        pytest.param([waiting("z", 1.0), waiting("y", 1.0)], {"main": 1}, 9, "z", id="of the same time: by uid"),
        pytest.param([A, waiting("h", 5.0, priority=9)], {"main": 1}, 9, "h", id="priority does not count"),
        pytest.param([blocked(A), B, C], {"main": 1}, 9, "c", id="a held gang does not count"),
        pytest.param([blocked(A, Code.DEPENDENCY), B], {"main": 1}, 9, "", id="the job it waits for is considered"),
        pytest.param([A, blocked(B), C], {"main": 1}, 9, "c", id="a held gang keeps its reason"),
        pytest.param([A, B, reserved(C)], {"main": 2}, 9, "b", id="a reservation counts first"),
        pytest.param([reserved(A), reserved(B), reserved(C), D], {"main": 1}, 9, "d", id="and is always considered"),
        pytest.param([A, growing(B), growing(C)], {"main": 1}, 9, "", id="pods of an elastic gang that runs"),
        pytest.param([waiting("x", 0.0, "nowhere"), waiting("y", 1.0, "nowhere")], {}, 1, "", id="no LocalQueue"),
        pytest.param([replace(A, workload=build.without_quota(A.workload))] * 2, {}, 1, "", id="in no queue"),
    ],
)  # fmt: skip
def test_gangs_beyond_the_limit(
    pending: Sequence[Pending], limits: Mapping[str, int], default: int, beyond: str
) -> None:
    world = build.world([], pending, (), build.queue("main"), build.queue("other"))
    snapshot = limited(world, limits, default)
    found = beyond_limits(snapshot)
    assert list(found) == list(beyond)
    assert {reason.code for reason in found.values()} <= {Code.TOO_MANY_PENDING}
    given, refusals = considered(snapshot)
    assert [r.uid for r in refusals] == list(beyond)
    assert [p for p in pending if p.workload.uid not in beyond] == list(given.pending)
    assert (given is snapshot) is not bool(beyond)


def test_the_reason_names_the_queue_the_number_of_gangs_and_the_limit() -> None:
    snapshot = limited(build.world([], [A, B, C]), {"main": 2})
    assert beyond_limits(snapshot) == {
        "c": Reason(
            Code.TOO_MANY_PENDING,
            "LocalQueue main has 3 pending gangs; the oldest 2 are considered (maxPending)",
            {"localQueue": "main", "pending": 3, "maxPending": 2},
        )
    }


def test_a_gang_that_is_set_aside_counts_and_keeps_its_reason() -> None:
    snapshot = limited(build.world([], [B, C]), {"main": 2})
    aside = Entry("a", "Job", "team", "a", State.PENDING, queue="main", queued_at=0.5)
    assert list(beyond_limits(snapshot, [aside])) == ["c"]
    assert list(beyond_limits(snapshot, [replace(aside, queued_at=9.0)])) == []
    assert list(beyond_limits(snapshot, [replace(aside, queue="other")])) == []


def test_a_stopped_local_queue_has_its_own_reason() -> None:
    queues = build.config(build.queue()).local_queues
    held = {k: replace(q, stop_policy=StopPolicy.HOLD, max_pending=1) for k, q in queues.items()}
    world = build.world([], [blocked(p, Code.LOCAL_QUEUE_STOPPED) for p in (A, B)])
    snapshot = replace(world, config=replace(world.config, local_queues=held))
    assert not beyond_limits(snapshot)


def test_a_plan_answers_all_gangs_and_starts_none_beyond_the_limit() -> None:
    node = build.node("n", gpu=64)
    urgent = waiting("u", 9.0, priority=100)
    checked = checked_plan(limited(build.world([node], [A, B, urgent]), {"main": 2}))
    assert checked.usable
    assert [a.uid for a in checked.plan.admitted] == ["a", "b"]
    (refusal,) = checked.plan.pending
    assert (refusal.uid, refusal.reasons[0].code) == ("u", Code.TOO_MANY_PENDING)


def test_the_head_of_a_strict_queue_is_among_the_gangs_that_are_considered() -> None:
    """A gang beyond the limit holds back no other gang, whatever its priority."""
    strict = build.queue(within=WithinClusterQueue.NEVER, strategy=QueueingStrategy.STRICT_FIFO)
    tenant = build.holding(build.gang("t", build.podset(gpu=4)), {"n": 1})
    small, large = waiting("small", 0.0, gpu=4), waiting("large", 5.0, priority=9)
    world = build.world([build.node("n", gpu=8)], [small, large], [tenant], strict)
    started = [checked_plan(limited(world, {"main": n})).plan.admitted for n in (1, 2)]
    assert [[a.uid for a in admitted] for admitted in started] == [["small"], []]


# ---- properties


def naive(snapshot: Snapshot, limit: int) -> set[str]:
    """The uids of gangs beyond a limit of each LocalQueue, one by one."""
    queues: dict[object, list[Pending]] = {}
    for pending in snapshot.pending:
        one = pending.workload
        if pending.blocked is None and one.growth is None and one.queue is not None:
            queues.setdefault((one.namespace, one.queue), []).append(pending)
    newest: set[str] = set()
    for gangs in queues.values():
        free = [g for g in gangs if g.lease is None]
        left = max(0, limit - (len(gangs) - len(free)))
        while len(free) > left:
            last = max(free, key=lambda g: (g.workload.queued_at, g.workload.uid))
            newest.add(last.workload.uid)
            free.remove(last)
    return newest


def decisions(plan: Plan, but: Iterable[str] = ()) -> object:
    """All that a plan decides, without the answers for some gangs."""
    out = set(but)
    pending = [refusal for refusal in plan.pending if refusal.uid not in out]
    return replace(plan, pending=tuple(pending), stats={})


def planned(snapshot: Snapshot) -> CheckedPlan:
    checked = checked_plan(snapshot)
    assert checked.usable
    return checked


@given(st.integers(0, 10_000))
def test_a_limit_that_is_not_reached_changes_nothing(seed: int) -> None:
    snapshot = limited(snapshot_of(seed), {}, 30)
    given, refusals = considered(snapshot)
    assert given is snapshot
    assert not refusals
    assert with_reasons(snapshot) is snapshot


@settings(max_examples=examples(60))
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_a_plan_is_that_of_the_oldest_gangs(seed: int, limit: int) -> None:
    """Also with elastic gangs, Budgets, Reservations, Backfill, StrictFIFO and lost nodes."""
    snapshot = limited(snapshot_of(seed), {}, limit)
    newest = naive(snapshot, limit)
    oldest = tuple(p for p in snapshot.pending if p.workload.uid not in newest)
    alone = planned(limited(replace(snapshot, pending=oldest), {}, MAX_PENDING))
    whole = planned(snapshot)  # as a standby, a question and queuectl plan
    given, refusals = considered(snapshot)  # as the leader and a simulation
    assert {r.uid for r in refusals} == newest
    assert decisions(planned(given).plan) == decisions(alone.plan)
    assert decisions(whole.plan, newest) == decisions(alone.plan)
    beyond = {r.uid: r.reasons for r in whole.plan.pending if r.uid in newest}
    assert beyond == {r.uid: r.reasons for r in refusals}


@given(st.integers(0, 10_000), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_does_not_matter(
    seed: int, limit: int, rng: random.Random
) -> None:
    snapshot = limited(snapshot_of(seed), {}, limit)
    mixed = list(snapshot.pending)
    rng.shuffle(mixed)
    assert beyond_limits(replace(snapshot, pending=tuple(mixed))) == beyond_limits(snapshot)


def test_without_a_document_the_limit_is_at_least_25_000() -> None:
    assert Rules().max_pending >= 25_000
    queue = LocalQueue("team", "main", "main")
    limit: Callable[[LocalQueue], int] = QueueConfig().max_pending
    assert (limit(queue), limit(replace(queue, max_pending=7))) == (Rules().max_pending, 7)

"""Planned starts over many cycles: they are kept, they move only for a cause, and no gang waits indefinitely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import SlipCause
from queuectl.domain.queues import Cohort, QueueingStrategy, WithinClusterQueue
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.workload import Duration, Placement
from tests.planner.backfill_clock import Arrival, Clock, job, line, member
from tests.planner.build import NOW, node, queue

NODES = [node(f"n{number}", f"r{number // 2}", gpu=2) for number in range(4)]
RACKS = {each.name: each.labels["rack"] for each in NODES}


@st.composite
def arrivals(
    draw: st.DrawFn,
    queues: Sequence[str] = ("main",),
    priorities: Sequence[int] = (0,),
    levels: Sequence[str | None] = (None, "rack"),
    *,
    gpus: Sequence[int] = (1, 2),
    ends: Sequence[float] = (0.4, 1.0),
    preferred: bool = False,
    partial: bool = False,
) -> list[Arrival]:
    """Gangs that end at their limits or before. ``gpus``: of a pod; ``ends``: parts of the limit."""
    gangs = []
    for number in range(draw(st.integers(4, 8))):
        at = float(draw(st.integers(0, 12)) * 5)
        limit = float(draw(st.integers(1, 6)) * 10)
        pods = draw(st.sampled_from([1, 1, 2, 4]))
        level = draw(st.sampled_from(levels))
        workload = job(
            f"g{number}",
            pods,
            limit,
            queued_at=at,
            priority=draw(st.sampled_from(priorities)),
            gpu=draw(st.sampled_from(gpus)),
            required=None if preferred else level,
            preferred=level if preferred else None,
            least=max(1, pods // 2) if partial and draw(st.booleans()) else None,
            of=draw(st.sampled_from(queues)),
        )
        gangs.append(Arrival(at, workload, limit * draw(st.sampled_from(ends))))
    return gangs


def promises(clock: Clock) -> dict[str, float]:
    """The first planned start of each gang, in seconds of the clock."""
    first: dict[str, float] = {}
    for _, _, made in clock.plans:
        for planned in made.planned:
            first.setdefault(planned.uid, planned.start.at - NOW)
    return first


def assert_kept(clock: Clock, but: frozenset[str] = frozenset()) -> None:
    """Each gang but these starts no later than it was first planned."""
    late = {uid: at for uid, at in promises(clock).items() if clock.started[uid] > at}
    assert late.keys() <= but


@settings(max_examples=15)
@given(arrivals(), st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0]))
def test_each_plan_with_learned_ends_passes_the_check(
    gangs: list[Arrival], planned_starts: int, longest: float
) -> None:
    """Earlier gangs ran up to so many times as long as expected; the clock checks each plan."""
    learned = []
    for each in gangs:
        assert each.workload.duration is not None
        seconds = each.workload.duration.seconds
        duration = Duration(seconds, longest=max(seconds, seconds * longest))
        learned.append(replace(each, workload=replace(each.workload, duration=duration)))
    Clock(NODES, learned, line(planned_starts)).run(until=10_000)


@settings(max_examples=15)
@given(arrivals(), st.integers(1, 3))
def test_no_gang_that_keeps_its_limit_delays_a_planned_start(
    gangs: list[Arrival], planned_starts: int
) -> None:
    clock = Clock(NODES, gangs, line(planned_starts))
    clock.run(until=10_000)
    assert clock.slips == []
    assert_kept(clock)


@settings(max_examples=15)
@given(arrivals())
def test_by_default_later_gangs_delay_only_planned_starts_of_one_pod(gangs: list[Arrival]) -> None:
    clock = Clock(NODES, gangs, line(delay=None))
    clock.run(until=10_000)
    assert clock.slips == []
    single = {each.workload.uid for each in gangs if each.workload.pods == 1}
    assert_kept(clock, frozenset(single))


@settings(max_examples=15)
@given(arrivals(levels=(None,), gpus=(2,), ends=(1.0,)))
def test_gangs_of_whole_nodes_that_all_have_planned_starts_wait_at_most_as_long_as_with_fifo(
    gangs: list[Arrival],
) -> None:
    """If they run exactly to their limits."""
    found, fifo = (
        Clock(NODES, gangs, each)
        for each in (line(len(gangs)), queue(strategy=QueueingStrategy.STRICT_FIFO))
    )
    for clock in (found, fifo):
        clock.run(until=10_000)
    assert found.started.keys() == fifo.started.keys()
    assert all(at <= fifo.started[uid] for uid, at in found.started.items())


@settings(max_examples=10)
@given(arrivals(partial=True))
def test_later_gangs_that_can_start_with_fewer_pods_delay_no_planned_start(
    gangs: list[Arrival],
) -> None:
    clock = Clock(NODES, gangs, line())
    clock.run(until=10_000)
    assert clock.slips == []
    assert_kept(clock)


@settings(max_examples=10)
@given(arrivals(levels=("rack",), preferred=True), st.integers(1, 2))
def test_no_later_gang_costs_a_planned_start_its_topology_level(
    gangs: list[Arrival], planned_starts: int
) -> None:
    clock = Clock(NODES, gangs, line(planned_starts))
    clock.run(until=10_000)
    in_one_rack: dict[str, PlannedStart] = {}
    for now, _, made in clock.plans:
        for admission in made.admitted:
            last = in_one_rack.get(admission.uid)
            assert last is None or now < last.at - NOW or _in_one_rack(admission.placement)
        for planned in made.planned:
            one = _in_one_rack(planned.start.placement)
            last = in_one_rack.get(planned.uid)
            assert last is None or planned.start.at < last.at or one
            if one:
                in_one_rack[planned.uid] = planned.start
    assert clock.slips == []


def _in_one_rack(placement: Placement) -> bool:
    return len({RACKS[name] for podset in placement.podsets for name, _ in podset.nodes}) == 1


# Cohorts: quota, borrowing, lending limits.


LIMITS = st.sampled_from([None, 0, 1, 2])


@settings(max_examples=20)
@given(arrivals(("left", "right")), LIMITS, LIMITS, LIMITS)
def test_in_a_cohort_only_the_owner_of_quota_delays_a_planned_start(
    gangs: list[Arrival], left_lends: int | None, right_lends: int | None, borrows: int | None
) -> None:
    queues = [
        member("left", 3, lends=left_lends, borrows=borrows),
        member("right", 5, lends=right_lends, borrows=borrows),
    ]
    clock = Clock(NODES, gangs, queues[0], others=queues[1:], cohorts={"all": Cohort("all")})
    clock.run(until=10_000)
    assert {planned.slip for planned in clock.slips} <= {SlipCause.RECLAIM}
    waits_still = {r.uid for r in clock.plans[-1][2].pending}  # they never fit
    kept = {uid for uid in promises(clock) if uid not in waits_still}
    moved = frozenset(planned.uid for planned in clock.slips)
    assert all(clock.started[u] <= promises(clock)[u] + 60 for u in kept - moved)


@settings(max_examples=10)
@given(arrivals(("left", "right")))
def test_without_borrowing_no_cohort_delays_a_planned_start(gangs: list[Arrival]) -> None:
    queues = [member("left", 4, borrows=0), member("right", 4, borrows=0)]
    clock = Clock(NODES, gangs, queues[0], others=queues[1:], cohorts={"all": Cohort("all")})
    clock.run(until=10_000)
    assert clock.slips == []


# Preemption.


@settings(max_examples=15)
@given(arrivals(priorities=(0, 0, 5)))
def test_a_gang_of_the_highest_priority_keeps_its_planned_start_alongside_preemption(
    gangs: list[Arrival],
) -> None:
    clock = Clock(NODES, gangs, line(within=WithinClusterQueue.LOWER_PRIORITY))
    clock.run(until=10_000)
    causes = {planned.slip for planned in clock.slips}
    assert causes <= {SlipCause.HIGHER_PRIORITY}
    high = {a.workload.uid for a in gangs if a.workload.priority == 5}
    assert not high & {planned.uid for planned in clock.slips}


# A stream of small gangs.


def stream(seconds: float, runs: float, *, enforced: bool) -> Iterator[Arrival]:
    """Small gangs, more than the nodes can run, and a gang that needs all nodes."""
    for number in range(160):
        at = number * 2.5
        small = job(f"s{number:03d}", 1, seconds, queued_at=at, gpu=1, enforced=enforced)
        yield Arrival(at, small, runs)
    large = job("large", 8, 100, queued_at=30.0, gpu=1)
    yield Arrival(30.0, large, 100)


def test_no_gang_starves_behind_a_stream_of_small_ones() -> None:
    clock = Clock(NODES, list(stream(20, 20, enforced=True)), line())
    clock.run(until=100)
    assert clock.started["large"] <= 50
    assert clock.slips == []


@pytest.mark.parametrize("runs", [60, 130])
def test_no_gang_starves_behind_small_ones_that_run_longer_than_expected(runs: float) -> None:
    """Each runs longer than expected, again and again. After two delays no such gang starts before the large one."""
    clock = Clock(NODES, list(stream(20, runs, enforced=False)), line(), expects=70.0)
    clock.run(until=400)
    assert {planned.slip for planned in clock.slips} == {SlipCause.OVERRUN}
    assert clock.started["large"] <= 30 + 3 * (runs + 20)
    guarded = min(
        now
        for now, _, made in clock.plans
        if any(p.uid == "large" and p.start.overruns == 2 for p in made.planned)
    )
    later = [at for uid, at in clock.started.items() if uid != "large" and at > guarded]
    assert not any(at < clock.started["large"] for at in later)

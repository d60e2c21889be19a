"""Planned starts over many cycles: they are kept, they move only for a cause, and no gang waits without limit."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import SlipCause
from tests.planner.backfill_clock import Arrival, Clock, job, line
from tests.planner.build import NOW, node

NODES = [node(f"n{number}", f"r{number // 2}", gpu=2) for number in range(4)]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Gangs that end at their limits or before."""
    gangs = []
    for number in range(draw(st.integers(4, 9))):
        at = float(draw(st.integers(0, 12)) * 5)
        limit = float(draw(st.integers(1, 6)) * 10)
        workload = job(
            f"g{number}",
            draw(st.sampled_from([1, 1, 2, 4])),
            limit,
            queued_at=at,
            gpu=draw(st.sampled_from([1, 2])),
            required=draw(st.sampled_from([None, "rack"])),
        )
        gangs.append(Arrival(at, workload, limit * draw(st.sampled_from([0.4, 1.0]))))
    return gangs


@settings(max_examples=25)
@given(arrivals(), st.integers(1, 3))
def test_no_gang_that_keeps_its_limit_delays_a_planned_start(
    gangs: list[Arrival], planned_starts: int
) -> None:
    clock = Clock(NODES, gangs, line(planned_starts))
    clock.run(until=10_000)
    assert clock.slips == []
    first: dict[str, float] = {}
    for _, _, made in clock.plans:
        for planned in made.planned:
            first.setdefault(planned.uid, planned.start.at - NOW)
    assert all(clock.started[uid] <= at for uid, at in first.items())


def stream(seconds: float, runs: float, *, enforced: bool) -> Iterator[Arrival]:
    """Small gangs, more than the nodes can run, and a gang that needs all nodes."""
    for number in range(400):
        at = number * 2.5
        small = job(f"s{number:03d}", 1, seconds, queued_at=at, gpu=1, enforced=enforced)
        yield Arrival(at, small, runs)
    large = job("large", 8, 100, queued_at=30.0, gpu=1)
    yield Arrival(30.0, large, 100)


def test_no_gang_starves_behind_a_stream_of_small_ones() -> None:
    clock = Clock(NODES, list(stream(20, 20, enforced=True)), line())
    clock.run(until=300)
    assert clock.started["large"] <= 50
    assert clock.slips == []


def test_no_gang_starves_behind_small_ones_that_run_longer_than_expected() -> None:
    """Each runs three times as long as expected. After two delays no such gang starts before the large one."""
    clock = Clock(NODES, list(stream(20, 60, enforced=False)), line(), expects=70.0)
    clock.run(until=600)
    assert {planned.slip for planned in clock.slips} == {SlipCause.OVERRUN}
    assert clock.started["large"] <= 230

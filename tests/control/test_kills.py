"""A schedule kills the controller at every n-th step, and then at the steps that are left."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest

from tests.control.kills import Killed, KillSchedule
from tests.doubles.cluster import Moment

STEPS = ("start", "pin 0", "pin 1", "run", "end")
ALL = frozenset((step, 0, side) for step in STEPS for side in Moment) | {
    ("run", 1, Moment.AFTER),
    ("run", 1, Moment.BEFORE),
}


def killed(schedule: KillSchedule, steps: Iterable[str] = STEPS) -> list[str]:
    """The steps at which the schedule kills. A controller that is killed before a step takes it again."""
    deaths = []
    for step in steps:
        done = False
        while not done:
            try:
                number = schedule.before(step)
            except Killed:
                deaths.append(f"before {step}")
                continue
            done = True
            try:
                schedule.after(number, step)
            except Killed:
                deaths.append(f"after {step}")
    return deaths


@pytest.mark.parametrize("side", Moment)
@pytest.mark.parametrize("period", [1, 2, 3])
def test_the_offsets_of_a_period_visit_each_step_once(period: int, side: Moment) -> None:
    deaths = [
        killed(KillSchedule(period=period, offset=offset, sides=(side,), allowed=ALL))
        for offset in range(period)
    ]
    assert sorted(chain.from_iterable(deaths)) == sorted(
        f"{side.name.lower()} {step}" for step in STEPS
    )
    assert all(deaths)


def test_a_step_that_each_controller_repeats_kills_once() -> None:
    schedule = KillSchedule(period=1, allowed=ALL)
    assert killed(schedule, ["start", "start", "pin 0"]) == ["after start", "after pin 0"]


def test_it_kills_at_each_wanted_point_once() -> None:
    whole = KillSchedule()
    assert killed(whole, [*STEPS, "run"]) == []
    left = whole.passed(Moment)
    assert len(left) == 12
    killed(KillSchedule(period=1, allowed=ALL, wanted=left), [*STEPS, "run"])
    assert left == {(step, number, Moment.BEFORE) for step, number in ONCE_AND_TWICE}
    deaths = killed(KillSchedule(sides=tuple(Moment), allowed=ALL, wanted=left), [*STEPS, "run"])
    assert deaths == [
        "before start",
        "before pin 0",
        "before pin 1",
        "before run",
        "before end",
        "before run",
    ]
    assert left == set()


ONCE_AND_TWICE = [*((step, 0) for step in STEPS), ("run", 1)]

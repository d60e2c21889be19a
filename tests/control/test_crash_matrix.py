"""SIGKILL before and after every commit and every write: after a restart the work continues; nothing is lost or done twice.

One scenario has admission, placement, preemption, eviction, requeue, restart and end. A first run lists its steps. Then the
controller is killed at each step, in a few runs with many deaths each, and the scenario must end the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.objects.kinds import KINDS, JobKinds
from tests.control.kills import EVERY_KILL, KillPoint, KillSchedule, Point
from tests.control.rig import Rig, gang, live, rig
from tests.doubles.cluster import Moment
from tests.doubles.known import KNOWN
from tests.support.outside import declared_instead
from tests.support.postgres import TestPostgres

SHAPES = {"Job": False, "JobSet": True}
"""A kind of one object, and one of several, and whether a warm standby takes over. `make test-faults` runs all kinds, with a kill on both
sides of each step, and each of these with both ways to take over."""
ENDLESS = ("RayCluster",)
"""Kinds that run until they are deleted."""
BOTH, ONE = tuple(Moment), (Moment.AFTER,)
"""The sides of a step on which the controller dies."""
PERIODS = (1, 3) if EVERY_KILL else (1,)
"""The controller dies at every n-th step. `make test-faults` has longer runs between the deaths as well."""
ROUNDS = 3
"""Runs for the points that no schedule met, at most. A controller that dies skips steps, such as a report of a state that has passed."""
WORLDS = 4
"""Rigs at once in one process, each on its own database."""
SORTS = {"commit": "commits", "write": "patches", "account": "accounts"}
"""Kinds of steps: the name of the guillotine of each kind."""


async def story(world: Rig, kind: str) -> None:
    """A gang runs, is preempted, runs again and ends; the preemptor runs in between. A kind without an end is deleted."""
    low = world.cluster.submit(gang(kind, "low", 2))
    await world.until_state(low, State.RUNNING)
    high = world.cluster.submit(gang(kind, "high", 2, "high"))
    await world.until_state(high, State.RUNNING)
    assert live(world.cluster.pods_of(low)) == [], "the victim's pods end before the start"
    end, code = (
        (world.cluster.delete_job, Code.DELETED)
        if kind in ENDLESS
        else (world.cluster.finish, Code.SUCCEEDED)
    )
    end(high)
    done = await world.until_state(high, State.FINISHED)
    assert done.reason.code is code
    again = await world.until_state(low, State.RUNNING)
    assert again.evictions == 1
    end(low)
    await world.until_state(low, State.FINISHED)
    await world.at_rest()


@asynccontextmanager
async def two_nodes(url: str, kinds: JobKinds = KINDS, *, warm: bool = False) -> AsyncIterator[Rig]:
    """``warm``: a standby has followed the ledger before it takes over. Its state is compared with that of a new process."""
    async with rig(url, 2, kinds=kinds) as world:
        world.warm = warm
        yield world
        assert world.warm_starts or not (warm and world.kills)


@asynccontextmanager
async def fresh(postgres: TestPostgres) -> AsyncIterator[str]:
    name = await postgres.fresh()
    yield postgres.server.url(name)
    await postgres.drop(name)


def points(
    commits: int, writes: int, sides: Iterable[Moment] = Moment
) -> Iterator[tuple[str, int, Moment]]:
    for what, steps in (("commit", commits), ("write", writes)):
        for number in range(1, steps + 1):
            for moment in sides:
                yield what, number, moment


@contextmanager
def dying(world: Rig, what: str, number: int, moment: Moment) -> Iterator[None]:
    """Kill the controller at this step of the scenario inside."""
    kill_point = KillPoint(number, moment)
    setattr(world, SORTS[what], kill_point)
    try:
        yield
    except BaseException as error:  # a timeout as well: the message names the step
        error.add_note(f"killed {moment.name} {what} {number}")
        raise
    # Timing can save at most two steps at the end.
    reached = kill_point.seen if moment is Moment.BEFORE else kill_point.done
    assert kill_point.killed or reached < number


async def several(once: Callable[..., Awaitable[None]], points: Iterable[tuple[Any, ...]]) -> None:
    """Run at each of these points, in several rigs at once because most of the time is waiting."""
    turns = asyncio.Semaphore(WORLDS)

    async def in_turn(*point: Any) -> None:
        async with turns:
            await once(*point)

    async with asyncio.TaskGroup() as group:
        for point in points:
            group.create_task(in_turn(*point))


async def survives(
    postgres: TestPostgres,
    story: Callable[[Rig], Awaitable[None]],
    built: Callable[[str], AbstractAsyncContextManager[Rig]] = two_nodes,
    *,
    sides: Collection[Moment] = ONE,
    sorts: Iterable[str] = ("commits", "patches"),
    counted: Callable[[Point], bool] = lambda _: True,
) -> None:
    """Check that the scenario ends well with a death of the controller on these sides of each of its steps.

    A first run lists the points: the sides of its steps. Schedules then kill the controller many times in one run, and further runs
    kill it at the points that no schedule met.

    Death before a step leaves the same state as death after the previous step, so one side of each step is enough. `make test-faults`
    kills the controller on both sides.

    ``sorts``: the attributes of the rig that count its steps. ``counted``: whether the controller dies at a point.
    """

    async def once(schedule: KillSchedule) -> None:
        async with fresh(postgres) as url, built(url) as world:
            for sort in sorts:
                setattr(world, sort, schedule)
            try:
                await story(world)
            except BaseException as error:  # a timeout as well
                error.add_note(f"killed by {schedule.period}, {schedule.offset}, {schedule.sides}")
                raise

    whole = KillSchedule()  # nowhere
    await once(whole)
    points = frozenset(filter(counted, whole.passed(sides)))
    assert len(points) >= 10, f"the scenario has more steps than {points}"
    left = set(points)
    schedules = [
        KillSchedule(period=period, offset=offset, sides=(side,), allowed=points, wanted=left)
        for side in sides
        for period in PERIODS
        for offset in range(period)
    ]
    await several(once, [(schedule,) for schedule in schedules])
    print(f"{len(points)} points, {len(left)} after the schedules")
    assert all(schedule.killed for schedule in schedules)
    for _ in range(ROUNDS):
        if left:
            await once(KillSchedule(sides=sides, allowed=points, wanted=left))
    print(f"not visited: {sorted(map(str, left))}")
    # Timing can save a step of a run, such as a commit between two others.
    assert len(left) <= len(points) / 10, f"not visited: {left}"


@pytest.mark.parametrize(
    ("kind", "sides", "warm"),
    [
        *(pytest.param(kind, ONE, warm, id=kind) for kind, warm in SHAPES.items()),
        *(
            pytest.param(
                kind, BOTH, warm, id=f"{kind}-both{'-warm' * warm}", marks=pytest.mark.faults
            )
            for warm in (False, True)
            for kind in (SHAPES if warm else KINDS)
        ),
    ],
)
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_changes_no_outcome(
    postgres: TestPostgres, kind: str, sides: tuple[Moment, ...], *, warm: bool
) -> None:
    await killed_at_any_step(postgres, kind, KINDS, sides, warm=warm)


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("GangRun", KNOWN), ("XGBoostJob", declared_instead("XGBoostJob"))],
    ids=["GangRun", "XGBoostJob"],
)
@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_changes_no_outcome_for_a_declared_kind(
    postgres: TestPostgres, kind: str, kinds: JobKinds
) -> None:
    await killed_at_any_step(postgres, kind, kinds, BOTH)


async def killed_at_any_step(
    postgres: TestPostgres,
    kind: str,
    kinds: JobKinds,
    sides: tuple[Moment, ...],
    *,
    warm: bool = False,
) -> None:
    own, built = partial(story, kind=kind), partial(two_nodes, kinds=kinds, warm=warm)
    await survives(postgres, own, built, sides=sides)

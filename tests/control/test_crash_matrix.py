"""SIGKILL before and after every commit and every write: after a restart the work continues; nothing is lost or done twice.

One scenario has admission, placement, preemption, eviction, requeue, restart and end. A first run counts its steps. Then the
controller is killed before and after each step, each time in a new rig, and the scenario must end the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.objects.kinds import KINDS, JobKinds
from tests.control.rig import KillPoint, Rig, gang, live, rig
from tests.doubles.cluster import Moment
from tests.doubles.known import KNOWN
from tests.support.outside import declared_instead
from tests.support.postgres import TestPostgres

SHAPES = ("Job", "PyTorchJob", "JobSet")
"""Kinds that differ in their objects. `make test-faults` runs all, with a kill on both sides of each step."""
ENDLESS = ("RayCluster",)
"""Kinds that run until they are deleted."""
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


def two_nodes(url: str, kinds: JobKinds = KINDS) -> AbstractAsyncContextManager[Rig]:
    return rig(url, 2, kinds=kinds)


@asynccontextmanager
async def fresh(postgres: TestPostgres) -> AsyncIterator[str]:
    name = await postgres.fresh()
    yield postgres.server.url(name)
    await postgres.drop(name)


async def count_steps(
    url: str,
    story: Callable[[Rig], Awaitable[None]],
    built: Callable[[str], AbstractAsyncContextManager[Rig]] = two_nodes,
) -> tuple[int, int]:
    """The commits and writes of a scenario."""
    async with built(url) as world:
        await story(world)
        assert world.kills == 0
        return world.commits.seen, world.patches.seen


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
    except BaseException as error:  # a time-out, too: the message names the step
        error.add_note(f"killed {moment.name} {what} {number}")
        raise
    # Timing can save at most two steps at the end.
    reached = kill_point.seen if moment is Moment.BEFORE else kill_point.done
    assert kill_point.killed or reached < number


async def several(
    once: Callable[[str, int, Moment], Awaitable[None]], points: Iterable[tuple[str, int, Moment]]
) -> None:
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
    steps: tuple[int, int],
    story: Callable[[Rig], Awaitable[None]],
    built: Callable[[str], AbstractAsyncContextManager[Rig]] = two_nodes,
    sides: Iterable[Moment] = (Moment.AFTER,),
) -> None:
    """Check that the scenario ends well for each (commit, write) at which the controller dies.

    Death before a step leaves the same state as death after the previous step, so one side of each step is enough.
    `make test-faults` kills the controller on both sides.
    """

    async def once(what: str, number: int, moment: Moment) -> None:
        async with fresh(postgres) as url, built(url) as world:
            with dying(world, what, number, moment):
                await story(world)

    await several(once, points(*steps, sides))


BOTH, ONE = tuple(Moment), (Moment.AFTER,)


@pytest.mark.parametrize(
    ("kind", "sides"),
    [
        *(pytest.param(kind, ONE, id=kind) for kind in SHAPES),
        *(pytest.param(kind, BOTH, id=f"{kind}-both", marks=pytest.mark.faults) for kind in KINDS),
    ],
)
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_changes_no_outcome(
    postgres: TestPostgres, kind: str, sides: tuple[Moment, ...]
) -> None:
    await killed_at_any_step(postgres, kind, KINDS, sides)


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
    postgres: TestPostgres, kind: str, kinds: JobKinds, sides: tuple[Moment, ...]
) -> None:
    own, built = partial(story, kind=kind), partial(two_nodes, kinds=kinds)
    async with fresh(postgres) as url:
        commits, writes = await count_steps(url, own, built)
    assert commits >= 10, "the scenario commits at each transition"
    assert writes >= 10, "and writes for each start, pin and stop"
    await survives(postgres, (commits, writes), own, built, sides=sides)

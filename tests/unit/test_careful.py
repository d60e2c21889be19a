"""When a process starts carefully, which units it sets aside, and when only a child tries them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from queuectl.control import careful
from queuectl.control.breadcrumb import Breadcrumb
from queuectl.control.careful import MOST_CHILDREN, UNKNOWN_ENDS, CarefulStart, ChildEnd
from queuectl.control.supervisor import end_of
from queuectl.domain.containment import (
    LONGEST_SECONDS,
    MOST_KEPT,
    TOGETHER,
    Boundary,
    Containment,
    SetAside,
    Suspect,
)
from queuectl.domain.errors import ClusterUnavailable, StoreUnavailable
from queuectl.domain.processes import ProcessEnd
from queuectl.telemetry.containment import CarefulMetrics
from tests.doubles.store import MemoryStore

pytestmark = pytest.mark.sets_aside

HOLDER = "a"


def gang(number: int, namespace: str = "team") -> Suspect:
    uid = f"{namespace}-{number}"
    return Suspect(Boundary.SNAPSHOT, uid, f"Job/{namespace}/{uid}", namespace, "SIGSEGV")


class Children:
    """Children that the first of these units ends that they are not to leave out."""

    def __init__(self, *poison: Suspect) -> None:
        self.poison = list(poison)
        self.given: list[Sequence[Suspect]] = []
        self.always: ChildEnd | None = None
        self.hangs = False

    async def __call__(self, suspects: Sequence[Suspect]) -> ChildEnd:
        self.given.append(suspects)
        if self.hangs:
            await asyncio.Event().wait()
        if self.always is not None:
            return self.always
        out = {(one.boundary, one.namespace, one.key) for one in suspects}
        for one in self.poison:
            if not {(one.boundary, one.namespace, key) for key in (one.key, "")} & out:
                return ChildEnd(passed=False, how=one.how, suspect=one)
        return ChildEnd(passed=True)


class Process:
    """One process, and the database that all share."""

    def __init__(self, *poison: Suspect, store: MemoryStore | None = None) -> None:
        self.now = 1000.0
        self.store = store or MemoryStore()
        self.children = Children(*poison)
        self.containment = Containment(lambda: self.now)
        self.start = CarefulStart(
            self.store,
            HOLDER,
            self.containment,
            lambda: self.now,
            CarefulMetrics(CollectorRegistry()),
            self.children,
        )

    async def died(self, times: int = UNKNOWN_ENDS) -> None:
        """Processes ended so often for an unknown reason, and this one starts."""
        for _ in range(times + 1):
            await self.start.begun()

    @property
    def suspects(self) -> list[str]:
        return [one.key for one in self.containment.suspects()]

    async def followed(self, done: Callable[[], bool]) -> list[SetAside]:
        """Let children try suspects again until ``done()``. Returns those that are handled again."""
        released: list[SetAside] = []
        task = asyncio.create_task(self.start.follow(released.extend))
        for _ in range(100_000):
            if done():
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return released


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(careful, "CHECK_SECONDS", 0.0)


async def test_a_careful_start_that_is_cut_off_blocks_nothing() -> None:
    """The process loses its Lease in the meantime, and another one does the careful start."""
    process = Process()
    process.children.hangs = True
    await process.died()
    task = asyncio.create_task(process.start.begin())
    while not process.children.given:  # noqa: ASYNC110 - of the task
        await asyncio.sleep(0)
    assert process.start.blocker
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert not process.start.blocker


@pytest.mark.parametrize(("times", "children"), [(UNKNOWN_ENDS - 1, 0), (UNKNOWN_ENDS, 1)])
async def test_a_process_starts_carefully_after_three_unknown_ends(
    times: int, children: int
) -> None:
    process = Process()
    await process.died(times)
    await process.start.begin()
    assert len(process.children.given) == children
    assert process.start.blocker == ""


@pytest.mark.parametrize("how", [ProcessEnd.ORDERLY, ProcessEnd.LOST_LEASE, ProcessEnd.DATABASE])
async def test_known_ends_do_not_count(how: ProcessEnd) -> None:
    process = Process()
    for _ in range(UNKNOWN_ENDS):
        await process.start.begun()
        await process.start.ended(how)
    await process.start.begin()
    assert process.children.given == []


async def test_a_careful_start_covers_the_ends_before_it() -> None:
    process = Process()
    await process.died()
    await process.start.begin()
    await process.start.begin()
    assert len(process.children.given) == 1


async def test_each_unit_that_ends_a_child_is_left_out_by_the_next_one() -> None:
    poison = (gang(1, "a"), gang(2, "b"))
    process = Process(*poison)
    await process.died()
    await process.start.begin()
    assert process.children.given == [(), poison[:1], poison]
    assert await process.store.suspects() == poison
    waits = process.containment.waits
    assert waits(Boundary.SNAPSHOT, "a-1", namespace="a") is not None
    assert waits(Boundary.SNAPSHOT, "a-2", namespace="a") is None


async def test_three_suspects_of_a_namespace_stand_for_all_units_of_it_at_their_boundary() -> None:
    process = Process(*(gang(number) for number in range(1000)))
    await process.died()
    await process.start.begin()
    assert len(process.children.given) == TOGETHER + 1
    waits = process.containment.waits
    assert waits(Boundary.SNAPSHOT, "new", version=1, namespace="team") is not None
    assert waits(Boundary.SNAPSHOT, "new", version=2, namespace="team") is not None
    assert waits(Boundary.SNAPSHOT, "new", namespace="another") is None
    assert waits(Boundary.OBSERVATION, "new", namespace="team") is None


async def test_the_number_of_children_is_limited() -> None:
    process = Process(*(gang(1, f"n{number}") for number in range(1000)))
    await process.died()
    await process.start.begin()
    assert len(process.children.given) == MOST_CHILDREN
    assert len(process.suspects) == MOST_CHILDREN
    assert process.start.blocker == ""
    await process.died()
    await process.start.begin()
    assert len(process.suspects) == 2 * MOST_CHILDREN, "the next careful start finds more"


async def test_the_suspects_that_another_process_finds_in_the_meantime_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, others = gang(1, "a"), gang(2, "b")
    process = Process(mine)
    children = process.children

    async def in_the_meantime(suspects: Sequence[Suspect]) -> ChildEnd:
        if not children.given:
            await process.store.keep_suspects([others])
        return await children(suspects)

    monkeypatch.setattr(process.start, "_run_child", in_the_meantime)
    await process.died()
    await process.start.begin()
    assert set(await process.store.suspects()) == {mine, others}
    process.now += LONGEST_SECONDS
    children.poison = []
    await process.followed(lambda: process.containment.empty)
    assert await process.store.suspects() == ()


@pytest.mark.parametrize("suspect", [None, gang(1)], ids=["no unit", "the same unit again"])
async def test_a_careful_start_ends_if_no_unit_is_at_fault(suspect: Suspect | None) -> None:
    process = Process()
    process.children.always = ChildEnd(passed=False, how="SIGSEGV", suspect=suspect)
    await process.died()
    await process.start.begin()
    assert len(process.children.given) == (1 if suspect is None else 2)
    assert process.start.blocker == ""


async def test_a_process_takes_over_the_suspects_of_another_without_a_child() -> None:
    first = Process(gang(1))
    await first.died()
    await first.start.begin()
    second = Process(store=first.store)
    await second.start.begin()
    assert second.suspects == ["team-1"]
    assert second.children.given == []


async def test_a_child_tries_a_suspect_again_after_the_longest_back_off() -> None:
    process = Process(gang(1))
    await process.died()
    await process.start.begin()
    process.now += LONGEST_SECONDS + 1
    assert process.containment.waits(Boundary.SNAPSHOT, "team-1") is not None
    assert not process.containment.due(frozenset(Boundary))
    count = len(process.children.given)
    assert await process.followed(lambda: len(process.children.given) > count + 1) == []
    assert process.suspects == ["team-1"]
    process.children.poison.clear()
    process.now += LONGEST_SECONDS + 1
    released = await process.followed(lambda: not process.suspects)
    assert [one.key for one in released] == ["team-1"]
    assert await process.store.suspects() == ()


async def test_a_change_of_its_object_allows_one_try_before_the_end_of_the_back_off() -> None:
    process = Process(gang(1))
    await process.died()
    await process.start.begin()
    containment = process.containment

    def due() -> bool:
        (one,) = containment.suspects()
        return one.until <= process.now

    for version, expected in ((1, False), (1, False), (2, True)):
        assert containment.waits(Boundary.SNAPSHOT, "team-1", version) is not None
        assert due() is expected
    count = len(process.children.given)
    await process.followed(lambda: len(process.children.given) > count + 1)
    assert not due()


async def test_a_try_without_a_result_leaves_a_suspect_set_aside() -> None:
    process = Process(gang(1))
    await process.died()
    await process.start.begin()
    process.now += LONGEST_SECONDS + 1
    process.children.always = ChildEnd(passed=False, how="exit status 1")
    count = len(process.children.given)
    assert await process.followed(lambda: len(process.children.given) > count) == []
    (one,) = process.containment.suspects()
    assert one.until > process.now


async def test_a_database_that_does_not_answer_stops_no_start() -> None:
    process = Process()
    process.store.database.down = True
    await process.start.begun()
    await process.start.begin()
    await process.start.ended(ProcessEnd.ORDERLY)


def test_the_record_never_forgets_a_suspect() -> None:
    containment = Containment(lambda: 0.0)
    containment.suspect([gang(1)])
    for number in range(MOST_KEPT + 1):
        containment.failed(Boundary.SERIES, str(number), RuntimeError())
    assert len(containment.suspects()) == 1


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (asyncio.CancelledError(), ProcessEnd.ORDERLY),
        (StoreUnavailable("x"), ProcessEnd.DATABASE),
        (ExceptionGroup("", [StoreUnavailable("x"), StoreUnavailable("y")]), ProcessEnd.DATABASE),
        (ExceptionGroup("", [StoreUnavailable("x"), RuntimeError()]), ProcessEnd.UNKNOWN),
        (ClusterUnavailable("x"), ProcessEnd.UNKNOWN),
        (RuntimeError(), ProcessEnd.UNKNOWN),
    ],
)
def test_an_unexpected_error_is_an_unknown_end(error: BaseException, how: ProcessEnd) -> None:
    assert end_of(error) is how


def test_a_breadcrumb_has_the_last_unit() -> None:
    crumb = Breadcrumb()
    assert crumb.suspect("x") is None
    crumb.entered(Boundary.OBJECT, "u1", "jobs/team/long", "team")
    crumb.entered(Boundary.RECORD, "ü" * 5000, "", "team")
    assert crumb.suspect("x") is None, "a name that is too long is not a name"
    crumb.entered(Boundary.RECORD, "u2", "", "team")
    assert crumb.suspect("x") == Suspect(Boundary.RECORD, "u2", "u2", "team", "x")
    assert crumb.count == 3
    crumb.entered(Boundary.TASK, "plan", "", "")
    assert crumb.suspect("x") is None
    crumb.close()

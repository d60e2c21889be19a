"""The rows and bars of the timeline."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from queuectl.domain.estimates import DAY, ExpectedStart
from queuectl.domain.snapshot import Pending, PlannedStart, Snapshot
from queuectl.domain.workload import Placement
from queuectl.web.timeline import HOUR, Axis, Bar, TimelineRows, timeline_of
from tests.api.conftest import talking_to
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.web.conftest import app_over
from tests.web.sample import NOW as PAGE_NOW
from tests.web.sample import Sample

ONE = podset(gpu=1)
AXIS = Axis(NOW, 6 * HOUR)


@pytest.mark.parametrize(
    ("since", "until", "bar"),
    [
        (0.0, 3.0, Bar(0.0, 50.0, cut=False)),
        (1.5, 3.0, Bar(25.0, 25.0, cut=False)),
        (-9.0, 3.0, Bar(0.0, 50.0, cut=False)),
        (3.0, 9.0, Bar(50.0, 50.0, cut=True)),
        (3.0, None, Bar(50.0, 50.0, cut=True)),
        (3.0, 3.0, Bar(50.0, 0.6, cut=False)),  # it can be seen
        (6.0, 6.0, Bar(99.4, 0.6, cut=False)),
        (7.0, 9.0, None),
    ],
)
def test_a_bar_covers_its_part_of_the_axis(
    since: float, until: float | None, bar: Bar | None
) -> None:
    end = None if until is None else NOW + HOUR * until
    assert AXIS.bar(NOW + HOUR * since, end) == bar


def test_the_marks_divide_the_axis() -> None:
    assert AXIS.marks == (0.0, 1.5 * HOUR, 3 * HOUR, 4.5 * HOUR, 6 * HOUR)


def cluster() -> Snapshot:
    runs = [holding(gang(f"r{i}", ONE), {"n": 1}, started_at=NOW - 60.0) for i in range(3)]
    ends = (NOW + 5 * HOUR, None, NOW + HOUR)
    running = [
        replace(r, ends_at=at, end_enforced=at == ends[0]) for r, at in zip(runs, ends, strict=True)
    ]
    planned = PlannedStart(NOW + 2 * HOUR, Placement(()), NOW + 2 * HOUR)
    waiting = [
        Pending(gang("w0", ONE, queued_at=2.0)),
        Pending(gang("w1", ONE, queued_at=1.0), planned_start=planned),
        Pending(gang("w2", ONE, priority=1, queued_at=3.0)),
        Pending(gang("other", ONE, queue="other")),
    ]
    return world([node("n", gpu=9)], waiting, running, queue(), queue("other"))


EXPECTED = {"w1": ExpectedStart(NOW + HOUR, NOW + 4 * HOUR, NOW)}


def shown(*, sees: bool = True, queue: str = "main", span: str = "", most: int = 9) -> TimelineRows:
    return timeline_of(cluster(), EXPECTED, lambda _: sees, queue=queue, span=span, most=most)


def test_pending_gangs_are_in_queue_order_and_running_gangs_by_their_ends() -> None:
    line = shown()
    assert [row.uid for row in line.waiting] == ["w2", "w1", "w0"]
    assert [row.uid for row in line.running] == ["r2", "r0", "r1"]
    first = line.waiting[1]
    assert (first.planned, first.expected) == (NOW + 2 * HOUR, EXPECTED["w1"])
    assert [row.enforced for row in line.running] == [False, True, False]


@pytest.mark.parametrize(("span", "seconds"), [("", 6 * HOUR), ("1d", DAY), ("nonsense", 6 * HOUR)])
def test_the_axis_holds_all_times_unless_the_user_chooses(span: str, seconds: float) -> None:
    assert shown(span=span).axis.seconds == seconds


def test_gangs_that_are_not_shown_are_counted() -> None:
    line = shown(most=1)
    assert (len(line.waiting), line.more_waiting) == (1, 2)
    assert (len(line.running), line.more_running) == (1, 2)


def test_only_gangs_of_the_queue_and_of_visible_namespaces_are_shown() -> None:
    assert [row.uid for row in shown(queue="other").waiting] == ["other"]
    assert len(shown(queue="").waiting) == 4
    assert shown(sees=False).waiting == shown(sees=False).running == ()


@pytest.mark.parametrize(
    ("median", "p90", "words"),
    [
        (3600.0, 7200.0, "in about 1 h (90% chance within 2 h)"),
        (3600.0, None, "in about 1 h"),
        (-60.0, 7200.0, "soon (90% chance within 2 h)"),
        (-60.0, -1.0, "overdue"),
    ],
)
async def test_an_expected_start_that_has_passed_is_overdue(
    sample: Sample, median: float, p90: float | None, words: str
) -> None:
    last = None if p90 is None else PAGE_NOW + p90
    starts = sample.diagnoser.starts
    sample.diagnoser.starts = dict.fromkeys(starts, ExpectedStart(PAGE_NOW + median, last, 0.0))
    assert words in await timeline_page(sample)


@pytest.mark.parametrize(
    ("computed_at", "words"), [(-1.0, "no estimate yet"), (1.0, "no estimate")]
)
async def test_a_gang_that_was_queued_after_the_estimate_has_none_yet(
    sample: Sample, computed_at: float, words: str
) -> None:
    sample.diagnoser.starts, sample.diagnoser.computed_at = {}, computed_at
    page = await timeline_page(sample)
    assert words in page
    assert ("no estimate yet" in page) == (words == "no estimate yet")


async def timeline_page(sample: Sample) -> str:
    """The words of the page."""
    async with talking_to(app_over(sample)) as client:
        return re.sub("<[^>]+>", "", (await client.get("/ui/timeline")).text)


def test_a_few_late_starts_do_not_make_all_other_bars_short() -> None:
    def seconds(*hours: float) -> float:
        gangs = [Pending(gang(f"w{i}", ONE)) for i, _ in enumerate(hours)]
        starts = {f"w{i}": ExpectedStart(NOW, NOW + HOUR * end, NOW) for i, end in enumerate(hours)}
        snapshot = world([node("n", gpu=9)], gangs, [], queue())
        return timeline_of(snapshot, starts, lambda _: True, most=99).axis.seconds

    table = {
        (): 1.0,
        (0.1,): 0.25,
        (1.4, 1.3): 2,
        (20, 22, 30): 48,
        (*[2.5] * 9, 600): 3,
        (*[2.5] * 9, 5): 6,  # all times for at most twice the length
        (*[2.5] * 7, *[600] * 3): 720,
        (9000,): 720,
    }
    for hours, axis in table.items():
        assert seconds(*hours) == axis * HOUR, hours

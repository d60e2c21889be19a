"""Recurring Reservations begin at the same time of day in their time zone, even when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.reservations import (
    FREQUENCIES,
    AdvanceReservation,
    next_start,
    recurrence_rule,
)
from queuectl.domain.words import format_time
from queuectl.objects.times import parse_time
from tests.support.work import lines_run

HOUR: Final = 3600.0


def begins_after(zone: str, first: str, rule: str, count: int, hours: float = 2.0) -> list[str]:
    """The starts of so many occurrences, each found when the one before has ended."""
    begins = parse_time(first)
    each = AdvanceReservation("r", begins, begins + hours * HOUR, nodes=("a",), recurrence=rule, time_zone=zone)  # fmt: skip
    found: list[str] = []
    now = begins - HOUR
    while len(found) < count:
        times = each.occurrence(now)
        assert times is not None
        assert times[1] - times[0] == hours * HOUR
        found.append(format_time(times[0]))
        now = times[1]
    return found


BERLIN = "Europe/Berlin"  # UTC+1, in summer UTC+2: from 2027-03-28T01:00Z to 2027-10-31T01:00Z
NEW_YORK = "America/New_York"  # UTC-5, in summer UTC-4: from 2027-03-14T07:00Z


@pytest.mark.parametrize(
    ("zone", "first", "rule", "starts"),
    [
        pytest.param(BERLIN, "2027-03-27T07:00:00Z", "FREQ=DAILY", ["2027-03-27T07:00:00Z", "2027-03-28T06:00:00Z", "2027-03-29T06:00:00Z"], id="8:00 when summer time begins"),
        pytest.param(BERLIN, "2027-10-30T06:00:00Z", "FREQ=DAILY", ["2027-10-30T06:00:00Z", "2027-10-31T07:00:00Z"], id="8:00 when summer time ends"),
        pytest.param(NEW_YORK, "2027-03-08T14:00:00Z", "FREQ=WEEKLY;BYDAY=MO", ["2027-03-08T14:00:00Z", "2027-03-15T13:00:00Z"], id="9:00 on Mondays"),
        pytest.param("UTC", "2027-03-27T07:00:00Z", "FREQ=DAILY", ["2027-03-27T07:00:00Z", "2027-03-28T07:00:00Z"], id="UTC has no summer time"),
        pytest.param(BERLIN, "2027-03-27T01:30:00Z", "FREQ=DAILY", ["2027-03-27T01:30:00Z", "2027-03-28T01:30:00Z", "2027-03-29T00:30:00Z"], id="2:30 is skipped: it is 3:30 then"),
        pytest.param(BERLIN, "2027-10-30T00:30:00Z", "FREQ=DAILY", ["2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"], id="2:30 is shown twice: the first one counts"),
        pytest.param("Asia/Kolkata", "2027-01-01T03:30:00Z", "FREQ=MONTHLY", ["2027-01-01T03:30:00Z", "2027-02-01T03:30:00Z"], id="half an hour of offset"),
    ],
)  # fmt: skip
def test_an_occurrence_begins_at_the_same_time_of_day(
    zone: str, first: str, rule: str, starts: list[str]
) -> None:
    assert begins_after(zone, first, rule, len(starts)) == starts


@pytest.mark.parametrize("minutes", range(0, 240, 15))
def test_an_occurrence_in_the_hour_that_is_shown_twice_counts_until_its_end(minutes: int) -> None:
    """It lasts from 00:30Z to 02:30Z. At 01:00Z, clocks in Berlin change from 3:00 to 2:00."""
    begins = parse_time("2027-10-30T00:30:00Z")
    each = AdvanceReservation("r", begins, begins + 2 * HOUR, nodes=("a",), recurrence="FREQ=DAILY", time_zone=BERLIN)  # fmt: skip
    start = parse_time("2027-10-31T00:30:00Z")
    now = start + 60.0 * (minutes - 60)
    expected = start if now < start + 2 * HOUR else parse_time("2027-11-01T01:30:00Z")
    times = each.occurrence(now)
    assert times is not None
    assert times[0] == expected


RULES = st.one_of(
    st.sampled_from(["FREQ=DAILY", "FREQ=WEEKLY", "FREQ=MONTHLY", "FREQ=YEARLY"]),
    st.sampled_from(["FREQ=WEEKLY;BYDAY=MO,TH,SU;WKST=SU", "FREQ=WEEKLY;BYDAY=MO,WE,SU;BYSETPOS=-1", "freq=daily;bymonth=1,3"]),
    st.sampled_from(["FREQ=MONTHLY;BYDAY=2TU", "FREQ=MONTHLY;BYDAY=MO,TU,WE;BYSETPOS=2", "FREQ=MONTHLY;BYMONTHDAY=-1"]),
    st.sampled_from(["FREQ=YEARLY;BYDAY=20MO", "FREQ=YEARLY;BYWEEKNO=20", "FREQ=YEARLY;BYMONTH=2,3;BYMONTHDAY=28"]),
)  # fmt: skip


@given(
    rule=RULES,
    parts=st.sampled_from(["", ";INTERVAL=2", ";INTERVAL=7", ";COUNT=90", ";UNTIL=20260901T000000Z"]),
    zone=st.sampled_from(["UTC", BERLIN, NEW_YORK, "Asia/Kolkata"]),
    first=st.integers(0, 40_000),
    later=st.integers(-10_000, 400_000),
)  # fmt: skip
def test_an_occurrence_is_that_of_a_search_from_the_first_one(
    rule: str, parts: str, zone: str, first: int, later: int
) -> None:
    begins = parse_time("2019-11-01T00:30:00Z") + first * HOUR / 2
    after = begins + later * HOUR / 4
    searched = recurrence_rule(rule + parts, begins, zone).after(datetime.fromtimestamp(after, UTC))
    expected = searched.timestamp() if searched is not None else None
    assert next_start(rule + parts, begins, zone, after) == expected


@given(st.sampled_from(["", ";INTERVAL=5", ";BYDAY=MO,FR", ";COUNT=2000"]), st.integers(-10, 9_000))
def test_an_hourly_occurrence_is_that_of_a_search_from_the_first_one(
    parts: str, later: int
) -> None:
    begins, text = parse_time("2026-01-02T03:00:00Z"), f"FREQ=HOURLY{parts}"
    after = begins + later * HOUR / 2
    searched = recurrence_rule(text, begins).after(datetime.fromtimestamp(after, UTC))
    expected = searched.timestamp() if searched is not None else None
    assert next_start(text, begins, "UTC", after) == expected


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_the_search_of_an_occurrence_costs_the_same_however_long_ago_the_first_one_was(
    frequency: str,
) -> None:
    def search(years: int) -> int:
        begins = parse_time(f"{2026 - years}-01-01T00:00:00Z")
        now = parse_time("2026-11-26T00:00:00Z")
        return lines_run(partial(next_start, f"FREQ={frequency}", begins, "UTC", now))

    assert search(48) < 3 * search(16)

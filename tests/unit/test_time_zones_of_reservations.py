"""Recurring Reservations begin at the same time of day in their time zone, also when clocks change."""

from __future__ import annotations

from typing import Final

import pytest

from queuectl.domain.reservations import AdvanceReservation
from queuectl.objects.times import format_time, parse_time

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

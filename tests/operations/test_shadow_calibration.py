"""The simulated report of shadow mode on long random histories of queuectl itself: both sides agree within their intervals."""

from __future__ import annotations

import random

import pytest

from tests.unit.test_shadow_simulation import differences, history

pytestmark = pytest.mark.operations


@pytest.mark.parametrize("seed", range(12))
def test_the_history_of_queuectl_shows_no_gain(seed: int) -> None:
    """The noise is the interval of each figure: what the records permit, and one time between two observations for each start."""
    records = history(random.Random(1000 + seed), 150, failures=seed % 2 == 1)
    report = records.report()
    assert report.whole
    assert report.gangs == len(records.gangs) >= 145, (
        "the last ones can arrive after the last observation"
    )
    assert differences(report) == []

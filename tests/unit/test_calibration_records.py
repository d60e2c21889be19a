"""The page on expected starts shows the recorded calibrations."""

from __future__ import annotations

from tests.traces.calibration_records import PAGE, read, with_table


def test_the_table_of_the_page_is_made_from_the_records() -> None:
    text = PAGE.read_text()
    assert text == with_table(text, read().values())

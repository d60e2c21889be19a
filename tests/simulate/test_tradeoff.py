"""The picture of the trade-off in the documentation shows the recorded runs."""

from __future__ import annotations

from tests.traces.tradeoff import FACTORS, FIFO, PICTURE, drawn, read


def test_the_picture_has_the_recorded_runs() -> None:
    assert PICTURE.read_text() == drawn(read()), "run: python -m tests.traces.tradeoff"


def test_each_factor_has_a_recorded_run() -> None:
    assert read().keys() == {FIFO, *FACTORS}

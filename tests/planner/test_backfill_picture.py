"""The picture of backfill in the documentation shows what the planner decides."""

from __future__ import annotations

from tests.planner.backfill_picture import PICTURE, draw


def test_the_picture_is_that_of_the_planner() -> None:
    assert PICTURE.read_text() == draw(), "run: python -m tests.planner.backfill_picture"

"""Each code of a gang that waits is in the sets that say what follows from it."""

from __future__ import annotations

import inspect

from queuectl.domain import reasons
from queuectl.domain.reasons import (
    AT_A_LIMIT,
    MEANINGS,
    NEVER_FITS,
    NOT_IN_LINE,
    NOTES,
    SHOWN_FIRST,
    TRANSIENT,
    WAITS_FOR_ROOM,
    WARNINGS,
    Code,
)
from queuectl.planner.explain.change_queue import EXPLAINED_LIMITS
from queuectl.planner.order.limits import AMOUNT_LIMITS

BY_HAND = {
    Code.BACKOFF,
    Code.HELD,
    Code.QUEUE_SET,
    Code.ADMISSION_GATED,
    Code.DEPENDENCY,
    Code.DEPENDENCY_NEVER_SATISFIED,
}  # it ends by a time, or by a user


def of_pending_gangs() -> set[Code]:
    """The codes in the section of that name of the enum."""
    source = inspect.getsource(reasons.Code)
    section = source.split("# pending\n")[1].split("# starting and running\n")[0]
    return {code for code in Code if f"\n    {code.name} = " in f"\n{section}"}


def test_a_pending_gang_is_in_line_or_waits_for_something_else() -> None:
    assert of_pending_gangs() == (TRANSIENT - {Code.QUEUED}) | NOT_IN_LINE | BY_HAND
    assert not TRANSIENT & NOT_IN_LINE


def test_each_reason_of_many_pending_gangs_has_a_meaning_of_one_sentence() -> None:
    assert MEANINGS.keys() == TRANSIENT | NOT_IN_LINE | {Code.QUEUE_SET}
    for meaning in MEANINGS.values():
        assert meaning.endswith(".")
        assert "\n" not in meaning
        assert len(meaning) <= 100


def test_no_transient_reason_is_a_warning() -> None:
    assert not TRANSIENT & WARNINGS
    assert not NOTES & (TRANSIENT | WARNINGS)


def test_the_reasons_under_several_flavors_are_shown_in_an_order() -> None:
    of_flavors = NEVER_FITS | WAITS_FOR_ROOM | {Code.WOULD_DELAY}
    assert set(SHOWN_FIRST) == of_flavors - {Code.NO_MATCHING_FLAVOR}


def test_the_reasons_at_a_limit_are_those_of_the_limits_that_the_planner_counts() -> None:
    assert {limit.code for limit in AMOUNT_LIMITS} == AT_A_LIMIT
    assert EXPLAINED_LIMITS.keys() <= AT_A_LIMIT

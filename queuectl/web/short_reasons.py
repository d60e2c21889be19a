"""The reason of a workload in the few words that fit a row of a list. The page of the workload has all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuectl.domain.quantity import GPU, format_quantity
from queuectl.domain.reasons import Code
from queuectl.domain.words import counted, shortened
from queuectl.web.words import spaced

_LONGEST: Final = 64  # characters
_STATEMENTS: Final = frozenset(
    {
        Code.TOPOLOGY_PLACEMENT_FAILED,
        Code.SHAPE_NEVER_FITS,
        Code.BACKOFF,
        Code.REQUEUING_LIMIT,
        Code.WAITING_FOR_PREEMPTED,
    }
)
"""Codes whose message begins with a statement that is clear without the rest."""
_ENDS: Final = (": ", "; ", " (", ", ")
_SAME_AS_STATE: Final = frozenset(
    {Code.HELD, Code.DEACTIVATED, Code.SUCCEEDED, Code.FAILED, Code.DELETED}
)
"""Codes that repeat the state: the message has more."""


def short_reason(code: Code, message: str, details: Mapping[str, Any]) -> str:
    """At most 64 characters, such as ``47 GPUs short of quota``; the code in words if the message has no short form; a dash if the message adds nothing to the state.

    Args:
        code: of the reason.
        message: as the viewer may see it.
        details: the same.
    """
    if code is Code.WAITING_FOR_QUOTA and (short := _short_of_quota(details)):
        return short
    if code in _SAME_AS_STATE:
        return shortened(message, _LONGEST) or "-"
    if code in _STATEMENTS:
        statement = message
        for end in _ENDS:
            statement = statement.partition(end)[0]
        if 0 < len(statement) <= _LONGEST:
            return statement[0].upper() + statement[1:]
    return spaced(code)


def _short_of_quota(details: Mapping[str, Any]) -> str:
    """The shortest resource, GPUs before others; empty without whole numbers in the details, as in a reason of an older release."""
    rows = details.get("quota")
    shorts = [short for row in rows if (short := _missing(row))] if isinstance(rows, list) else []
    if not shorts:
        return ""
    resource, missing = max(shorts, key=lambda short: (short[0] == GPU, short[1]))
    if resource == GPU:
        return f"{counted(missing, 'GPU')} short of quota"
    return f"{format_quantity(resource, missing)} {resource} short of quota"


def _missing(row: Any) -> tuple[str, int] | None:
    """A resource of a quota row and the amount that is missing; None if the row states none."""
    if not isinstance(row, Mapping):
        return None
    needs, nominal, used = (row.get(name) for name in ("needs", "nominal", "used"))
    left = row.get("left")
    if left is None and isinstance(nominal, int) and isinstance(used, int):
        left = max(0, nominal - used)
    resource = row.get("resource")
    if not (isinstance(resource, str) and isinstance(needs, int) and isinstance(left, int)):
        return None
    return (resource, needs - left) if needs > left else None

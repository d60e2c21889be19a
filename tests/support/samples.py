"""Evaluations of a gang for tests of the usage ledger."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.utilization import GangUse


def all_along(sample: GangUse, since: float) -> tuple[GangUse, ...]:
    """The same evaluation at short intervals up to its time, so that they cover all time since ``since``."""
    times = [sample.at]
    while times[-1] - FRESH_SECONDS > since:
        times.append(times[-1] - FRESH_SECONDS)
    return tuple(replace(sample, at=at) for at in reversed(times))

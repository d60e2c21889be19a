"""Looks at a gang for tests of the usage ledger."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.utilization import GangUse


def all_along(sample: GangUse, since: float) -> tuple[GangUse, ...]:
    """The same look again and again up to its time, so often that they tell of everything since then."""
    times = [sample.at]
    while times[-1] - FRESH_SECONDS > since:
        times.append(times[-1] - FRESH_SECONDS)
    return tuple(replace(sample, at=at) for at in reversed(times))

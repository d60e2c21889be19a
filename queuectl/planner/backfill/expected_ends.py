"""Expected ends that pass: from then on a gang runs longer than planning assumed, and planned starts can move."""

from __future__ import annotations

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot


def next_expected_end(snapshot: Snapshot, plan: Plan) -> float | None:
    """When the next expected end passes on which a planned start depends (unix seconds); None = there is none.

    The controller ends a gang at its limit, so limits do not count.
    """
    last = max((each.start.at for each in plan.planned if each.known), default=None)
    if last is None:
        return None
    ends = (
        gang.ends_at
        for gang in snapshot.admitted
        if gang.ends_at is not None and not gang.end_enforced and not gang.leaving
    )
    return min((end for end in ends if snapshot.now < end <= last), default=None)

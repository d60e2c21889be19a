"""A workload's place in line, as far as a page or two of its ClusterQueue can tell."""

from __future__ import annotations

from typing import Final

from queuectl.api.ports import ApiStore
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import LONGEST_PAGE, WorkloadFilter
from queuectl.domain.reasons import Code

# As many as one cycle looks at (SolverLimits.window): behind them a number would say little and cost much.
COUNTED: Final = 1000

# They wait for something else than their turn: a person, or more than the cluster or the quota has when empty.
_ASIDE: Final = frozenset(
    {
        Code.MISCONFIGURED,
        Code.UNSUPPORTED,
        Code.NO_MATCHING_FLAVOR,
        Code.EXCEEDS_MAX_QUOTA,
        Code.SHAPE_NEVER_FITS,
        Code.QUEUE_STOPPED,
        Code.LOCAL_QUEUE_STOPPED,
        Code.HELD,
    }
)


def in_line(entry: Entry) -> bool:
    """Whether it waits for its turn."""
    waits = entry.state in (State.PENDING, State.RESERVED) and bool(entry.cluster_queue)
    return waits and entry.reason.code not in _ASIDE


def order(entry: Entry) -> tuple[int, float, str]:
    """The order of a queue: priority, then time queued, then uid."""
    return (-entry.priority, entry.queued_at, entry.uid)


async def position(store: ApiStore, entry: Entry) -> int | None:
    """Its place from 1; None when it is not in line, or the line is longer than :data:`COUNTED`."""
    if not in_line(entry):
        return None
    wanted = WorkloadFilter(
        cluster_queue=entry.cluster_queue, states=frozenset({State.PENDING, State.RESERVED})
    )
    ahead, cursor = 0, None
    for _ in range(COUNTED // LONGEST_PAGE):
        page = await store.list_workloads(wanted, cursor, LONGEST_PAGE)
        ahead += sum(in_line(other) and order(other) < order(entry) for other in page.entries)
        cursor = page.cursor
        if cursor is None:
            return ahead + 1
    return None

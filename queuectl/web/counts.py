"""Counts of gangs for the overview and the pages of queues: by state, and of pending gangs by reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from queuectl.domain.gpus import Gpus, summed
from queuectl.domain.ledger import HOLDING, State
from queuectl.domain.queries import IN_QUEUE_ORDER, QueueCounts
from queuectl.domain.reasons import MEANINGS, Code
from queuectl.web.site import PREFIX

_RESERVED: Final = frozenset({State.RESERVED})
_PENDING: Final = frozenset(IN_QUEUE_ORDER)
_INACTIVE: Final = frozenset({State.HELD, State.BACKOFF, State.DEACTIVATED})


@dataclass(frozen=True, slots=True)
class Count:
    """Gangs, and the GPUs that they request."""

    gangs: int
    gpus: Gpus


@dataclass(frozen=True, slots=True)
class GangCounts:
    """The gangs of some queues that are not finished.

    Attributes:
        admitted: hold quota and nodes.
        pending: are queued, those with a reservation included.
        reserved: are queued and have a reservation.
        inactive: are on hold, in back-off or deactivated.
        oldest: unix seconds at which the first pending gang was queued; None = no gang is pending.
    """

    admitted: Count
    pending: Count
    reserved: Count
    inactive: Count
    oldest: float | None


@dataclass(frozen=True, slots=True)
class PendingGangsOfReason:
    """The pending gangs that have one reason.

    Attributes:
        meaning: one sentence; empty for a code that has none.
        address: of the list of these gangs.
    """

    code: Code
    meaning: str
    gangs: int
    gpus: Gpus
    address: str


ALL_PENDING: Final = f"{PREFIX}/workloads?{urlencode({'state': IN_QUEUE_ORDER}, doseq=True)}"
"""The address of the list of all pending gangs."""


def counts_of(tallies: Iterable[QueueCounts]) -> GangCounts:
    """The sums of these counts."""
    found = list(tallies)
    return GangCounts(
        admitted=count(found, HOLDING),
        pending=count(found, _PENDING),
        reserved=count(found, _RESERVED),
        inactive=count(found, _INACTIVE),
        oldest=min((t.oldest for t in found if t.state in _PENDING), default=None),
    )


def by_local_queue(
    tallies: Iterable[QueueCounts],
) -> dict[tuple[str, str], list[QueueCounts]]:
    """Namespace and name of each LocalQueue to its counts."""
    found: dict[tuple[str, str], list[QueueCounts]] = {}
    for tally in tallies:
        found.setdefault((tally.namespace, tally.queue), []).append(tally)
    return found


def count(tallies: Iterable[QueueCounts], states: Collection[State]) -> Count:
    """The gangs in these states."""
    found = [tally for tally in tallies if tally.state in states]
    return Count(sum(t.workloads for t in found), summed(t.gpus for t in found))


def pending_reasons(tallies: Iterable[QueueCounts], **of: str) -> list[PendingGangsOfReason]:
    """The pending gangs by reason, the most frequent reason first.

    Args:
        tallies: counts of the gangs.
        of: further filters of the list of workloads that shows the same gangs.
    """
    groups: dict[Code, list[QueueCounts]] = {}
    for tally in tallies:
        if tally.state in _PENDING:
            groups.setdefault(tally.code, []).append(tally)
    found = [_reason(code, group, of) for code, group in groups.items()]
    return sorted(found, key=lambda reason: (-reason.gangs, reason.code))


def _reason(code: Code, group: list[QueueCounts], of: dict[str, str]) -> PendingGangsOfReason:
    states = [state for state in IN_QUEUE_ORDER if any(tally.state is state for tally in group)]
    query = {**of, "reason": code.value, "state": states}
    total = count(group, _PENDING)
    return PendingGangsOfReason(
        code,
        MEANINGS.get(code, ""),
        total.gangs,
        total.gpus,
        f"{PREFIX}/workloads?{urlencode(query, doseq=True)}",
    )

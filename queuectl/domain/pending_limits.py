"""The limit of pending gangs of a LocalQueue (``maxPending``). Plans consider the oldest gangs up to the limit; the others wait.

The gangs that count are those that a plan could start now. A gang that is held, has a gate, or waits for its pods or for another job
does not count: 25,000 gangs that wait for a newer job of their LocalQueue (``queuectl.dev/after``) would keep that job beyond the limit,
and none of them would ever start. A gang that is set aside counts, because being set aside is never an advantage.

A pod that is added to an elastic gang belongs to a gang that runs: it does not count and is always considered. A gang with a reservation
counts and is always considered, because other gangs are evicted for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot

_NONE: Final[Mapping[str, Reason]] = {}

_Queue = tuple[str, str | None]
_Age = tuple[bool, float, str]  # gangs with a reservation first, then by queue time and uid


def beyond_limits(snapshot: Snapshot, set_aside: Iterable[Entry] = ()) -> Mapping[str, Reason]:
    """The gangs of a snapshot that wait beyond the limit of their LocalQueue, by uid, with their reasons; the oldest first.

    ``set_aside``: pending gangs that count and are not in the snapshot.
    """
    config, without = snapshot.config, tuple(set_aside)
    most = len(snapshot.pending) + len(without)
    queues = config.local_queues.items()
    limits = {key: limit for key, one in queues if (limit := config.max_pending(one)) < most}
    if not limits:
        return _NONE
    ages: dict[_Queue, list[_Age]] = {queue: [] for queue in limits}
    for pending in snapshot.pending:
        one = pending.workload
        found = ages.get((one.namespace, one.queue))
        if found is not None and pending.blocked is None and one.growth is None:
            found.append((pending.lease is None, one.queued_at, one.uid))
    for entry in without:
        if (entry.namespace, entry.queue) in ages:
            age = (entry.lease is None, entry.queue_order_time, entry.uid)
            ages[entry.namespace, entry.queue].append(age)
    beyond: dict[str, Reason] = {}
    for queue, limit in limits.items():
        reason = _reason(queue, len(ages[queue]), limit)
        newest = sorted(ages[queue])[limit:] if len(ages[queue]) > limit else ()
        beyond |= {uid: reason for no_reservation, _, uid in newest if no_reservation}
    for entry in without:
        beyond.pop(entry.uid, None)
    return beyond


def considered(
    snapshot: Snapshot, set_aside: Iterable[Entry] = ()
) -> tuple[Snapshot, tuple[Refusal, ...]]:
    """The snapshot of a plan, without the gangs beyond the limits, and the answers for these gangs.

    The work of the plan does not grow with them. ``set_aside``: as in :func:`beyond_limits`.
    """
    beyond = beyond_limits(snapshot, set_aside)
    if not beyond:
        return snapshot, ()
    pending = tuple(p for p in snapshot.pending if p.workload.uid not in beyond)
    refusals = tuple(Refusal(uid, (why,)) for uid, why in beyond.items())
    return replace(snapshot, pending=pending), refusals


def with_reasons(snapshot: Snapshot) -> Snapshot:
    """The same snapshot for a question, in which the gangs beyond the limits have their reasons, so that they can be explained."""
    beyond = beyond_limits(snapshot)
    if not beyond:
        return snapshot

    def answered(pending: Pending) -> Pending:
        why = beyond.get(pending.workload.uid)
        return pending if why is None else replace(pending, blocked=why)

    return replace(snapshot, pending=tuple(map(answered, snapshot.pending)))


def _reason(queue: _Queue, count: int, limit: int) -> Reason:
    text = f"LocalQueue {queue[1]} has {count} pending gangs; the oldest {limit} are considered (maxPending)"
    details = {"localQueue": queue[1], "pending": count, "maxPending": limit}
    return Reason(Code.TOO_MANY_PENDING, text, details)

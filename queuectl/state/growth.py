"""Indexes in a snapshot: the one that resumes its array, and of an elastic Job the pods that wait for lower ranks, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.arrays import parted, without_pod
from queuectl.domain.job_records import ArrayIndex, JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.state.ledger import Ledger

_STALLED: Final = (State.EVICTING, State.BACKOFF, State.HELD, State.DEACTIVATED)


RETURN_SECONDS: Final = 60.0
"""Seconds for which a gang that started before keeps its place in the queue while its pods are to be created again."""


def stalled_ranks(ledger: Ledger) -> Mapping[str, Entry]:
    """By uid of an elastic gang, the lowest rank that leaves or is not planned now: the gang itself, or an index above it.

    Other gangs are there too, under their own uids.
    """
    found: dict[str, Entry] = {}
    for entry in ledger.entries(*_STALLED):
        index = parted(entry.uid)
        base = index[0] if index is not None else entry.uid
        if base not in found or entry.uid < found[base].uid:
            found[base] = entry
    return found


def after_lower_ranks(pending: Pending, stalled: Mapping[str, Entry]) -> Pending:
    """A pod of an elastic gang waits until its gang and the ranks below it run or are pending, so that its gang has no gaps."""
    growth = pending.workload.growth
    lower = stalled.get(growth.base) if growth is not None else None
    if lower is None or pending.blocked is not None or lower.uid > pending.workload.uid:
        return pending
    if growth is not None and lower.uid == growth.base:
        text = f"its gang {lower.ref} is {lower.state}"
        return replace(pending, blocked=Reason(Code.WAITING_FOR_PODS, text))
    text = f"its gang grows in the order of ranks: {lower.ref} is {lower.state}"
    return replace(pending, blocked=Reason(Code.WAITING_IN_ORDER, text, {"behind": lower.ref}))


def opened_by_one(
    pending: Iterable[Pending], jobs: Mapping[str, JobRecord], ledger: Ledger
) -> tuple[Pending, ...]:
    """The same gangs. Of the indexes of an array that is suspended, one is planned, and resumes it; the others wait for their pods.

    Each index could resume it, and each start is a write to the same object. The index that is planned is the one with the fewest limits.
    """
    gangs = list(pending)
    starting = (parted(one.uid) for one in ledger.entries(State.STARTING))
    begun = {one[0] for one in starting if one is not None}
    openers: dict[str, list[tuple[bool, int, int, float, int, int]]] = {}
    for place, one in enumerate(gangs):
        index = _opener(one, jobs)
        if index is not None:
            limits = (one.lease is None, len(one.excluded), -one.workload.priority)
            order = (*limits, one.workload.queued_at, index.number, place)
            openers.setdefault(index.job_uid, []).append(order)
    for uid, found in openers.items():
        first = None if uid in begun else min(found)
        for order in found:
            if order != first:
                number, place = order[-2:]
                gangs[place] = _without_pod(gangs[place], number, ledger)
    return tuple(gangs)


def _opener(pending: Pending, jobs: Mapping[str, JobRecord]) -> ArrayIndex | None:
    """The index whose start would resume its array; None for all other gangs."""
    job = jobs.get(pending.workload.uid) if pending.blocked is None else None
    index = job.index if job is not None else None
    return None if index is None or index.started or index.grown else index


def _without_pod(pending: Pending, number: int, ledger: Ledger) -> Pending:
    entry = ledger.get(pending.workload.uid)
    returns = entry.since + RETURN_SECONDS if entry is not None and entry.attempt else None
    blocked = Reason(Code.WAITING_FOR_PODS, without_pod(number))
    return replace(pending, blocked=blocked, returns_by=returns)


def in_rank_order(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """The same gangs. A pod of an elastic gang is not queued before the pods of lower ranks, which can be newer."""
    gangs = list(pending)
    ranks = sorted(
        (growth.base, growth.rank, place)
        for place, one in enumerate(gangs)
        if (growth := one.workload.growth) is not None
    )
    latest: dict[str, float] = {}
    for base, _, place in ranks:
        workload = gangs[place].workload
        queued_at = max(workload.queued_at, latest.get(base, workload.queued_at))
        if queued_at > workload.queued_at:
            gangs[place] = replace(gangs[place], workload=replace(workload, queued_at=queued_at))
        latest[base] = queued_at
    return tuple(gangs)

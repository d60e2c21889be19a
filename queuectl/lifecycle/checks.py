"""The part of the state machine for admission checks.

A gang whose placement needs checks is Reserved: it holds quota and nodes, and nothing is written to its object. If all checks are
ready, the planner starts it. ``Retry`` frees what it holds at once, and it queues again later. ``Rejected`` deactivates it. Both also
evict a gang that has started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.checks import CheckReport, Checks, CheckState, back_off
from queuectl.domain.events import Reserve
from queuectl.domain.ledger import Entry, EntryChange, Note, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import CapacityLease
from queuectl.lifecycle.transitions import evict, move, next_of, rejoin


def waiting_for(entry: Entry, event: Reserve, now: float) -> EntryChange | None:
    """Hold quota and nodes for a gang until its checks are ready."""
    checks = entry.checks.needing(event.checks)
    reason = event.reason
    if checks.unready or not event.lease.placement.awaits_nodes:
        reason = replace(reason, message=_listed(checks, event.lease))
    if entry.state is State.RESERVED and entry.checks.statuses:
        if (checks, event.lease, reason) == (entry.checks, entry.lease, entry.reason):
            return None
        return EntryChange(
            entry, next_of(entry, checks=checks, lease=event.lease, reason=reason, budget=0), now
        )
    return move(entry, State.RESERVED, now, reason, lease=event.lease, checks=checks, budget=0)


def checked(
    entry: Entry, reports: Iterable[CheckReport], by: str, now: float, rules: Rules
) -> EntryChange | None:
    """The change that new states of its checks cause; None if they change nothing. ``by``: the reporter, for the history."""
    reported = [report for report in reports if entry.checks.of(report.check) is not None]
    checks = entry.checks.reported(reported, now)
    if checks == entry.checks or entry.state is State.EVICTING:
        return None
    changed = replace(entry, checks=checks)
    rejected = [report for report in reported if report.state is CheckState.REJECTED]
    retries = [report for report in reported if report.state is CheckState.RETRY]
    if rejected:
        return _since(entry, _rejected(changed, rejected, by, now, rules))
    if retries:
        return _since(entry, _tried_later(changed, retries, by, now, rules))
    if entry.state is State.RESERVED:
        reason = Reason(Code.WAITING_FOR_CHECKS, _listed(checks, entry.lease))
    else:
        reason = entry.reason
    news = Reason(Code.WAITING_FOR_CHECKS, _stated(reported, by))
    note = Note("AdmissionCheck", entry.state, entry.state, news)
    return EntryChange(entry, next_of(entry, checks=checks, reason=reason), now, note)


def unanswered(checks: Checks, now: float) -> tuple[CheckReport, ...]:
    """A ``Retry`` for each check that has not answered in time."""
    return tuple(
        CheckReport(
            status.name,
            CheckState.RETRY,
            f"no answer within {status.due - status.since:.0f} s",
        )
        for status in checks.unready
        if status.due is not None and status.due <= now
    )


def _rejected(
    entry: Entry, reports: list[CheckReport], by: str, now: float, rules: Rules
) -> EntryChange:
    parked = Reason(Code.CHECK_REJECTED, _stated(reports, by))
    if entry.state.live:
        return evict(entry, now, parked, rules, parked=parked)
    return rejoin(entry, now, parked, parked=parked, lease=None)


def _tried_later(
    entry: Entry, reports: list[CheckReport], by: str, now: float, rules: Rules
) -> EntryChange:
    wait = max(back_off(report, entry.checks.retries[report.check]) for report in reports)
    why = _stated(reports, by)
    if entry.state.live:
        return evict(entry, now, Reason(Code.ADMISSION_CHECK, why, {"restSeconds": wait}), rules)
    reason = Reason(Code.ADMISSION_CHECK, f"{why}; it queues again in {wait:.0f} s")
    return move(entry, State.BACKOFF, now, reason, lease=None, requeue_at=now + wait)


def _since(before: Entry, change: EntryChange) -> EntryChange:
    return replace(change, before=before)


def _listed(checks: Checks, lease: CapacityLease | None) -> str:
    awaited = ", ".join(map(str, checks.unready))
    if not awaited:
        return "all its admission checks are ready; it starts with the next plan"
    if lease is not None and lease.placement.awaits_nodes:
        return f"its quota is reserved, and its nodes are requested: {awaited}"
    return f"its quota and its nodes are reserved until its admission checks are ready: {awaited}"


def _stated(reports: Iterable[CheckReport], by: str) -> str:
    """The states, and who reported them if that is known."""
    states = "; ".join(
        f"admission check {report.check} is {report.state}"
        + (f": {report.message}" if report.message else "")
        for report in reports
    )
    return f"{states}, {by}" if by else states

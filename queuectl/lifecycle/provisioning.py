"""Admission checks in the state machine, and the requests to autoscalers.

A gang whose placement needs checks is Reserved: it holds quota and nodes, and nothing is written to its object. If all checks are
ready, the planner starts it. ``Retry`` frees what it holds at once, and it queues again later. ``Rejected`` deactivates it. Both also
evict a gang that has started.

The states of checks for which an autoscaler makes nodes follow from the requests as the watch shows them. The conditions of a request
decide in the order of Kueue. The name of a request has the number of the time for which its gang is held: an old request never decides
about a new reservation, and a restart finds the same request again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.checks import (
    CheckReport,
    Checks,
    CheckState,
    CheckStatus,
    PodSetUpdate,
    back_off,
    update_refusal,
)
from queuectl.domain.events import Reserve
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Note, State
from queuectl.domain.pacing import doubling
from queuectl.domain.provisioning import ProvisioningConfig, ProvisioningRecord, RequestState
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import CapacityLease
from queuectl.lifecycle.transitions import evict, move, next_of, rejoin
from queuectl.objects.kubernetes.provisioning import pod_annotations, request_name
from queuectl.state.provisioning import ProvisioningRequests

# ---- Checks in the state machine


def waiting_for(entry: Entry, event: Reserve, now: float) -> EntryChange | None:
    """Hold quota and nodes for a gang until its checks are ready."""
    checks = entry.checks.needing(event.checks, event.request)
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
    checks = entry.checks.reported(reported, now, started=entry.state.live)
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


def unanswered(checks: Checks, answered: Container[str], now: float) -> tuple[CheckReport, ...]:
    """A ``Retry`` for each check that has not answered in time. ``answered``: names of the checks that have a report."""
    return tuple(
        CheckReport(status.name, CheckState.RETRY, f"no answer {_within(status)}")
        for status in checks.unready
        if status.overdue(now) and status.name not in answered
    )


def _within(status: CheckStatus) -> str:
    assert status.due is not None
    return f"within {status.due - status.since:.0f} s"


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
        return f"its quota is reserved, and it waits for its nodes: {awaited}"
    return f"its quota and its nodes are reserved until its admission checks are ready: {awaited}"


def _stated(reports: Iterable[CheckReport], by: str) -> str:
    """The states, and who reported them if that is known."""
    states = "; ".join(
        f"admission check {report.check} is {report.state}"
        + (f": {report.message}" if report.message else "")
        for report in reports
    )
    return f"{states}, {by}" if by else states


# ---- Requests to autoscalers

_NOT_NEEDED: Final = "none of its pods requests a managed resource"
_CAUSES: Final[Mapping[RequestState, str]] = {
    RequestState.FAILED: "the request failed",
    RequestState.EXPIRED: "the booking of its nodes has expired",
    RequestState.REVOKED: "its nodes are taken away",
}


def reports(
    entry: Entry,
    job: JobRecord | None,
    requests: ProvisioningRequests,
    config: QueueConfig,
    now: float,
) -> tuple[CheckReport, ...]:
    """The states that differ from those of the entry. ``now``: unix seconds."""
    # A gang whose checks are all ready can still be Reserved: no node fits it.
    holds = entry.state is State.RESERVED or entry.state.live
    if job is None or not entry.checks.statuses or not holds:
        return ()
    news = []
    for status, settings in config.provisioning_checks(entry.checks):
        if entry.state.live:
            report = _of_running(entry, status, settings, requests)
        else:
            report = _of_waiting(entry, job, status, settings, requests)
            if status.overdue(now) and (report is None or report.state is CheckState.PENDING):
                report = _too_late(entry, status, settings, report)
        if report is not None and report.state is CheckState.REJECTED:
            other = _fallback(entry, report, settings, config, now)
            report = other or _last_try(entry, report, settings, requests)
        if report is not None and not report.repeats(status):
            news.append(report)
    return tuple(news)


def _of_running(
    entry: Entry, status: CheckStatus, settings: ProvisioningConfig, requests: ProvisioningRequests
) -> CheckReport | None:
    """A gang that has started keeps its nodes unless they are taken away: a booking protects them only until then."""
    record = requests.of(entry.namespace, request_name(entry, status.name), entry.uid)
    if record is None or record.state is not RequestState.REVOKED:
        return None
    return _tried_again(entry, status, settings, _CAUSES[record.state], record.message)


def _of_waiting(
    entry: Entry,
    job: JobRecord,
    status: CheckStatus,
    settings: ProvisioningConfig,
    requests: ProvisioningRequests,
) -> CheckReport | None:
    if not settings.requested(job.podsets):
        return CheckReport(status.name, CheckState.READY, _NOT_NEEDED)
    name = request_name(entry, status.name)
    record = requests.of(entry.namespace, name, entry.uid)
    if record is None:
        if (said := requests.unanswered.get((entry.namespace, name))) is not None:
            return CheckReport(status.name, CheckState.PENDING, said)
        why = requests.refused.get((entry.namespace, name))
        if why is None and status.state is CheckState.READY and _awaits_nodes(entry):
            why = "the request is deleted"  # so no condition of it ends the hold
        return _tried_again(entry, status, settings, why) if why is not None else None
    if record.state is RequestState.PROVISIONED:
        return _ready(entry, job, status, settings, record)
    if record.state is not RequestState.PENDING:
        return _tried_again(entry, status, settings, _CAUSES[record.state], record.message)
    if status.state is CheckState.READY:
        return None
    return CheckReport(status.name, CheckState.PENDING, record.message)


def _awaits_nodes(entry: Entry) -> bool:
    return entry.lease is not None and entry.lease.placement.awaits_nodes


def _ready(
    entry: Entry,
    job: JobRecord,
    status: CheckStatus,
    settings: ProvisioningConfig,
    record: ProvisioningRecord,
) -> CheckReport:
    selector = tuple(
        (key, record.details[detail])
        for key, detail in settings.selectors
        if detail in record.details
    )
    added = pod_annotations(record.name, settings)
    updates = tuple(
        PodSetUpdate(podset.name, annotations=added, node_selector=selector)
        for podset in job.podsets
        if settings.requested((podset,))
    )
    others = _updates_of(s for s in entry.checks.statuses if s.name != status.name)
    why = update_refusal(updates, others, job.podsets)
    if why is not None:
        return CheckReport(status.name, CheckState.REJECTED, why)
    return CheckReport(status.name, CheckState.READY, record.message, updates=updates)


def _updates_of(statuses: Iterable[CheckStatus]) -> tuple[PodSetUpdate, ...]:
    return tuple(update for status in statuses for update in status.updates)


def _too_late(
    entry: Entry, status: CheckStatus, settings: ProvisioningConfig, report: CheckReport | None
) -> CheckReport:
    """The request is not provisioned in time. ``report``: what is new of it; None if nothing is."""
    message = report.message if report is not None else status.message
    cause = f"its nodes are not provisioned {_within(status)}"
    return _tried_again(entry, status, settings, cause, message)


def _tried_again(
    entry: Entry, status: CheckStatus, settings: ProvisioningConfig, cause: str, message: str = ""
) -> CheckReport:
    """``Retry`` until the limit of retries, then ``Rejected``. ``message``: of the autoscaler, or empty."""
    attempt = entry.checks.retries.get(status.name, 0) + 1
    text = f"{cause}: {message}" if message else cause
    if attempt > settings.retries:
        return CheckReport(status.name, CheckState.REJECTED, f"{text}; attempt {attempt}")
    wait = doubling(settings.backoff_base, settings.backoff_ceiling, attempt)
    return CheckReport(status.name, CheckState.RETRY, text, requeue_after=wait)


def _last_try(
    entry: Entry,
    rejected: CheckReport,
    settings: ProvisioningConfig,
    requests: ProvisioningRequests,
) -> CheckReport:
    """``Retry`` if the API server has refused the request: the cause can be a right or a definition that an administrator adds."""
    if (entry.namespace, request_name(entry, rejected.check)) not in requests.refused:
        return rejected
    return replace(rejected, state=CheckState.RETRY, requeue_after=settings.backoff_ceiling)


def _fallback(
    entry: Entry,
    rejected: CheckReport,
    settings: ProvisioningConfig,
    config: QueueConfig,
    now: float,
) -> CheckReport | None:
    """``Retry`` without the flavors whose requests failed; None if each resource group has no other one left."""
    queue = config.cluster_queues.get(entry.cluster_queue)
    lease = entry.lease
    placement = entry.placement if entry.state.live or lease is None else lease.placement
    if queue is None or placement is None:
        return None
    rules = [rule for rule in queue.admission_checks if rule.name == rejected.check]
    charged = {flavor for podset in placement.podsets for flavor in podset.charged}
    failed = {flavor for flavor in charged if any(rule.applies((flavor,)) for rule in rules)}
    closed = failed | entry.checks.asking(now).unasked.keys()
    offered = [{quotas.flavor for quotas in group.flavors} for group in queue.groups]
    if not failed or any(flavors & failed and flavors <= closed for flavors in offered):
        return None
    wait = settings.backoff_ceiling
    names = ", ".join(sorted(failed))
    text = f"{rejected.message}; no nodes of flavor {names} are requested for {wait:.0f} s"
    unasked = tuple((flavor, now + wait) for flavor in sorted(failed))
    return CheckReport(rejected.check, CheckState.RETRY, text, requeue_after=0.0, unasked=unasked)

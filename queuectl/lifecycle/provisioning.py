"""The states of checks for which an autoscaler makes nodes, from the requests as the watch shows them.

The conditions of a request decide in the order of Kueue. The name of a request has the number of the time for which its gang is held. An
old request never decides about a new reservation, and a restart finds the same request again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from queuectl.domain.backoff import doubling
from queuectl.domain.checks import (
    CheckReport,
    CheckState,
    CheckStatus,
    PodSetUpdate,
    update_refusal,
)
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.provisioning import ProvisioningConfig, ProvisioningRecord, RequestState
from queuectl.domain.queues import QueueConfig
from queuectl.objects.kubernetes.provisioning import pod_annotations, request_name
from queuectl.state.provisioning import ProvisioningRequests

NOT_NEEDED: Final = "none of its pods requests a managed resource"
_CAUSES: Final[Mapping[RequestState, str]] = {
    RequestState.FAILED: "the request failed",
    RequestState.EXPIRED: "the booking of its nodes has expired",
    RequestState.REVOKED: "its nodes are taken away",
}


def provisioning_checks(
    entry: Entry, config: QueueConfig
) -> Iterator[tuple[CheckStatus, ProvisioningConfig]]:
    """The checks of a gang that make nodes, with their settings."""
    for status in entry.checks.statuses:
        check = config.checks.get(status.name)
        if check is not None and check.provisioning is not None:
            yield status, check.provisioning


def reports(
    entry: Entry,
    job: JobRecord | None,
    requests: ProvisioningRequests,
    config: QueueConfig,
    now: float,
) -> tuple[CheckReport, ...]:
    """The states that differ from those of the entry. ``now``: unix seconds."""
    if job is None or not entry.checks.statuses or not (entry.awaits_checks or entry.state.live):
        return ()
    found = []
    for status, settings in provisioning_checks(entry, config):
        if entry.state.live:
            report = _of_running(entry, status, settings, requests)
        else:
            report = _of_waiting(entry, job, status, settings, requests)
        if report is not None and report.state is CheckState.REJECTED:
            report = _fallback(entry, report, settings, config, now) or report
        if report is not None and (report.state, report.message) != (status.state, status.message):
            found.append(report)
    return tuple(found)


def _of_running(
    entry: Entry, status: CheckStatus, settings: ProvisioningConfig, requests: ProvisioningRequests
) -> CheckReport | None:
    """A gang that has started keeps its nodes unless they are taken away: a booking protects them only until then."""
    record = requests.of(entry.namespace, request_name(entry, status.name), entry.uid)
    if record is None or record.state is not RequestState.REVOKED:
        return None
    return _tried_again(entry, status, settings, record)


def _of_waiting(
    entry: Entry,
    job: JobRecord,
    status: CheckStatus,
    settings: ProvisioningConfig,
    requests: ProvisioningRequests,
) -> CheckReport | None:
    if not settings.requested(job.podsets):
        return CheckReport(status.name, CheckState.READY, NOT_NEEDED)
    name = request_name(entry, status.name)
    record = requests.of(entry.namespace, name, entry.uid)
    if record is None:
        why = requests.refused.get((entry.namespace, name))
        return CheckReport(status.name, CheckState.PENDING, why) if why is not None else None
    if record.state is RequestState.PROVISIONED:
        return _ready(entry, job, status, settings, record)
    if record.state is not RequestState.PENDING:
        return _tried_again(entry, status, settings, record)
    if status.state is CheckState.READY:
        return None
    return CheckReport(status.name, CheckState.PENDING, record.message)


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


def _tried_again(
    entry: Entry, status: CheckStatus, settings: ProvisioningConfig, record: ProvisioningRecord
) -> CheckReport:
    """``Retry`` until the limit of retries, then ``Rejected``."""
    attempt = entry.checks.retries.get(status.name, 0) + 1
    text = _CAUSES[record.state] + (f": {record.message}" if record.message else "")
    if attempt > settings.retries:
        return CheckReport(status.name, CheckState.REJECTED, f"{text}; attempt {attempt}")
    wait = doubling(settings.backoff_base, settings.backoff_ceiling, attempt)
    return CheckReport(status.name, CheckState.RETRY, text, requeue_after=wait)


def _fallback(
    entry: Entry,
    rejected: CheckReport,
    settings: ProvisioningConfig,
    config: QueueConfig,
    now: float,
) -> CheckReport | None:
    """``Retry`` without the flavors whose requests failed; None if each resource group has no other one left."""
    queue = config.cluster_queue_of(entry.namespace, entry.queue)
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

"""Events of one workload, from its entry in the ledger and the current state of its object and pods.

Only observations count. The same observations always give the same events, so a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from queuectl.domain.checks import CheckReport
from queuectl.domain.events import (
    ChecksReported,
    Drained,
    Ended,
    Event,
    Evict,
    FlavorsDue,
    GatesChanged,
    MoveRefused,
    NoticeOver,
    ObjectDeleted,
    PodsDone,
    PodsElsewhere,
    PodsLost,
    PodsReady,
    QueueMoved,
    RetryDue,
    StartConfirmed,
    WriteAccepted,
)
from queuectl.domain.gates import Standing
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.words import counted
from queuectl.lifecycle.failures import (
    held_up,
    pin_is_refused,
    pin_refused,
    start_failed,
    start_refused,
    stop_is_refused,
    unlike_planned,
)
from queuectl.lifecycle.old_pods import counted_pods
from queuectl.lifecycle.outstanding_writes import suspended_again
from queuectl.lifecycle.provisioning import unanswered
from queuectl.lifecycle.refusals import WriteRefusal
from queuectl.lifecycle.transitions import awaits_replacements, execution_limit, unconfirmed_at
from queuectl.state.readiness import (
    all_ready,
    held_by_others,
    not_ready,
    on_their_nodes,
    still_needed,
)


@dataclass(frozen=True, slots=True)
class ObservationRules:
    """The conditions under which one workload is observed.

    Attributes:
        rules: timeouts, among others.
        unschedulable: seconds after which a start fails if kube-scheduler cannot schedule a pinned pod, or if pods of an earlier
            attempt exist instead of its pods.
        names: hostname label -> node name.
        drain: the reason for which its queue evicts running gangs; None if it does not.
        refused: for each pod that kube-scheduler cannot schedule, by uid: the time of the first observation, in unix seconds.
        late: the same for each pod of an earlier attempt.
        closed: the nodes of its placement that take no new pods of it; only if kube-scheduler cannot schedule a pod.
        tainted: the stop that the gang needs because taints of devices are the cause; None without one.
        refusal: of a write that it owes; None without one.
        may_start: a start that was sent can still take effect.
        taken_over: its entry is from the database from which this leader began, which can be older than its pods.
        statuses: of the jobs that it depends on, by gate.
        provisioned: the states of its checks that make nodes, if they differ from those of its entry.
        absent_since: the time of the first observation of a group without pods, in unix seconds; None while it has pods.
    """

    rules: Rules
    unschedulable: float
    names: Mapping[str, str]
    drain: Reason | None = None
    refused: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, float] = field(default_factory=dict)
    closed: Collection[str] = ()
    tainted: Evict | None = None
    refusal: WriteRefusal | None = None
    may_start: bool = False
    taken_over: bool = False
    statuses: Mapping[str, Standing] = field(default_factory=dict)
    provisioned: tuple[CheckReport, ...] = ()
    absent_since: float | None = None


def observe(
    entry: Entry,
    job: JobRecord | None,
    pods: Iterable[PodRecord],
    now: float,
    terms: ObservationRules,
) -> Iterator[Event]:
    """Events of one workload, in the order in which they are to be applied.

    Args:
        entry: from the ledger.
        job: its object; None if the watch no longer shows it.
        pods: all pods that it controls.
        now: unix seconds.
        terms: the conditions of the observation.
    """
    if job is None or (job.absent and not awaits_replacements(entry, job, now, terms.absent_since)):
        yield ObjectDeleted()
        return
    if job.outcome is not None:
        yield Ended(job.outcome)
        return
    match entry.state:
        case State.STARTING | State.RUNNING:
            yield from _live(entry, job, list(pods), now, terms)
        case State.EVICTING:
            yield from _leaving(entry, job, list(pods), now, terms)
        case _:
            yield from _waiting(entry, job, list(pods), now, terms)


def _waiting(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, terms: ObservationRules
) -> Iterator[Event]:
    if not job.suspended:
        text = "the job was resumed without queuectl; it is suspended again and keeps its position in the queue"
        yield Evict(Reason(Code.RESUMED_OUTSIDE, text))
        return
    named = {p.member.job.queue for p in pods if p.member and p.gated} or {job.queue}
    if entry.queue_set is not None and named == {entry.queue_set}:
        yield QueueMoved()
    elif terms.refusal is not None and terms.refusal.purpose is Purpose.MOVE:
        yield MoveRefused(terms.refusal.why)
    if entry.state is State.RESERVED:
        answered = {report.check for report in terms.provisioned}
        overdue = unanswered(entry.checks, answered, now)
        if reported := (*terms.provisioned, *overdue):
            yield ChecksReported(reported)
    if entry.gates:
        yield GatesChanged(job.gates, terms.statuses, job.error)
    if entry.state is State.BACKOFF and entry.requeue_at is not None and now >= entry.requeue_at:
        yield RetryDue()
    if entry.checks.asking(now) is not entry.checks:
        yield FlavorsDue()


def _leaving(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, terms: ObservationRules
) -> Iterator[Event]:
    gone = all(pod.terminal or (job.of_pods and pod.gated) for pod in pods)
    if entry.stop_at is not None and (
        now >= entry.stop_at or job.preempt_ready or job.suspended or gone
    ):
        yield NoticeOver()
    # A newer write withdraws a start without effect. It shows as this attempt on the suspended object. If the API server denies
    # that write too, the condition is that no start can take effect.
    refused = terms.refusal is not None and terms.refusal.purpose in (Purpose.START, Purpose.STOP)
    stopped = job.suspended and job.attempt >= entry.attempt
    if job.of_pods:  # no gated pod can be released by a write that was sent
        waiting = [pod for pod in pods if pod.waits]
        stopped = job.suspended and all(pod.attempt >= entry.attempt for pod in waiting)
    withdrawn = job.suspended and refused and not terms.may_start
    if (stopped or withdrawn) and gone and (job.drained or now >= unconfirmed_at(entry)):
        yield Drained()
    elif stopped:
        yield WriteAccepted()
    elif terms.refusal is not None and terms.refusal.purpose is Purpose.STOP:
        yield stop_is_refused(terms.refusal, resumed=not job.suspended)


def _live(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, terms: ObservationRules
) -> Iterator[Event]:
    started = not job.suspended and job.attempt == entry.attempt
    barred = job.index.barred if job.index is not None else ""
    if entry.intent is Intent.START and started:
        yield StartConfirmed()
    elif job.suspended and (entry.intent is None or barred or suspended_again(entry, job)):
        yield Evict(Reason(Code.SUSPENDED_OUTSIDE, barred or _suspended(job)))
        return
    if terms.provisioned:
        yield ChecksReported(terms.provisioned)
        return
    current = [pod for pod in pods if pod.attempt == entry.attempt]
    ready = started and all_ready(job, current)
    gated = any(pod.waits for pod in current)
    if started and not gated:
        yield WriteAccepted()
    # The maker of a group creates its pods with the gate and without the attempt, and possibly from another template.
    replacing = [pod for pod in pods if job.of_pods and pod.gated and pod.attempt != entry.attempt]
    eviction = unlike_planned(entry, job, [*current, *replacing]) or _needed_eviction(
        entry, job, current, now, terms
    )
    why = "" if ready else not_ready(job, [*current, *replacing])
    if eviction is None and not ready:  # a gang that became ready without a leader is not late
        shown = why if started else _old_pods(job, pods)
        eviction = start_failed(entry, now, terms.rules.pods_ready, shown)
    if eviction is not None:
        yield eviction
    elif started:
        placement = entry.placement
        if placement is not None and terms.taken_over:
            placement = on_their_nodes(placement, job, current)
            if placement is not entry.placement:
                yield PodsElsewhere(placement)
        yield PodsReady() if ready else PodsLost(why, held_by_others(current))
        if entry.state is State.RUNNING and placement is not None:
            yield PodsDone(still_needed(placement, job, current, terms.names))
        refusal = terms.refusal
        pin = refusal is not None and refusal.purpose is Purpose.PIN
        if refusal is not None and pin and gated and entry.state is State.RUNNING:
            yield pin_is_refused(refusal)


def _old_pods(job: JobRecord, pods: Collection[PodRecord]) -> str:
    old = counted_pods(job, pods) if job.suspended else 0
    if not old:
        return ""
    return f"its controller would count {counted(old, 'pod')} of an earlier start as failed until they are deleted"


def _suspended(job: JobRecord) -> str:
    how = "its running pods ended or were deleted" if job.of_pods else "the job was suspended"
    return f"{how} without queuectl"


def _needed_eviction(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, terms: ObservationRules
) -> Evict | None:
    """The eviction that the gang needs as planned, ready or not; None = none."""
    return (
        _over_time(entry, job, now)
        or (Evict(terms.drain) if terms.drain is not None else None)
        or terms.tainted
        or pin_refused(pods, terms.refused, now, terms.unschedulable, terms.names, terms.closed)
        or held_up(entry, job, terms.late, now, terms.unschedulable)
        or start_refused(entry, terms.refusal, now, terms.unschedulable)
    )


def _over_time(entry: Entry, job: JobRecord, now: float) -> Evict | None:
    limit = execution_limit(entry, job)
    if limit is None or entry.executed(now) < limit:
        return None
    text = f"all attempts together ran for the maximum execution time of {limit:.0f} s"
    if limit != job.max_execution:
        text += f", which ClusterQueue {entry.cluster_queue} or the job set before its start"
    reason = Reason(Code.MAX_EXECUTION_TIME, text)
    return Evict(reason, parked=reason)

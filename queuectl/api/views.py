"""Domain values as responses of the API: the views of a workload, its summary sentence, and its conditions.

The conditions match Kueue's Workload, derived from the state, for tools that wait for ``Admitted=True``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from queuectl.api.schemas import (
    AwaitedView,
    CheckView,
    ConditionView,
    ExpectedStartView,
    ExplainView,
    HistoryView,
    ObstacleView,
    PlacementView,
    PlannedStartView,
    PodSetPlaced,
    ReasonView,
    ReservationView,
    RunTimeView,
    ShareView,
    SuggestedFixView,
    UseView,
    WorkloadView,
    maybe,
)
from queuectl.domain.checks import CheckState
from queuectl.domain.diagnosis import Diagnosis, Obstacle, SuggestedFix
from queuectl.domain.estimates import ExpectedRunTime, ExpectedStart
from queuectl.domain.gates import admission_gates, dependencies
from queuectl.domain.gpus import rounded
from queuectl.domain.ledger import HOLDING, Entry, State
from queuectl.domain.queries import HistoryLine, QueuePosition
from queuectl.domain.reasons import MADE_ROOM, Code, Reason
from queuectl.domain.redaction import shown_uid
from queuectl.domain.snapshot import NO_END, CapacityLease
from queuectl.domain.utilization import GangUse
from queuectl.domain.words import counted, utc
from queuectl.domain.workload import Placement

# ---- Views

_HOLDING: Final = (State.STARTING, State.RUNNING)  # states with pods whose GPUs are measured


def reason_view(reason: Reason) -> ReasonView:
    """A reason as it is stored."""
    return ReasonView(code=reason.code, message=reason.message, details=dict(reason.details))


def workload_view(
    entry: Entry,
    line: QueuePosition | None = None,
    use: GangUse | None = None,
    start: ExpectedStart | None = None,
    awaited: Mapping[str, str] | None = None,
    run_time: ExpectedRunTime | None = None,
) -> WorkloadView:
    """A row of the ledger for listings.

    Args:
        entry: the row.
        line: its position in queue order; None if it is not pending.
        use: its last GPU utilization; None without a measurement.
        start: the estimate of its start; None if it is unknown.
        awaited: names of the gangs for which its planned start waits, by uid; ANOTHER_TEAM if the caller is not allowed to see a gang.
        run_time: how long it runs; None if it is unknown.
    """
    return WorkloadView(
        uid=entry.uid,
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        queue=entry.queue,
        cluster_queue=entry.cluster_queue,
        user=entry.user,
        labels=dict(entry.labels),
        priority=entry.priority,
        priority_set=entry.priority_set,
        priority_until=maybe(entry.priority_until),
        queue_set=entry.queue_set,
        state=entry.state,
        reason=reason_view(entry.reason),
        gpus=rounded(entry.gpus),
        pods=entry.pods,
        attempt=entry.attempt,
        evictions=entry.evictions,
        queued_at=utc(entry.queued_at),
        since=utc(entry.since),
        started_at=maybe(entry.started_at),
        ready_at=maybe(entry.ready_at),
        finished_at=maybe(entry.finished_at),
        requeue_at=maybe(entry.requeue_at),
        position_in_cluster_queue=line.cluster_queue if line is not None else None,
        position_in_local_queue=line.local_queue if line is not None else None,
        gates=admission_gates(entry.gates),
        after=[str(one) for one in dependencies(entry.gates)],
        checks=_check_views(entry),
        expected_start=_expected_start_view(start) if line is not None else None,
        planned_start=_planned_start_view(entry, awaited or {}),
        run_time=_run_time_view(run_time),
        executed_seconds=entry.past_seconds,
        conditions=conditions(entry),
        use=use_view(entry, use),
    )


def _expected_start_view(start: ExpectedStart | None) -> ExpectedStartView | None:
    """The estimate of a start."""
    if start is None:
        return None
    return ExpectedStartView(
        median=utc(start.median), p90=maybe(start.p90), computed_at=utc(start.computed_at)
    )


def _run_time_view(run_time: ExpectedRunTime | None) -> RunTimeView | None:
    """How long a gang runs."""
    return RunTimeView(**asdict(run_time)) if run_time is not None else None


def use_view(entry: Entry, use: GangUse | None) -> UseView | None:
    """The last GPU utilization of a gang; None if it has no GPUs now, or for an earlier attempt."""
    if use is None or use.attempt != entry.attempt or entry.state not in _HOLDING:
        return None
    return UseView(
        state=use.state,
        since=utc(use.since),
        looked_at=utc(use.at),
        utilization=use.utilization,
        covered=use.covered,
        message=use.text,
    )


def explain_view(
    entry: Entry,
    position: int | None,
    victims: Mapping[str, str] | None = None,
    diagnosis: Diagnosis | None = None,
    use: GangUse | None = None,
    start: ExpectedStart | None = None,
    awaited: Mapping[str, str] | None = None,
    run_time: ExpectedRunTime | None = None,
) -> ExplainView:
    """A workload's reason in full.

    Args:
        entry: its row.
        position: its position in queue order.
        victims: names of the gangs for which it waits, by uid; ANOTHER_TEAM if the caller is not allowed to see a gang.
        diagnosis: its blocking constraints and fixes, if they were computed.
        use: its last GPU utilization; None without a measurement.
        start: the estimate of its start; None if it is unknown.
        awaited: names of the gangs for which its planned start waits, as in ``workload_view``.
        run_time: how long it runs; None if it is unknown.
    """
    answer = diagnosis or Diagnosis(entry.uid)
    return ExplainView(
        uid=entry.uid,
        workload=entry.ref,
        kind=entry.kind,
        state=entry.state,
        sentence=sentence(entry, position),
        code=entry.reason.code,
        message=entry.reason.message,
        details=dict(entry.reason.details),
        under_way=list(answer.under_way),
        conflict=[obstacle_view(obstacle) for obstacle in answer.conflict],
        conflict_proof=answer.proof,
        suggested_fixes=[suggested_fix_view(fix) for fix in answer.suggested_fixes],
        position=position,
        expected_start=_expected_start_view(start) if position is not None else None,
        planned_start=_planned_start_view(entry, awaited or {}),
        run_time=_run_time_view(run_time),
        placement=_placement(entry),
        reservation=_reservation(entry.lease, victims or {}),
        checks=_check_views(entry),
        use=use_view(entry, use),
    )


def _check_views(entry: Entry) -> list[CheckView]:
    """The states of its admission checks."""
    return [
        CheckView(
            name=status.name,
            state=status.state,
            since=utc(status.since),
            message=status.message,
            due=maybe(status.due) if status.state is CheckState.PENDING else None,
            retries=entry.checks.retries.get(status.name, 0),
        )
        for status in entry.checks.statuses
    ]


def obstacle_view(obstacle: Obstacle) -> ObstacleView:
    """One blocking constraint."""
    return ObstacleView(
        code=obstacle.limit, message=obstacle.message, details=dict(obstacle.details)
    )


def suggested_fix_view(fix: SuggestedFix) -> SuggestedFixView:
    """One suggested fix."""
    return SuggestedFixView(
        code=fix.remedy, message=fix.message, least=fix.least, details=dict(fix.details)
    )


def sentence(entry: Entry, position: int | None) -> str:
    """The state of a workload and the reason for it, in one or two sentences."""
    clause = f"{entry.ref} {_doing(entry)}"
    if position is not None:
        clause += f", at position {position} in queue order of ClusterQueue {entry.cluster_queue}"
    why = entry.reason.message.rstrip(". ")
    return f"{clause}: {why or entry.reason.code}."


def _doing(entry: Entry) -> str:
    """The state as a verb."""
    match entry.state:
        case State.PENDING:
            return "is pending"
        case State.HELD:
            return "is held"
        case State.RESERVED:
            return "has capacity reserved"
        case State.STARTING:
            return f"is starting {_where(entry)}"
        case State.RUNNING:
            return f"is running {_where(entry)}"
        case State.EVICTING:
            return f"is being evicted and will be {_next(entry)}"
        case State.BACKOFF:
            until = utc(entry.requeue_at or entry.since)
            return f"waits until {until:%Y-%m-%d %H:%M:%S} UTC before it is queued again"
        case State.DEACTIVATED:
            return "is deactivated"
        case State.FINISHED:
            return "has finished"


def _next(entry: Entry) -> str:
    """The next state of an evicted gang, after its pods have terminated."""
    if entry.parked is None:
        return "queued again"
    return "held" if entry.parked.code is Code.HELD else "deactivated"


def _where(entry: Entry) -> str:
    podsets = entry.placement.podsets if entry.placement else ()
    nodes = {node for podset in podsets for node, _ in podset.nodes}
    return f"{counted(entry.started_pods, 'pod')} on {counted(len(nodes), 'node')}"


def _placement(entry: Entry) -> PlacementView | None:
    if entry.lease is not None:
        return placement_view(entry.lease.placement, planned=True)
    return placement_view(entry.placement, planned=False) if entry.placement else None


def _planned_start_view(entry: Entry, awaited: Mapping[str, str]) -> PlannedStartView | None:
    """The planned start of a gang; None if it has none. ``awaited``: names of the gangs for which it waits, by uid."""
    start = entry.planned_start
    if start is None or start.promised is None or entry.state is not State.PENDING:
        return None
    return PlannedStartView(
        at=utc(start.at),
        pod_sets=_placed(start.placement),
        awaits=[
            AwaitedView(workload=awaited.get(uid, uid), ends_at=utc(end))
            for uid, end in start.awaits
        ],
        overruns=start.overruns,
    )


def placement_view(placement: Placement, *, planned: bool) -> PlacementView:
    """The placement of a gang that runs or will start."""
    return PlacementView(planned=planned, pod_sets=_placed(placement))


def _placed(placement: Placement) -> list[PodSetPlaced]:
    return [
        PodSetPlaced(
            name=podset.podset,
            count=podset.count,
            flavors=dict(podset.flavors),
            nodes=_by_node(podset.nodes),
            shares=[
                ShareView(count=share.pods, flavors=dict(share.flavors)) for share in podset.shares
            ]
            or None,
        )
        for podset in placement.podsets
    ]


def _by_node(nodes: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Pods by node; in rank order a node can occur twice."""
    pods: dict[str, int] = {}
    for node, count in nodes:
        pods[node] = pods.get(node, 0) + count
    return pods


def _reservation(lease: CapacityLease | None, names: Mapping[str, str]) -> ReservationView | None:
    if lease is None:
        return None
    victims = [names.get(uid, uid) for uid in lease.victims]
    return ReservationView(
        victims=list(map(shown_uid, victims, lease.victims)),
        victim_names=victims,
        created_at=utc(lease.created_at),
        expires_at=utc(lease.expires_at) if lease.expires_at < NO_END else None,
    )


def history_view(line: HistoryLine) -> HistoryView:
    """One committed step."""
    return HistoryView(
        id=line.id,
        at=utc(line.at),
        event=line.event,
        from_state=line.from_state,
        to_state=line.to_state,
        attempt=line.attempt,
        cycle=line.cycle,
        reason=reason_view(line.reason),
        placement=placement_view(line.placement, planned=False) if line.placement else None,
    )


# ---- Conditions

# As in Kueue, the reason of the eviction shows the cause of a deactivation.
_EVICTED: Final = {
    Code.HELD: "Deactivated",
    Code.DEACTIVATED: "Deactivated",
    Code.MAX_EXECUTION_TIME: "DeactivatedDueToMaximumExecutionTimeExceeded",
    Code.DEFRAGMENTED: "Preempted",
    Code.PIN_UNSCHEDULABLE: "PodsReadyTimeout",
    Code.PODS_LARGER_THAN_ASKED: "PodsReadyTimeout",
    Code.START_REFUSED: "PodsReadyTimeout",
}
_REQUEUED: Final = {
    Code.QUEUE_STOPPED: "ClusterQueueRestarted",
    Code.LOCAL_QUEUE_STOPPED: "LocalQueueRestarted",
}


def conditions(entry: Entry) -> list[ConditionView]:
    """The conditions in the order in which a workload passes them."""
    return list(_conditions(entry))


def _conditions(entry: Entry) -> Iterator[ConditionView]:
    reason = str(entry.reason.code)
    if entry.state is State.FINISHED:
        yield _condition(entry, "Finished", reason, holds=True)
        return
    reserved = entry.state in (*HOLDING, State.RESERVED)
    yield _condition(
        entry, "QuotaReserved", "QuotaReserved" if reserved else reason, holds=reserved
    )
    admitted = entry.state in HOLDING
    yield _condition(entry, "Admitted", "Admitted" if admitted else reason, holds=admitted)
    yield _pods_ready(entry)
    if entry.evicted_for is not None:
        yield from _evicted(entry, entry.evicted_for)


def _pods_ready(entry: Entry) -> ConditionView:
    if entry.state is State.RUNNING and entry.unready_since is None:
        return _condition(entry, "PodsReady", "Started", holds=True)
    if entry.unready_since is not None:
        return _condition(
            entry, "PodsReady", "WaitForRecovery", holds=False, at=entry.unready_since
        )
    return _condition(entry, "PodsReady", "WaitForStart", holds=False)


def _evicted(entry: Entry, code: Code) -> Iterator[ConditionView]:
    """The conditions from the eviction until the next start."""
    cause = _EVICTED.get(code, str(code))
    yield _condition(entry, "Evicted", cause, holds=True)
    if code in MADE_ROOM:
        yield _condition(entry, "Preempted", str(code), holds=True)
    if entry.state is not State.EVICTING:
        queues = entry.state in (State.PENDING, State.RESERVED)
        back = _REQUEUED.get(code, "BackoffFinished" if entry.requeued_at is not None else cause)
        yield _condition(entry, "Requeued", back if queues else cause, holds=queues)


def _condition(
    entry: Entry, name: str, reason: str, *, holds: bool, at: float | None = None
) -> ConditionView:
    return ConditionView(
        type=name,
        status="True" if holds else "False",
        reason=reason,
        message=entry.reason.message,
        last_transition_time=utc(entry.since if at is None else at),
    )

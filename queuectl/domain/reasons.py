"""Why a workload is where it is: a code machines read, a sentence people read, and the numbers behind it.

Codes are Kueue's where they mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Code(StrEnum):
    """Reason codes: part of the API. The comment says what the reader should understand."""

    # pending
    WAITING_FOR_QUOTA = "WaitingForQuota"  # fits the queue's quota once others finish
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"  # larger than the queue's whole quota: never
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"  # no flavor of the queue covers or allows it
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"  # no placement exists on what is free now
    SHAPE_NEVER_FITS = "ShapeNeverFits"  # no placement exists even on the empty cluster
    RESOURCE_QUOTA_EXCEEDED = "ResourceQuotaExceeded"  # the namespace may not use so much
    LIMIT_RANGE_VIOLATED = "LimitRangeViolated"  # the namespace lets no such pods be created
    MAX_PER_USER = "MaxPerUserExceeded"  # its user holds all that the queue lets one user hold
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    WAITING_TO_RECLAIM = "WaitingToReclaim"  # it evicts gangs that borrow, but not yet
    UNDECIDED = "Undecided"  # the solver's budget ended first; retried with a larger one
    PENDING_EVALUATION = "PendingEvaluation"  # behind others; not looked at yet
    WAITING_IN_ORDER = "WaitingInOrder"  # StrictFIFO: behind a blocked gang
    MISCONFIGURED = "Misconfigured"  # label, queue or request is wrong; the message says which
    UNSUPPORTED = "UnsupportedConstraint"  # asks for what placement cannot honour yet
    QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    UNSATISFIED_CHECKS = "UnsatisfiedAdmissionChecks"  # its queue names checks, which are not run
    BACKOFF = "Backoff"
    HELD = "Held"  # by a person
    QUEUE_SET = (
        "QueueSet"  # a person moves it to another LocalQueue, and its object does not name that yet
    )
    ADMISSION_GATED = "AdmissionGated"  # until its admission gates are removed
    # starting and running
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    ADOPTED = "Adopted"  # it ran already when queuectl first saw it, or the ledger had forgotten
    REPAIRED = "Repaired"
    # evictions
    PREEMPTED = "Preempted"
    DEFRAGMENTED = "Defragmented"  # moved elsewhere so that another gang fits
    IDLE_RECLAIMED = "IdleReclaimed"  # it did not use its GPUs, and was warned twice
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    NODE_FAILURES = "NodeFailures"
    START_REFUSED = "StartRefused"  # the API server refuses its start, or the pin of a pod
    PODS_LARGER_THAN_ASKED = "PodsLargerThanAsked"  # e.g. a webhook raised what the template says
    PIN_UNSCHEDULABLE = "PinUnschedulable"  # kube-scheduler refused a pinned pod
    RESUMED_OUTSIDE = "ResumedOutside"  # somebody else resumed a managed job
    SUSPENDED_OUTSIDE = "SuspendedOutside"  # somebody else suspended it
    CHANGED_OUTSIDE = "ChangedOutside"  # its podsets changed while it ran
    REQUEUED = "Requeued"  # a person asked for it
    MAX_EXECUTION_TIME = "MaximumExecutionTimeExceeded"  # all attempts together; deactivated
    # ends
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"
    # deactivations
    DEACTIVATED = "Deactivated"  # by a person
    REQUEUING_LIMIT = "RequeuingLimitExceeded"  # too many failed starts in a row
    # of the history only
    PRIORITY_SET = "PrioritySet"
    IDLE_GPUS = "IdleGPUs"  # a warning: it does not use its GPUs
    WOULD_RECLAIM = "WouldReclaim"  # what idle reclaim had done, were it not a dry run
    WRITE_REFUSED = "WriteRefused"  # the API server refuses a write that the workload owes
    QUEUED = "Queued"


@dataclass(frozen=True, slots=True)
class Reason:
    """``details`` holds plain JSON values only."""

    code: Code
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


MEANINGS: Final[Mapping[Code, str]] = {
    Code.QUEUED: "The planner has not considered the gang yet.",
    Code.PENDING_EVALUATION: "Earlier gangs took the planner's time; a later cycle considers this gang.",
    Code.WAITING_FOR_QUOTA: "The free quota of the ClusterQueue and its cohort is too small.",
    Code.EXCEEDS_MAX_QUOTA: "The gang requests more than the whole quota that the ClusterQueue can use.",
    Code.NO_MATCHING_FLAVOR: "No ResourceFlavor of the ClusterQueue has what the gang requests.",
    Code.TOPOLOGY_PLACEMENT_FAILED: "The free nodes do not have the shape or the topology that the gang requests.",
    Code.SHAPE_NEVER_FITS: "The gang does not fit the nodes, even if all of them are free.",
    Code.RESOURCE_QUOTA_EXCEEDED: "A ResourceQuota of the namespace does not permit the pods.",
    Code.LIMIT_RANGE_VIOLATED: "A LimitRange of the namespace does not permit the pods.",
    Code.MAX_PER_USER: "The user already holds the most that the ClusterQueue permits one user.",
    Code.WAITING_FOR_PREEMPTED: "A reservation is kept for the gang until its victims have stopped.",
    Code.WAITING_TO_RECLAIM: "Gangs that borrow its quota are evicted if they do not end soon.",
    Code.UNDECIDED: "The solver reached its time limit; it tries again with a longer one.",
    Code.WAITING_IN_ORDER: "The queue is StrictFIFO, and an earlier gang cannot start.",
    Code.MISCONFIGURED: "A label, a queue or a request is wrong; the reason of the gang names it.",
    Code.UNSUPPORTED: "The gang requests a constraint that queuectl does not support.",
    Code.QUEUE_STOPPED: "The ClusterQueue is stopped. Resume it to admit its gangs.",
    Code.LOCAL_QUEUE_STOPPED: "The LocalQueue is stopped. Resume it to admit its gangs.",
    Code.UNSATISFIED_CHECKS: "The ClusterQueue requires admission checks, which queuectl does not run.",
    Code.QUEUE_SET: "The gang moves to another LocalQueue.",
}
"""One line for each code that many pending gangs can have; after an eviction a gang shows the cause of that until it is planned."""


# What follows from a code. A new code goes into each of these sets that applies; tests/unit/test_reasons.py asks for it.

# Neither the empty cluster nor the whole quota holds it: it could not use what others take.
NEVER_FITS: Final = frozenset(
    {Code.SHAPE_NEVER_FITS, Code.EXCEEDS_MAX_QUOTA, Code.NO_MATCHING_FLAVOR}
)

# Other nodes, or the same nodes with fewer gangs on them, would let it start: migrating others can help.
WAITS_FOR_NODES: Final = frozenset({Code.TOPOLOGY_PLACEMENT_FAILED})

# It would start if fewer gangs held quota or nodes: evicting others can help.
WAITS_FOR_ROOM: Final = WAITS_FOR_NODES | {Code.WAITING_FOR_QUOTA}

# The planner considered it, or would: more quota or nodes can change the answer.
PLANNED: Final = (
    NEVER_FITS
    | WAITS_FOR_ROOM
    | {
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_TO_RECLAIM,
        Code.WAITING_IN_ORDER,
        Code.PENDING_EVALUATION,
        Code.UNDECIDED,
    }
)

# Of the reasons under several flavors, the one that is shown first: what ends soonest.
SHOWN_FIRST: Final = (
    Code.TOPOLOGY_PLACEMENT_FAILED,
    Code.WAITING_FOR_QUOTA,
    Code.SHAPE_NEVER_FITS,
    Code.EXCEEDS_MAX_QUOTA,
)

# It does not wait for its turn, but for a person, or for more than the cluster or the quota has when empty.
NOT_IN_LINE: Final = NEVER_FITS | {
    Code.MISCONFIGURED,
    Code.UNSUPPORTED,
    Code.LIMIT_RANGE_VIOLATED,
    Code.QUEUE_STOPPED,
    Code.LOCAL_QUEUE_STOPPED,
    Code.UNSATISFIED_CHECKS,
}

# No user must act on it, and it often ends at once: it becomes an Event only if it lasts.
TRANSIENT: Final = WAITS_FOR_ROOM | {
    Code.QUEUED,
    Code.RESOURCE_QUOTA_EXCEEDED,
    Code.MAX_PER_USER,
    Code.WAITING_FOR_PREEMPTED,
    Code.WAITING_TO_RECLAIM,
    Code.WAITING_IN_ORDER,
    Code.PENDING_EVALUATION,
    Code.UNDECIDED,
}

# Events of type Warning.
WARNINGS: Final = NOT_IN_LINE | {
    Code.PREEMPTED,
    Code.DEFRAGMENTED,
    Code.IDLE_RECLAIMED,
    Code.PODS_READY_TIMEOUT,
    Code.PIN_UNSCHEDULABLE,
    Code.START_REFUSED,
    Code.PODS_LARGER_THAN_ASKED,
    Code.NODE_FAILURES,
    Code.RESUMED_OUTSIDE,
    Code.SUSPENDED_OUTSIDE,
    Code.CHANGED_OUTSIDE,
    Code.BACKOFF,
    Code.MAX_EXECUTION_TIME,
    Code.REQUEUING_LIMIT,
}

# About a gang that runs on: an Event, and nothing about its state.
REMARKS: Final = frozenset({Code.IDLE_GPUS, Code.WOULD_RECLAIM, Code.WRITE_REFUSED})

# An eviction for one of these means that the start itself failed: retry later, not at once.
FAILED_START: Final = frozenset(
    {
        Code.PODS_READY_TIMEOUT,
        Code.PIN_UNSCHEDULABLE,
        Code.PODS_LARGER_THAN_ASKED,
        Code.START_REFUSED,
    }
)

# An eviction for one of these was in favour of others.
MADE_ROOM: Final = frozenset({Code.PREEMPTED, Code.DEFRAGMENTED})

# By an eviction for one of these a queue's policy took the place of a gang that ran as it should: protections count them.
BY_POLICY: Final = MADE_ROOM | {Code.IDLE_RECLAIMED}

# An eviction for one of these can wait for the gang to save its work; what is broken already has nothing to save.
COOPERATIVE: Final = BY_POLICY | {
    Code.QUEUE_STOPPED,
    Code.LOCAL_QUEUE_STOPPED,
    Code.HELD,
    Code.REQUEUED,
    Code.DEACTIVATED,
    Code.MAX_EXECUTION_TIME,
}


def gated(gates: tuple[str, ...]) -> Reason:
    """Why a gang with these admission gates is held."""
    text = f"admission gates: {', '.join(gates)}"
    return Reason(Code.ADMISSION_GATED, text, {"gates": list(gates)})

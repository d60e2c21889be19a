"""The reason for the state of a workload: a code for programs, a sentence for people, and numbers as details.

Codes that mean the same as in Kueue have the name that they have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Code(StrEnum):
    """Reason codes: part of the API. The comment is the meaning for users."""

    # pending
    WAITING_FOR_QUOTA = "WaitingForQuota"  # other gangs use the quota that it needs
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"  # larger than all the quota its queue can ever use
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"  # no flavor of its ClusterQueue is admissible
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"  # no placement on the free capacity
    SHAPE_NEVER_FITS = "ShapeNeverFits"  # no placement even if all nodes were empty
    RESOURCE_QUOTA_EXCEEDED = "ResourceQuotaExceeded"  # a ResourceQuota of its namespace is full
    LIMIT_RANGE_VIOLATED = "LimitRangeViolated"  # a LimitRange of its namespace refuses its pods
    MAX_PER_USER = "MaxPerUserExceeded"  # its user would hold more than maxPerUser
    TOO_MANY_PENDING = "TooManyPending"  # its LocalQueue has maxPending older pending gangs
    BUDGET_SPENT = "BudgetSpent"  # a budget has too few GPU-hours left in this month
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"  # evicted gangs free capacity for it
    WAITING_TO_RECLAIM = "WaitingToReclaim"  # after reclaimPatience it evicts gangs that borrow
    UNDECIDED = "Undecided"  # the solver reached its limit; retried with a larger limit
    PENDING_EVALUATION = "PendingEvaluation"  # the planner has not evaluated it yet
    WAITING_IN_ORDER = "WaitingInOrder"  # StrictFIFO: the head of its ClusterQueue is pending
    WOULD_DELAY = "WouldDelayPlannedStart"  # Backfill: an earlier gang would start later
    RESERVATION_AHEAD = "ReservationAhead"  # a Reservation keeps the nodes that it needs
    MISCONFIGURED = "Misconfigured"  # an invalid label, queue or request; the message names it
    UNSUPPORTED = "UnsupportedConstraint"  # the request has an unsupported constraint
    QUEUE_STOPPED = "ClusterQueueStopped"  # stopPolicy of its ClusterQueue
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"  # stopPolicy of its LocalQueue
    TERMINATING = "Terminating"  # its object or its namespace is being deleted
    INTERNAL_ERROR = "InternalError"  # queuectl cannot handle it; it is set aside and tried again
    UNSATISFIED_CHECKS = "UnsatisfiedAdmissionChecks"  # a check of its queue has no controller
    WAITING_FOR_CHECKS = "WaitingForAdmissionChecks"  # its capacity is reserved meanwhile
    BACKOFF = "Backoff"  # a start failed, or its GPUs were idle; it queues again later
    HELD = "Held"  # a user holds it
    QUEUE_SET = "QueueSet"  # a user moves it to another LocalQueue
    WAITING_FOR_PODS = "WaitingForPods"  # not all its pods exist, or ended ones are in their place
    ADMISSION_GATED = "AdmissionGated"  # held until its admission gates are removed
    DEPENDENCY = "Dependency"  # held until other jobs have ended
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"  # the other job ended otherwise
    # starting and running
    ADMITTED = "Admitted"  # it starts; its nodes are decided
    PODS_READY = "PodsReady"  # all pods are ready
    WAIT_FOR_RECOVERY = "WaitForRecovery"  # it runs, and not all its pods are ready now
    ADOPTED = "Adopted"  # it already ran when queuectl first saw it
    REPAIRED = "Repaired"  # pods of lost nodes are placed on other nodes
    # evictions
    PREEMPTED = "Preempted"  # evicted for another gang
    DEFRAGMENTED = "Defragmented"  # evicted to migrate, so that another gang fits
    RESERVATION_STARTS = "ReservationStarts"  # evicted for a Reservation with evict: true
    IDLE_RECLAIMED = "IdleReclaimed"  # its GPUs were idle, after two warnings
    PODS_READY_TIMEOUT = "PodsReadyTimeout"  # not all pods were ready in time
    ADMISSION_CHECK = "AdmissionCheck"  # a check asks to try again later; it releases its capacity
    NODE_FAILURES = "NodeFailures"  # its nodes failed, and no repair is possible
    START_REFUSED = "StartRefused"  # the API server refuses its start, or to place a pod
    PODS_LARGER_THAN_ASKED = "PodsLargerThanAsked"  # its pods request more than its template
    PIN_UNSCHEDULABLE = "PinUnschedulable"  # kube-scheduler refuses a pod on its planned node
    RESUMED_OUTSIDE = "ResumedOutside"  # resumed without queuectl; it is suspended again
    SUSPENDED_OUTSIDE = "SuspendedOutside"  # suspended without queuectl
    CHANGED_OUTSIDE = "ChangedOutside"  # its podsets changed while it ran
    REQUEUED = "Requeued"  # a user requeued it
    NODE_UNHEALTHY = "NodeUnhealthy"  # hardware of its nodes fails, and its queue drains them
    NODE_INTERRUPTED = "NodeInterrupted"  # a cloud announced that it takes a node of it away
    MAX_EXECUTION_TIME = "MaximumExecutionTimeExceeded"  # of all attempts together; deactivated
    # ends
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"
    # deactivations
    DEACTIVATED = "Deactivated"  # a user deactivated it
    REQUEUING_LIMIT = "RequeuingLimitExceeded"  # too many failed starts in a row
    CHECK_REJECTED = "AdmissionCheckRejected"  # an admission check rejects it
    # only in the history
    PRIORITY_SET = "PrioritySet"  # its priority changed
    IDLE_GPUS = "IdleGPUs"  # a warning: its GPUs are idle
    STRAGGLER = "Straggler"  # a report: a GPU of it runs far slower than those of its peers
    WOULD_RECLAIM = "WouldReclaim"  # its eviction for idle GPUs is only a dry run
    WRITE_REFUSED = "WriteRefused"  # the API server refuses a write of queuectl
    PLANNED_START_MOVED = "PlannedStartMoved"  # to a later time; the cause is named
    QUEUED = "Queued"  # it is in its queue


WAITS_FOR: Final = "waitsFor"
"""The detail that states which nodes, devices or quota a gang waits for that are out of use for a time."""


@dataclass(frozen=True, slots=True)
class Reason:
    """``details`` contains plain JSON values only."""

    code: Code
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def waits_for_capacity(self) -> bool:
        """Whether the gang waits for nodes, devices or quota that are out of use for a time; running gangs alone do not keep it."""
        return WAITS_FOR in self.details

    @property
    def never_fits(self) -> bool:
        """Whether the gang fits neither the empty cluster nor the whole quota: it holds back no gang."""
        return self.code in NEVER_FITS


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
    Code.TOO_MANY_PENDING: "The LocalQueue already has as many older pending gangs as maxPending permits.",
    Code.BUDGET_SPENT: "A budget has too few GPU-hours left in this month.",
    Code.WAITING_FOR_PREEMPTED: "A reservation is kept for the gang until its victims have stopped.",
    Code.WAITING_TO_RECLAIM: "Gangs that borrow its quota are evicted if they do not end soon.",
    Code.UNDECIDED: "The solver reached its time limit; it tries again with a longer one.",
    Code.WAITING_IN_ORDER: "The queue is StrictFIFO, and an earlier gang cannot start.",
    Code.WOULD_DELAY: "The start of the gang would delay the planned start of an earlier gang.",
    Code.RESERVATION_AHEAD: "A Reservation keeps nodes at a time at which the gang would still run.",
    Code.MISCONFIGURED: "A label, a queue or a request is wrong; the reason of the gang names it.",
    Code.UNSUPPORTED: "The gang requests a constraint that queuectl does not support.",
    Code.QUEUE_STOPPED: "The ClusterQueue is stopped. Resume it to admit its gangs.",
    Code.LOCAL_QUEUE_STOPPED: "The LocalQueue is stopped. Resume it to admit its gangs.",
    Code.TERMINATING: "The object or its namespace is being deleted, so the gang does not start.",
    Code.UNSATISFIED_CHECKS: "An admission check of the ClusterQueue does not exist or has no controller here.",
    Code.WAITING_FOR_CHECKS: "Quota and nodes are reserved for the gang until its admission checks are ready.",
    Code.INTERNAL_ERROR: "An internal error sets the gang aside. It delays no other gang, and is tried again.",
    Code.QUEUE_SET: "The gang moves to another LocalQueue.",
    Code.WAITING_FOR_PODS: "Pods of the gang do not exist yet, or ended ones are still in their place.",
}
"""One line for each code that many pending gangs can have; after an eviction a gang shows the cause of that until it is planned."""

NO_ACTION: Final = "No action is needed."
_REQUEST: Final = "Fix the field that the reason names, then submit the job again."
STOPPED_QUEUE: Final = (
    "Ask an administrator when the queue resumes, or move the job to another LocalQueue."
)
NEXT_STEPS: Final[Mapping[Code, str]] = {
    Code.WAITING_FOR_QUOTA: f"{NO_ACTION} It starts when other gangs release quota.",
    Code.EXCEEDS_MAX_QUOTA: "Request fewer resources, or ask an administrator for more quota.",
    Code.NO_MATCHING_FLAVOR: "Change the node selector or the tolerations, or use another LocalQueue.",
    Code.TOPOLOGY_PLACEMENT_FAILED: f"{NO_ACTION} It starts when nodes become free. A coarser topology level can start it earlier.",
    Code.SHAPE_NEVER_FITS: "Request smaller pods, fewer pods in a domain, or a coarser topology level.",
    Code.RESOURCE_QUOTA_EXCEEDED: "Delete pods of the namespace, or ask for a larger ResourceQuota.",
    Code.LIMIT_RANGE_VIOLATED: "Change the requests of the pods so that they fulfill the LimitRange.",
    Code.MAX_PER_USER: f"{NO_ACTION} It starts when another job of its user ends.",
    Code.TOO_MANY_PENDING: f"{NO_ACTION} The planner considers it when older gangs of its LocalQueue start or are deleted.",
    Code.BUDGET_SPENT: f"{NO_ACTION} It starts next month, or after an administrator has topped the Budget up.",
    Code.WAITING_FOR_PREEMPTED: f"{NO_ACTION} It starts when the pods of its victims have ended.",
    Code.WAITING_TO_RECLAIM: f"{NO_ACTION} It reclaims quota from gangs that borrow.",
    Code.WAITING_IN_ORDER: f"{NO_ACTION} Its queue is StrictFIFO: it starts after the gangs before it.",
    Code.WOULD_DELAY: f"{NO_ACTION} A shorter time limit or expected duration can start it earlier.",
    Code.RESERVATION_AHEAD: f"{NO_ACTION} It starts on other nodes, or before the Reservation with a shorter time limit.",
    Code.UNDECIDED: f"{NO_ACTION} The next planning cycle considers it again.",
    Code.PENDING_EVALUATION: f"{NO_ACTION} The next planning cycle considers it.",
    Code.QUEUED: f"{NO_ACTION} The next planning cycle considers it.",
    Code.WAITING_FOR_PODS: "Create the missing pods of a group. For an array, the Job controller creates them.",
    Code.MISCONFIGURED: _REQUEST,
    Code.UNSUPPORTED: _REQUEST,
    Code.QUEUE_STOPPED: STOPPED_QUEUE,
    Code.LOCAL_QUEUE_STOPPED: STOPPED_QUEUE,
    Code.TERMINATING: "If it stays, ask an administrator which finalizers the object or its namespace has.",
    Code.UNSATISFIED_CHECKS: "Ask an administrator: an admission check of its queue is not set up.",
    Code.WAITING_FOR_CHECKS: f"{NO_ACTION} It starts when its admission checks are ready.",
    Code.INTERNAL_ERROR: "Report the error to an administrator. A changed job is tried again at once.",
    Code.QUEUE_SET: f"{NO_ACTION} It is moved to the other LocalQueue.",
}
"""The next step for the user of a pending gang, by its reason."""


# The sets below say how each code is handled. Add a new code to each set that applies; tests/unit/test_reasons.py checks that.

# The gang fits neither the empty cluster nor the whole quota: evicting others does not help.
LACKS_NODES: Final = frozenset({Code.TOPOLOGY_PLACEMENT_FAILED, Code.SHAPE_NEVER_FITS})
"""Nodes that an autoscaler makes can let the gang start."""

TO_BE_CONSIDERED: Final = frozenset(
    {
        Code.QUEUED,
        Code.PENDING_EVALUATION,
        Code.UNDECIDED,
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_TO_RECLAIM,
    }
)
"""The gang is to be considered. With other reasons it is refused until the state of the cluster changes: Kueue's two kinds of pending."""

NEVER_FITS: Final = frozenset(
    {
        *(Code.SHAPE_NEVER_FITS, Code.UNSUPPORTED),
        *(Code.EXCEEDS_MAX_QUOTA, Code.NO_MATCHING_FLAVOR),
    }
)

# Free nodes would let it start: migrating other gangs can help.
WAITS_FOR_NODES: Final = frozenset({Code.TOPOLOGY_PLACEMENT_FAILED, Code.RESERVATION_AHEAD})

# Free quota or nodes would let it start: evicting other gangs can help.
WAITS_FOR_ROOM: Final = WAITS_FOR_NODES | {Code.WAITING_FOR_QUOTA}

# The planner evaluates it: more quota or nodes can change the result.
PLANNED: Final = (
    (NEVER_FITS - {Code.UNSUPPORTED})
    | WAITS_FOR_ROOM
    | {
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_TO_RECLAIM,
        Code.WAITING_IN_ORDER,
        Code.WOULD_DELAY,
        Code.PENDING_EVALUATION,
        Code.UNDECIDED,
    }
)

# Among reasons for several flavors, the order in which they are shown: the one that ends soonest is first.
SHOWN_FIRST: Final = (
    Code.WOULD_DELAY,
    Code.RESERVATION_AHEAD,
    Code.TOPOLOGY_PLACEMENT_FAILED,
    Code.WAITING_FOR_QUOTA,
    Code.SHAPE_NEVER_FITS,
    Code.UNSUPPORTED,
    Code.EXCEEDS_MAX_QUOTA,
)

# It waits for a user, an administrator, or a larger cluster or quota, not for other gangs.
NOT_IN_LINE: Final = NEVER_FITS | {
    Code.MISCONFIGURED,
    Code.LIMIT_RANGE_VIOLATED,
    Code.QUEUE_STOPPED,
    Code.LOCAL_QUEUE_STOPPED,
    Code.UNSATISFIED_CHECKS,
    Code.TERMINATING,
    Code.BUDGET_SPENT,
    Code.INTERNAL_ERROR,
}

# It requires no action and often ends soon: it becomes an Event only if it lasts.
TRANSIENT: Final = WAITS_FOR_ROOM | {
    Code.QUEUED,
    Code.WAITING_FOR_PODS,
    Code.RESOURCE_QUOTA_EXCEEDED,
    Code.MAX_PER_USER,
    Code.TOO_MANY_PENDING,
    Code.WAITING_FOR_PREEMPTED,
    Code.WAITING_FOR_CHECKS,
    Code.WAITING_TO_RECLAIM,
    Code.WAITING_IN_ORDER,
    Code.WOULD_DELAY,
    Code.PENDING_EVALUATION,
    Code.UNDECIDED,
}

# Events of type Warning.
WARNINGS: Final = NOT_IN_LINE | {
    Code.PREEMPTED,
    Code.DEFRAGMENTED,
    Code.RESERVATION_STARTS,
    Code.IDLE_RECLAIMED,
    Code.PODS_READY_TIMEOUT,
    Code.PIN_UNSCHEDULABLE,
    Code.START_REFUSED,
    Code.PODS_LARGER_THAN_ASKED,
    Code.NODE_FAILURES,
    Code.NODE_UNHEALTHY,
    Code.NODE_INTERRUPTED,
    Code.RESUMED_OUTSIDE,
    Code.SUSPENDED_OUTSIDE,
    Code.CHANGED_OUTSIDE,
    Code.BACKOFF,
    Code.MAX_EXECUTION_TIME,
    Code.REQUEUING_LIMIT,
    Code.ADMISSION_CHECK,
    Code.CHECK_REJECTED,
}

# The gang keeps running: an Event without a change of state.
NOTES: Final = frozenset({Code.IDLE_GPUS, Code.STRAGGLER, Code.WOULD_RECLAIM, Code.WRITE_REFUSED})

# Evictions because a start failed: the next start is tried after a back-off.
FAILED_START: Final = frozenset(
    {
        Code.PODS_READY_TIMEOUT,
        Code.PIN_UNSCHEDULABLE,
        Code.PODS_LARGER_THAN_ASKED,
        Code.START_REFUSED,
    }
)

PLANNED_AGAIN: Final = "plannedAgain"
"""In the details of an eviction for pods that are too large: the next plan knows their size, so the gang queues again at once."""

# Evictions in favor of other gangs.
MADE_ROOM: Final = frozenset({Code.PREEMPTED, Code.DEFRAGMENTED})

# Evictions by the policy of a queue, of a gang that ran correctly: protections count them.
BY_POLICY: Final = MADE_ROOM | {Code.IDLE_RECLAIMED, Code.RESERVATION_STARTS}

# Evictions that can wait for the gang to save its work.
COOPERATIVE: Final = BY_POLICY | {
    Code.QUEUE_STOPPED,
    Code.LOCAL_QUEUE_STOPPED,
    Code.HELD,
    Code.REQUEUED,
    Code.NODE_UNHEALTHY,
    Code.NODE_INTERRUPTED,
    Code.DEACTIVATED,
    Code.MAX_EXECUTION_TIME,
    Code.ADMISSION_CHECK,
    Code.CHECK_REJECTED,
}

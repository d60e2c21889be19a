"""The reason for the state of a workload: a code for programs, a sentence for people, and numbers as details.

Codes that mean the same as in Kueue have the name that they have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, StrEnum, auto
from typing import Any, Final


class Code(StrEnum):
    """Reason codes: part of the API. The comment is the meaning for users."""

    # pending
    # Their meanings are in PENDING_REASONS.
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    SHAPE_NEVER_FITS = "ShapeNeverFits"
    RESOURCE_QUOTA_EXCEEDED = "ResourceQuotaExceeded"
    LIMIT_RANGE_VIOLATED = "LimitRangeViolated"
    MAX_PER_USER = "MaxPerUserExceeded"
    TOO_MANY_PENDING = "TooManyPending"
    BUDGET_SPENT = "BudgetSpent"
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    WAITING_TO_RECLAIM = "WaitingToReclaim"
    UNDECIDED = "Undecided"
    PENDING_EVALUATION = "PendingEvaluation"
    WAITING_IN_ORDER = "WaitingInOrder"
    WOULD_DELAY = "WouldDelayPlannedStart"
    RESERVATION_AHEAD = "ReservationAhead"
    MISCONFIGURED = "Misconfigured"
    UNSUPPORTED = "UnsupportedConstraint"
    QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    TERMINATING = "Terminating"
    INTERNAL_ERROR = "InternalError"
    UNSATISFIED_CHECKS = "UnsatisfiedAdmissionChecks"
    WAITING_FOR_CHECKS = "WaitingForAdmissionChecks"
    BACKOFF = "Backoff"  # a start failed, or its GPUs were idle; it queues again later
    HELD = "Held"  # a user holds it
    QUEUE_SET = "QueueSet"
    WAITING_FOR_PODS = "WaitingForPods"
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
    INVALID_NOTIFY = "InvalidNotify"  # its annotation of receivers has a wrong value
    PLANNED_START_MOVED = "PlannedStartMoved"  # to a later time; the cause is named
    QUEUED = "Queued"
    # only in what is read from the database
    OF_NEWER_RELEASE = "Other"  # the message begins with the code

    @classmethod
    def read(cls, text: str) -> Code:
        """The code of a row. A newer release can have written one that this release does not have."""
        try:
            return cls(text)
        except ValueError:
            return cls.OF_NEWER_RELEASE


WAITS_FOR: Final = "waitsFor"
"""The detail that states which nodes, devices or quota a gang waits for that are out of use for a time."""


@dataclass(frozen=True, slots=True)
class Reason:
    """``details`` contains plain JSON values only."""

    code: Code
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, code: str, message: str, details: Mapping[str, Any]) -> Reason:
        """The reason of a row, with a code that this release does not have in its message."""
        known = Code.read(code)
        if known is Code.OF_NEWER_RELEASE and code != Code.OF_NEWER_RELEASE:
            message = f"{code}: {message}" if message else code
        return cls(known, message, details)

    @property
    def waits_for_capacity(self) -> bool:
        """Whether the gang waits for nodes, devices or quota that are out of use for a time; running gangs alone do not keep it."""
        return WAITS_FOR in self.details

    @property
    def never_fits(self) -> bool:
        """Whether the gang fits neither the empty cluster nor the whole quota: it holds back no gang."""
        return self.code in NEVER_FITS


class Handling(Flag):
    """How the reason of a pending gang is handled.

    Attributes:
        TRANSIENT: it requires no action and often ends soon. It becomes an Event only if it lasts.
        NOT_IN_LINE: the gang waits for a user, an administrator, or a larger cluster or quota, not for other gangs.
        TO_BE_CONSIDERED: the planner is to consider the gang. Without it, the gang is refused until the state of the cluster changes.
        NEVER_FITS: the gang fits neither the empty cluster nor the whole quota. Evictions do not help.
        FOR_NODES: free nodes would let it start. Migrations and evictions of other gangs can help.
        FOR_QUOTA: free quota would let it start. Evictions can help.
        MORE_NODES: it can start on nodes that an autoscaler makes.
        AT_A_LIMIT: a limit other than quota keeps it out. It holds back only gangs that share the limit.
        ENDS_BY_TIME: the detail ``until`` is the time from which the next plan can lift it.
    """

    TRANSIENT = auto()
    NOT_IN_LINE = auto()
    TO_BE_CONSIDERED = auto()
    NEVER_FITS = auto()
    FOR_NODES = auto()
    FOR_QUOTA = auto()
    MORE_NODES = auto()
    AT_A_LIMIT = auto()
    ENDS_BY_TIME = auto()


@dataclass(frozen=True, slots=True)
class PendingReason:
    """A code that many pending gangs can have; after an eviction a gang shows the cause of that until it is planned.

    Attributes:
        meaning: one line.
        next_step: of the user of the gang.
        handling: all that apply.
    """

    meaning: str
    next_step: str
    handling: Handling


NO_ACTION: Final = "No action is needed."
_REQUEST: Final = "Fix the field that the reason names, then submit the job again."
STOPPED_QUEUE: Final = (
    "Ask an administrator when the queue resumes, or move the job to another LocalQueue."
)
PENDING_REASONS: Final[Mapping[Code, PendingReason]] = {
    Code.WAITING_FOR_QUOTA: PendingReason(
        "The free quota of the ClusterQueue and its cohort is too small.",
        f"{NO_ACTION} It starts when other gangs release quota.",
        Handling.TRANSIENT | Handling.FOR_QUOTA,
    ),
    Code.EXCEEDS_MAX_QUOTA: PendingReason(
        "The gang requests more than the whole quota that the ClusterQueue can use.",
        "Request fewer resources, or ask an administrator for more quota.",
        Handling.NOT_IN_LINE | Handling.NEVER_FITS,
    ),
    Code.NO_MATCHING_FLAVOR: PendingReason(
        "No ResourceFlavor of the ClusterQueue has what the gang requests.",
        "Change the node selector or the tolerations, or use another LocalQueue.",
        Handling.NOT_IN_LINE | Handling.NEVER_FITS,
    ),
    Code.TOPOLOGY_PLACEMENT_FAILED: PendingReason(
        "The free nodes do not have the shape or the topology that the gang requests.",
        f"{NO_ACTION} It starts when nodes become free. A coarser topology level can start it earlier.",
        Handling.TRANSIENT | Handling.MORE_NODES | Handling.FOR_NODES,
    ),
    Code.SHAPE_NEVER_FITS: PendingReason(
        "The gang does not fit the nodes, even if all of them are free.",
        "Request smaller pods, fewer pods in a domain, or a coarser topology level.",
        Handling.NOT_IN_LINE | Handling.MORE_NODES | Handling.NEVER_FITS,
    ),
    Code.RESOURCE_QUOTA_EXCEEDED: PendingReason(
        "A ResourceQuota of the namespace does not permit the pods.",
        "Delete pods of the namespace, or ask for a larger ResourceQuota.",
        Handling.TRANSIENT | Handling.AT_A_LIMIT,
    ),
    Code.LIMIT_RANGE_VIOLATED: PendingReason(
        "A LimitRange of the namespace does not permit the pods.",
        "Change the requests of the pods so that they fulfill the LimitRange.",
        Handling.NOT_IN_LINE,
    ),
    Code.MAX_PER_USER: PendingReason(
        "The user already holds the most that the ClusterQueue permits one user.",
        f"{NO_ACTION} It starts when another job of its user ends.",
        Handling.TRANSIENT | Handling.AT_A_LIMIT,
    ),
    Code.TOO_MANY_PENDING: PendingReason(
        "The LocalQueue already has as many older pending gangs as maxPending permits.",
        f"{NO_ACTION} The planner considers it when older gangs of its LocalQueue start or are deleted.",
        Handling.TRANSIENT,
    ),
    Code.BUDGET_SPENT: PendingReason(
        "A budget has too few GPU-hours left in this month.",
        f"{NO_ACTION} It starts next month, or after an administrator has topped the Budget up.",
        Handling.NOT_IN_LINE | Handling.ENDS_BY_TIME | Handling.AT_A_LIMIT,
    ),
    Code.WAITING_FOR_PREEMPTED: PendingReason(
        "A reservation is kept for the gang until its victims have stopped.",
        f"{NO_ACTION} It starts when the pods of its victims have ended.",
        Handling.TRANSIENT | Handling.TO_BE_CONSIDERED,
    ),
    Code.WAITING_TO_RECLAIM: PendingReason(
        "Gangs that borrow its quota are evicted if they do not end soon.",
        f"{NO_ACTION} It reclaims quota from gangs that borrow.",
        Handling.TRANSIENT | Handling.ENDS_BY_TIME | Handling.TO_BE_CONSIDERED,
    ),
    Code.UNDECIDED: PendingReason(
        "The solver reached its time limit; it tries again with a longer one.",
        f"{NO_ACTION} The next planning cycle considers it again.",
        Handling.TRANSIENT | Handling.TO_BE_CONSIDERED,
    ),
    Code.PENDING_EVALUATION: PendingReason(
        "Earlier gangs took the planner's time; a later cycle considers this gang.",
        f"{NO_ACTION} The next planning cycle considers it.",
        Handling.TRANSIENT | Handling.TO_BE_CONSIDERED,
    ),
    Code.WAITING_IN_ORDER: PendingReason(
        "The queue is StrictFIFO, and an earlier gang cannot start.",
        f"{NO_ACTION} Its queue is StrictFIFO: it starts after the gangs before it.",
        Handling.TRANSIENT,
    ),
    Code.WOULD_DELAY: PendingReason(
        "The start of the gang would delay the planned start of an earlier gang.",
        f"{NO_ACTION} A shorter time limit or expected duration can start it earlier.",
        Handling.TRANSIENT | Handling.MORE_NODES,
    ),
    Code.RESERVATION_AHEAD: PendingReason(
        "A Reservation keeps nodes at a time at which the gang would still run.",
        f"{NO_ACTION} It starts on other nodes, or before the Reservation with a shorter time limit.",
        Handling.TRANSIENT | Handling.MORE_NODES | Handling.FOR_NODES,
    ),
    Code.MISCONFIGURED: PendingReason(
        "A label, a queue or a request is wrong; the reason of the gang names it.",
        _REQUEST,
        Handling.NOT_IN_LINE,
    ),
    Code.UNSUPPORTED: PendingReason(
        "The gang requests a constraint that queuectl does not support.",
        _REQUEST,
        Handling.NOT_IN_LINE | Handling.NEVER_FITS,
    ),
    Code.QUEUE_STOPPED: PendingReason(
        "The ClusterQueue is stopped. Resume it to admit its gangs.",
        STOPPED_QUEUE,
        Handling.NOT_IN_LINE,
    ),
    Code.LOCAL_QUEUE_STOPPED: PendingReason(
        "The LocalQueue is stopped. Resume it to admit its gangs.",
        STOPPED_QUEUE,
        Handling.NOT_IN_LINE,
    ),
    Code.TERMINATING: PendingReason(
        "The object or its namespace is being deleted, so the gang does not start.",
        "If it stays, ask an administrator which finalizers the object or its namespace has.",
        Handling.NOT_IN_LINE,
    ),
    Code.INTERNAL_ERROR: PendingReason(
        "An internal error sets the gang aside. It delays no other gang, and is tried again.",
        "Report the error to an administrator. A changed job is tried again at once.",
        Handling.NOT_IN_LINE,
    ),
    Code.UNSATISFIED_CHECKS: PendingReason(
        "An admission check of the ClusterQueue does not exist or has no controller here.",
        "Ask an administrator: an admission check of its queue is not set up.",
        Handling.NOT_IN_LINE,
    ),
    Code.WAITING_FOR_CHECKS: PendingReason(
        "Quota and nodes are reserved for the gang until its admission checks are ready.",
        f"{NO_ACTION} It starts when its admission checks are ready.",
        Handling.TRANSIENT,
    ),
    Code.QUEUE_SET: PendingReason(
        "The gang moves to another LocalQueue.",
        f"{NO_ACTION} It is moved to the other LocalQueue.",
        Handling(0),
    ),
    Code.WAITING_FOR_PODS: PendingReason(
        "Pods of the gang do not exist yet, or ended ones are still in their place.",
        "Create the missing pods of a group. For an array, the Job controller creates them.",
        Handling.TRANSIENT,
    ),
    Code.QUEUED: PendingReason(
        "The planner has not considered the gang yet.",
        f"{NO_ACTION} The next planning cycle considers it.",
        Handling.TRANSIENT | Handling.TO_BE_CONSIDERED,
    ),
}
"""All that a new code of pending gangs needs here is its row."""

MEANINGS: Final = {code: row.meaning for code, row in PENDING_REASONS.items()}
NEXT_STEPS: Final = {code: row.next_step for code, row in PENDING_REASONS.items()}


def _handled(handling: Handling) -> frozenset[Code]:
    return frozenset(code for code, row in PENDING_REASONS.items() if row.handling & handling)


TRANSIENT: Final = _handled(Handling.TRANSIENT)
NOT_IN_LINE: Final = _handled(Handling.NOT_IN_LINE)
TO_BE_CONSIDERED: Final = _handled(Handling.TO_BE_CONSIDERED)  # Kueue's active pending gangs
NEVER_FITS: Final = _handled(Handling.NEVER_FITS)
WAITS_FOR_NODES: Final = _handled(Handling.FOR_NODES)
WAITS_FOR_ROOM: Final = _handled(Handling.FOR_NODES | Handling.FOR_QUOTA)
LACKS_NODES: Final = _handled(Handling.MORE_NODES)
AT_A_LIMIT: Final = _handled(Handling.AT_A_LIMIT)
ENDS_BY_TIME: Final = _handled(Handling.ENDS_BY_TIME)
WAITS_TO_EVICT: Final = frozenset((Code.WAITING_TO_RECLAIM, Code.PENDING_EVALUATION))
"""Their details have ``since`` when the gang waits to evict gangs that borrow (unix seconds), if it does."""

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

# The sets below say how codes of running and evicted gangs are handled. Add a new one to each set that applies.

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
NOTES: Final = frozenset(
    {
        *(Code.IDLE_GPUS, Code.STRAGGLER, Code.WOULD_RECLAIM, Code.WRITE_REFUSED),
        Code.INVALID_NOTIFY,
    }
)

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

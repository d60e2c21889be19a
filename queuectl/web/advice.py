"""The next step for the user of a workload, in one sentence for each state and reason."""

from __future__ import annotations

from typing import Final

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code

_NOTHING: Final = "No action is needed."
_REQUEST: Final = "Fix the field that the reason names, then submit the job again."
_STOPPED: Final = (
    "Ask an administrator when the queue resumes, or move the job to another LocalQueue."
)

PENDING: Final = {
    Code.WAITING_FOR_QUOTA: f"{_NOTHING} It starts when other gangs release quota.",
    Code.EXCEEDS_MAX_QUOTA: "Request fewer resources, or ask an administrator for more quota.",
    Code.NO_MATCHING_FLAVOR: "Change the node selector or the tolerations, or use another LocalQueue.",
    Code.TOPOLOGY_PLACEMENT_FAILED: f"{_NOTHING} It starts when nodes become free. A coarser topology level can start it earlier.",
    Code.SHAPE_NEVER_FITS: "Request smaller pods, fewer pods in a domain, or a coarser topology level.",
    Code.RESOURCE_QUOTA_EXCEEDED: "Delete pods of the namespace, or ask for a larger ResourceQuota.",
    Code.LIMIT_RANGE_VIOLATED: "Change the requests of the pods so that they fulfill the LimitRange.",
    Code.MAX_PER_USER: f"{_NOTHING} It starts when another job of its user ends.",
    Code.TOO_MANY_PENDING: f"{_NOTHING} The planner considers it when older gangs of its LocalQueue start or are deleted.",
    Code.BUDGET_SPENT: f"{_NOTHING} It starts next month, or after an administrator has topped the Budget up.",
    Code.WAITING_FOR_PREEMPTED: f"{_NOTHING} It starts when the pods of its victims have ended.",
    Code.WAITING_TO_RECLAIM: f"{_NOTHING} It reclaims quota from gangs that borrow.",
    Code.WAITING_IN_ORDER: f"{_NOTHING} Its queue is StrictFIFO: it starts after the gangs before it.",
    Code.WOULD_DELAY: f"{_NOTHING} A shorter time limit or expected duration can start it earlier.",
    Code.RESERVATION_AHEAD: f"{_NOTHING} It starts on other nodes, or before the Reservation with a shorter time limit.",
    Code.UNDECIDED: f"{_NOTHING} The next planning cycle considers it again.",
    Code.PENDING_EVALUATION: f"{_NOTHING} The next planning cycle considers it.",
    Code.QUEUED: f"{_NOTHING} The next planning cycle considers it.",
    Code.WAITING_FOR_PODS: "Create the missing pods of a group. For an array, the Job controller creates them.",
    Code.MISCONFIGURED: _REQUEST,
    Code.UNSUPPORTED: _REQUEST,
    Code.QUEUE_STOPPED: _STOPPED,
    Code.LOCAL_QUEUE_STOPPED: _STOPPED,
    Code.TERMINATING: "If it stays, ask an administrator which finalizers the object or its namespace has.",
    Code.UNSATISFIED_CHECKS: "Ask an administrator: an admission check of its queue is not set up.",
    Code.WAITING_FOR_CHECKS: f"{_NOTHING} It starts when its admission checks are ready.",
    Code.INTERNAL_ERROR: "Report the error to an administrator. A changed job is tried again at once.",
    Code.QUEUE_SET: f"{_NOTHING} It is moved to the other LocalQueue.",
}
"""By the reason of a pending gang."""

_STATES: Final = {
    State.PENDING: f"{_NOTHING} It queues again.",
    State.RESERVED: PENDING[Code.WAITING_FOR_PREEMPTED],
    State.HELD: "Release it when it can start.",
    State.STARTING: f"{_NOTHING} It runs when all its pods are ready.",
    State.RUNNING: "",
    State.EVICTING: f"{_NOTHING} It queues again when its pods have ended.",
    State.BACKOFF: "Check the logs of its pods: they show why the start failed.",
    State.DEACTIVATED: "Fix the cause, then activate it.",
    State.FINISHED: "",
}


def next_step(state: State, code: Code) -> str:
    """A sentence; "" where no advice applies."""
    if code is Code.ADMISSION_GATED:
        return "Wait until the controller that set the admission gate removes it."
    if code is Code.DEPENDENCY:
        return f"{_NOTHING} It queues when the jobs that it depends on have ended."
    if code is Code.DEPENDENCY_NEVER_SATISFIED:
        return "Run the other job again, or remove the annotation queuectl.dev/after."
    if code is Code.WAITING_FOR_CHECKS or (state is State.PENDING and code in PENDING):
        return PENDING[code]
    if code is Code.ADMISSION_CHECK and state is State.BACKOFF:
        return f"{_NOTHING} It queues again, and its admission checks are asked again."
    if state is State.FINISHED and code is Code.FAILED:
        return "Check the logs of its pods."
    return _STATES[state]

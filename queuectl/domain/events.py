"""Events of a workload: facts that :mod:`queuectl.lifecycle.machine` turns into changes of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queuectl.domain.checks import CheckReport, CheckStatus
from queuectl.domain.commands import Command
from queuectl.domain.gates import Standing
from queuectl.domain.gpus import Gpus
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Purpose
from queuectl.domain.notifications import JobNotifications
from queuectl.domain.plan import SlipCause
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.workload import DecidedRequest, Placement


@dataclass(frozen=True, slots=True)
class Submitted:
    """The watch shows a managed job the ledger does not know. ``statuses``: of the jobs that it depends on, by gate."""

    job: JobRecord
    priority: int
    cluster_queue: str
    user: str = ""
    statuses: Mapping[str, Standing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """Queue, priority or size as the object states them now; only while it waits, except the priority of a pod that is added to a gang.

    Attributes:
        priority: what its classes say, within ``max_priority``.
        max_priority: of its ClusterQueue, also for a priority set by hand.
        user: whose job it is; "" where that is not known.
        edited: its pods do not request what it is held for by admission checks.
    """

    queue: str
    cluster_queue: str
    priority: int
    gpus: Gpus
    pods: int
    max_priority: int | None = None
    user: str = ""
    edited: bool = False


@dataclass(frozen=True, slots=True)
class LabelsChanged:
    """The labels of its object, as :attr:`queuectl.domain.ledger.Entry.labels` has them."""

    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NotifyChanged:
    """The request in the annotations of its object, as :attr:`queuectl.domain.ledger.Entry.notify` has it."""

    notify: JobNotifications | None


@dataclass(frozen=True, slots=True)
class Admit:
    """``planned``: what the gang asked when this was decided."""

    placement: Placement
    details: Mapping[str, Any] = field(default_factory=dict)
    planned: DecidedRequest | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """The watch shows it running, whole, as an attempt the ledger knows nothing of."""

    placement: Placement
    attempt: int
    started_at: float | None = None  # unix seconds, where that is known


@dataclass(frozen=True, slots=True)
class AttemptFound:
    """Its object has a higher attempt than the ledger: the database was restored from a backup."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Victims are leaving for it, or its admission checks are not ready.

    ``checks``: those that its placement needs. ``request``: digest of what its pods requested when this was decided.
    """

    lease: CapacityLease
    reason: Reason
    checks: tuple[CheckStatus, ...] = ()
    request: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not now. ``reason.code`` Undecided raises the next budget.

    Attributes:
        planned_start: when it is planned to start; None = it has no planned start.
        slip: why that is later than before; None = it is not.
    """

    reason: Reason
    planned_start: PlannedStart | None = None
    slip: SlipCause | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Take it down whole and requeue it.

    Attributes:
        excluded: nodes to avoid at the next start.
        lease: the place held for it in the meantime, when it is only moved.
        parked: why it does not queue again without a command; None = it does.
        behind: it queues again behind the gangs that are pending now, where time decides the order.
    """

    reason: Reason
    excluded: tuple[str, ...] = ()
    lease: CapacityLease | None = None
    parked: Reason | None = None
    behind: bool = False


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """Something its history, and the people who read it, should know of a gang that runs; nothing follows from it."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class NoticeOver:
    """Its notice of eviction has ended, or it is ready: it can be suspended now."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Slots on lost nodes moved; ``placement`` is whole."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class StartConfirmed:
    """The watch confirms the start."""


@dataclass(frozen=True, slots=True)
class MoveRefused:
    """The API server refuses to name another LocalQueue on the object."""

    why: str


@dataclass(frozen=True, slots=True)
class RequiredWriteRefused:
    """The API server refuses a write that must still be made; ``text`` states the effect and what a person can do."""

    purpose: Purpose
    text: str


@dataclass(frozen=True, slots=True)
class WriteAccepted:
    """The watch shows the effect of the write that was refused."""


@dataclass(frozen=True, slots=True)
class PodsReady:
    """All pods of the attempt are ready, or have succeeded."""


@dataclass(frozen=True, slots=True)
class PodsLost:
    """Some pod is not ready.

    Attributes:
        why: how many pods are not ready, and what each of them waits for.
        held_by: of these, the scheduling gates and schedulers of others for which pods wait; empty without one.
    """

    why: str
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class PodsElsewhere:
    """All pods run, on other nodes than the ledger has; ``placement`` is the one on their nodes."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class PodsDone:
    """Pods are done for good; ``placement`` is what the others still need, never more than before."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class GatesChanged:
    """Gates as the object lists them now; those that it did not have when it was submitted count only after an invalid list.

    Attributes:
        statuses: of the jobs that it depends on, by gate.
        error: why the job cannot start without gates either.
    """

    gates: tuple[str, ...]
    statuses: Mapping[str, Standing] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ChecksReported:
    """New states of its admission checks. ``by``: the reporter, as the history shows it."""

    reports: tuple[CheckReport, ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A person asked for something."""

    command: Command


@dataclass(frozen=True, slots=True)
class PriorityOver:
    """The time is over for which a person set its priority; ``priority`` is what its classes say."""

    priority: int


@dataclass(frozen=True, slots=True)
class QueueMoved:
    """The watch shows it in the queue that a person moves it to."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Suspension of this attempt is confirmed and no pod of it is left running."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Its back-off is over."""


@dataclass(frozen=True, slots=True)
class FlavorsDue:
    """Nodes of a flavor whose requests failed can be requested again."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: JobOutcome


@dataclass(frozen=True, slots=True)
class ObjectDeleted:
    """The object was deleted."""


Event = (
    Submitted
    | ObjectChanged
    | LabelsChanged
    | NotifyChanged
    | Admit
    | Adopt
    | AttemptFound
    | Reserve
    | Refuse
    | Evict
    | NoteAdded
    | NoticeOver
    | Repair
    | StartConfirmed
    | MoveRefused
    | RequiredWriteRefused
    | WriteAccepted
    | PodsReady
    | PodsLost
    | PodsElsewhere
    | PodsDone
    | GatesChanged
    | ChecksReported
    | CommandReceived
    | PriorityOver
    | QueueMoved
    | Drained
    | RetryDue
    | FlavorsDue
    | Ended
    | ObjectDeleted
)

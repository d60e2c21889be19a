"""Workloads as the ledger holds them: state, attempt, place, and the cluster write that is still owed; and what must hold of them.

The database is the ledger's durable form, the leader's memory its working copy; both hold exactly these values. With them stand the
record of each planning cycle that changed something, and of each plan that the verifier refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from queuectl.domain.accounting import Mark
from queuectl.domain.checks import NO_CHECKS, Checks
from queuectl.domain.gpus import Gpus, in_parts
from queuectl.domain.notifications import JobNotifications
from queuectl.domain.pastuse import Used
from queuectl.domain.plan import Proof
from queuectl.domain.reasons import FAILED_START, Code, Reason
from queuectl.domain.reservations import ReservationState
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.words import counted
from queuectl.domain.workload import DecidedRequest, Placement

# ---- Entries


class State(StrEnum):
    """Workload states."""

    PENDING = "Pending"
    HELD = "Held"
    RESERVED = "Reserved"
    STARTING = "Starting"
    RUNNING = "Running"
    EVICTING = "Evicting"
    BACKOFF = "Backoff"
    DEACTIVATED = "Deactivated"
    FINISHED = "Finished"

    @property
    def live(self) -> bool:
        """Its placement's slots are committed and its pods can be ungated."""
        return self in (State.STARTING, State.RUNNING)

    @property
    def waiting(self) -> bool:
        """It holds no slots and its job should be suspended."""
        return self in (State.PENDING, State.HELD, State.RESERVED, State.BACKOFF, State.DEACTIVATED)


LIVE: Final = tuple(state for state in State if state.live)
HOLDING: Final = (*LIVE, State.EVICTING)
"""The states of gangs whose slots and quota are in use."""


class Intent(StrEnum):
    """The desired state of the job object that the watch has not confirmed yet: one outbox row."""

    START = "Start"
    STOP = "Stop"
    MOVE = "Move"


class Purpose(StrEnum):
    """The purpose of a write to the cluster."""

    START = "start"
    STOP = "stop"
    NOTICE = "notice"
    MOVE = "move"
    PIN = "pin"
    RESIZE = "resize"


UNLISTED: Final = "unlisted"
"""In the details of a line of history: the number of earlier changes of the workload without a line."""
REFUSED_WRITE: Final = "refusedWrite"
"""In the details of a reason: the write that the workload owes and the API server refuses."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger. Times are unix seconds.

    Attributes:
        gpus: that it requests; a whole number of parts.
        attempt: number of starts committed so far; labels the pods of the current one.
        queued_at: when it first queued.
        since: when ``state`` was entered.
        requeue_at: end of Backoff; in any other state where it waits or leaves, it does not borrow before that.
        requeued_at: its place in the order after a failed start, until the next; None = ``queued_at``, which
            preemption does not change.
        started_at, ready_at: of the current attempt; the second is the last time at which all its pods became ready.
        unready_since: a gang that runs is no longer whole since then.
        past_seconds: from commit to eviction, of all earlier attempts together.
        stop_at: the end of its notice of eviction: it is suspended then, or as soon as it is ready.
        failures: failed starts in a row; rules the back-off.
        evictions: how often it was evicted, ever.
        evicted_for: why, from an eviction until the next start.
        preempted_at: when it had to make room for others: the last time and the 24 hours before it, oldest first.
        budget: ``Undecided`` answers in a row; the solver's limit grows with it.
        excluded: nodes kube-scheduler refused after a pin, until it starts.
        parked: why it stays out of the queue, once its pods have ended, until a user changes that.
        gates: its admission gates and dependencies that are left; it is held while there are any.
        priority_set: priority given by a person; None = what its classes say.
        priority_until: when that ends; None = when it is taken back.
        queue_set: LocalQueue that a user moves it to, until its object names it; it does not start in the meantime.
        placement: of the current attempt, less the slots of pods that are done for good; None while waiting.
        planned: what it asked when the current attempt was decided; None while it waits, and of one that was adopted.
        user: name of the user whose job it is, as in the usage ledger; "" where that is not known.
        labels: of its object, by key, without those that queuectl reads; at most :data:`queuectl.domain.jobs.MOST_LABELS`.
        planned_start: as the last plan has it, in state Pending; None = it has none.
        announced_start: the planned start (unix seconds) that counts as known to its user, until it starts; None = none.
        notify: the request in its annotations; None = none.
        lease: set in state Reserved, and while it is evicted only to be moved.
        checks: its admission checks.
        intent: the unconfirmed write, for ``attempt``.
        version: of the row; +1 at each change, checked by the commit.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    state: State
    queue: str = ""
    cluster_queue: str = ""
    priority: int = 0
    gpus: Gpus = 0
    pods: int = 0
    attempt: int = 0
    queued_at: float = 0.0
    since: float = 0.0
    requeue_at: float | None = None
    started_at: float | None = None
    ready_at: float | None = None
    finished_at: float | None = None
    failures: int = 0
    evictions: int = 0
    preempted_at: tuple[float, ...] = ()
    budget: int = 0
    excluded: tuple[str, ...] = ()
    reason: Reason = Reason(Code.QUEUED)
    placement: Placement | None = None
    lease: CapacityLease | None = None
    intent: Intent | None = None
    version: int = 0
    requeued_at: float | None = None
    unready_since: float | None = None
    past_seconds: float = 0.0
    stop_at: float | None = None
    evicted_for: Code | None = None
    parked: Reason | None = None
    gates: tuple[str, ...] = ()
    priority_set: int | None = None
    priority_until: float | None = None
    queue_set: str | None = None
    planned: DecidedRequest | None = None
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    planned_start: PlannedStart | None = None
    announced_start: float | None = None
    notify: JobNotifications | None = None
    checks: Checks = NO_CHECKS

    @property
    def awaits_checks(self) -> bool:
        """Whether it is held for admission checks: it has its quota and its placement, and does not start."""
        return self.state is State.RESERVED and bool(self.checks.unready)

    @property
    def charged_queue(self) -> str | None:
        """The ClusterQueue that is charged for its placement, wherever its LocalQueue leads now; None while it has none."""
        return None if self.state.waiting else self.cluster_queue or None

    @property
    def gpu_parts(self) -> int:
        """``gpus`` as a number of :data:`queuectl.domain.gpus.PARTS`."""
        return in_parts(self.gpus)

    @property
    def queue_order_time(self) -> float:
        """Its place among equal priorities."""
        return self.queued_at if self.requeued_at is None else self.requeued_at

    def executed(self, now: float) -> float:
        """Seconds for which it has held its place, over all attempts."""
        held = now - self.started_at if self.state.live and self.started_at is not None else 0.0
        return self.past_seconds + max(held, 0.0)

    def execution_limit(self, stated: float | None) -> float | None:
        """Seconds that a gang which was started can run, over all attempts; None = no limit.

        It can become shorter than it was at the start of the attempt, and not longer. ``stated``: by its job now.
        """
        started = self.planned.limit if self.planned is not None else None
        return min((limit for limit in (started, stated) if limit is not None), default=None)

    @property
    def started_pods(self) -> int:
        """Pods that the current attempt started with: fewer than ``pods`` after partial admission."""
        podsets = self.placement.podsets if self.placement else ()
        if all(podset.pods is None for podset in podsets):
            return self.pods
        return sum(podset.count if podset.pods is None else podset.pods for podset in podsets)

    @property
    def refused_write(self) -> Purpose | None:
        """The write that it owes and the API server refuses, as last seen; None when none is refused.

        None also for one that only a newer release has: its text stays in the message of the reason.
        """
        found = self.reason.details.get(REFUSED_WRITE, {}).get("write")
        return next((purpose for purpose in Purpose if purpose == found), None)

    @property
    def ref(self) -> str:
        """``namespace/name``, as printed."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the append-only history: what happened to one workload, and why."""

    event: str
    from_state: State | None
    to_state: State
    reason: Reason


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One row before and after, with its history line. ``before`` None = new. ``note`` None = not worth a line.

    ``marks``: what the usage ledger has to know of it. ``commanded``: a user asked for it. ``listed``: the note becomes a line of the
    history. ``unlisted``: earlier notes of the workload that did not become one, since its last line.
    """

    before: Entry | None
    after: Entry
    at: float
    note: Note | None = None
    marks: tuple[Mark, ...] = ()
    commanded: bool = False
    listed: bool = True
    unlisted: int = 0

    @property
    def line(self) -> Note | None:
        """The line that the history gets; None if it gets none."""
        note = self.note if self.listed else None
        if note is None or not self.unlisted:
            return note
        text = f"{counted(self.unlisted, 'earlier change')} not listed"
        message = f"{note.reason.message}; {text}" if note.reason.message else text
        details = {**note.reason.details, UNLISTED: self.unlisted}
        return replace(note, reason=Reason(note.reason.code, message, details))


def check_once(changes: Iterable[EntryChange]) -> None:
    """Raise ValueError if a workload has two changes: only one of them would be written."""
    seen: set[str] = set()
    for change in changes:
        if change.after.uid in seen:
            raise ValueError(f"{change.after.ref} has two changes in one commit")
        seen.add(change.after.uid)


Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MigrationCost:
    """The cost of one migration: GPU-seconds of lost work, on account of its ClusterQueue, at a time."""

    at: float
    cluster_queue: str
    lost_work: int

    @classmethod
    def from_reason(cls, at: float, reason: Reason) -> MigrationCost | None:
        """Read it from the reason of an eviction; None when that was not a move."""
        if reason.code is not Code.DEFRAGMENTED:
            return None
        return cls(at, str(reason.details["clusterQueue"]), int(reason.details["lostGpuSeconds"]))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The ledger as the database holds it: every workload that is not Finished, and the configuration.

    ``spent``: on moves in the last 24 hours at least. ``used``: past use as last sampled. ``reserved``: the placements of Reservations.
    """

    entries: tuple[Entry, ...]
    documents: tuple[Document, ...]
    revision: int
    spent: tuple[MigrationCost, ...] = ()
    used: tuple[Used, ...] = ()
    reserved: tuple[ReservationState, ...] = ()


def parked_state(parked: Reason) -> State:
    """Where a gang stays that must not queue."""
    return State.HELD if parked.code is Code.HELD else State.DEACTIVATED


def queues_again_at_once(entry: Entry) -> bool:
    """Of a gang that is being evicted: whether it queues again as soon as its pods have ended."""
    return entry.parked is None and entry.reason.code not in FAILED_START and idle_wait(entry) <= 0


def idle_wait(entry: Entry) -> float:
    """Seconds for which a gang that was taken for idleness stays out of the queue.

    The place of an idle gang is free, so it would start at once again, and do nothing again until it is found out. An admission
    check that answers ``Retry`` states how long it needs.
    """
    if entry.reason.code not in (Code.IDLE_RECLAIMED, Code.ADMISSION_CHECK):
        return 0.0
    return float(entry.reason.details.get("restSeconds", 0.0))


# ---- Invariants of each entry


def violations(entry: Entry) -> list[str]:
    """The broken invariants of one entry; empty for every entry that the state machine makes."""
    state, parked = entry.state, entry.parked
    queues = state in (State.PENDING, State.RESERVED, State.BACKOFF) or state.live
    rules = {
        "a live attempt has a placement": not state.live or entry.placement is not None,
        "a waiting workload has no placement": not state.waiting or entry.placement is None,
        "what was planned is known of an attempt only": entry.planned is None
        or entry.placement is not None,
        "Reserved means a lease": entry.lease is not None or state is not State.RESERVED,
        "a lease only in Reserved, or while it moves": entry.lease is None
        or state in (State.RESERVED, State.EVICTING),
        "Start is owed only by a live attempt": entry.intent is not Intent.START or state.live,
        "Stop is owed exactly while Evicting": (entry.intent is Intent.STOP)
        == (state is State.EVICTING),
        "Move is owed exactly by what waits and is to move": (entry.intent is Intent.MOVE)
        == (state.waiting and entry.queue_set is not None),
        "what runs or has ended is not moved": entry.queue_set is None
        or not (state.live or state is State.FINISHED),
        "only a priority that was set ends": entry.priority_until is None
        or entry.priority_set is not None,
        "a notice only while Evicting": entry.stop_at is None or state is State.EVICTING,
        "Backoff has an end": entry.requeue_at is not None or state is not State.BACKOFF,
        "what runs or has ended is not to be requeued": entry.requeue_at is None
        or not (state.live or state is State.FINISHED),
        "a finish time exactly when finished": (entry.finished_at is not None)
        == (state is State.FINISHED),
        "a workload that queues or runs has no hold and no gate": not queues
        or (parked is None and not entry.gates),
        "Held by a user or by a gate": state is not State.HELD
        or parked is not None
        or bool(entry.gates),
        "held or deactivated for its reason": parked is None
        or state in (parked_state(parked), State.EVICTING, State.FINISHED),
        "Deactivated for a reason": state is not State.DEACTIVATED or parked is not None,
        "only what was ready can have lost it": entry.unready_since is None
        or state is State.RUNNING,
        "a live attempt was not evicted": not state.live or entry.evicted_for is None,
        "a planned start is announced only while it waits": entry.announced_start is None
        or state in (State.PENDING, State.RESERVED),
        "another place in the order only while it waits": entry.requeued_at is None
        or not state.live,
    }
    return [text for text, holds in rules.items() if not holds]


# ---- Invariants of the ledger and the cluster

VIOLATED: Final = "InvariantViolated"
"""Reason of the Event that a violation raises."""


class Invariant(StrEnum):
    """The invariants."""

    ENTRY = "Entry"  # the fields of an entry agree with its state
    DATABASE = "Database"  # the leader works on what the database holds
    WHOLE = "Whole"  # a pod runs only for an attempt that is committed
    ONCE = "Once"  # the pods of one attempt run at a time, and of a rank one
    PLACED = "Placed"  # a pod runs on a node of its gang's placement
    CAPACITY = "Capacity"  # the committed slots on a node fit its capacity


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """An invariant that does not hold.

    Attributes:
        uid: of the workload, whose namespace decides who can read the sentence.
        message: a sentence; it names no other workload.
    """

    invariant: Invariant
    uid: str
    kind: str
    namespace: str
    name: str
    message: str

    @property
    def key(self) -> tuple[Invariant, str]:
        """The same violation at another look has the same."""
        return self.invariant, self.uid


@dataclass(frozen=True, slots=True)
class Checked:
    """A complete check.

    Attributes:
        at: unix seconds.
        workloads, pods, nodes: how many were checked.
    """

    at: float
    workloads: int
    pods: int
    nodes: int
    violations: tuple[InvariantViolation, ...] = ()


# ---- Planning cycles

KEPT_SECONDS: Final = 7 * 86400.0
"""How long records are kept; the history of each workload is kept longer."""


@dataclass(frozen=True, slots=True)
class CycleDecision:
    """One cycle.

    Attributes:
        at: unix seconds of the snapshot it was planned from.
        revision: of the configuration.
        nodes, pending, running: what there was: nodes, gangs that waited, gangs that held capacity.
        started, gpus: gangs that it started, and the GPUs they hold.
        evicted, moved: gangs that it evicted; ``moved`` are those that have another placement already.
        waiting: gangs that it left waiting.
        reasons: of these, how many wait for which reason.
        proof: how sure all of it is.
        seconds: from the snapshot to the verified plan, by the clock.
        stats: the solver's own counts.
    """

    at: float
    revision: int
    nodes: int
    pending: int
    running: int
    started: int
    gpus: Gpus
    evicted: int
    moved: int
    waiting: int
    reasons: Mapping[str, int]
    proof: Proof
    seconds: float
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A record as it is stored.

    Attributes:
        id: increases with time, with gaps.
        epoch, cycle: of the leader, and counted within it.
        after, upto: its history lines have larger ids than ``after``, up to ``upto`` inclusive.
    """

    id: int
    epoch: int
    cycle: int
    after: int
    upto: int
    decision: CycleDecision


# ---- Refused plans

KEPT_DECISIONS: Final = 20
"""How many are kept: the newest."""
KEPT_BYTES: Final = 50 * 1024 * 1024
"""Of all that are kept together. A larger one is not kept at all."""


@dataclass(frozen=True, slots=True)
class RefusedPlan:
    """The description of a refused plan.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds of the snapshot.
        epoch: of the leader.
        cycle: within the epoch.
        rules: names of the rules that the plan broke, each once, sorted.
        size: bytes of the file.
    """

    id: int
    at: float
    epoch: int
    cycle: int
    rules: tuple[str, ...]
    size: int

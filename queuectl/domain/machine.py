"""The only door through which a workload changes state: ``handle(entry, event, now) -> Change``.

Pure: events are facts (the watch saw, the planner decided, time passed), changes are values that the store commits.
What must then happen in the cluster is not said by events but follows from the entry alone (objects/protocol.py), so a
crash between any two steps loses nothing.

    Pending ──Admit──▶ Starting ──PodsReady──▶ Running ──Ended──▶ Finished
       │  ▲               │ Evict                 │ Evict
    Reserve│ (lease lost) ▼                       ▼
       ▼  │            Evicting ──Drained──▶ Pending, or Backoff after a failed start
    Reserved ──Admit──▶ Starting
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from queuectl.domain.ledger import Change, Entry, Intent, Note, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord, Outcome
from queuectl.domain.snapshot import CapacityLease
from queuectl.domain.workload import Placement


@dataclass(frozen=True, slots=True)
class Submitted:
    """The watch shows a managed job the ledger does not know."""

    job: JobRecord
    priority: int
    cluster_queue: str


@dataclass(frozen=True, slots=True)
class Described:
    """Queue, priority or size as the object now says; only while it waits."""

    queue: str
    cluster_queue: str
    priority: int
    gpus: int
    pods: int


@dataclass(frozen=True, slots=True)
class Admit:
    placement: Placement
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adopt:
    """The watch shows it running, whole, as an attempt the ledger knows nothing of."""

    placement: Placement
    attempt: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Victims are leaving for it."""

    lease: CapacityLease
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not now. ``reason.code`` Undecided raises the next budget."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Evict:
    """Take it down whole and requeue it.

    Attributes:
        excluded: nodes to avoid at the next start.
        lease: the place held for it meanwhile, when it is only moved.
    """

    reason: Reason
    excluded: tuple[str, ...] = ()
    lease: CapacityLease | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """Slots on lost nodes moved; ``placement`` is whole."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Echoed:
    """The watch confirms the start."""


@dataclass(frozen=True, slots=True)
class PodsReady:
    """All pods of the attempt are ready, or have succeeded."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Suspension of this attempt is confirmed and no pod of it is left running."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Its back-off is over."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Gone:
    """The object was deleted."""


Event = (
    Submitted
    | Described
    | Admit
    | Adopt
    | Reserve
    | Refuse
    | Evict
    | Repair
    | Echoed
    | PodsReady
    | Drained
    | RetryDue
    | Ended
    | Gone
)


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Back-off after failed starts, in seconds: ``base * 2^(failures-1)``, at most ``ceiling``."""

    base: float = 60.0
    ceiling: float = 3600.0

    def delay(self, failures: int) -> float:
        return min(self.ceiling, self.base * 2.0 ** min(failures - 1, 30))


# An eviction for one of these means that the start itself failed: retry later, not at once.
FAILED_START = frozenset(
    {Code.PODS_READY_TIMEOUT, Code.PIN_UNSCHEDULABLE, Code.PODS_LARGER_THAN_ASKED}
)


# An eviction for one of these was in favour of others: what a queue's protections count.
MADE_ROOM = frozenset({Code.PREEMPTED, Code.DEFRAGMENTED})
DAY = 86_400.0  # seconds


MAX_BUDGET = 8  # beyond it another Undecided says nothing new


class IllegalTransition(AssertionError):
    """A defect: the event cannot happen in this state."""


def handle(  # noqa: C901 - one dispatch over all events, checked for completeness
    entry: Entry | None, event: Event, now: float, policy: StartPolicy = StartPolicy()
) -> Change | None:
    """Apply one event.

    Returns:
        The change, or None when the event says nothing new.

    Raises:
        IllegalTransition: when the event cannot happen in the entry's state.
    """
    if isinstance(event, Submitted):
        return _submitted(entry, event, now)
    if entry is None:
        raise IllegalTransition(f"{type(event).__name__} for an unknown workload")
    if entry.state is State.FINISHED:
        return None
    match event:
        case Described():
            return _described(entry, event, now)
        case Admit():
            return _admit(entry, event, now)
        case Adopt():
            return _adopt(entry, event, now)
        case Reserve() | Refuse():
            return _stay(entry, event, now)
        case Evict():
            return _evict(entry, event, now)
        case Repair():
            return _repair(entry, event, now)
        case Echoed():
            started = entry.intent is Intent.START  # a stop is owed until the gang is drained
            return Change(entry, _next(entry, intent=None), now) if started else None
        case PodsReady():
            return _ready(entry, now)
        case Drained() | RetryDue():
            return _requeue(entry, event, now, policy)
        case Ended():
            code = Code.SUCCEEDED if event.outcome is Outcome.SUCCEEDED else Code.FAILED
            return _finish(entry, Reason(code), now)
        case Gone():
            return _finish(entry, Reason(Code.DELETED, "the job was deleted"), now)
        case _:
            assert_never(event)


def _next(entry: Entry, **changes: Any) -> Entry:
    return replace(entry, version=entry.version + 1, **changes)


def _move(entry: Entry, state: State, now: float, reason: Reason, **changes: Any) -> Change:
    after = _next(entry, state=state, since=now, reason=reason, **changes)
    return Change(entry, after, now, Note(str(reason.code), entry.state, state, reason))


def _need(entry: Entry, event: Event, *states: State) -> None:
    if entry.state not in states:
        raise IllegalTransition(f"{type(event).__name__} in state {entry.state} of {entry.ref}")


def _submitted(entry: Entry | None, event: Submitted, now: float) -> Change | None:
    if entry is not None:
        return None
    job = event.job
    reason = Reason(Code.QUEUED, f"queued in {job.queue}")
    after = Entry(
        uid=job.uid,
        kind=job.kind,
        namespace=job.namespace,
        name=job.name,
        state=State.PENDING,
        queue=job.queue or "",
        cluster_queue=event.cluster_queue,
        priority=event.priority,
        gpus=job.gpus,
        pods=job.pods,
        attempt=job.attempt,  # an attempt on the object above ours is adopted
        queued_at=_arrival(job.created_at, now),
        since=now,
        reason=reason,
        version=1,
    )
    return Change(None, after, now, Note("Queued", None, State.PENDING, reason))


def _arrival(created_at: float, now: float) -> float:
    """When it was created, as finely as we know: the API server tells whole seconds, our sight of it may tell more."""
    return min(max(created_at, now), created_at + 0.999)


def _described(entry: Entry, event: Described, now: float) -> Change | None:
    after = _next(
        entry,
        queue=event.queue,
        cluster_queue=event.cluster_queue,
        priority=event.priority,
        gpus=event.gpus,
        pods=event.pods,
    )
    return Change(entry, after, now) if replace(after, version=entry.version) != entry else None


def _admit(entry: Entry, event: Admit, now: float) -> Change:
    _need(entry, event, State.PENDING, State.RESERVED)
    reason = Reason(Code.ADMITTED, f"attempt {entry.attempt + 1}", event.details)
    return _move(
        entry,
        State.STARTING,
        now,
        reason,
        attempt=entry.attempt + 1,
        placement=event.placement,
        lease=None,
        intent=Intent.START,
        started_at=now,
        ready_at=None,
        requeue_at=None,
        budget=0,
    )


def _adopt(entry: Entry, event: Adopt, now: float) -> Change:
    if not entry.state.waiting:
        raise IllegalTransition(f"Adopt in state {entry.state} of {entry.ref}")
    return _move(
        entry,
        State.RUNNING,
        now,
        Reason(Code.ADOPTED, f"it runs already, as attempt {event.attempt}"),
        attempt=event.attempt,
        placement=event.placement,
        lease=None,
        started_at=now,
        ready_at=now,
        requeue_at=None,
    )


def _stay(entry: Entry, event: Reserve | Refuse, now: float) -> Change | None:
    _need(entry, event, State.PENDING, State.RESERVED)
    lease = event.lease if isinstance(event, Reserve) else None
    state = State.RESERVED if lease is not None else State.PENDING
    undecided = event.reason.code is Code.UNDECIDED
    budget = min(entry.budget + 1, MAX_BUDGET) if undecided else 0
    if state is not entry.state:
        return _move(entry, state, now, event.reason, lease=lease, budget=budget)
    if (event.reason, lease, budget) == (entry.reason, entry.lease, entry.budget):
        return None
    after = _next(entry, reason=event.reason, lease=lease, budget=budget)
    told = event.reason.code is not entry.reason.code
    note = Note(str(event.reason.code), entry.state, state, event.reason) if told else None
    return Change(entry, after, now, note)


def _evict(entry: Entry, event: Evict, now: float) -> Change | None:
    if entry.state is State.EVICTING:
        return None
    failed = event.reason.code in FAILED_START
    return _move(
        entry,
        State.EVICTING,
        now,
        event.reason,
        intent=Intent.STOP,
        lease=event.lease,
        requeue_at=None,
        evictions=entry.evictions + 1,
        preempted_at=_preemptions(entry, event.reason.code, now),
        failures=entry.failures + 1 if failed else entry.failures,
        excluded=tuple(sorted({*entry.excluded, *event.excluded})),
    )


def _preemptions(entry: Entry, code: Code, now: float) -> tuple[float, ...]:
    """Its preemptions of the last day, this one included if it is one."""
    times = (*entry.preempted_at, now) if code in MADE_ROOM else entry.preempted_at
    return tuple(at for at in times if at > now - DAY)


def _repair(entry: Entry, event: Repair, now: float) -> Change:
    _need(entry, event, State.STARTING, State.RUNNING)
    after = _next(entry, placement=event.placement)
    reason = Reason(Code.REPAIRED, "slots on lost nodes moved")
    return Change(entry, after, now, Note("Repaired", entry.state, entry.state, reason))


def _ready(entry: Entry, now: float) -> Change | None:
    if entry.state is not State.STARTING:
        return None
    text = "its pod is ready" if entry.pods == 1 else f"all {entry.pods} pods ready"
    reason = Reason(Code.PODS_READY, text)
    return _move(entry, State.RUNNING, now, reason, ready_at=now, failures=0, excluded=())


def _requeue(entry: Entry, event: Event, now: float, policy: StartPolicy) -> Change:
    _need(entry, event, State.EVICTING if isinstance(event, Drained) else State.BACKOFF)
    cleared: dict[str, Any] = {
        "placement": None,
        "intent": None,
        "started_at": None,
        "ready_at": None,
    }
    if isinstance(event, Drained) and entry.reason.code in FAILED_START:
        at = now + policy.delay(entry.failures)
        text = f"start {entry.attempt} failed ({entry.reason.code}); retried in {at - now:.0f} s"
        return _move(
            entry, State.BACKOFF, now, Reason(Code.BACKOFF, text), requeue_at=at, **cleared
        )
    if isinstance(event, Drained) and entry.lease is not None:
        waits = Reason(Code.WAITING_FOR_PREEMPTED, "moved; its new place is held for it")
        return _move(entry, State.RESERVED, now, waits, requeue_at=None, **cleared)
    why = f" after {entry.reason.code}" if isinstance(event, Drained) else " after back-off"
    return _move(
        entry, State.PENDING, now, Reason(Code.QUEUED, "requeued" + why), requeue_at=None, **cleared
    )


def _finish(entry: Entry, reason: Reason, now: float) -> Change:
    return _move(
        entry,
        State.FINISHED,
        now,
        reason,
        placement=None,
        lease=None,
        intent=None,
        requeue_at=None,
        finished_at=now,
    )


def violations(entry: Entry) -> list[str]:
    """What is inconsistent in one entry; empty for every entry reachable through :func:`handle`."""
    held = entry.state in (State.STARTING, State.RUNNING)
    rules = {
        "a live attempt has a placement": not held or entry.placement is not None,
        "a waiting workload has no placement": not entry.state.waiting or entry.placement is None,
        "Reserved means a lease": entry.lease is not None or entry.state is not State.RESERVED,
        "a lease only in Reserved, or while it moves": entry.lease is None
        or entry.state in (State.RESERVED, State.EVICTING),
        "Start is owed only by a live attempt": entry.intent is not Intent.START or held,
        "Stop is owed only while Evicting": entry.intent is not Intent.STOP
        or entry.state is State.EVICTING,
        "Evicting owes Stop until it is drained": entry.state is not State.EVICTING
        or entry.intent is Intent.STOP,
        "requeue time exactly in Backoff": (entry.requeue_at is not None)
        == (entry.state is State.BACKOFF),
        "a finish time exactly when finished": (entry.finished_at is not None)
        == (entry.state is State.FINISHED),
    }
    return [text for text, holds in rules.items() if not holds]

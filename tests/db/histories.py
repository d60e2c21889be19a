"""Life cycles of workloads for tests of the store: single steps, and random sequences of legal steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from queuectl.domain.commands import Action, Command
from queuectl.domain.events import (
    Admit,
    CommandReceived,
    Drained,
    Ended,
    Event,
    Evict,
    GatesChanged,
    LabelsChanged,
    MoveRefused,
    NoticeOver,
    ObjectChanged,
    ObjectDeleted,
    PodsDone,
    PodsLost,
    PodsReady,
    PriorityOver,
    QueueMoved,
    Refuse,
    Repair,
    RequiredWriteRefused,
    Reserve,
    RetryDue,
    StartConfirmed,
    Submitted,
    WriteAccepted,
)
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, Purpose, State
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.workload import DecidedRequest, FlavorShare, Placement, PodSetPlacement
from queuectl.lifecycle.machine import handle

FLAVORS = {"nvidia.com/gpu": "h100", "cpu": "h100"}
HERE = Placement(
    (
        PodSetPlacement("worker", (("n2", 4), ("n1", 4)), FLAVORS, 8),
        PodSetPlacement("master", (("n3", 1),), {}),
    )
)
THERE = Placement(
    (
        PodSetPlacement(
            "worker",
            (("n9", 8),),
            FLAVORS,
            shares=(FlavorShare(6, FLAVORS), FlavorShare(2, dict.fromkeys(FLAVORS, "a100"))),
        ),
        PodSetPlacement("master", (("n3", 1),), {}),
    )
)
PART = Placement(
    (
        PodSetPlacement("worker", (("n9", 3),), FLAVORS, 3),
        PodSetPlacement("master", (("n3", 1),), {}),
    )
)
LEASE = CapacityLease(HERE, ("victim-1", "victim-2"), 1700000000.123456, 1700000600.5)
WAITS = Reason(
    Code.WAITING_FOR_QUOTA, "8 of 64 GPUs are free", {"free": 8, "levels": [HOSTNAME], "share": 0.1}
)


POLICY = Rules(eviction_grace=30.5)


def ask(action: Action, priority: int | None = None, **more: Any) -> CommandReceived:
    return CommandReceived(Command(1, "", action, "alice", "r", 1700000000.5, priority, **more))


def submitted(
    uid: str,
    name: str | None = None,
    *,
    namespace: str = "team-a",
    kind: str = "Job",
    queue: str = "research",
    cluster_queue: str = "gpus",
    at: float = 1700000000.25,
    gates: tuple[str, ...] = (),
    labels: tuple[tuple[str, str], ...] = (),
) -> EntryChange:
    """The change that adds a new job."""
    name = name or f"job-{uid}"
    job = JobRecord(kind, namespace, name, uid, 7, at, queue, gates=gates, labels=labels)
    change = handle(None, Submitted(job, 50, cluster_queue), at)
    assert change is not None
    return change


def step(entry: Entry, event: Event, at: float = 1700000001.0) -> EntryChange:
    """The change by an event. The event must have an effect."""
    change = handle(entry, event, at, POLICY)
    assert change is not None
    return change


WHOLE_LIFE: tuple[Event, ...] = (
    ObjectChanged("research", "gpus", 100, 64, 8),
    Refuse(WAITS),
    Refuse(WAITS, PlannedStart(1700000900.5, HERE, 1700000800.0, (("v1", 1700000790.0),), 3, 1.0)),
    Refuse(Reason(Code.UNDECIDED, "the budget ended")),
    Reserve(LEASE, Reason(Code.WAITING_FOR_PREEMPTED)),
    Admit(
        HERE, {"objective": [1, 2]}, DecidedRequest({"main": Resources({"cpu": 500})}, "d1", 60.0)
    ),
    StartConfirmed(),
    Repair(THERE),
    Evict(Reason(Code.PIN_UNSCHEDULABLE, "n9 refused a pod"), ("n9",)),
    Drained(),
    RetryDue(),
    Admit(THERE),
    StartConfirmed(),
    PodsReady(),
    PodsLost("a pod is missing"),
    PodsReady(),
    PodsDone(PART),
    ask(Action.PRIORITY, 70),
    ask(Action.PRIORITY, 80, until=1700000000.75),
    PriorityOver(10),
    Evict(Reason(Code.PREEMPTED, "for job-x")),
    NoticeOver(),
    ask(Action.HOLD),
    Drained(),
    ask(Action.RELEASE),
    ask(Action.DEACTIVATE),
    ask(Action.ACTIVATE),
    ask(Action.MOVE, queue="refused"),
    MoveRefused("a webhook denies it"),
    ask(Action.MOVE, queue="other"),
    QueueMoved(),
    Admit(HERE),
    PodsReady(),
    ask(Action.PREEMPT),
    RequiredWriteRefused(Purpose.STOP, "a webhook denies it"),
    WriteAccepted(),
    Drained(),
    Admit(HERE),
    Ended(JobOutcome.SUCCEEDED),
)


def legal_events(entry: Entry) -> list[Event]:
    """The legal next events, in each variation that is stored differently."""
    events: list[Event] = [
        ObjectChanged("other", "cpus", entry.priority + 1, 8, 1),
        LabelsChanged((("example.com/team", "nlp"), ("stage", ""), ("team", "vision"))),
        ObjectDeleted(),
    ]
    if entry.state in (State.PENDING, State.RESERVED):
        events += [Refuse(WAITS), Refuse(Reason(Code.UNDECIDED)), Reserve(LEASE, WAITS)]
        events += [Reserve(CapacityLease(THERE, (), 1.0, 2.0), WAITS), Admit(HERE), Admit(THERE)]
    if entry.state.live:
        events += [Repair(THERE), Repair(HERE), PodsReady(), Ended(JobOutcome.FAILED)]
        events += [Evict(Reason(Code.PODS_READY_TIMEOUT), ("n1",)), Evict(Reason(Code.PREEMPTED))]
        events += [PodsLost("a pod is missing"), PodsDone(PART)]
    if entry.state is State.EVICTING:
        events += [Drained(), NoticeOver()]
    if entry.gates:
        events += [GatesChanged(entry.gates[1:])]
    if entry.state is not State.FINISHED:
        plain = (action for action in Action if action not in (Action.PRIORITY, Action.MOVE))
        events += [ask(action) for action in plain]
        events += [ask(Action.PRIORITY, entry.priority + 1), ask(Action.PRIORITY)]
        events += [ask(Action.PRIORITY, 3, until=1.25), PriorityOver(entry.priority + 2)]
        events += [ask(Action.MOVE, queue="elsewhere"), QueueMoved()]
    if entry.state is State.BACKOFF:
        events.append(RetryDue())
    if entry.intent is Intent.START:
        events.append(StartConfirmed())
    return events


@dataclass
class Lives:
    """Several workloads at once; ``choose`` picks the next legal step of one by number."""

    prefix: str
    entries: dict[str, Entry] = field(default_factory=dict)
    _clock: count[int] = field(default_factory=lambda: count(1700000000))

    def choose(self, who: int, what: int) -> EntryChange | None:
        uid = f"{self.prefix}-{who}"
        at = next(self._clock) + 0.1
        entry = self.entries.get(uid)
        if entry is None:
            return submitted(uid, at=at, gates=("budget", "data")[: what % 3])
        events = legal_events(entry)
        return handle(entry, events[what % len(events)], at, POLICY)

    def batch(self, choices: list[tuple[int, int]]) -> list[EntryChange]:
        """At most one change for each workload, as a commit requires. Later choices for the same workload are skipped."""
        changes = {who: self.choose(who, what) for who, what in dict(choices).items()}
        return [change for change in changes.values() if change is not None]

    def committed(self, changes: list[EntryChange]) -> None:
        self.entries |= {change.after.uid: change.after for change in changes}

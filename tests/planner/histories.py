"""Whole histories in memory: the real planner, verifier, mirror, ledger and state machine, with a simulated clock.

A :class:`~tests.planner.story.Story` is a scene (queues, nodes) and the events there, step by step. :func:`simulate` carries it out as the control
loop does and notes every cycle, start and eviction. The cluster is simulated here: pods start at once, and end after the
time that the story states. After the last step, :data:`QUIET` seconds pass without a further event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from queuectl.control.leader.decisions import Decider
from queuectl.domain.fleet import Node, NodeRules
from queuectl.domain.jobs import JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, EntryChange, State, violations
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    QueueConfig,
    StopPolicy,
)
from queuectl.domain.reasons import Code
from queuectl.domain.records import Deleted, NamespaceRecord, NodeRecord, Upserted
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import PodSet, PodShape, TopologyMode, TopologyRequest
from queuectl.lifecycle.idleness import Idleness
from queuectl.lifecycle.observations import Observer
from queuectl.lifecycle.transitions import alarm_of
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.protections import next_change, next_plan_due, protected_until
from queuectl.planner.verify import verify
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.planner.build import LEVELS, NOW, resources
from tests.planner.elastic_pods import ElasticPods, status_of
from tests.planner.queues import quotas
from tests.planner.story import (
    NAMESPACE,
    POOL,
    USER,
    Arrives,
    Cycle,
    Ends,
    Event,
    Evicted,
    History,
    Idles,
    IsDeleted,
    NodeFails,
    NodeReturns,
    Outside,
    QuotaIs,
    Resumes,
    Scene,
    Started,
    Stops,
    Story,
    Warned,
    Works,
)

QUIET = 2 * 86_400.0  # longer than any lease, timeout, cool-down or day of evictions
MAX_CYCLES = 40  # cycles at one moment, none of which changes anything outside


class Unsettled(AssertionError):
    """The control loop continues to decide although nothing changes."""


class Simulation:
    """One story that is being simulated."""

    def __init__(self, scene: Scene) -> None:
        self.now = NOW
        self.history = History(scene)
        self._config = scene.config()
        self._mirror = Mirror({"jobs": "Job"})
        self._ledger = Ledger()
        self._usage = OtherPodUsage(self._mirror, self._ledger)
        self._uses: dict[str, GangUse] = {}
        self._snapshot_builder = SnapshotBuilder(
            self._mirror, self._ledger, self._usage, lambda: self._uses, self._idle_since
        )
        self._idleness = Idleness(
            self._mirror, lambda: self._ledger, self._snapshot_builder.running, fresh_seconds=0.0
        )
        self._observer = Observer(self._mirror, self._ledger, self._usage, 300.0)
        self._decider = Decider(self._mirror, self._ledger, self._may_go)
        self._cache = PlannerCache()
        self._does_nothing: dict[str, int] = {}  # uid -> attempt
        self._ending: dict[str, float] = {}  # pod -> when it ends
        self._elastic = ElasticPods(self._mirror, self._see, self._end_pod)
        self._version = 0
        self._plan_again = True
        self._plan_due: float | None = None
        self._see(NamespaceRecord(NAMESPACE, 1))
        for number in range(len(scene.nodes)):
            self._see(NodeRecord(_node(scene, number), 1))
        self.settle()

    # Events.

    def apply(self, event: Event) -> str:
        """Returns the uid of the affected gang, "" if none."""
        uid = self._apply(event)
        if uid is None:
            return ""
        self.history.outside.append(Outside(self.now, event, uid))
        self.settle()
        return uid

    def _apply(self, event: Event) -> str | None:
        """None = no gang is affected."""
        match event:
            case Arrives():
                return self._submit(event)
            case Ends():
                uid = self._pick(
                    event.which, _jobs(self._ledger.uids(State.STARTING, State.RUNNING))
                )
                if uid is not None:
                    self._end_pods(uid)
                    self._see(replace(self._mirror.jobs[uid], outcome=JobOutcome.SUCCEEDED))
                    self._elastic.reconcile()
                return uid
            case IsDeleted():
                known = _jobs(self._ledger.uids(State.RESERVED)) or _jobs(
                    [e.uid for e in self._ledger]
                )
                uid = self._pick(event.which, known)
                if uid is not None:
                    self._end_pods(uid)
                    self._delete("jobs", uid)
                return uid
            case Idles():
                return self._use(event.which, idle=True)
            case Works():
                return self._use(event.which, idle=False)
            case NodeFails() | NodeReturns():
                return self._set_ready(event.which, ready=isinstance(event, NodeReturns))
            case QuotaIs():
                return self._requeue(
                    event.queue, groups=_with(self._queue(event.queue), event.gpus)
                )
            case Stops():
                return self._requeue(event.queue, stop_policy=event.policy)
            case Resumes():
                return self._requeue(event.queue, stop_policy=StopPolicy.NONE)

    def _submit(self, event: Arrives) -> str:
        number = sum(isinstance(o.event, Arrives) for o in self.history.outside)
        uid = f"{event.queue}-{event.name or number}"
        wants = NodeRules(((POOL, event.pool),) if event.pool is not None else ())
        shape = PodShape(resources(gpu=event.gpus, pods=1), wants)
        rack = TopologyRequest(TopologyMode.REQUIRED, "rack") if event.rack else None
        elastic = event.least is not None and event.least < event.pods
        podsets = (PodSet("w", (event.least or 1) if elastic else event.pods, shape, rack),)
        array = status_of(event.least or 1, event.pods) if elastic else None
        self.history.drains[uid] = event.drain
        job = JobRecord("Job", NAMESPACE, uid, uid, 0, self.now, event.queue, podsets)
        labels = ((USER, event.user),) if event.user is not None else ()
        job = replace(job, priority_class=f"p{event.priority}", labels=labels)
        self._see(replace(job, array=array))
        return uid

    def _use(self, which: int | str, *, idle: bool) -> str | None:
        running = self._ledger.uids(State.RUNNING)
        uid = self._pick(which, [uid for uid in running if self._idles(uid) is not idle])
        if uid is not None:
            entry = self._ledger.get(uid)
            assert entry is not None
            self._does_nothing[uid] = entry.attempt if idle else 0
        return uid

    def _pick(self, which: int | str, uids: Sequence[str]) -> str | None:
        if isinstance(which, str):
            return which if which in uids else None
        return sorted(uids)[which % len(uids)] if uids else None

    def _set_ready(self, which: int, *, ready: bool) -> str | None:
        names = sorted(self._mirror.nodes)
        if not names:
            return None
        record = self._mirror.nodes[names[which % len(names)]]
        if record.node.ready is ready:
            return None
        self._see(replace(record, node=replace(record.node, ready=ready)))
        for pod in list(self._mirror.pods.values()):
            if pod.node == record.node.name:
                self._delete("pods", pod.uid)
        return ""

    def _queue(self, name: str) -> ClusterQueue:
        return self._config.cluster_queues[name]

    def _requeue(self, name: str, **changes: Any) -> str | None:
        old = self._queue(name)
        new = replace(old, **changes)
        if new == old:
            return None
        queues = {**self._config.cluster_queues, name: new}
        self._config = replace(
            self._config, revision=self._config.revision + 1, cluster_queues=queues
        )
        self._mirror.touched.update(e.uid for e in self._ledger)
        self._plan_again = True
        return ""

    # The clock.

    def wait(self, seconds: float) -> None:
        """Let time pass, from one moment at which something is due to the next."""
        until = self.now + seconds
        while (due := min(self._due(), default=until)) <= until and due > self.now:
            self._plan_again |= due in (self._plan_due, next_change(self.snapshot()))
            self.now = due
            self.settle()
        self.now = until
        self.settle()

    def _due(self) -> Iterator[float]:
        moments = list(self._ending.values())
        for entry in self._ledger:
            job = self._mirror.jobs.get(entry.uid)
            alarm = alarm_of(entry, job, self._config.rules.pods_ready, self.now)
            moments.append(alarm or 0.0)
            moments += self._samples_due(entry)
            if entry.lease is not None:
                moments.append(entry.lease.expires_at)
        moments += [next_change(self.snapshot()) or 0.0, self._plan_due or 0.0]
        return (at for at in moments if at > self.now)

    # Activity of the gangs.

    def _idles(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and self._does_nothing.get(uid) == entry.attempt

    def _sample(self) -> None:
        """Samples of all running gangs: the controller knows at once whether a gang computes or idles."""
        uses = {}
        for entry in self._ledger.entries(State.RUNNING):
            idle = self._idles(entry.uid)
            state, used = (UseState.IDLE, 0.0) if idle else (UseState.ACTIVE, 1.0)
            was = self._uses.get(entry.uid)
            same = was is not None and (was.attempt, was.state) == (entry.attempt, state)
            since = was.since if was is not None and same else self.now
            uses[entry.uid] = GangUse(
                entry.uid, entry.attempt, state, since, self.now, used, 1.0, "seen", used
            )
        self._uses = uses
        self._plan_again |= self._idleness.evaluated(uses, self._config, self.now).plan_again

    def _samples_due(self, entry: Entry) -> Iterator[float]:
        """Samples that can lead to a decision: right after a warning, at the ends of grace, back-off and protection."""
        if entry.state is not State.RUNNING or not self._idles(entry.uid):
            return
        queue = self._queue(entry.cluster_queue)
        rule, started = queue.idle_reclaim, entry.started_at or 0.0
        yield started + rule.cooldown
        for warned in self.history.warned:
            if warned.uid == entry.uid and warned.at >= started:
                yield from (warned.at + 1.0, warned.at + rule.grace / 2, warned.at + rule.grace)
        gang = self._snapshot_builder.running(
            entry, self._mirror.jobs[entry.uid], self._config, self.now
        )
        assert gang is not None
        yield protected_until(gang, queue, self.now) or 0.0

    def _idle_since(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> float | None:
        return self._idleness.since(entry, job, config, now)

    def _may_go(self, uid: str) -> bool:
        entry, job = self._ledger.get(uid), self._mirror.jobs.get(uid)
        if entry is None or job is None:
            return False
        return self._idle_since(entry, job, self._config, self.now) is not None

    # The loop.

    def settle(self) -> None:
        """A sample of all gangs, and cycles, as the loop makes them, until no notification, decision or command is left."""
        self._sample()
        for _ in range(MAX_CYCLES):
            self._act()
            self._mirror.touched |= self._observer.alarms.due(self.now)
            seen = self._observer.observe(self._config, self.now)
            busy = {change.after.uid for change in seen.changes}
            idle = self._idleness.changes(self._config, self.now, busy)
            self._commit([*seen.changes, *idle])
            self._plan_again |= any(c.after.state is State.EVICTING for c in idle)
            self._plan_again |= seen.plan_again or any(
                e.lease is not None and e.lease.expires_at <= self.now
                for e in self._ledger.entries(State.RESERVED)
            )
            if self._plan_again:
                self._plan_again = False
                self.cycle()
            elif not (
                seen.changes or idle or self._mirror.touched or self._mirror.planning_changed
            ):
                return
        raise Unsettled(f"{MAX_CYCLES} cycles at one moment\n{self.history.story()}")

    def cycle(self) -> Plan:
        """Plan, verify and carry out, whether asked for or not."""
        snapshot = self.snapshot()
        made = plan(snapshot, cache=self._cache)
        assert not made.cut
        assert made.alarms == ()
        assert verify(snapshot, made) == (), self.history.story()
        self._plan_due = next_plan_due(snapshot, made)
        self.history.cycles.append(Cycle(snapshot, made, len(self.history.outside)))
        self._commit(self._decider.changes(snapshot, made, self.now))
        self._plan_again |= any(admission.repaired for admission in made.admitted)
        return made

    def snapshot(self) -> Snapshot:
        return self._snapshot_builder.freeze(self._config, self.now, SolverLimits())

    def _commit(self, changes: Sequence[EntryChange]) -> None:
        self._ledger.apply(changes)
        self._usage.refresh_owned([c.after for c in changes])
        self._idleness.note(changes)
        for change in changes:
            self._note(change)
            assert violations(change.after) == []
            if change.after.state is State.FINISHED:
                self._snapshot_builder.forget(change.after.uid)
                self._decider.forget(change.after.uid)
            elif change.before is not None and change.before.state is not change.after.state:
                self._mirror.touched.add(change.after.uid)

    def _note(self, change: EntryChange) -> None:
        before, after = change.before, change.after
        if change.note is not None and change.note.event == "Repaired":
            self.history.started.append(Started(self.now, after.uid))
        if change.note is not None and change.note.reason.code is Code.IDLE_GPUS:
            self.history.warned.append(Warned(self.now, after.uid))
        if before is None or before.state is after.state:
            return
        if after.state is State.STARTING:
            self.history.started.append(Started(self.now, after.uid))
        elif after.state is State.EVICTING:
            details = after.reason.details
            outside = len(self.history.outside)
            since = before.started_at or 0.0
            self.history.evicted.append(
                Evicted(
                    self.now,
                    after.uid,
                    after.reason.code,
                    since,
                    details.get("preemptor", ""),
                    outside,
                    details.get("why", ""),
                )
            )

    # The cluster.

    def _act(self) -> None:
        """The work of the actuator, the job controllers and the kubelets, done at once."""
        for entry in list(self._ledger):
            job = self._mirror.jobs.get(entry.uid)
            if job is None or job.outcome is not None:
                continue
            if job.index is not None:
                self._elastic.carry_out(entry, self._ready)
            elif entry.state.live:
                if job.suspended or job.attempt != entry.attempt:
                    job = replace(job, suspended=False, drained=False, attempt=entry.attempt)
                    self._see(job)
                self._bring_up(entry, job)
            elif entry.state is State.EVICTING and entry.stop_at is None:
                self._take_down(entry, job)
        self._elastic.reconcile()

    def _bring_up(self, entry: Entry, job: JobRecord) -> None:
        assert entry.placement is not None
        there = {pod.name for pod in self._mirror.pods_of(entry)}
        for podset, placed in zip(job.podsets, entry.placement.podsets, strict=True):
            slots: list[tuple[str | None, int]] = [
                (node, i) for node, count in placed.nodes for i in range(count)
            ]
            anywhere: list[tuple[str | None, int]] = [
                (None, i) for i in range(placed.pods_of(podset))
            ]
            for node, i in slots or anywhere:
                name = f"{entry.uid}/{entry.attempt}/{podset.name}/{node}/{i}"
                if name in there or (node is not None and not self._ready(node)):
                    continue
                pod = PodRecord(NAMESPACE, name, name, 0, podset.shape.requests, entry.uid)
                alive = replace(
                    pod, node=node, attempt=entry.attempt, podset=podset.name, owner_kind=entry.kind
                )
                self._see(replace(alive, phase=PodPhase.RUNNING, ready=True))

    def _take_down(self, entry: Entry, job: JobRecord) -> None:
        if not job.suspended:
            job = replace(job, suspended=True)
            self._see(job)
        for pod in list(self._mirror.pods_of(entry)):
            self._end_pod(pod, entry.uid)
        if not job.drained and not self._mirror.pods_of(entry):
            self._see(replace(job, drained=True))

    def _end_pod(self, pod: PodRecord, uid: str) -> None:
        """``uid``: of its gang. A pod that never ran is deleted at once."""
        if pod.uid not in self._ending:
            self._ending[pod.uid] = self.now + (0.0 if pod.gated else self.history.drain_of(uid))
            self._see(replace(pod, terminating=True, ready=False))
        if self._ending[pod.uid] <= self.now:
            self._delete("pods", pod.uid)

    def _end_pods(self, uid: str) -> None:
        for pod in [p for p in self._mirror.pods.values() if p.owner.partition(".")[0] == uid]:
            self._delete("pods", pod.uid)

    def _ready(self, node: str) -> bool:
        return self._mirror.nodes[node].node.ready

    def _see(self, record: Any) -> None:
        self._version += 1
        self._mirror.apply([Upserted(replace(record, version=self._version))])

    def _delete(self, resource: str, uid: str) -> None:
        self._version += 1
        self._ending.pop(uid, None)
        self._mirror.apply([Deleted(resource, uid, self._version)])

    def end(self) -> History:
        """No further event."""
        self.wait(QUIET)
        self.history.unasked = plan(self.snapshot(), cache=self._cache)
        self.history.last = self.snapshot()
        self.history.entries = {e.uid: e for e in self._ledger}
        return self.history


def simulate(story: Story) -> History:
    """The whole story and the quiet time after it."""
    simulation = Simulation(story.scene)
    for step in story.steps:
        simulation.apply(step.event)
        simulation.wait(step.then)
    return simulation.end()


def _jobs(uids: Sequence[str]) -> list[str]:
    """Those that are not of a pod of an elastic Job."""
    return [uid for uid in uids if "." not in uid]


def _node(scene: Scene, number: int) -> Node:
    name = f"n{number}"
    labels = dict(zip(LEVELS, ("b", f"r{number % 2}", name), strict=True))
    labels |= {POOL: scene.pools[number]} if scene.pools else {}
    return Node(name, labels, resources(gpu=scene.nodes[number], pods=scene.slots))


def _with(queue: ClusterQueue, gpus: int) -> Any:
    """Its resource groups with another quota in the first flavor."""
    (group,) = queue.groups
    first, *rest = group.flavors
    limits = {"borrowing": first.borrowing.get(GPU), "lending": first.lending.get(GPU)}
    if limits["lending"] is not None:
        limits["lending"] = min(limits["lending"], gpus)
    return (replace(group, flavors=(quotas(gpus, flavor=first.flavor, **limits), *rest)),)

"""The scheduler of a simulation that decides with the planner of the controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.domain.estimates import DAY
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.snapshot import Snapshot
from queuectl.simulate.leader import SimulatedLeader
from queuectl.simulate.parts import parts
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order, Policy, Run, World
from queuectl.simulate.trace import NodeEvent, TraceJob

PATIENCE: Final = 366.0 * DAY
"""Seconds after the last event in which it still plans: a gang that no time lets start would otherwise keep it running indefinitely."""

_STRATEGIES: Final = {
    Order.STRICT_FIFO: QueueingStrategy.STRICT_FIFO,
    Order.BEST_EFFORT_FIFO: QueueingStrategy.BEST_EFFORT_FIFO,
    Order.BACKFILL: QueueingStrategy.BACKFILL,
    Order.SJF: QueueingStrategy.STRICT_FIFO,
}


class Planned:
    """Plans each independent part of the setting after each instant in which something has changed there."""

    def __init__(self, setting: Setting, policy: Policy, world: World) -> None:
        if policy.order is not None:
            setting = setting.under(_STRATEGIES[policy.order])
        self._setting = setting
        self._world = world
        self._parts: dict[str, _Part] = {}  # by ClusterQueue
        self._of_node: dict[str, list[_Part]] = {}
        self._touched: dict[int, _Part] = {}  # something has changed there
        for number, part in enumerate(parts(setting.snapshot, setting.events)):
            planner = _Part(number, part.snapshot, setting, world, policy, self._touched)
            self._parts |= dict.fromkeys(part.queues, planner)
            for node in part.snapshot.fleet.nodes:
                self._of_node.setdefault(node.name, []).append(planner)

    def _of(self, job: TraceJob) -> _Part:
        return self._parts[self._setting.cluster_queue(job.queue).name]

    def never_fits(self, job: TraceJob) -> bool:
        """See :class:`queuectl.simulate.simulation.Scheduler`. A job never fits if the planner does not start it alone."""
        return not self._of(job).fits(job)

    def submitted(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        self._of(run.job).submitted(run)

    def ended(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        self._of(run.job).ended(run)

    def node_changed(self, event: NodeEvent) -> None:
        """The gangs with pods on a failed node stop until it recovers, or the planner has repaired or evicted them."""
        for part in self._of_node.get(event.node, ()):
            part.node_changed(event)

    def decide(self) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        for _, part in sorted(self._touched.items()):
            part.decide()
        self._touched.clear()


class _Part:
    """One independent part, with its own leader."""

    def __init__(
        self,
        number: int,
        snapshot: Snapshot,
        setting: Setting,
        world: World,
        policy: Policy,
        touched: dict[int, _Part],
    ) -> None:
        """``touched``: by number, the parts that decide after this instant."""
        self._number = number
        self._touched = touched
        self._priorities = setting.priorities
        self._sjf = policy.order is Order.SJF
        self._world = world
        self._begin = setting.begin
        self._last_event = 0.0  # in seconds of the simulation
        leader = SimulatedLeader(snapshot, self._begin, policy.durations, setting.spent)
        self._leader = leader
        self._runs: dict[str, Run] = {}
        self._fits: dict[tuple[object, ...], bool] = {}
        self._due: dict[str, float] = {}  # ends of notices and back-offs, in unix seconds
        self._changed = False
        self._stalled: set[str] = set()  # gangs with pods on failed nodes
        self._savers: dict[str, Run] = {}  # gangs that write checkpoints

    @property
    def _now(self) -> float:
        return self._begin + self._world.now

    def fits(self, job: TraceJob) -> bool:
        size = (job.pods, job.gpus_per_pod, job.topology_level, job.podsets)
        kind = (job.queue, *size, self._too_long(job))
        if kind not in self._fits:
            self._fits[kind] = self._leader.fits_alone(_uid(job), job, self._now)
        return self._fits[kind]

    def _too_long(self, job: TraceJob) -> bool:
        """Whether it states more time than its ClusterQueue permits."""
        queue = self._leader.config.cluster_queue_of(*job.queue)
        return queue is not None and queue.execution.refuses(self._leader.limit(job))

    def submitted(self, run: Run) -> None:
        job, uid = run.job, _uid(run.job)
        self._runs[uid] = run
        if job.checkpoint is not None:
            self._savers[uid] = run
        place = self._begin + job.declared if self._sjf else self._now
        priority = self._priorities[job.rank]
        self._changed |= self._leader.submit(uid, job, priority, self._now, place)
        if job.placement is not None:
            self._leader.adopt(uid, job, self._now)
            entry = self._leader.ledger.get(uid)
            assert entry is not None
            self._start(entry, run)
        self._note_event()

    def ended(self, run: Run) -> None:
        uid = _uid(run.job)
        self._leader.end(uid, self._now)
        del self._runs[uid]
        self._stalled.discard(uid)  # its user has deleted it
        self._leader.idle_gangs.stopped(uid)
        self._due.pop(uid, None)
        self._savers.pop(uid, None)
        self._changed = True
        self._note_event()

    def node_changed(self, event: NodeEvent) -> None:
        for entry in self._leader.change_node(event):
            uid = entry.uid
            if not event.up:
                self._world.interrupt(self._runs[uid])
                self._leader.idle_gangs.stopped(uid)
                self._stalled.add(uid)
            elif uid in self._stalled and self._leader.continues(entry):
                self._stalled.discard(uid)
                self._start(entry, self._runs[uid])
        self._changed = True
        self._note_event()

    def _note_event(self) -> None:
        self._last_event = self._world.now
        self._touch()

    def _touch(self) -> None:
        self._touched[self._number] = self

    def decide(self) -> None:
        """Plan until nothing changes."""
        for uid in [uid for uid, at in self._due.items() if at <= self._now]:
            del self._due[uid]
            self._after_wait(uid)
        self._evaluate_use()
        due = self._leader.next_plan
        self._changed |= self._leader.weighs_work or (due is not None and due <= self._now)
        while self._changed:
            self._changed = False
            self._plan()
        self._world.wake(self._touch, min(self._alarms(), default=None))

    def _alarms(self) -> Iterator[float]:
        """The times at which it decides again without an event."""
        for at in self._due.values():
            yield at - self._begin
        waited = self._world.now - self._last_event
        if self._leader.next_plan is not None and waited <= PATIENCE:
            yield self._leader.next_plan - self._begin
        if (evaluation := self._leader.idle_gangs.next_evaluation) is not None:
            yield evaluation - self._begin
        if self._leader.weighs_work:
            saves = (run.saves_at(self._world.now) for run in self._savers.values())
            yield from (at for at in saves if at is not None)

    def _evaluate_use(self) -> None:
        at = self._leader.idle_gangs.next_evaluation
        if at is None or at > self._now:
            return
        changes, again = self._leader.evaluate_use(self._now)
        self._changed |= again
        for change in changes:
            self._carry_out(change)

    def _start(self, entry: Entry, run: Run) -> None:
        self._world.start(run, _held(entry, run.job))
        self._leader.idle_gangs.started(entry.uid, run, self._now)

    def _after_wait(self, uid: str) -> None:
        """The notice or the back-off of a gang is over."""
        entry = self._leader.ledger.get(uid)
        assert entry is not None
        if entry.state is State.EVICTING:
            self._stop(uid)
        else:
            self._leader.retry(uid, self._now)
            self._changed = True

    def _plan(self) -> None:
        if not (self._leader.anything_to_plan or self._stalled):
            self._leader.next_plan = None
            self._leader.weighs_work = False
            return
        for uid, run in self._savers.items():
            at = run.saved_at(self._world.now)
            if at is not None:
                self._leader.saved(uid, self._begin + at)
        for change in self._leader.plan(self._now):
            self._carry_out(change)
        self._changed |= self._leader.plans_again

    def _carry_out(self, change: EntryChange) -> None:
        entry = change.after
        run = self._runs[entry.uid]
        match entry.state:
            case State.STARTING:
                self._leader.ready(entry.uid, self._now)
                self._start(entry, run)
            case State.RUNNING if run.running_since is None:
                self._stalled.discard(entry.uid)  # it is repaired
                self._start(entry, run)
            case State.EVICTING:
                self._notice(entry)
            case _:
                pass

    def _notice(self, entry: Entry) -> None:
        if entry.stop_at is None:
            self._stop(entry.uid)
        else:
            self._due[entry.uid] = entry.stop_at

    def _stop(self, uid: str) -> None:
        self._stalled.discard(uid)
        self._leader.idle_gangs.stopped(uid)
        self._world.evict(self._runs[uid])
        entry = self._leader.drained(uid, self._now)
        if entry.state is State.BACKOFF and entry.requeue_at is not None:
            self._due[uid] = entry.requeue_at
        self._changed = True


def _held(entry: Entry, job: TraceJob) -> list[tuple[str, int]]:
    """Names of nodes, and the GPUs that a gang holds on each."""
    return job.held_on(entry.placement) if entry.placement is not None else []


def _uid(job: TraceJob) -> str:
    """Gangs that wait since the same time are planned in the order of their uids."""
    return f"{job.rank:09d}"

"""The leader of a simulation: the ledger, the snapshots and the decisions of the controller, without a cluster and a database.

The state machine, the snapshots, the planner and the decisions come from the controller. A simulated cluster obeys at once: the
pods of a gang are ready when it is admitted, and have ended when it is stopped. Idle reclaim has the evaluations, warnings and evictions
of the controller, in simulated time; an evaluation reads the utilization of the trace instead of samples.

Each submission to a full cluster would be planned only to be refused. It needs no plan if a gang that is equal, or is before it in a strict
order, was refused, and no gang has ended since. The planner gives equal gangs of one LocalQueue the same answer. Where there are planned
starts, a gang that would delay one is no shorter than an equal one that would. A StrictFIFO ClusterQueue with one flavor starts no gang
behind a refused one. A Reservation can let a shorter gang start and not an equal one, so with Reservations each submission is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice
from math import floor, inf
from typing import Final

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.leader.decisions import Decider
from queuectl.devices.shared import without_claim_podsets
from queuectl.domain.budgets import SpentUnits
from queuectl.domain.events import Adopt, Drained, Ended, Event, PodsReady, RetryDue, Submitted
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.pending_limits import considered
from queuectl.domain.plan import Plan, Refusal, ScheduledGang
from queuectl.domain.queues import ClusterQueue, QueueConfig, QueueingStrategy, ReclaimMode
from queuectl.domain.reasons import Code
from queuectl.domain.records import Deleted, Delta, NamespaceRecord, NodeRecord, Upserted
from queuectl.domain.reservations import next_turn
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse, PodUse, UseState, UtilizationSample
from queuectl.domain.workload import PodSet
from queuectl.lifecycle.idleness import Idleness
from queuectl.lifecycle.machine import MAX_BUDGET, handle
from queuectl.planner import plan
from queuectl.planner.backfill.timeline import next_expected_end
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.simulate.parts import podsets_of
from queuectl.simulate.simulation import Durations, Run
from queuectl.simulate.trace import NodeEvent, TraceJob
from queuectl.state.claims import idle_rule
from queuectl.state.durations import LearnedDurations
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.holding_gangs import never_idle
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import PastUseSums
from queuectl.state.planning_state import PlanningState
from queuectl.state.utilization import UseTracker

# ---- The leader

KIND: Final = "Job"
_COUNTED: Final = frozenset({Code.UNDECIDED, Code.WAITING_TO_RECLAIM})
"""Reasons whose repetition changes the next plan."""
_SEEK_SECONDS: Final = 30.0
"""The shortest time between two searches for migrations, as the controller's setting has it by default."""
RETRY_SECONDS: Final = 1.0
"""The time until the controller plans again with a larger limit of the solver."""
# A limit of wall time would make the result depend on the machine.
_LIMITS: Final = SolverLimits(wall_seconds=1e6)


class SimulatedLeader:
    """The leader of one simulation. Times are in unix seconds.

    Attributes:
        idle_gangs: evaluates the GPU utilization of gangs.
        next_plan: when a plan can differ from the last one without an event; None = never.
        plans_again: gangs started, and others are considered in their place.
        weighs_work: a gang waits to evict others because they would lose much work, so each checkpoint counts.
    """

    def __init__(
        self, snapshot: Snapshot, now: float, durations: Durations, spent: SpentUnits
    ) -> None:
        """Of a simulation that begins at ``now``.

        ``snapshot``: configuration, nodes and namespaces; ``spent``: by Budgets before.
        """
        self.config = snapshot.config
        self._durations = durations
        self._mirror = Mirror({"jobs": KIND})
        spaces = snapshot.namespaces.items()
        self._mirror.apply(
            [
                *(
                    Upserted(NamespaceRecord(name, 1, tuple(labels.items())))
                    for name, labels in spaces
                ),
                *(Upserted(NodeRecord(node, 1)) for node in snapshot.fleet.nodes),
            ]
        )
        self._run_times = LearnedDurations(self._mirror)
        self._past_use = PastUseSums(self._mirror)
        self._planning = PlanningState(
            self._mirror,
            past_use=self._past_use,
            durations=self._run_times,
            uses=lambda: self.idle_gangs.uses,
            idle_since=self._idle_since if reclaims(self.config) else never_idle,
        )
        self._planning.configure(self.config, now)
        self._planning.budgets.learn(self.config.budgets, spent)
        self._past_use.configure(self.config, (), now)
        self.idle_gangs = IdleGangs(self._mirror, self._planning, self.config, now)
        self._blocked = BlockedSubmissions(self.config, self.ledger)
        self._decider = Decider(self._mirror, self.ledger)
        self._cache = PlannerCache()
        self._shapes: dict[tuple[object, ...], tuple[PodSet, ...]] = {}
        self._seek_at = now
        self.next_plan: float | None = None
        self.weighs_work = False
        self.plans_again = False
        # Uids of the gangs that a plan has decided since the last change.
        self._answered: set[str] = set()

    @property
    def ledger(self) -> Ledger:
        """All workloads that have not ended."""
        return self._planning.ledger

    def _idle_since(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> float | None:
        return self.idle_gangs.since(entry, job, config, now)

    def submit(self, uid: str, job: TraceJob, priority: int, now: float, queued_at: float) -> bool:
        """A job is created and waits. Returns whether a plan can start it.

        ``queued_at``: its place in the order of its queue.
        """
        namespace, queue = job.queue
        cluster_queue = self.config.cluster_queue_of(namespace, queue)
        assert cluster_queue is not None
        record = JobRecord(
            kind=KIND,
            namespace=namespace,
            name=job.name or job.job_id or f"line-{job.line}",
            uid=uid,
            version=1,
            created_at=queued_at,
            queue=queue,
            podsets=self._podsets(job),
            utilization=job.utilization,
            submitter=job.user,
            max_execution=self.limit(job),
            expected_duration=job.expected if self._durations is not Durations.UNKNOWN else None,
        )
        self._show(Upserted(record))
        change = handle(None, Submitted(record, priority, cluster_queue.name, job.user), now)
        assert change is not None
        entry = replace(change.after, queued_at=queued_at, priority_set=priority)
        self._take_in([replace(change, after=entry)])
        limit = cluster_queue.execution.limit(record.max_execution)
        return not self._blocked.add(entry, record.podsets, cluster_queue, limit)

    def limit(self, job: TraceJob) -> float | None:
        """The limit of its execution time that a job states, in seconds; None = none."""
        match self._durations:
            case Durations.DECLARED:
                return job.duration if job.limit is None else job.limit
            case Durations.LEARNED:
                return job.limit
            case Durations.UNKNOWN:
                return None

    def _podsets(self, job: TraceJob) -> tuple[PodSet, ...]:
        shape = (job.pods, job.gpus_per_pod, job.topology_level, job.podsets)
        if shape not in self._shapes:
            self._shapes[shape] = podsets_of(job)
        return self._shapes[shape]

    def adopt(self, uid: str, job: TraceJob, now: float) -> None:
        """A submitted job runs already, where its placement states it."""
        assert job.placement is not None
        self._apply(uid, Adopt(job.placement, attempt=1), now)

    def end(self, uid: str, now: float) -> None:
        """A job has ended; it leaves the ledger."""
        self._apply(uid, Ended(JobOutcome.SUCCEEDED), now)
        self._decider.forget(uid)
        self._blocked.forget(uid)
        self._show(Deleted("jobs", uid, 0))

    def ready(self, uid: str, now: float) -> None:
        """All pods of a gang are ready."""
        self._apply(uid, PodsReady(), now)

    def drained(self, uid: str, now: float) -> Entry:
        """All pods of an evicted gang have ended."""
        self._apply(uid, Drained(), now)
        entry = self.ledger.get(uid)
        assert entry is not None
        return entry

    def retry(self, uid: str, now: float) -> None:
        """The back-off of a gang is over."""
        self._apply(uid, RetryDue(), now)

    def saved(self, uid: str, at: float) -> None:
        """A gang has written a checkpoint."""
        job = self._mirror.jobs[uid]
        if job.checkpoint_at != at:
            self._show(Upserted(replace(job, checkpoint_at=at, version=job.version + 1)))

    def evaluate_use(self, now: float) -> tuple[list[EntryChange], bool]:
        """Evaluate the utilization of quiet gangs. Returns warnings and evictions, and whether plans can differ now."""
        changes, again = self.idle_gangs.evaluate(now)
        self._take_in(changes)
        return changes, again

    def change_node(self, event: NodeEvent) -> list[Entry]:
        """A node fails, recovers or changes. Returns the gangs with pods on it, also during the notice of an eviction."""
        old = self._mirror.nodes[event.node]
        changed = replace(event.record or old.node, ready=event.up)
        self._show(Upserted(NodeRecord(changed, old.version + 1, old.conditions, old.cordoned)))
        holding = self.ledger.entries(State.RUNNING, State.EVICTING)
        return [entry for entry in holding if event.node in _nodes_of(entry)]

    def continues(self, entry: Entry) -> bool:
        """Whether all nodes of a gang are up, and it is not being evicted."""
        up = all(self._mirror.nodes[name].node.ready for name in _nodes_of(entry))
        return up and entry.state is State.RUNNING

    def _show(self, delta: Delta) -> None:
        mirror = self._mirror
        self._answered.clear()
        mirror.apply([delta])
        mirror.touched.clear()
        mirror.edited.clear()

    @property
    def anything_to_plan(self) -> bool:
        """Whether a gang is pending, or runs and can be evicted for a Reservation."""
        if self.ledger.count(State.PENDING) or self.ledger.count(State.RESERVED):
            return True
        evicts = any(each.evicts for each in self.config.reservations.values())
        return evicts and bool(self.ledger.count(State.RUNNING))

    def plan(self, now: float) -> list[EntryChange]:
        """Plan once. Returns the changes of the ledger."""
        snapshot = self._snapshot(now, seek_room=now >= self._seek_at)
        within, beyond = considered(snapshot)
        lowered = DeviceRows.of(self._cache).added(within)
        decided = plan(lowered, cache=self._cache)
        if decided.stats.get("rooms_sought"):
            self._seek_at = now + _SEEK_SECONDS
        self._planning.reserved = decided.reserved
        planned = {each.uid: each for each in decided.planned}
        refusals = (*decided.pending, *beyond)
        pending = (refusal for refusal in refusals if self._is_news(refusal, planned))
        news = replace(decided, pending=tuple(pending))
        changes = self._decider.changes(snapshot, without_claim_podsets(news), now)
        self._take_in(changes)
        self.weighs_work = any(map(_waits_to_reclaim, decided.pending))
        self.plans_again = bool(beyond and decided.admitted)
        self.next_plan = _first(self._next_plans(now, lowered, decided))
        self._answered.update(r.uid for r in decided.pending if not _is_left_out(r))
        return changes

    def _next_plans(self, now: float, snapshot: Snapshot, decided: Plan) -> Iterator[float | None]:
        """The times from which a plan can differ without another change."""
        yield next_plan_due(snapshot, decided)
        yield next_expected_end(snapshot, decided)
        yield next_turn(self.config.reservations.values(), self.config.rules.eviction_grace, now)
        if decided.stats.get("rooms_sought"):
            yield self._seek_at
        if any(map(self._worth_more, decided.pending)):
            yield now + RETRY_SECONDS
        rule = self.config.rules.usage_fairness
        if rule is not None:
            yield now + rule.sampling
        for refusal in decided.pending:
            if refusal.lease is not None:
                yield refusal.lease.expires_at

    def _is_news(self, refusal: Refusal, planned: Mapping[str, ScheduledGang]) -> bool:
        """Whether the ledger must know it: the leader would also write new numbers of the same reason."""
        entry = self.ledger.get(refusal.uid)
        if entry is None or entry.state is not State.PENDING or refusal.lease is not None:
            return True
        code = refusal.reasons[0].code
        start = planned[refusal.uid].start if refusal.uid in planned else None
        return entry.reason.code is not code or entry.planned_start != start or code in _COUNTED

    def _worth_more(self, refusal: Refusal) -> bool:
        """Whether the next plan can decide it: the limit of the cycle left it out, or a larger limit of the solver can decide it."""
        if _is_left_out(refusal):
            return refusal.uid not in self._answered
        if refusal.reasons[0].code is not Code.UNDECIDED:
            return False
        entry = self.ledger.get(refusal.uid)
        return entry is not None and entry.budget < MAX_BUDGET

    def fits_alone(self, uid: str, job: TraceJob, now: float) -> bool:
        """Whether a job starts if it is the only one, without Budgets and Reservations: these hold it for a time."""
        self.submit(uid, job, 0, now, now)
        alone = replace(self._snapshot(now, seek_room=False), budgets=(), reservations=())
        decided = plan(alone, cache=self._cache.fork())
        self.end(uid, now)
        return bool(decided.admitted)

    def _snapshot(self, now: float, *, seek_room: bool) -> Snapshot:
        return self._planning.snapshot(now, _LIMITS, seek_room=seek_room)

    def _apply(self, uid: str, event: Event, now: float) -> None:
        change = handle(self.ledger.get(uid), event, now, self.config.rules)
        self._answered.clear()
        if change is not None:
            self._take_in([change])

    def _take_in(self, changes: Iterable[EntryChange]) -> None:
        listed = list(changes)
        self._planning.take_in(listed)
        self._planning.follow(listed)
        self._planning.budgets.settle()
        if self._durations is Durations.LEARNED:
            self._run_times.note(listed, self.config)


def _is_left_out(refusal: Refusal) -> bool:
    return refusal.reasons[0].code is Code.PENDING_EVALUATION


def _waits_to_reclaim(refusal: Refusal) -> bool:
    return refusal.reasons[0].code is Code.WAITING_TO_RECLAIM


def _nodes_of(entry: Entry) -> set[str]:
    placed = entry.placement.podsets if entry.placement is not None else ()
    return {name for podset in placed for name, _ in podset.nodes}


def _first(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


# ---- Idle reclaim

EVERY_SECONDS: Final = 60.0
"""The time between two evaluations, as the controller's setting has it by default."""
_SCRAPE_SECONDS: Final = 30.0
_WINDOW: Final = 120.0  # of recent use: four samples
_FRESH_SECONDS: Final = 180.0
_RECLAIMS: Final = (ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS)


def reclaims(config: QueueConfig) -> bool:
    """Whether a ClusterQueue evicts idle gangs."""
    modes = {queue.idle_reclaim.mode for queue in config.cluster_queues.values()}
    return not modes.isdisjoint(_RECLAIMS)


class IdleGangs:
    """Evaluates which gangs are idle, for one leader. Times are in unix seconds.

    Attributes:
        active: a ClusterQueue evicts idle gangs.
        uses: the last evaluation of each quiet gang, by uid.
    """

    def __init__(
        self, mirror: Mirror, planning: PlanningState, config: QueueConfig, begin: float
    ) -> None:
        """The parts of the leader; ``begin``: of the simulation."""
        self.active = reclaims(config)
        self.uses: Mapping[str, GangUse] = {}
        self._mirror = mirror
        self._ledger = planning.ledger
        self._config = config
        self._begin = begin
        self._tracker = UseTracker(_SCRAPE_SECONDS)
        self._idleness = Idleness(mirror, lambda: planning.ledger, planning.running, _FRESH_SECONDS)
        self._due: dict[str, tuple[float, Run]] = {}
        self._reclaimed: set[str] = set()

    def since(self, entry: Entry, job: JobRecord, config: QueueConfig, now: float) -> float | None:
        """The start of the idle time of a gang that can be evicted as idle; None for each other gang."""
        return self._idleness.since(entry, job, config, now)

    def started(self, uid: str, run: Run, now: float) -> None:
        """A gang works from now on."""
        at = self._quiet_at(uid, run, now)
        if self.active and at is not None and uid not in self._reclaimed:
            self._due[uid] = (self._tick(at), run)

    def stopped(self, uid: str) -> None:
        """A gang does not work from now on. If it was idle, it is not evaluated again: otherwise a job could be evicted again and again."""
        self._due.pop(uid, None)
        use = self.uses.get(uid)
        if use is not None and use.state is UseState.IDLE:
            self._reclaimed.add(uid)

    @property
    def next_evaluation(self) -> float | None:
        return min((at for at, _ in self._due.values()), default=None)

    def evaluate(self, now: float) -> tuple[list[EntryChange], bool]:
        """Evaluate the gangs that are due. Returns warnings and evictions, and whether plans can differ now."""
        due = {uid: run for uid, (at, run) in self._due.items() if at <= now}
        gangs = {uid: self._held(uid, run) for uid, run in due.items()}
        listed = list(gangs.values())
        recent = self._sample(due, now, _WINDOW)
        windows = self._tracker.windows(listed, recent)
        longer = {window: self._sample(due, now, window) for window in windows}
        self.uses = self._tracker.judge(listed, recent, longer)
        found = self._idleness.evaluated(self.uses, self._config, now)
        changes = self._idleness.changes(self._config, now, ())
        self._idleness.note(changes)
        for uid, run in due.items():
            self._again(uid, run, now)
        return changes, found.plan_again or bool(changes)

    def _again(self, uid: str, run: Run, now: float) -> None:
        if uid not in self._due:
            return
        at = self._quiet_at(uid, run, now)
        if at is None:
            del self._due[uid]
        else:
            self._due[uid] = (self._tick(max(at, now + 1.0)), run)

    def _quiet_at(self, uid: str, run: Run, now: float) -> float | None:
        """From when its utilization can count as idle; None = never."""
        entry, curve = self._ledger.get(uid), run.job.curve
        if entry is None or curve is None or run.running_since is None:
            return None
        queue = self._config.cluster_queues.get(entry.cluster_queue)
        if queue is None or queue.idle_reclaim.mode not in _RECLAIMS:
            return None
        rule, work = queue.idle_reclaim, run.work(now - self._begin)
        quiet = curve.next_at_most(work, max(rule.idle_below, rule.active_above))
        return None if quiet is None else now + quiet - work

    def _tick(self, at: float) -> float:
        """The first evaluation after a time: all gangs are evaluated at the same times."""
        return self._begin + (floor((at - self._begin) / EVERY_SECONDS) + 1) * EVERY_SECONDS

    def _held(self, uid: str, run: Run) -> HeldGang:
        """The gang, with one pod for all: they have the same utilization."""
        entry = self._ledger.get(uid)
        assert entry is not None
        assert run.running_since is not None
        queue = self._config.cluster_queues[entry.cluster_queue]
        rule = idle_rule(self._mirror.jobs.get(uid), queue, borrowing=False)
        began = self._begin + run.running_since
        pod = HeldPod(entry.namespace, entry.name, uid, run.job.gpus, began)
        return HeldGang(uid, entry.attempt, entry.cluster_queue, rule, began, (pod,))

    def _sample(self, runs: Mapping[str, Run], now: float, window: float) -> UtilizationSample:
        pods = tuple(self._use(uid, run, now, window) for uid, run in runs.items())
        gpus = sum(run.job.gpus for run in runs.values())
        return UtilizationSample(now, window, window, gpus, pods)

    def _use(self, uid: str, run: Run, now: float, window: float) -> PodUse:
        entry, curve = self._ledger.get(uid), run.job.curve
        assert entry is not None
        assert curve is not None
        end = run.work(now - self._begin)
        begin = max(end - window, run.saved)
        mean = curve.mean(max(end - EVERY_SECONDS, run.saved), end)
        busy = curve.busy(begin, end)
        return PodUse(
            entry.namespace, entry.name, run.job.gpus, busy, mean, 1.0, 0.0, uid, profiled=True
        )


# ---- Submissions that no plan can start

_REFUSED: Final = frozenset({Code.WAITING_FOR_QUOTA, Code.TOPOLOGY_PLACEMENT_FAILED})
_IN_ORDER: Final = _REFUSED | {Code.WAITING_IN_ORDER}
Place = tuple[int, float, str]
"""Priority with the opposite sign, time queued, uid: a smaller one is earlier."""


class BlockedSubmissions:
    """The gangs of one leader that have not run, by the line in which the first refusal holds for all."""

    def __init__(self, config: QueueConfig, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._lines: dict[tuple[object, ...], list[tuple[Place, str]]] = {}
        self._limits: dict[str, float] = {}

    def add(
        self,
        entry: Entry,
        podsets: tuple[PodSet, ...],
        queue: ClusterQueue,
        limit: float | None,
    ) -> bool:
        """Add a gang that was submitted. Returns whether a plan cannot start it.

        ``limit``: of its execution time in seconds; None = it states none.
        """
        if self._config.reservations:
            return False
        if queue.strict and any(len(group.flavors) > 1 for group in queue.groups):
            return False
        equal = (entry.queue, entry.namespace, entry.priority, entry.user, podsets, limit is None)
        line = self._lines.setdefault((queue.name,) if queue.strict else equal, [])
        while line and not self._waits(line[0][1]):
            heappop(line)
        place = (-entry.priority, entry.queue_order_time, entry.uid)
        if limit is not None:
            self._limits[entry.uid] = limit
        blocked = bool(line) and line[0][0] < place and self._is_blocked(line, queue, limit)
        heappush(line, (place, entry.uid))
        return blocked

    def forget(self, uid: str) -> None:
        """Forget a gang that has ended."""
        self._limits.pop(uid, None)

    def _is_blocked(
        self, line: list[tuple[Place, str]], queue: ClusterQueue, limit: float | None
    ) -> bool:
        """Whether a gang behind the first of these is refused."""
        first = line[0][1]
        cohort = self._config.backfill_cohort(queue)
        backfill = queue.backfill if cohort is None else cohort.backfill
        match queue.strategy:
            case QueueingStrategy.STRICT_FIFO:
                # A gang that a Budget holds lets gangs of other Budgets pass.
                return self._has_reason(first, _REFUSED if self._config.budgets else _IN_ORDER)
            case QueueingStrategy.BACKFILL if backfill is not None:
                before = islice(
                    (uid for _, uid in line if self._waits(uid)), backfill.planned_starts
                )
                if len(list(before)) < backfill.planned_starts:
                    return False  # it gets a planned start
                return self._has_reason(first, _REFUSED) or self._delays(line, limit)
            case _:
                return self._has_reason(first, _REFUSED)

    def _delays(self, line: list[tuple[Place, str]], limit: float | None) -> bool:
        """Whether an equal gang with no longer limit would delay a planned start."""
        return limit is not None and any(
            self._limits.get(uid, inf) <= limit and self._has_reason(uid, {Code.WOULD_DELAY})
            for _, uid in line
        )

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.state is State.PENDING and not entry.evictions

    def _has_reason(self, uid: str, codes: frozenset[Code] | set[Code]) -> bool:
        entry = self._ledger.get(uid)
        return self._waits(uid) and entry is not None and entry.reason.code in codes

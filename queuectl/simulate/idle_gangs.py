"""Idle reclaim in a simulation: the evaluations, warnings and evictions of the controller, in simulated time.

An evaluation reads the utilization of the trace in place of samples. Gangs are evaluated only while they are quiet or were found so: the
other gangs are never idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange
from queuectl.domain.queues import QueueConfig, ReclaimMode
from queuectl.domain.utilization import GangUse, PodUse, UseState, UtilizationSample
from queuectl.lifecycle.idleness import Idleness
from queuectl.simulate.run import Run
from queuectl.state.claims import idle_rule
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.mirror import Mirror
from queuectl.state.planning_state import PlanningState
from queuectl.state.utilization import UseTracker

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
    """Of one leader. Times are in unix seconds.

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
        """A gang does not work from now on. If it was idle, it is not evaluated again: otherwise a job could be evicted without limit."""
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
        begin = max(end - window, run.done)
        mean = curve.mean(max(end - EVERY_SECONDS, run.done), end)
        busy = curve.busy(begin, end)
        return PodUse(
            entry.namespace, entry.name, run.job.gpus, busy, mean, 1.0, 0.0, uid, profiled=True
        )

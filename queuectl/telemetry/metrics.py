"""The metrics that queuectl exports to Prometheus, in a registry of their own.

Names follow Kueue's (with the prefix ``queuectl_``) where the meaning is the same, so that you can adapt a dashboard by
replacing the prefix. Labels are those of docs/reference/metrics.md. No label is a workload, a pod or a node, so the
configuration bounds the number of series, not the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from importlib.metadata import version
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from queuectl.domain.invariants import Invariant
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.plan import Plan, Planned, Preemption, PreemptionReason, SlipCause
from queuectl.domain.queues import LocalQueue
from queuectl.domain.reservations import ReservationPhase, ReservationState
from queuectl.domain.snapshot import Snapshot
from queuectl.state.holdings import Holdings
from queuectl.telemetry.budgets import BudgetMetrics
from queuectl.telemetry.callers import CallerMetrics
from queuectl.telemetry.containment import CarefulMetrics, ContainmentMetrics
from queuectl.telemetry.durations import DurationMetrics
from queuectl.telemetry.estimates import EstimateMetrics
from queuectl.telemetry.fleet import FleetMetrics
from queuectl.telemetry.lifecycle_metrics import BY_CLUSTER_QUEUE, BY_LOCAL_QUEUE, LifecycleMetrics
from queuectl.telemetry.mig import MigMetrics
from queuectl.telemetry.names import KnownNames
from queuectl.telemetry.node_health import NodeHealthMetrics
from queuectl.telemetry.quota import QuotaGauges
from queuectl.telemetry.reclaim import IdleReclaims
from queuectl.telemetry.start_metrics import GateMetrics, Kinds
from queuectl.telemetry.utilization import UseMetrics
from queuectl.telemetry.workload_gauges import WorkloadGauges

STAGE_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
WRITE_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Stage(StrEnum):
    """The stages of one cycle, in order."""

    OBSERVE = "observe"
    FREEZE = "freeze"
    PLAN = "plan"
    VERIFY = "verify"
    COMMIT = "commit"
    ACTUATE = "actuate"


class DiscardReason(StrEnum):
    """Why a plan was discarded."""

    CUT = "cut"  # planning exceeded the wall-clock limit
    VERIFIER = "verifier"  # the verifier found it wrong: a defect
    ERROR = "error"  # planning failed without a gang at fault: a defect
    STALE = "stale"  # rows or configuration changed during planning
    FENCED = "fenced"  # another process leads
    UNAVAILABLE = "unavailable"  # the database did not answer


class WriteResult(StrEnum):
    """The result of a write to the API server."""

    OK = "ok"
    CONFLICT = "conflict"  # 409: the object changed since it was read
    GONE = "gone"
    REFUSED = "refused"  # 403 or 422
    UNAVAILABLE = "unavailable"  # no answer, 5xx or 429


def _no_class(_: Entry) -> str:
    return ""


class Metrics:
    """All collectors, with one method for each thing to count. One instance per process; each method is safe in any thread."""

    def __init__(self) -> None:
        # Prometheus does not use the `_created` series, and they double the size of a scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot its `-> None`
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._queues: set[str] = set()  # with counters
        self._kinds: set[str] = set()  # of written objects, with counters
        self._quota = QuotaGauges()
        self._names = KnownNames(self._quota.config)
        self._workload_gauges = WorkloadGauges(self._quota.cohorts_of, self._names)
        self.kinds = Kinds()
        for collector in (self._names, self._workload_gauges, self._quota, self.kinds):
            self.registry.register(collector)
        self.callers = CallerMetrics(self.registry)
        self.gates = GateMetrics(self.registry)
        self.utilization = UseMetrics(self.registry)
        self.node_health = NodeHealthMetrics(self.registry)
        self.mig = MigMetrics(self.registry)
        self.budgets = BudgetMetrics(self.registry)
        self.fleet = FleetMetrics(self.registry)
        self.estimates = EstimateMetrics(self.registry)
        self.durations = DurationMetrics(self.registry)
        self.containment = ContainmentMetrics(self.registry)
        self.careful = CarefulMetrics(self.registry)
        self._idle = IdleReclaims(self.registry)
        self._lifecycles = [
            LifecycleMetrics(self.registry, scope) for scope in (BY_CLUSTER_QUEUE, BY_LOCAL_QUEUE)
        ]
        self._define_cycle()
        self._define_workloads()
        self._define_adapters()
        self._names.watch(self.registry._collector_to_names, self._recreated)

    def _recreated(self) -> None:
        """A queue that is created again has its counters at 0."""
        self._queues.clear()
        for lifecycle in self._lifecycles:
            lifecycle.forget()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"queuectl_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"queuectl_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"queuectl_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _define_cycle(self) -> None:
        self._stages = self._histogram(
            "cycle_stage_duration_seconds",
            "Duration of each stage of a planning cycle.",
            STAGE_BUCKETS,
            "stage",
        )
        self._attempts = self._counter(
            "admission_attempts_total",
            "Planning cycles by result: success if a gang was admitted, else inadmissible.",
            "result",
        )
        self._attempt_time = self._histogram(
            "admission_attempt_duration_seconds", "Duration of a planning cycle, with verification, by result.",
            STAGE_BUCKETS, "result",
        )  # fmt: skip
        self._plans = self._counter(
            "plans_total", "Plans by proof (result): optimal, feasible or undecided.", "result"
        )
        self._alarms = self._counter(
            "solver_alarms_total", "Solver calls that failed: a defect of a model or of the solver."
        )
        self._unknown = self._counter(
            "solver_unknown_total", "Solver calls that a limit ended before an answer."
        )
        self._discarded = self._counter(
            "discarded_plans_total",
            "Plans that were discarded before they had an effect, by reason.",
            "reason",
        )
        for (
            reason
        ) in DiscardReason:  # a counter that is born with 1 has not increased for Prometheus
            self._discarded.labels(reason)
        self._violated = self._counter(
            "invariant_violations_total",
            "Checks of the leader's state that found a violated invariant (reason): a defect.",
            "reason",
        )
        for invariant in Invariant:  # as above
            self._violated.labels(invariant)
        self._leader = self._gauge("leader", "1 while this process leads, else 0.")
        self._epoch = self._gauge("leader_epoch", "Epoch of the last leadership of this process.")
        self._gauge("build_info", "Always 1; the label has the version.", "version").labels(
            version("queuectl")
        ).set(1)

    def _define_workloads(self) -> None:
        self._preempted = self._counter(
            "preempted_workloads_total",
            "Gangs evicted in favor of another gang; cluster_queue is that of the preemptor.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._lost = self._counter(
            "lost_gpu_seconds_total",
            "GPU-seconds of work since the last checkpoint that preemption lost.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._slips = self._counter(
            "planned_start_slips_total",
            "Planned starts of pending gangs that moved to a later time.",
            "cluster_queue", "cause",
        )  # fmt: skip
        self._reservations = self._gauge(
            "reservations",
            "Reservations by phase, as the last plan of the leader has them.",
            "phase",
        )
        self._cohort_admitted = self._counter(
            "cohort_subtree_admitted_workloads_total", "Committed starts in the ClusterQueues of the Cohort.", "cohort"
        )  # fmt: skip
        self._taken_up = self._histogram(
            "workload_creation_latency_seconds",
            "Time from the creation of the job (whole seconds) to its row in the ledger.",
            WRITE_BUCKETS, "kind",
        )  # fmt: skip
        self._used_lately = self._gauge(
            "local_queue_admission_fair_sharing_usage",
            "Past use at the last sample: weighted sum of resources, divided by the weight of the LocalQueue.",
            "name", "namespace", "cluster_queue",
        )  # fmt: skip

    def _define_adapters(self) -> None:
        self._writes = self._counter(
            "cluster_writes_total", "Writes to the API server by kind and result.", "kind", "result"
        )
        self._write_time = self._histogram(
            "cluster_write_duration_seconds",
            "Duration of a write to the API server.",
            WRITE_BUCKETS,
            "kind",
        )
        self._events = self._counter(
            "watch_events_total", "Objects that watches delivered.", "kind"
        )
        self._relists = self._counter(
            "watch_relists_total", "Complete lists that watches read.", "kind"
        )
        self._last_event = self._gauge(
            "watch_last_event_timestamp_seconds",
            "Unix time of the last answer to the watch, bookmarks included; the watch age is time() minus this.",
            "kind",
        )

    def stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time one stage: ``with metrics.stage(Stage.PLAN): ...``."""
        return self._stages.labels(stage).time()

    def stage_took(self, stage: Stage, seconds: float) -> None:
        self._stages.labels(stage).observe(seconds)

    def planned(self, plan: Plan, seconds: float) -> None:
        """Count a plan and its duration with verification, also if the plan is discarded."""
        self._plans.labels(plan.proof).inc()
        result = "success" if plan.admitted else "inadmissible"
        self._attempts.labels(result).inc()
        self._attempt_time.labels(result).observe(seconds)
        self._alarms.inc(len(plan.alarms))
        self._unknown.inc(plan.stats.get("solver_unknown", 0))

    def discarded(self, reason: DiscardReason) -> None:
        self._discarded.labels(reason).inc()

    def violated(self, invariant: Invariant) -> None:
        self._violated.labels(invariant).inc()

    def leading(self, epoch: int) -> None:
        self._leader.set(1)
        self._epoch.set(epoch)

    def following(self) -> None:
        """Remove the gauges that only the leader shows."""
        self._leader.set(0)
        self.fleet.forget()
        self.budgets.forget()
        self.kinds.forget()
        self._workload_gauges.load(())
        self._quota.show(None)

    def loaded(self, entries: Iterable[Entry], holdings: Holdings) -> None:
        """Count the whole ledger, at the start of a leadership."""
        known = list(entries)
        self._workload_gauges.load(known)
        self._quota.show(holdings)
        for entry in known:
            self._meet(self._names.cluster_queue(entry.cluster_queue))

    def committed(
        self, changes: Sequence[EntryChange], priority_class: Callable[[Entry], str] = _no_class
    ) -> None:
        """Count the changes of one commit. ``priority_class`` returns the class of a workload, ``""`` for none."""
        for change in changes:
            self._decided(self._names.change(change), priority_class(change.after))
        self._workload_gauges.apply(changes)

    def _decided(self, change: EntryChange, priority: str) -> None:
        for lifecycle in self._lifecycles:
            lifecycle.count(change, priority)
        after = change.after
        self._idle.count(change)
        self._meet(after.cluster_queue)
        if change.before is None:
            self._taken_up.labels(after.kind).observe(change.at - after.queued_at)
        elif after.state is State.STARTING is not change.before.state:
            for cohort in self._quota.cohorts_of(after.cluster_queue):
                self._cohort_admitted.labels(cohort).inc()

    def _meet(self, cluster_queue: str) -> None:
        """Create the counters of a ClusterQueue with 0. A gang without a queue evicts no gang."""
        if cluster_queue and cluster_queue not in self._queues:
            self._queues.add(cluster_queue)
            self.estimates.meet(cluster_queue)
            for reason in PreemptionReason:  # as above
                self._preempted.labels(cluster_queue, reason)
                self._lost.labels(cluster_queue, reason)
            for cause in SlipCause:
                self._slips.labels(cluster_queue, cause.value)
            self._idle.meet(cluster_queue)

    def preempted(
        self, preemptions: Iterable[Preemption], cluster_queue: Callable[[str], str]
    ) -> None:
        """Count committed preemptions. ``cluster_queue`` returns the queue of a workload's uid."""
        for preemption in preemptions:
            queue = self._names.cluster_queue(cluster_queue(preemption.preemptor))
            labels = (queue, preemption.reason)
            self._preempted.labels(*labels).inc()
            self._lost.labels(*labels).inc(preemption.cost.lost_work)

    def slipped(self, planned: Iterable[Planned], cluster_queue: Callable[[str], str]) -> None:
        """Count committed planned starts that are later than before. ``cluster_queue`` returns the queue of a workload's uid."""
        for each in planned:
            if each.slip is not None:
                queue = self._names.cluster_queue(cluster_queue(each.uid))
                self._slips.labels(queue, each.slip.value).inc()

    def reserved(self, snapshot: Snapshot, states: Iterable[ReservationState]) -> None:
        """Show the Reservations of a plan by phase."""
        known = {state.name: state for state in states}
        counts = dict.fromkeys(ReservationPhase, 0)
        for each in snapshot.reservations:
            state = known.get(each.name)
            placed = replace(each, placed=state.nodes) if state is not None else each
            counts[placed.phase(state, snapshot.now)] += 1
        for phase, count in counts.items():
            if phase is not ReservationPhase.ENDED:
                self._reservations.labels(phase.value).set(count)

    def used_lately(
        self, used: Mapping[tuple[str, str], float], queues: Mapping[tuple[str, str], LocalQueue]
    ) -> None:
        """Show the past use of LocalQueues, by (namespace, name)."""
        self._used_lately.clear()
        for (namespace, name), amount in used.items():
            labels = (name, namespace, queues[namespace, name].cluster_queue)
            self._used_lately.labels(*labels).set(amount)

    def wrote(self, kind: str, result: WriteResult, seconds: float) -> None:
        """Count one write to the API server. ``kind`` is that of the object: Job, Pod, Event..."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            for each in WriteResult:  # as above
                self._writes.labels(kind, each)
        self._writes.labels(kind, result).inc()
        self._write_time.labels(kind).observe(seconds)

    def watched(self, kind: str, events: int, at: float) -> None:
        """``events`` objects (0 for a bookmark) arrived for ``kind`` at unix time ``at``."""
        self._events.labels(kind).inc(events)
        self._last_event.labels(kind).set(at)

    def relisted(self, kind: str) -> None:
        self._relists.labels(kind).inc()

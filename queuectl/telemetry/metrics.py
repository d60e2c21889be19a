"""The metrics that queuectl exports to Prometheus, in their own registry.

Names follow Kueue's (with the prefix ``queuectl_``) where the meaning is the same, so that you can adapt a dashboard by
replacing the prefix. docs/reference/metrics.md lists the labels. No label is a workload, a pod or a node, so the
configuration bounds the number of series, not the load.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from threading import Lock
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.registry import Collector

from queuectl.distribution import version
from queuectl.domain.accounting import UNITS
from queuectl.domain.bounded import RecentlyUsed
from queuectl.domain.estimates import Arrival, RunTimeSource
from queuectl.domain.followed import FollowedReport
from queuectl.domain.ledger import Entry, EntryChange, Invariant, State
from queuectl.domain.mig import MigPhase, MigResult
from queuectl.domain.node_health import HealthSignal, Straggler
from queuectl.domain.plan import Plan, Preemption, PreemptionReason, ScheduledGang, SlipCause
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.queues import LocalQueue
from queuectl.domain.reasons import Code
from queuectl.domain.reservations import ReservationPhase, ReservationState
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import BudgetReport
from queuectl.objects.keys import GATE
from queuectl.planner.order.pending_gangs import ClassKey, PendingGangs
from queuectl.state.estimates import EstimateError
from queuectl.state.holdings import Holdings
from queuectl.telemetry.containment import CarefulMetrics, ContainmentMetrics
from queuectl.telemetry.fleet import FleetMetrics, UseMetrics
from queuectl.telemetry.lifecycle_metrics import (
    BY_CLUSTER_QUEUE,
    BY_LOCAL_QUEUE,
    START_BUCKETS,
    WAIT_BUCKETS,
    LifecycleMetrics,
)
from queuectl.telemetry.names import KnownNames
from queuectl.telemetry.notifications import NotificationMetrics
from queuectl.telemetry.quota import QuotaGauges
from queuectl.telemetry.shadow import ShadowMetrics
from queuectl.telemetry.sizes import SizeMetrics
from queuectl.telemetry.tracing import SpanMetrics
from queuectl.telemetry.workload_gauges import WorkloadGauges, gauge_family, pending_status

# ---- Budgets

_HELP: Final = {
    "granted_gpu_seconds": "GPU-seconds of a Budget in the current month, with top-ups.",
    "spent_gpu_seconds": "GPU-seconds of a Budget that are used in the current month.",
    "committed_gpu_seconds": "GPU-seconds of a Budget that running gangs use until their ends.",
    "spent_timestamp_seconds": "Time at which running gangs will have spent a Budget; absent if not in the current month.",
}


class BudgetMetrics:
    """One series for each Budget. Only the leader shows them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"queuectl_budget_{name}", text, ["budget"], registry=registry)
            for name, text in _HELP.items()
        }

    def show(self, report: BudgetReport) -> None:
        """Replace all series by those of this report."""
        self.forget()
        for one in report.forecasts:
            name = one.balance.budget.name
            amounts = (one.balance.granted, one.used, one.committed)
            for gauge, amount in zip(self._gauges.values(), amounts, strict=False):
                gauge.labels(name).set(amount / UNITS)
            if one.spent_at is not None:
                self._gauges["spent_timestamp_seconds"].labels(name).set(one.spent_at)

    def forget(self) -> None:
        """Remove all series: another process leads."""
        for gauge in self._gauges.values():
            gauge.clear()


# ---- Configuration in objects of the cluster


class FollowedMetrics:
    """The objects that the leader follows. Only the leader shows it, and only if objects own the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._unknown = Gauge(
            "queuectl_followed_kind_unknown",
            "Whether the objects of a kind that own the configuration are not known: 1 = the last configuration stays in effect.",
            ["resource"],
            registry=registry,
        )
        self._objects = Gauge(
            "queuectl_followed_objects",
            "Objects of a kind that own the configuration.",
            ["resource"],
            registry=registry,
        )
        self._counts = Gauge(
            "queuectl_followed_edits",
            "Edits of such objects that have no effect: faulty, waiting until the objects are quiet, or unconfirmed deletions.",
            ["status"],
            registry=registry,
        )

    def show(self, report: FollowedReport) -> None:
        """Replace all series by those of this report."""
        self.forget()
        for source in report.sources:
            self._unknown.labels(source.resource).set(float(bool(source.fault)))
            self._objects.labels(source.resource).set(source.objects)
        self._counts.labels("faulty").set(report.faulty_count)
        self._counts.labels("waiting").set(len(report.waiting))
        self._counts.labels("unconfirmed").set(report.deletion.count if report.deletion else 0)

    def forget(self) -> None:
        """Remove all series: another process leads."""
        for gauge in (self._unknown, self._objects, self._counts):
            gauge.clear()


# ---- Run times that planning assumes


class DurationMetrics:
    """A gang counts once, when it has finished, with the run time that was expected at its first start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._error = Histogram(
            "queuectl_duration_error_seconds",
            "Difference between the expected and the actual run time of finished gangs, longer or shorter.",
            ["source"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._runs = Counter(
            "queuectl_duration_runs_total",
            "Finished gangs with an expected run time, and whether they ended within the time that planning assumed.",
            ["source", "within"],
            registry=registry,
        )
        for source in RunTimeSource:
            # A counter whose first value is 1 has not increased for Prometheus.
            for within in ("false", "true"):
                self._runs.labels(source, within)

    def finished(self, runs: Iterable[tuple[str, float, bool]]) -> None:
        """Count finished gangs: source of the expectation, error in seconds, and whether the gang kept to it."""
        for source, seconds, within in runs:
            self._error.labels(source).observe(seconds)
            self._runs.labels(source, str(within).lower()).inc()


# ---- Estimated wait times


class EstimateMetrics:
    """A gang counts once for each time that it is pending, with its first estimate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait = Histogram(
            "queuectl_estimated_wait_seconds",
            "Time until the median of the expected start, when a pending gang first has one.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._error = Histogram(
            "queuectl_estimate_error_seconds",
            "Time between the median of the first expected start and the actual start, earlier or later.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._started = Counter(
            "queuectl_estimated_starts_total",
            "Starts of gangs that had an expected start, by when they were (result).",
            ["cluster_queue", "result"],
            registry=registry,
        )

    def meet(self, cluster_queue: str) -> None:
        """Create the counters of a ClusterQueue with 0, long before a gang of it can start as estimated."""
        for result in Arrival:
            self._started.labels(cluster_queue, result)

    def observe(self, waits: Iterable[tuple[str, float]]) -> None:
        """Count first estimates: ClusterQueue and seconds."""
        for cluster_queue, seconds in waits:
            self._wait.labels(cluster_queue).observe(seconds)

    def started(self, errors: Iterable[EstimateError]) -> None:
        """Count starts of gangs with an estimate."""
        for error in errors:
            self._error.labels(error.cluster_queue).observe(error.seconds)
            self._started.labels(error.cluster_queue, error.arrival).inc()


# ---- Changes of MIG configurations


class MigMetrics:
    """One series for each result, and for each phase of an active change."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = Counter(
            "queuectl_mig_reconfigurations_total",
            "Changes of the MIG configuration of a node that have ended, by result.",
            ["result"],
            registry=registry,
        )
        self._nodes = Gauge(
            "queuectl_mig_reconfiguring_nodes",
            "Nodes whose MIG configuration is being changed, by phase (status).",
            ["status"],
            registry=registry,
        )
        for result in MigResult:
            self._results.labels(result)

    def ended(self, outcome: MigResult) -> None:
        """Count the end of a change of one node."""
        self._results.labels(outcome).inc()

    def active(self, phases: Iterable[MigPhase]) -> None:
        """Set the number of nodes in each phase."""
        counts = Counts(phases)
        for phase in MigPhase:
            if phase.active:
                self._nodes.labels(phase).set(counts[phase])

    def forget(self) -> None:
        """Remove the gauge: another process leads."""
        self._nodes.clear()


# ---- Health of nodes


class NodeHealthMetrics:
    """Set after each evaluation. Cleared when another process leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "queuectl_node_health_findings",
            "Nodes with a finding against their health, by signal (reason).",
            ["reason"],
            registry=registry,
        )
        self._stragglers = Gauge(
            "queuectl_stragglers",
            "Pods of gangs whose GPU runs far slower than those of their peers.",
            ["cluster_queue"],
            registry=registry,
        )

    def compared(self, stragglers: Iterable[Straggler]) -> None:
        """Set the number of stragglers."""
        self._stragglers.clear()
        for one in stragglers:
            self._stragglers.labels(one.cluster_queue).inc()

    def evaluated(self, signals: Mapping[HealthSignal, int]) -> None:
        """Set the number of nodes with each signal."""
        for signal in HealthSignal:
            self._nodes.labels(signal).set(signals.get(signal, 0))

    def forget(self) -> None:
        """Remove the gauge: another process leads."""
        self._nodes.clear()
        self._stragglers.clear()


# ---- Gangs that do not use their GPUs


class IdleResult(StrEnum):
    """The result for one idle gang."""

    WARNED = "warned"  # up to twice before an eviction
    WOULD_RECLAIM = "would_reclaim"  # in a dry run: a pending gang would have caused its eviction
    ON_DEMAND = "on_demand"  # preempted for a pending gang
    ALWAYS = "always"  # evicted without a pending gang


class IdleReclaims:
    """Counts the results in committed changes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gangs = Counter(
            "queuectl_idle_reclaim_total",
            "Gangs that do not use their GPUs, by result; cluster_queue names the idle gang's.",
            ["cluster_queue", "result"],
            registry=registry,
        )

    def meet(self, cluster_queue: str) -> None:
        """Create the counters of a ClusterQueue with 0: Prometheus sees no increase of a counter whose first value is 1."""
        for result in IdleResult:
            self._gangs.labels(cluster_queue, result)

    def count(self, change: EntryChange) -> None:
        """Count one committed change, if it is a result of idleness."""
        result = _result(change)
        if result is not None:
            self._gangs.labels(change.after.cluster_queue, result).inc()


def _result(change: EntryChange) -> IdleResult | None:
    if change.note is None:
        return None
    reason = change.note.reason
    if reason.code is Code.PREEMPTED and reason.details.get("why") == PreemptionReason.IDLE:
        return IdleResult.ON_DEMAND
    return {
        Code.IDLE_GPUS: IdleResult.WARNED,
        Code.WOULD_RECLAIM: IdleResult.WOULD_RECLAIM,
        Code.IDLE_RECLAIMED: IdleResult.ALWAYS,
    }.get(reason.code)


# ---- Scheduling gates and classes of pending gangs


class GateMetrics:
    """The time until pods lose their scheduling gate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._took = Histogram(
            "queuectl_pod_scheduling_gate_removal_seconds",
            "Time from admission to the removal of a pod's scheduling gate. A replacement pod counts from the same admission.",
            ["name", "cluster_queue"],
            buckets=START_BUCKETS,
            registry=registry,
        )

    def removed(self, cluster_queue: str, seconds: float) -> None:
        """Count one pod."""
        self._took.labels(GATE, cluster_queue).observe(seconds)


class PendingClasses(Collector):
    """The number of classes of equal pending gangs in each queue, as of the last plan. One answer holds for a class.

    The classes are counted when they are scraped.
    """

    def __init__(self) -> None:
        self._lines: PendingGangs | None = None
        self._entry: Callable[[str], Entry | None] = lambda _: None

    def planned(self, lines: PendingGangs, entry: Callable[[str], Entry | None]) -> None:
        """Keep the pending gangs of the last plan. ``entry`` returns a workload of the ledger by uid."""
        self._lines, self._entry = lines, entry

    def forget(self) -> None:
        """Remove the gauge, which only the leader shows."""
        self._lines = None

    def describe(self) -> list[Metric]:
        """Registration needs no description: no other module uses the name."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauge, of classes with gangs that are still pending."""
        lines, shown = self._lines, set[tuple[str, str, ClassKey]]()
        if lines is None:
            return
        for queue, its in lines.by_queue.items():
            for line in its:
                last = self._entry(line.gangs[-1].workload.uid)  # the first of a line start first
                if last is not None and last.state in IN_QUEUE_ORDER:
                    shown.add((queue or "", pending_status(last.reason.code), line.key))
        counted = Counts((queue, status) for queue, status, _ in shown)
        yield gauge_family(
            "pending_scheduling_hashes",
            "Classes of equal pending gangs, as of the last plan.",
            ("cluster_queue", "status"),
            counted.items(),
        )


# ---- Callers of the API

SECONDS: Final = 3600.0  # for which a caller counts after its last request
_MOST: Final = 10_000  # callers with their addresses


class CallerMetrics(Collector):
    """The callers of the last hour, and the number of addresses from which they send requests."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._seen = RecentlyUsed[tuple[str, str], float](_MOST)
        self._lock = Lock()  # metrics are read in a thread
        self._closed = Counter(
            "queuectl_api_closed_connections_total",
            "Connections to the REST API that were closed before their clients closed them, by reason.",
            ["reason"],
            registry=registry,
        )
        registry.register(self)

    def note(self, caller: str, address: str) -> None:
        """Note a request with valid credentials."""
        with self._lock:
            self._seen.put((caller, address), self._clock())

    def closed(self, reason: str) -> None:
        """Count a connection that is closed."""
        self._closed.labels(reason).inc()

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        since = self._clock() - SECONDS
        with self._lock:
            known = [key for key, at in self._seen.items() if at >= since]
        callers, addresses = {caller for caller, _ in known}, {address for _, address in known}
        text = "Callers with valid credentials in the last hour."
        yield gauge_family("api_callers", text, (), [((), float(len(callers)))])
        text = "Addresses from which callers with valid credentials sent requests in the last hour."
        yield gauge_family("api_caller_addresses", text, (), [((), float(len(addresses)))])


# ---- All metrics

_STAGE_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_WRITE_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class CycleStage(StrEnum):
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


class MetricsRecorder:
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
        self.pending_classes = PendingClasses()
        for collector in (self._names, self._workload_gauges, self._quota, self.pending_classes):
            self.registry.register(collector)
        self.sizes = SizeMetrics(self.registry)
        self.callers = CallerMetrics(self.registry)
        self.gates = GateMetrics(self.registry)
        self.utilization = UseMetrics(self.registry)
        self.node_health = NodeHealthMetrics(self.registry)
        self.mig = MigMetrics(self.registry)
        self.budgets = BudgetMetrics(self.registry)
        self.followed = FollowedMetrics(self.registry)
        self.spans = SpanMetrics(self.registry)
        self.fleet = FleetMetrics(self.registry)
        self.estimates = EstimateMetrics(self.registry)
        self.durations = DurationMetrics(self.registry)
        self.containment = ContainmentMetrics(self.registry)
        self.careful = CarefulMetrics(self.registry)
        self.shadow = ShadowMetrics(self.registry)
        self.notifications = NotificationMetrics(self.registry)
        self._idle = IdleReclaims(self.registry)
        self._lifecycles = [
            LifecycleMetrics(self.registry, scope) for scope in (BY_CLUSTER_QUEUE, BY_LOCAL_QUEUE)
        ]
        self._define_cycle()
        self._define_workloads()
        self._define_adapters()
        self._names.watch(self.registry._collector_to_names, self._recreated)

    def add_traces(self) -> None:
        """Waits and starts have the trace of their attempt as an exemplar from now on."""
        for lifecycle in self._lifecycles:
            lifecycle.traced = True

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
            _STAGE_BUCKETS,
            "stage",
        )
        for stage in CycleStage:  # an alert compares the rate of one with 0
            self._stages.labels(stage)
        self._attempts = self._counter(
            "admission_attempts_total",
            "Planning cycles by result: success if a gang was admitted, otherwise inadmissible.",
            "result",
        )
        self._attempt_time = self._histogram(
            "admission_attempt_duration_seconds", "Duration of a planning cycle, with verification, by result.",
            _STAGE_BUCKETS, "result",
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
        # A counter whose first value is 1 has not increased for Prometheus.
        for reason in DiscardReason:
            self._discarded.labels(reason)
        self._violated = self._counter(
            "invariant_violations_total",
            "Checks of the leader's state that found a violated invariant (reason): a defect.",
            "reason",
        )
        for invariant in Invariant:  # as above
            self._violated.labels(invariant)
        self._leader = self._gauge("leader", "1 while this process leads, else 0.")
        self._leaderships = self._counter("leaderships_total", "Leaderships of this process.")
        self._standby = self._gauge(
            "standby_ready",
            "1 while this process is a standby that follows the ledger and has planned, else 0.",
        )
        self._database = self._gauge(
            "database_heartbeat_timestamp_seconds",
            "Unix time of the last heartbeat of this process in the database.",
        )
        self._epoch = self._gauge("leader_epoch", "Epoch of the last leadership of this process.")
        self._gauge("build_info", "Always 1; the label has the version.", "version").labels(
            version()
        ).set(1)

    def _define_workloads(self) -> None:
        self._preempted = self._counter(
            "preempted_workloads_total",
            "Gangs evicted in favor of another gang; cluster_queue names the preemptor's.",
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
            _WRITE_BUCKETS, "kind",
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
            _WRITE_BUCKETS,
            "kind",
        )
        self._events = self._counter(
            "watch_events_total", "Objects that lists and watches delivered.", "kind"
        )
        self._relists = self._counter(
            "watch_relists_total", "Complete lists that watches read.", "kind"
        )
        self._last_event = self._gauge(
            "watch_last_event_timestamp_seconds",
            "Unix time of the last answer to the watch, bookmarks included; the watch age is time() minus this.",
            "kind",
        )

    def stage(self, stage: CycleStage) -> AbstractContextManager[object]:
        """Time one stage: ``with metrics.stage(CycleStage.PLAN): ...``."""
        return self._stages.labels(stage).time()

    def stage_took(self, stage: CycleStage, seconds: float) -> None:
        self._stages.labels(stage).observe(seconds)

    def planned(self, plan: Plan) -> None:
        """Count a plan, even if it is discarded."""
        self._plans.labels(plan.proof).inc()
        self._alarms.inc(len(plan.alarms))
        self._unknown.inc(plan.stats.get("solver_unknown", 0))

    def attempted(self, seconds: float, *, admitted: bool) -> None:
        """Count a planning cycle and its duration with verification. ``admitted``: its commit started a gang."""
        result = "success" if admitted else "inadmissible"
        self._attempts.labels(result).inc()
        self._attempt_time.labels(result).observe(seconds)

    def discarded(self, reason: DiscardReason) -> None:
        self._discarded.labels(reason).inc()

    def violated(self, invariant: Invariant) -> None:
        self._violated.labels(invariant).inc()

    def leading(self, epoch: int) -> None:
        self._leader.set(1)
        self._leaderships.inc()
        self._epoch.set(epoch)

    def standby_ready(self, ready: bool) -> None:
        self._standby.set(ready)

    def database_answered(self) -> None:
        """Note that the database answers now."""
        self._database.set_to_current_time()

    def following(self) -> None:
        """Remove the gauges that only the leader shows."""
        self._leader.set(0)
        self.fleet.forget()
        self.budgets.forget()
        self.followed.forget()
        self.pending_classes.forget()
        self.mig.forget()
        self.node_health.forget()
        self.utilization.forget()
        for gauge in (self._reservations, self._used_lately):
            gauge.clear()
        self._load(())
        self._quota.show(None)

    def loaded(self, entries: Iterable[Entry], holdings: Holdings) -> None:
        """Count the whole ledger, at the start of a leadership."""
        known = list(entries)
        self._load(known)
        self._quota.show(holdings)
        for entry in known:
            self._meet(self._names.cluster_queue(entry.cluster_queue))

    def _load(self, entries: Sequence[Entry]) -> None:
        self._workload_gauges.load(entries)
        for lifecycle in self._lifecycles:
            lifecycle.load(entries)

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

    def slipped(
        self, planned: Iterable[ScheduledGang], cluster_queue: Callable[[str], str]
    ) -> None:
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

    def wrote(self, kind: str, outcome: WriteResult, seconds: float) -> None:
        """Count one write to the API server. ``kind`` names the kind of the object: Job, Pod, Event..."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            for each in WriteResult:  # as above
                self._writes.labels(kind, each)
        self._writes.labels(kind, outcome).inc()
        self._write_time.labels(kind).observe(seconds)

    def watched(self, kind: str, objects: int, at: float) -> None:
        """``objects`` (0 for a bookmark or the end of a list) arrived for ``kind`` at unix time ``at``."""
        self._events.labels(kind).inc(objects)
        self._last_event.labels(kind).set(at)

    def unwatched(self, kind: str) -> None:
        """``kind`` is not served, so its watch has no age."""
        self._last_event.remove(kind)

    def relisted(self, kind: str) -> None:
        self._relists.labels(kind).inc()

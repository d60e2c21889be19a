"""Everything queuectl exports to Prometheus, with a registry of its own.

Names follow Kueue's (with the prefix ``queuectl_``) where the meaning is the same, so that a dashboard moves over by
replacing the prefix. Labels are only those of docs/reference/metrics.md: a workload, a pod or a node never is one, so
the number of series is bounded by the configuration, not by the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from queuectl.domain.ledger import Change, Entry, State
from queuectl.domain.plan import Plan, Preemption
from queuectl.domain.queues import LocalQueue
from queuectl.domain.reasons import Code
from queuectl.telemetry.census import Census, Head

STAGE_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
WRITE_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
START_BUCKETS: Final = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
WAIT_BUCKETS: Final = (
    0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800,
)  # fmt: skip


class Stage(StrEnum):
    """The stages of one cycle, in order."""

    OBSERVE = "observe"
    FREEZE = "freeze"
    PLAN = "plan"
    VERIFY = "verify"
    COMMIT = "commit"
    ACTUATE = "actuate"


class Discard(StrEnum):
    """Why a plan was thrown away whole."""

    CUT = "cut"  # the wall-clock safety net ended a solve
    VERIFIER = "verifier"  # independent code found it wrong: a defect, alert on it
    STALE = "stale"  # rows or configuration changed meanwhile
    FENCED = "fenced"  # another leader has taken over
    UNAVAILABLE = "unavailable"  # the database gave no answer


class WriteResult(StrEnum):
    """How a write to the API server ended."""

    OK = "ok"
    CONFLICT = "conflict"  # 409: the object changed since it was read
    GONE = "gone"
    REFUSED = "refused"  # 403 or 422
    UNAVAILABLE = "unavailable"  # no answer, 5xx or 429


def _no_class(_: Entry) -> str:
    return ""


class Metrics:
    """All collectors behind the words of the loop. One instance per process; every method may be called from any thread."""

    def __init__(self) -> None:
        # Prometheus has no use for the `_created` series, and they double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot its `-> None`
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._census = Census()
        self._define_cycle()
        self._define_workloads()
        self._define_waits()
        self._define_adapters()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"queuectl_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"queuectl_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"queuectl_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _define_cycle(self) -> None:
        self._stages = self._histogram(
            "cycle_stage_duration_seconds", "Time of each stage of a cycle.", STAGE_BUCKETS, "stage"
        )
        self._attempts = self._counter(
            "admission_attempts_total",
            "Cycles that planned: result is success when a gang was admitted, else inadmissible.",
            "result",
        )
        self._plans = self._counter(
            "plans_total", "Plans made, by how sure the answer is (result).", "result"
        )
        self._alarms = self._counter(
            "solver_alarms_total", "Solves that broke: a defect of a model or of the solver."
        )
        self._unknown = self._counter(
            "solver_unknown_total", "Solves that a limit ended before anything was known."
        )
        self._discarded = self._counter(
            "discarded_plans_total", "Plans thrown away whole before they had an effect.", "reason"
        )
        self._leader = self._gauge("leader", "1 while this process leads, else 0.")
        self._epoch = self._gauge("leader_epoch", "Epoch of this process's last leadership.")

    def _define_workloads(self) -> None:
        self._pending = self._gauge(
            "pending_workloads",
            "Workloads waiting for a start; status is active or inadmissible as in Kueue.",
            "cluster_queue", "status", "reason",
        )  # fmt: skip
        self._states = self._gauge(
            "workloads", "Unfinished workloads by state (status).", "cluster_queue", "status"
        )
        self._active = self._gauge(
            "admitted_active_workloads", "Workloads that are starting or running.", "cluster_queue"
        )
        self._owed = self._gauge(
            "outbox_intents", "Cluster writes that the watch has not confirmed yet.", "kind"
        )
        self._admitted = self._counter(
            "admitted_workloads_total", "Starts committed.", "cluster_queue", "priority_class"
        )
        self._refused = self._counter(
            "refused_workloads_total",
            "Times a workload was told a new reason for not starting.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._evicted = self._counter(
            "evicted_workloads_total",
            "Evictions of whole gangs.",
            "cluster_queue", "reason", "priority_class",
        )  # fmt: skip
        self._requeued = self._counter(
            "requeued_workloads_total",
            "Workloads queued again after an eviction or a back-off, by why they were evicted.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._deactivated = self._counter(
            "deactivated_workloads_total",
            "Workloads given up: by a person, after too many failed starts, or for their execution time.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._preempted = self._counter(
            "preempted_workloads_total",
            "Evictions in favour of another gang; cluster_queue is the preemptor's.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._lost = self._counter(
            "lost_gpu_seconds_total",
            "GPU-seconds since the last checkpoint that preemption threw away.",
            "cluster_queue", "reason",
        )  # fmt: skip
        self._finished = self._counter(
            "finished_workloads_total",
            "Workloads finished.",
            "cluster_queue", "priority_class", "result",
        )  # fmt: skip

        self._used_lately = self._gauge(
            "local_queue_admission_fair_sharing_usage",
            "Past use, resources weighed, over the LocalQueue's weight, at the last sample.",
            "name", "namespace", "cluster_queue",
        )  # fmt: skip

    def _define_waits(self) -> None:
        by = ("cluster_queue", "priority_class")
        self._admission_wait = self._histogram(
            "admission_wait_time_seconds", "Submission to first admission.", WAIT_BUCKETS, *by
        )
        self._ready_wait = self._histogram(
            "ready_wait_time_seconds", "Submission to all pods ready, first attempt.",
            WAIT_BUCKETS, *by,
        )  # fmt: skip
        self._start = self._histogram(
            "admitted_until_ready_wait_time_seconds", "Admission to all pods ready, each attempt.",
            START_BUCKETS, *by,
        )  # fmt: skip
        self._eviction = self._histogram(
            "workload_eviction_latency_seconds", "Eviction to the last pod gone.",
            START_BUCKETS, *by,
        )  # fmt: skip

    def _define_adapters(self) -> None:
        self._writes = self._counter(
            "cluster_writes_total", "Writes to the API server by object kind.", "kind", "result"
        )
        self._write_time = self._histogram(
            "cluster_write_duration_seconds", "Time of one write.", WRITE_BUCKETS, "kind"
        )
        self._events = self._counter("watch_events_total", "Objects read by watches.", "kind")
        self._relists = self._counter("watch_relists_total", "Complete lists read.", "kind")
        self._heard = self._gauge(
            "watch_last_event_timestamp_seconds",
            "When the watch last said anything, bookmarks included; its age is time() minus this.",
            "kind",
        )

    def stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time one stage: ``with metrics.stage(Stage.PLAN): ...``."""
        return self._stages.labels(stage).time()

    def stage_took(self, stage: Stage, seconds: float) -> None:
        self._stages.labels(stage).observe(seconds)

    def planned(self, plan: Plan) -> None:
        """Count a plan that was made, whether or not it takes effect."""
        self._plans.labels(plan.proof).inc()
        self._attempts.labels("success" if plan.admitted else "inadmissible").inc()
        self._alarms.inc(len(plan.alarms))
        self._unknown.inc(plan.stats.get("solver_unknown", 0))

    def discarded(self, reason: Discard) -> None:
        self._discarded.labels(reason).inc()

    def leading(self, epoch: int) -> None:
        self._leader.set(1)
        self._epoch.set(epoch)

    def following(self) -> None:
        self._leader.set(0)

    def loaded(self, entries: Iterable[Entry]) -> None:
        """Count the ledger anew, as after a take-over."""
        self._census = Census(entries)
        for gauge in (self._pending, self._states, self._active, self._owed):
            gauge.clear()
        self._show()

    def committed(
        self, changes: Sequence[Change], priority_class: Callable[[Entry], str] = _no_class
    ) -> None:
        """Count what one commit changed. ``priority_class`` names a workload's class, ``""`` for none."""
        for change in changes:
            self._decided(change, priority_class(change.after))
        self._census.apply(changes)
        self._show()

    def preempted(
        self, preemptions: Iterable[Preemption], cluster_queue: Callable[[str], str]
    ) -> None:
        """Count committed preemptions. ``cluster_queue`` gives the queue of a workload's uid."""
        for preemption in preemptions:
            labels = (cluster_queue(preemption.preemptor), preemption.reason)
            self._preempted.labels(*labels).inc()
            self._lost.labels(*labels).inc(preemption.cost.lost_work)

    def used_lately(
        self, used: Mapping[tuple[str, str], float], queues: Mapping[tuple[str, str], LocalQueue]
    ) -> None:
        """Show the past use of LocalQueues, by (namespace, name)."""
        self._used_lately.clear()
        for (namespace, name), amount in used.items():
            labels = (name, namespace, queues[namespace, name].cluster_queue)
            self._used_lately.labels(*labels).set(amount)

    def wrote(self, kind: str, result: WriteResult, seconds: float) -> None:
        """Count one write to the API server. ``kind`` is the object's: Job, Pod, Event..."""
        self._writes.labels(kind, result).inc()
        self._write_time.labels(kind).observe(seconds)

    def watched(self, kind: str, events: int, at: float) -> None:
        """``events`` objects (0 for a bookmark) arrived for ``kind`` at unix time ``at``."""
        self._events.labels(kind).inc(events)
        self._heard.labels(kind).set(at)

    def relisted(self, kind: str) -> None:
        self._relists.labels(kind).inc()

    def _decided(self, change: Change, priority: str) -> None:
        before, after = change.before, change.after
        queue, code = after.cluster_queue, after.reason.code
        was = before.state if before is not None else None
        if was is not after.state:
            self._moved(was, after, change, priority)
        if after.state in (State.PENDING, State.RESERVED) and code is not Code.QUEUED:
            told = before.reason.code if before is not None else None
            if code is not told:
                self._refused.labels(queue, code).inc()

    def _moved(self, was: State | None, after: Entry, change: Change, priority: str) -> None:
        by = (after.cluster_queue, priority)
        if was is State.EVICTING and change.before is not None:
            self._eviction.labels(*by).observe(change.at - change.before.since)
        match after.state:
            case State.STARTING:
                self._admitted.labels(*by).inc()
                if after.attempt == 1:
                    self._admission_wait.labels(*by).observe(change.at - after.queued_at)
            case State.RUNNING:
                self._start.labels(*by).observe(change.at - (after.started_at or change.at))
                if after.attempt == 1:
                    self._ready_wait.labels(*by).observe(change.at - after.queued_at)
            case State.EVICTING:
                self._evicted.labels(after.cluster_queue, after.reason.code, priority).inc()
            case State.PENDING if after.evicted_for is not None and was is not State.RESERVED:
                self._requeued.labels(after.cluster_queue, after.evicted_for).inc()
            case State.DEACTIVATED:
                self._deactivated.labels(after.cluster_queue, after.reason.code).inc()
            case State.FINISHED:
                self._finished.labels(*by, after.reason.code).inc()
            case _:
                pass

    def _show(self) -> None:
        _set(self._pending, self._census.pending)
        _set(self._states, self._census.states)
        _set(self._owed, self._census.owed)
        active: dict[Head, int] = {}
        for (queue, state), count in self._census.states.items():
            if State(state).live:
                active[queue,] = active.get((queue,), 0) + count
        _set(self._active, active)


def _set(gauge: Gauge, heads: Mapping[Head, int]) -> None:
    for labels, count in heads.items():
        gauge.labels(*labels).set(count)

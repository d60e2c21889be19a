"""Counters and histograms of the changes of workloads, by ClusterQueue and by LocalQueue, as in Kueue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.reasons import FAILED_START, Code
from queuectl.telemetry.tracing import trace_id

_GIVEN_UP: Final = (
    Code.DEACTIVATED,
    Code.REQUEUING_LIMIT,
    Code.MAX_EXECUTION_TIME,
    Code.CHECK_REJECTED,
)
_LIKELY: Final = (Code.PREEMPTED, *sorted(FAILED_START))
_LEFT: Final = (State.EVICTING, State.BACKOFF)
"""A gang leaves them once for each eviction. It can be held and released many times before its next start."""
START_BUCKETS: Final = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
WAIT_BUCKETS: Final = (
    0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800,
)  # fmt: skip


@dataclass(frozen=True)
class MetricScope:
    """The grouping of workloads: prefix of the metric names, label names, and the label values of an entry."""

    prefix: str
    labels: tuple[str, ...]
    of: Callable[[Entry], tuple[str, ...]]


BY_CLUSTER_QUEUE: Final = MetricScope("", ("cluster_queue",), lambda entry: (entry.cluster_queue,))
BY_LOCAL_QUEUE: Final = MetricScope(
    "local_queue_", ("name", "namespace"), lambda entry: (entry.queue, entry.namespace)
)


class LifecycleMetrics:
    """The collectors of one scope."""

    def __init__(self, registry: CollectorRegistry, scope: MetricScope) -> None:
        self._registry = registry
        self._scope = scope
        self._known: set[tuple[str, ...]] = set()
        self._had_quota: set[str] = set()  # uids of pending gangs that have had a reservation
        self.traced = False  # waits and starts have the trace of their attempt as an exemplar
        by_class = ("priority_class",)
        self._reserved = self._counter(
            "quota_reserved_workloads_total",
            "Reservations of quota, and starts without one.",
            by_class,
        )
        self._admitted = self._counter("admitted_workloads_total", "Committed starts.", by_class)
        self._finished = self._counter(
            "finished_workloads_total",
            "Finished workloads by result.",
            ("priority_class", "result"),
        )
        self._refused = self._counter(
            "refused_workloads_total",
            "Changes of the reason why a workload does not start.",
            ("reason",),
        )
        evicted = ("reason", "priority_class")
        self._evicted = self._counter(
            "evicted_workloads_total", "Evictions of whole gangs.", evicted
        )
        self._evicted_once = self._counter(
            "evicted_workloads_once_total",
            "Workloads that were evicted for the first time.",
            evicted,
        )
        self._requeued = self._counter(
            "requeued_workloads_total",
            "Workloads requeued after an eviction or a back-off, by the reason of the eviction.",
            ("reason",),
        )
        self._deactivated = self._counter(
            "deactivated_workloads_total",
            "Workloads deactivated: by a person, after too many failed starts, for their execution time, or by an admission check.",
            ("reason",),
        )
        self._define_times()

    def _define_times(self) -> None:
        by_class = ("priority_class",)
        self._reserved_wait = self._histogram(
            "quota_reserved_wait_time_seconds", "Time from submission to the first start or reservation.",
            WAIT_BUCKETS, by_class,
        )  # fmt: skip
        self._admission_wait = self._histogram(
            "admission_wait_time_seconds",
            "Time from submission to first admission.",
            WAIT_BUCKETS,
            by_class,
        )
        self._kept_wait = self._histogram(
            "admission_checks_wait_time_seconds", "Time from the reservation to the start, while victims stop or admission checks are not ready; 0 without a reservation.",
            WAIT_BUCKETS, by_class,
        )  # fmt: skip
        self._ready_wait = self._histogram(
            "ready_wait_time_seconds", "Time from submission until all pods are ready, first attempt.",
            WAIT_BUCKETS, by_class,
        )  # fmt: skip
        self._start = self._histogram(
            "admitted_until_ready_wait_time_seconds", "Time from admission until all pods are ready, each attempt.",
            START_BUCKETS, by_class,
        )  # fmt: skip
        self._executed = self._histogram(
            "execution_time_seconds", "Run time of a finished workload, summed over its attempts.",
            WAIT_BUCKETS, by_class,
        )  # fmt: skip
        self._ready_to_evicted = self._histogram(
            "pods_ready_to_evicted_time_seconds", "Time from all pods ready to the eviction.",
            WAIT_BUCKETS, ("reason",),
        )  # fmt: skip
        self._eviction = self._histogram(
            "workload_eviction_latency_seconds", "Time from the eviction until the last pod has ended.",
            START_BUCKETS, by_class,
        )  # fmt: skip

    def _counter(self, name: str, text: str, more: tuple[str, ...]) -> Counter:
        full = f"queuectl_{self._scope.prefix}{name}"
        return Counter(full, text, (*self._scope.labels, *more), registry=self._registry)

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], more: tuple[str, ...]
    ) -> Histogram:
        full = f"queuectl_{self._scope.prefix}{name}"
        labels = (*self._scope.labels, *more)
        return Histogram(full, text, labels, buckets=buckets, registry=self._registry)

    def forget(self) -> None:
        """Create the initial series again with the next count."""
        self._known.clear()

    def load(self, entries: Iterable[Entry]) -> None:
        """Note which gangs of the whole ledger have had a reservation: their waits for quota are not observed again."""
        self._had_quota = {
            entry.uid
            for entry in entries
            if entry.state is State.RESERVED
            or (entry.state.waiting and entry.uid in self._had_quota)
        }

    def count(self, change: EntryChange, priority: str) -> None:
        """Count one committed change. ``priority``: the workload's priority class, ``""`` for none."""
        before, after = change.before, change.after
        where, code = self._scope.of(after), after.reason.code
        if where not in self._known:
            self._known.add(where)
            # Prometheus sees no increase of a counter whose first value is 1.
            for reason in _GIVEN_UP:
                self._deactivated.labels(*where, reason)
        was = before.state if before is not None else None
        if was is not after.state:
            self._moved(change, where, priority)
            if after.state is State.RESERVED:
                self._had_quota.add(after.uid)
            elif not after.state.waiting:
                self._had_quota.discard(after.uid)
        if after.state in IN_QUEUE_ORDER and code is not Code.QUEUED:
            code_before = before.reason.code if before is not None else None
            if code is not code_before:
                self._refused.labels(*where, code).inc()

    def _moved(self, change: EntryChange, where: tuple[str, ...], priority: str) -> None:
        before, after, at = change.before, change.after, change.at
        was = before.state if before is not None else None
        by = (*where, priority)
        if was is State.EVICTING and before is not None:
            self._eviction.labels(*by).observe(at - before.since)
        match after.state:
            case State.RESERVED:
                self._kept(by, after, at)
            case State.STARTING:
                self._starts(before, by, after, at)
            case State.RUNNING if after.reason.code is not Code.ADOPTED:
                trace = self._trace(after)
                self._start.labels(*by).observe(at - (after.started_at or at), trace)
                if _is_first(after, 1):
                    self._ready_wait.labels(*by).observe(at - after.queued_at, trace)
            case State.EVICTING:
                self._leaves(change, where, priority)
            case State.PENDING | State.HELD if after.evicted_for and was in _LEFT:
                self._requeued.labels(*where, after.evicted_for).inc()
            case State.DEACTIVATED:
                self._deactivated.labels(*where, after.reason.code).inc()
            case State.FINISHED:
                self._finished.labels(*by, after.reason.code).inc()
                if after.past_seconds:
                    self._executed.labels(*by).observe(after.past_seconds)
            case _:
                pass

    def _starts(self, before: Entry | None, by: tuple[str, ...], after: Entry, at: float) -> None:
        leased = before is not None and before.state is State.RESERVED
        if not leased:
            self._kept(by, after, at)
        self._kept_wait.labels(*by).observe(at - before.since if leased and before else 0.0)
        self._admitted.labels(*by).inc()
        *where, priority = by
        for reason in _LIKELY:  # these also start with 0
            self._evicted.labels(*where, reason, priority)
            self._evicted_once.labels(*where, reason, priority)
            self._requeued.labels(*where, reason)
        self._ready_to_evicted.labels(*where, Code.PREEMPTED)
        self._eviction.labels(*by)
        if _is_first(after, 1):
            self._admission_wait.labels(*by).observe(at - after.queued_at, self._trace(after))

    def _trace(self, after: Entry) -> dict[str, str] | None:
        return {"trace_id": f"{trace_id(after.uid, after.attempt):032x}"} if self.traced else None

    def _kept(self, by: tuple[str, ...], after: Entry, at: float) -> None:
        self._reserved.labels(*by).inc()
        first = _is_first(after, 1 if after.state is State.STARTING else 0)
        if first and after.uid not in self._had_quota:
            self._reserved_wait.labels(*by).observe(at - after.queued_at)

    def _leaves(self, change: EntryChange, where: tuple[str, ...], priority: str) -> None:
        after = change.after
        reason = after.reason.code
        self._evicted.labels(*where, reason, priority).inc()
        if after.evictions == 1:
            self._evicted_once.labels(*where, reason, priority).inc()
        ready_at = change.before.ready_at if change.before is not None else None
        if ready_at is not None:
            self._ready_to_evicted.labels(*where, reason).observe(change.at - ready_at)


def _is_first(after: Entry, starts: int) -> bool:
    """Whether its number of starts is ``starts``, and it has not run before. A gang that was adopted has run without a start."""
    return after.attempt == starts and not after.past_seconds

"""Gauges of workloads: counts by queue, state and reason, and finished jobs that are not deleted.

A commit updates the count of each changed workload. No cycle counts all workloads again, and no cycle sets a gauge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from queuectl.domain.ledger import LIVE, Entry, EntryChange, State
from queuectl.domain.quantity import CPU
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import TO_BE_CONSIDERED, Code
from queuectl.telemetry.names import KnownNames

# ---- Conversion of amounts to gauges

Series: TypeAlias = tuple[tuple[str, ...], float]
"""Label values and the number."""

_MILLI = 1000


def gauge_family(name: str, text: str, labels: tuple[str, ...], series: Iterable[Series]) -> Metric:
    """A gauge with the prefix ``queuectl_``, and its series in the order of their labels."""
    family = GaugeMetricFamily(f"queuectl_{name}", text, labels=labels)
    for values, number in sorted(series):
        family.add_metric(values, number)
    return family


def in_units(resource: str, amount: int) -> float:
    """An amount in Kubernetes' unit: cores, bytes or devices."""
    return amount / _MILLI if resource == CPU else float(amount)


# ---- Finished jobs


def finished(jobs: Mapping[tuple[str, str], int], config: QueueConfig) -> Iterator[Metric]:
    """``jobs``: the number by namespace and LocalQueue. A queue without finished jobs has 0."""
    queues: Counter[tuple[str]] = Counter({(name,): 0 for name in config.cluster_queues})
    locals_: Counter[tuple[str, str]] = Counter(
        {(queue.name, queue.namespace): 0 for queue in config.local_queues.values()}
    )
    for (namespace, name), number in jobs.items():
        locals_[name, namespace] += number
        queue = config.cluster_queue_of(namespace, name)
        if queue is not None:
            queues[(queue.name,)] += number
    text = "Finished jobs that are not deleted."
    yield gauge_family("finished_workloads", text, ("cluster_queue",), queues.items())
    yield gauge_family(
        "local_queue_finished_workloads", text, ("name", "namespace"), locals_.items()
    )


# ---- Counts of workloads

Where: TypeAlias = tuple[str, str, str, State, Code]
"""ClusterQueue, namespace, LocalQueue, state, and reason of a pending workload (``Queued`` for all others)."""
Head: TypeAlias = tuple[str, ...]
"""Label values of one gauge."""


def pending_status(code: Code) -> str:
    """``active`` while the gang is to be considered, ``inadmissible`` after it was refused."""
    return "active" if code in TO_BE_CONSIDERED else "inadmissible"


class WorkloadGauges(Collector):
    """Counts of the ledger. A count of 0 stays, so that its gauge has the value 0."""

    def __init__(self, cohorts: Callable[[str], Iterable[str]], names: KnownNames) -> None:
        """``cohorts`` returns the Cohorts of a ClusterQueue. ``names``: the allowed label values."""
        self._cohorts = cohorts
        self._names = names
        self._where: Counter[Where] = Counter()
        self._intents: Counter[Head] = Counter()
        self._refused: Counter[Head] = Counter()
        self._unavailable: Counter[Head] = Counter()

    def load(self, entries: Iterable[Entry]) -> None:
        """Count all workloads."""
        self._where, self._intents = Counter(), Counter()
        self._refused, self._unavailable = Counter(), Counter()
        for entry in entries:
            self._count(entry, 1)

    def apply(self, changes: Iterable[EntryChange]) -> None:
        """Update the counts with committed changes."""
        for change in changes:
            if change.before is not None:
                self._count(change.before, -1)
            self._count(change.after, 1)
            if change.before is not None:
                self._forget(change.before)

    def _count(self, entry: Entry, by: int) -> None:
        if entry.state is State.FINISHED:
            return
        if entry.refused_write is not None:
            self._refused[entry.cluster_queue, str(entry.refused_write)] += by
        if entry.state.waiting:
            self._unavailable[(entry.cluster_queue,)] += by * entry.reason.waits_for_capacity
        self._where[_where(entry)] += by
        if entry.intent is not None:
            self._intents[(str(entry.intent),)] += by

    def _forget(self, entry: Entry) -> None:
        """Keep no count of 0 for a queue that does not exist: users can invent names."""
        local = entry.namespace, entry.queue
        queue = self._names.cluster_queue(entry.cluster_queue)
        if (queue, *self._names.local_queue(*local)) != (entry.cluster_queue, *local):
            key = _where(entry)
            if not self._where[key]:
                del self._where[key]

    def describe(self) -> list[Metric]:
        """Registration needs no description: no other module uses the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges, from a copy: the loop runs at the same time."""
        where = self._named(dict(self._where))
        yield gauge_family(
            "pending_workloads",
            "Pending workloads; status is active or inadmissible, as in Kueue.",
            ("cluster_queue", "status", "reason"),
            _sums(
                [
                    *_none_undecided(where),
                    *(
                        ((queue, pending_status(code), str(code)), count)
                        for (queue, _, _, state, code), count in where.items()
                        if state.waiting
                    ),
                ]
            ),
        )
        yield from _unadmitted(where)
        yield gauge_family(
            "workloads", "Unfinished workloads by state (status).", ("cluster_queue", "status"),
            _sums(((queue, str(state)), count) for (queue, _, _, state, _), count in where.items()),
        )  # fmt: skip
        yield gauge_family(
            "local_queue_pending_workloads", "Pending workloads of each LocalQueue.", ("name", "namespace", "status"),
            _sums(
                ((local, namespace, pending_status(code)), count)
                for (_, namespace, local, state, code), count in where.items()
                if state.waiting
            ),
        )  # fmt: skip
        for name, text, states in _ACTIVE:
            yield gauge_family(
                name, text, ("cluster_queue",),
                _sums(
                    ((queue,), count)
                    for (queue, _, _, state, _), count in where.items()
                    if state in states
                ),
            )  # fmt: skip
            yield gauge_family(
                f"local_queue_{name}", text, ("name", "namespace"),
                _sums(
                    ((local, namespace), count)
                    for (_, namespace, local, state, _), count in where.items()
                    if state in states
                ),
            )  # fmt: skip
        yield gauge_family(
            "cohort_subtree_admitted_active_workloads",
            "Workloads of the Cohort that are starting or running.",
            ("cohort",),
            _sums(
                ((cohort,), count)
                for (queue, _, _, state, _), count in where.items()
                if state in LIVE
                for cohort in self._cohorts(queue)
            ),
        )
        yield gauge_family(
            "outbox_intents", "Workloads with a committed write (Start, Stop, Move) that the watch has not confirmed.", ("kind",),
            dict(self._intents).items(),
        )  # fmt: skip
        yield gauge_family(
            "waiting_for_unavailable_capacity",
            "Pending workloads that wait for nodes, devices or quota that are out of use for a time.",
            ("cluster_queue",),
            _sums(
                ((self._names.cluster_queue(queue),), count)
                for (queue,), count in dict(self._unavailable).items()
            ),
        )
        yield gauge_family(
            "refused_writes", "Workloads with a write that the API server refuses, or a stop that it does not answer.",
            ("cluster_queue", "kind"),
            _sums(
                ((self._names.cluster_queue(queue), kind), count)
                for (queue, kind), count in dict(self._refused).items()
            ),
        )  # fmt: skip

    def _named(self, where: Mapping[Where, int]) -> Counter[Where]:
        """The counts by names that exist. A count of 0 for another name is omitted."""
        named: Counter[Where] = Counter()
        for (queue, namespace, local, state, code), count in where.items():
            shown = self._names.cluster_queue(queue), *self._names.local_queue(namespace, local)
            if count or shown == (queue, namespace, local):
                named[(*shown, state, code)] += count
        return named


_ACTIVE: Final = (
    ("admitted_active_workloads", "Workloads that are starting or running.", LIVE),
    ("reserving_active_workloads", "Workloads that are starting or running, or have reserved quota.", (*LIVE, State.RESERVED)),
)  # fmt: skip


def _none_undecided(where: Iterable[Where]) -> Iterator[tuple[Head, int]]:
    """The series that the alert QueuectlUndecided reads, with 0 for queues without such gangs."""
    for queue in {queue for queue, *_ in where}:
        yield (queue, pending_status(Code.UNDECIDED), str(Code.UNDECIDED)), 0


def _unadmitted(where: Mapping[Where, int]) -> Iterator[Metric]:
    """The gauges of workloads without placement."""
    text = "Workloads without placement, by state (status) and current reason."
    without = {key: count for key, count in where.items() if key[3].waiting}
    yield gauge_family(
        "unadmitted_workloads", text, ("cluster_queue", "status", "reason"),
        _sums(
            ((queue, str(state), str(code)), count)
            for (queue, _, _, state, code), count in without.items()
        ),
    )  # fmt: skip
    yield gauge_family(
        "local_queue_unadmitted_workloads", text, ("name", "namespace", "cluster_queue", "status", "reason"),
        _sums(
            ((local, namespace, queue, str(state), str(code)), count)
            for (queue, namespace, local, state, code), count in without.items()
        ),
    )  # fmt: skip


def _where(entry: Entry) -> Where:
    code = entry.reason.code if entry.state.waiting else Code.QUEUED
    return entry.cluster_queue, entry.namespace, entry.queue, entry.state, code


def _sums(counted: Iterable[tuple[Head, int]]) -> Iterable[Series]:
    sums: Counter[Head] = Counter()
    for head, count in counted:
        sums[head] += count
    return sums.items()

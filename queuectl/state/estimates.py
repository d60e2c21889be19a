"""Estimated starts of pending gangs, and the errors of earlier estimates.

The run time of a gang is the one that its user expects, or else the median of finished gangs like it, at most its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.estimates import HeldGpus, Waits, estimated_starts
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queries import IN_QUEUE_ORDER, in_queue_order, turn
from queuectl.domain.queues import QueueConfig, QueueingStrategy
from queuectl.domain.records import JobRecord
from queuectl.durations.estimator import Estimator
from queuectl.durations.expectations import typical
from queuectl.state.durations import stated_of, work_of
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

_HOLDING: Final = (State.STARTING, State.RUNNING, State.EVICTING)


@dataclass(frozen=True, slots=True)
class EstimateInput:
    """The input of estimates at ``now`` (unix seconds): a copy for another thread.

    ``held``: GPUs charged to each ClusterQueue. ``quotas``: its nominal GPUs, over all flavors.
    """

    now: float
    config: QueueConfig
    waiting: tuple[Entry, ...]
    holding: tuple[Entry, ...]
    held: Mapping[str, float]
    quotas: Mapping[str, float]


class Estimates:
    """The estimates of one leader.

    Attributes:
        starts: the newest estimate of each gang that has one, by uid; unix seconds.
    """

    def __init__(self, mirror: Mirror, estimator: Estimator) -> None:
        self._mirror = mirror
        self._estimator = estimator
        self._first: dict[str, float] = {}  # the first estimate of each pending gang
        self.starts: Mapping[str, float] = {}

    def current(self, ledger: Ledger, holdings: Holdings, now: float) -> EstimateInput:
        """The input of estimates at ``now``."""
        config = holdings.effective
        sizes = self._mirror.gpus(holdings.config)
        held: dict[str, float] = {}
        for (_, _, queue, flavor, resource), amount in holdings.held.items():
            held[queue] = held.get(queue, 0.0) + float(sizes.unit(resource, flavor) * amount)
        quotas = {
            name: sum(
                float(sizes.unit(resource, flavor.flavor) * amount)
                for group in queue.groups
                for flavor in group.flavors
                for resource, amount in flavor.nominal.items()
            )
            for name, queue in config.cluster_queues.items()
        }
        waiting, holding = ledger.entries(*IN_QUEUE_ORDER), ledger.entries(*_HOLDING)
        return EstimateInput(now, config, tuple(waiting), tuple(holding), held, quotas)

    def make(self, current: EstimateInput) -> dict[str, float]:
        """Estimated starts by uid. Safe in any thread."""
        lengths = _Runtimes(self._mirror, self._estimator, current)
        lines: dict[str, list[Waits]] = {}
        for entry in sorted(filter(in_queue_order, current.waiting), key=turn):
            lines.setdefault(entry.cluster_queue, []).append(lengths.waits(entry))
        running: dict[str, list[HeldGpus]] = {name: [] for name in lines}
        for entry in current.holding:
            if entry.cluster_queue in running:
                running[entry.cluster_queue].append(lengths.holds(entry))
        starts: dict[str, float] = {}
        for name, line in lines.items():
            queue = current.config.cluster_queues.get(name)
            if queue is None:
                continue
            free = current.quotas[name] - current.held.get(name, 0.0)
            strict = queue.strategy is QueueingStrategy.STRICT_FIFO
            starts |= estimated_starts(line, running[name], free, current.now, strict=strict)
        return starts

    def replace(self, starts: Mapping[str, float], ledger: Ledger) -> list[tuple[str, float]]:
        """Replace the estimates.

        Returns:
            ClusterQueue and estimated start of each gang without an earlier estimate.
        """
        self.starts = starts
        new = []
        for uid in starts.keys() - self._first.keys():
            entry = ledger.get(uid)
            if entry is not None and entry.state in IN_QUEUE_ORDER:
                self._first[uid] = starts[uid]
                new.append((entry.cluster_queue, starts[uid]))
        return new

    def forget(self, ledger: Ledger) -> None:
        """Forget the first estimates of gangs that are no longer pending, after the ledger was read again."""
        waiting = set(ledger.uids(*IN_QUEUE_ORDER))
        self._first = {uid: start for uid, start in self._first.items() if uid in waiting}

    def note(self, changes: Iterable[EntryChange]) -> list[tuple[str, float]]:
        """Apply committed changes.

        Returns:
            ClusterQueue of each gang that starts and had an estimate, and the error of its first estimate in seconds.
        """
        off = []
        for change in changes:
            after = change.after
            if after.state in IN_QUEUE_ORDER:
                continue
            estimate = self._first.pop(after.uid, None)
            if estimate is not None and after.state is State.STARTING:
                off.append((after.cluster_queue, abs(change.at - estimate)))
        return off


class _Runtimes:
    """The known run times of gangs."""

    def __init__(self, mirror: Mirror, estimator: Estimator, current: EstimateInput) -> None:
        self._jobs = mirror.jobs
        self._estimator = estimator
        self._now = current.now
        self._config = current.config

    def waits(self, entry: Entry) -> Waits:
        """The gang in queue order."""
        job = self._jobs.get(entry.uid)
        return Waits(entry.uid, float(entry.gpus), self._left(entry, job))

    def holds(self, entry: Entry) -> HeldGpus:
        """A gang that holds capacity. An evicting gang counts as finished."""
        job = self._jobs.get(entry.uid)
        left = 0.0 if entry.state is State.EVICTING else self._left(entry, job)
        until = None if left is None else self._now + left
        return HeldGpus(float(entry.gpus), until)

    def _left(self, entry: Entry, job: JobRecord | None) -> float | None:
        """Seconds for which it still runs, or will run after its start; None = unknown."""
        so_far, stated = entry.executed(self._now), stated_of(entry, job, self._config)
        usual = typical(work_of(entry), stated, so_far, self._estimator)
        return max(usual.seconds - so_far, 0.0) if usual is not None else None

"""Quota and its use as bars: what a ClusterQueue may use by itself, what it borrows, and how its cohort stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.usage import usage_of
from queuectl.planner.quota.tree import QuotaUse, pools_of, use_of


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """One flavor and resource of a ClusterQueue or Cohort, in units of :mod:`queuectl.domain.quantity`.

    Attributes:
        used: by its gangs; None = this process cannot tell.
        limit: most it may use, borrowing included; None = no limit of its own, so its cohort decides.
        lending: most of ``nominal`` that others may use; None = all of it.
        left: what may still be used now, borrowing included.
    """

    name: str
    flavor: str
    resource: str
    nominal: int
    used: int | None = None
    limit: int | None = None
    lending: int | None = None
    left: int | None = None

    @property
    def borrowed(self) -> int:
        """Use beyond its own quota."""
        return max(0, (self.used or 0) - self.nominal)

    @property
    def own(self) -> int:
        """Use within its own quota."""
        return (self.used or 0) - self.borrowed

    @property
    def scale(self) -> int:
        """What the whole width of the bar stands for."""
        return max(self.nominal, self.limit or 0, self.used or 0, 1)

    def width(self, amount: int) -> float:
        """Of an amount on a bar that is 100 wide."""
        return round(100 * amount / self.scale, 2)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of one moment. ``use`` None = this process knows the configuration only."""

    config: QueueConfig
    use: QuotaUse | None

    def of_queue(self, queue: ClusterQueue) -> tuple[QuotaBar, ...]:
        """A bar for each flavor and resource, in the queue's order of preference."""
        return tuple(
            self._bar(queue, quotas.flavor, resource, quotas.nominal, quotas.borrowing, quotas.lending)
            for group in queue.groups
            for resource in group.covered
            for quotas in group.flavors
        )  # fmt: skip

    def _bar(
        self,
        queue: ClusterQueue,
        flavor: str,
        resource: str,
        nominal: Mapping[str, int],
        borrowing: Mapping[str, int],
        lending: Mapping[str, int],
    ) -> QuotaBar:
        row, own = (flavor, resource), nominal.get(resource, 0)
        more = borrowing.get(resource) if queue.cohort is not None else 0
        return QuotaBar(
            queue.name,
            flavor,
            resource,
            own,
            used=self.use.of(queue.name, row) if self.use is not None else None,
            limit=own + more if more is not None else None,
            lending=lending.get(resource),
            left=max(0, self.use.left(queue.name, row)) if self.use is not None else None,
        )

    def of_cohort(self, cohort: str) -> tuple[QuotaBar, ...]:
        """What the members of a cohort have and use together, by flavor and resource."""
        nominal: Counter[tuple[str, str]] = Counter()
        used: Counter[tuple[str, str]] = Counter()
        for queue in self.config.cluster_queues.values():
            if queue.cohort == cohort:
                for bar in self.of_queue(queue):
                    nominal[bar.flavor, bar.resource] += bar.nominal
                    used[bar.flavor, bar.resource] += bar.used or 0
        stated = self.config.cohorts.get(cohort)
        for group in stated.groups if stated is not None else ():
            for quotas in group.flavors:
                for resource, amount in quotas.nominal.items():
                    nominal[quotas.flavor, resource] += amount
        known = self.use is not None
        return tuple(
            QuotaBar(cohort, *row, amount, used=used[row] if known else None, limit=amount)
            for row, amount in nominal.items()
        )


def quotas_of(config: QueueConfig, snapshot: Snapshot | None, cache: PlannerCache) -> Quotas:
    """The quotas that planning goes by, and their use; without a snapshot, those that the configuration states."""
    if snapshot is None:
        return Quotas(config, None)
    pools = pools_of(snapshot.config, cache)
    return Quotas(snapshot.config, use_of(pools, usage_of(snapshot, cache).quota_held))

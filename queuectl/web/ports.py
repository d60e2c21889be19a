"""The view of the cluster for the pages: the snapshot with the quota use, which REST does not show."""

from __future__ import annotations

from typing import Protocol

from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache


class ClusterReader(Protocol):
    """The state of the cluster, in each process that watches it. Methods may raise StoreUnavailable."""

    async def cluster_map(self) -> ClusterMap | None:
        """The nodes with their gangs, about a second old at most; None while this process does not know yet."""

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods, of all its attempts, in no order; None while this process does not know yet."""

    @property
    def cache(self) -> PlannerCache:
        """The cache of the planner in this process from call to call."""

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot that the planner would get, about a second old at most; None while this process does not know yet."""

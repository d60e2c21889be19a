"""The sources of the pages beyond those of the REST API: sums for an overview, and the snapshot with the quota use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from queuectl.api.ports import ApiStore
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import HistoryLine, QueueCounts, WaitingOrder
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache


class PageStore(ApiStore, Protocol):
    """Every method may raise StoreUnavailable."""

    async def tallies(self) -> tuple[QueueCounts, ...]:
        """Counts of workloads that are not Finished, by LocalQueue, ClusterQueue, state and reason."""

    async def waiting(
        self,
        cluster_queue: str | None = None,
        namespaces: Collection[str] | None = None,
        *,
        queue: str | None = None,
        order: WaitingOrder = WaitingOrder.TURN,
        skip: int = 0,
        limit: int = 100,
    ) -> tuple[Entry, ...]:
        """Pending and Reserved workloads, of one ClusterQueue and LocalQueue or of all, in these namespaces or in all; at most 500."""

    async def evictions(
        self,
        namespaces: Collection[str] | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HistoryLine, ...]:
        """The latest evictions, newest first, with ids below ``before``; at most 500."""


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

"""The interfaces of the API beyond its store (:mod:`queuectl.db.ports`): the cluster, the planner, and the health of the process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Checked, Entry
from queuectl.domain.plan import Cost
from queuectl.domain.queries import (
    DocumentKey,
    UnmanagedPod,
)
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import BudgetReport
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import DrainCost, Preview, WhatIf, WhatIfResult
from queuectl.objects.kinds import JobKinds
from queuectl.planner.cache import PlannerCache


class ClusterReader(Protocol):
    """Views of the cluster, in each process that watches it."""

    async def cluster_map(self) -> ClusterMap | None:
        """The cluster map, at most about a second old; None until this process has one.

        Can raise StoreUnavailable.
        """

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Unmanaged pods that hold GPUs, by namespace and name, at most about a second old.

        None until this process has a view of the cluster. Can raise StoreUnavailable.
        """

    async def budgets(self) -> BudgetReport | None:
        """The use of budgets and its forecast, at most about a second old.

        None until this process has a view of the cluster. Can raise StoreUnavailable.
        """

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods of all its attempts, in no order; None until this process has a view of the cluster."""

    @property
    def cache(self) -> PlannerCache:
        """The cache of the planner in this process from call to call."""

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot that the planner would get, at most about a second old; None until this process has one."""

    @property
    def kinds(self) -> JobKinds:
        """The job kinds that it watches."""

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        """The plans with and without the changes; None until this process has a view of the cluster.

        Raises:
            BadInput: a change is invalid.
            TookTooLong: the time of the planner was too short, or too many requests wait.
            StoreUnavailable: no response from the database.
        """


class Diagnoser(Protocol):
    """Diagnoses and previews by the planner. Only the leader has GPU utilization and estimates."""

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending workload does not start, from the solver; None if this process has no answer now."""

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """The cost and the effect of an action on a running gang now; None if this process has no answer.

        Can raise StoreUnavailable.
        """

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a ClusterQueue or a LocalQueue now; None while this process does not know the cluster.

        May raise StoreUnavailable.
        """

    async def eviction_costs(self, uids: Collection[str]) -> Mapping[str, Cost]:
        """The cost of evicting each of these gangs now, by uid; of those that run and that this process knows.

        May raise StoreUnavailable.
        """

    async def over_quota(self, config: QueueConfig) -> Sequence[Excess] | None:
        """Running gangs that exceed the quota of another configuration; None if this process has no answer now."""

    async def device_resources(self) -> Collection[str]:
        """The resources that only devices of ResourceSlices provide; none while this process does not know the cluster.

        Can raise StoreUnavailable.
        """

    async def check(self) -> Checked | None:
        """The violations in a complete check of the invariants; None if this process is not the leader.

        Can raise StoreUnavailable.
        """

    async def leader(self) -> str:
        """The name of the leader; empty without one. Can raise ClusterUnavailable."""

    def gang_use(self, uid: str) -> GangUse | None:
        """The GPU utilization of a gang in the last evaluation; None without a source."""

    def expected_starts(self) -> ExpectedStarts:
        """The expected starts of pending gangs, by the leader's last estimate."""


class HealthChecks(Protocol):
    """The health of the process. Each sentence names one fault, as ``watch: pods not listed yet``; none = healthy."""

    async def live(self) -> Sequence[str]:
        """Faults that need a restart."""

    async def ready(self) -> Sequence[str]:
        """Reasons why the process is not ready."""

"""Reports about snapshots, whose device rows are added as in the controller."""

from __future__ import annotations

from collections.abc import Mapping

from queuectl.control.checked_plan import DeviceRows
from queuectl.domain.accounting import Free
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.utilization import GangUse
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import cluster_map_of
from queuectl.reports.fragmentation import free_gpus


def map_of(snapshot: Snapshot, uses: Mapping[str, GangUse]) -> ClusterMap:
    """The cluster map of a snapshot without device rows."""
    cache = PlannerCache()
    return cluster_map_of(DeviceRows.of(cache).added(snapshot), snapshot, uses, cache)


def free_of(snapshot: Snapshot) -> Mapping[str, Free]:
    """The free GPUs of a snapshot without device rows, by flavor."""
    cache = PlannerCache()
    return free_gpus(DeviceRows.of(cache).added(snapshot), snapshot, cache)

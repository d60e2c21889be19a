"""Device rows of the snapshots of one process. Planning, reports and questions share them, so that they see the same nodes."""

from __future__ import annotations

import threading

from queuectl.devices.lower import DeviceCache, for_reports, with_devices
from queuectl.devices.reading import Selects
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache


class DeviceRows:
    """Threads can share it."""

    def __init__(self) -> None:
        self._cache = DeviceCache()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, cache: PlannerCache) -> DeviceRows:
        """Those of the process with this cache."""
        return cache.get(cache, cls) or cache.keep(cache, cls())

    def added(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with device rows, for reports; the same object if no gang requests devices."""
        with self._lock:
            return for_reports(snapshot, self._cache)

    def lowered(self, snapshot: Snapshot) -> tuple[Snapshot, Selects]:
        """The snapshot with device rows, for plans, and the devices that requests select in it."""
        with self._lock:
            return with_devices(snapshot, self._cache), self._cache.selects

"""Sizes of this process, counted at each scrape: tasks, threads and kept objects. A size that grows while the load does not is a leak."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from queuectl.telemetry.workload_gauges import gauge_family

_THREADS: Final = Path("/proc/self/task")


class SizeMetrics(Collector):
    """The tasks of the event loop, the threads, and the objects of the cluster that the process keeps, by resource."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._counts: Mapping[str, Callable[[], int]] = {}
        registry.register(self)

    def watch(
        self, loop: asyncio.AbstractEventLoop, counts: Mapping[str, Callable[[], int]]
    ) -> None:
        """Count from now on. ``counts``: the number of kept objects by resource; any thread can call it."""
        self._loop = loop
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        tasks = len(asyncio.all_tasks(self._loop)) if self._loop is not None else 0
        yield gauge_family("tasks", "Tasks of the event loop.", (), [((), float(tasks))])
        # With those of the solver, which Python does not count. Only Linux has the folder.
        threads = len(list(_THREADS.iterdir())) if _THREADS.exists() else 0
        yield gauge_family("threads", "Threads of the process.", (), [((), float(threads))])
        text = "Objects of the cluster that the process keeps in memory."
        kept = [((resource,), float(count())) for resource, count in self._counts.items()]
        yield gauge_family("kept_objects", text, ("resource",), kept)

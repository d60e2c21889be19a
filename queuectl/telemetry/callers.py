"""Metrics of the REST API: callers, their addresses, and connections that it closes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector

from queuectl.telemetry.workload_gauges import gauge_family

SECONDS: Final = 3600.0  # for which a caller counts after its last request
_MOST: Final = 10_000  # callers with their addresses


class CallerMetrics(Collector):
    """The callers of the last hour, and the number of addresses from which they send requests."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lock = Lock()  # metrics are read in a thread
        self._closed = Counter(
            "queuectl_api_closed_connections_total",
            "Connections to the REST API that were closed before their clients closed them, by reason.",
            ["reason"],
            registry=registry,
        )
        registry.register(self)

    def note(self, caller: str, address: str) -> None:
        """Note a request with valid credentials."""
        with self._lock:
            self._seen[caller, address] = self._clock()
            self._seen.move_to_end((caller, address))
            if len(self._seen) > _MOST:
                self._seen.popitem(last=False)

    def closed(self, reason: str) -> None:
        """Count a connection that is closed."""
        self._closed.labels(reason).inc()

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        since = self._clock() - SECONDS
        with self._lock:
            known = [key for key, at in self._seen.items() if at >= since]
        callers, addresses = {caller for caller, _ in known}, {address for _, address in known}
        text = "Callers with valid credentials in the last hour."
        yield gauge_family("api_callers", text, (), [((), float(len(callers)))])
        text = "Addresses from which callers with valid credentials sent requests in the last hour."
        yield gauge_family("api_caller_addresses", text, (), [((), float(len(addresses)))])

"""How well the nodes are used as a whole: GPUs nobody can use, and how widely gangs are spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from queuectl.domain.accounting import Free
from queuectl.reports.domains import Spread

_GPUS: Final = {
    "fleet_gpus": "GPUs of nodes that take pods, by the flavor whose labels the nodes carry.",
    "fleet_free_gpus": "Those that nobody holds.",
    "fleet_fragmented_gpus": "Free GPUs that the next pod is expected not to be able to use.",
    "fleet_stranded_gpus": "Free GPUs on nodes that no pod fits that anybody wants.",
}


class FleetMetrics:
    """What a leader knows of the nodes. GPUs are as of the last entry in the usage ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gpus = [
            Gauge(f"queuectl_{name}", text, ["flavor"], registry=registry)
            for name, text in _GPUS.items()
        ]
        self._unmanaged = Gauge(
            "queuectl_unmanaged_gpus",
            "GPUs that pods of no job in a queue hold.",
            ["namespace"],
            registry=registry,
        )
        self._used = Counter(
            "queuectl_admitted_domains_total",
            "Domains of each topology level that podsets were started in, summed over podsets.",
            ["level"],
            registry=registry,
        )
        self._least = Counter(
            "queuectl_admitted_domains_least_total",
            "The fewest domains that could have held those podsets on empty nodes.",
            ["level"],
            registry=registry,
        )

    def free(self, found: Mapping[str, Free]) -> None:
        """Show the GPUs of each flavor as they are now."""
        self.forget()
        for flavor, gpus in found.items():
            amounts = (gpus.capacity, gpus.free, gpus.fragmented, gpus.stranded)
            for gauge, amount in zip(self._gpus, amounts, strict=True):
                gauge.labels(flavor).set(amount)

    def unmanaged(self, found: Mapping[str, float]) -> None:
        """Show the GPUs that pods of no job in a queue hold, by namespace."""
        self._unmanaged.clear()
        for namespace, gpus in found.items():
            self._unmanaged.labels(namespace).set(gpus)

    def started(self, found: Mapping[str, Spread]) -> None:
        """Count the podsets that a commit started."""
        for level, spread in found.items():
            self._used.labels(level).inc(spread.used)
            self._least.labels(level).inc(spread.least)

    def forget(self) -> None:
        """What another process leads is not ours to show."""
        for gauge in (*self._gpus, self._unmanaged):
            gauge.clear()

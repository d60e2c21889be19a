"""The use of one workload, while it runs and after it has finished: the sums behind ``queuectl eff``.

GPUs are in the usage ledger. CPU and memory of containers are sums over the samples of a Prometheus, next to what the same pods requested in
the same time. Time without a sample is in none of these sums: unknown is not idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queuectl.domain.accounting import Amounts
from queuectl.domain.use_curve import UseCurve


class ContainerUse(NamedTuple):
    """The use of all containers of a pod: ``cores`` on average over a window, and ``memory`` (bytes, the working set) at its end."""

    cores: float
    memory: float


@dataclass(frozen=True, slots=True)
class ContainerSums:
    """Sums over the measured time of a gang's pods.

    Attributes:
        until: unix seconds; later time is not measured yet.
        pod_seconds: measured, of all pods together.
        cpu_seconds, cpu_requested: core-seconds, used and requested.
        memory_seconds, memory_requested: byte-seconds, used and requested.
        memory_peak: bytes: the largest sample of one pod.
    """

    until: float
    pod_seconds: float = 0.0
    cpu_seconds: float = 0.0
    cpu_requested: float = 0.0
    memory_seconds: float = 0.0
    memory_requested: float = 0.0
    memory_peak: float = 0.0


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The sums of one workload in the ledger.

    Attributes:
        as_of: everything before this time is in; None = nothing is accounted for yet.
        flavors: the amounts by flavor, while it held nodes.
        lost: GPU-seconds of work that evictions lost.
        containers: None = never measured.
        curve: the utilization of its GPUs over time; None = it held none so far.
    """

    as_of: float | None = None
    flavors: Mapping[str, Amounts] = field(default_factory=dict)
    lost: float = 0.0
    containers: ContainerSums | None = None
    curve: UseCurve | None = None

    @property
    def amounts(self) -> Amounts:
        """Of all flavors together."""
        total = Amounts()
        for amounts in self.flavors.values():
            total.add(amounts)
        return total


@dataclass(frozen=True, slots=True)
class UsageSources:
    """Which sources of measurements the controller has. ``gpus``: of GPUs; ``containers``: of CPU and memory, a Prometheus."""

    gpus: bool = False
    containers: bool = False


NO_SOURCES: Final = UsageSources()

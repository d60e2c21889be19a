"""Signals that hardware of a node fails, and the rule that decides which of them count and for how long.

A node that is not known to be unhealthy is healthy: missing or old data is not a signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from queuectl.domain.words import percent


class HealthSignal(StrEnum):
    """The origin of a finding."""

    CONDITION = "NodeCondition"  # a condition of the Node, for example of node-problem-detector
    XID = "Xid"  # an error of the NVIDIA driver
    ECC = "UncorrectableEcc"  # errors of GPU memory that are not corrected, since the driver was loaded
    ROW_REMAP = "RowRemapFailure"  # GPU memory has no spare rows left
    THERMAL = "ThermalThrottling"  # the GPU reduces its clocks because of its temperature
    CHECK = "FailedHealthCheck"  # a health check of the vendor's exporter fails


OF_GPUS: Final = tuple(signal for signal in HealthSignal if signal is not HealthSignal.CONDITION)
"""The signals that a source of GPU metrics can report."""


class HealthMode(StrEnum):
    """The effect of a finding on new gangs."""

    OFF = "Off"
    REPORT = "Report"  # shown, without effect on placements
    CORDON = "Cordon"  # no gang starts on the node


FATAL_XIDS: Final = (46, 48, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 151, 156, 158)
"""Errors after which NVIDIA's catalog demands a reset of the GPU, a restart of the machine or work on it.

Two of these are left out: 109, because applications cause it too, and 155, because another GPU can be its cause. For errors of
NVLink (74, 144 to 150) the catalog decides by further fields of the kernel log, which no metric has.
"""

BAD_CONDITIONS: Final = (
    # node-problem-detector
    ("KernelDeadlock", "True"),
    ("ReadonlyFilesystem", "True"),
    # node-problem-detector of AKS
    ("GPUMissing", "True"),
    # the node monitoring agent of EKS
    ("AcceleratedHardwareReady", "False"),
)
"""Conditions of nodes and the bad status of each."""


@dataclass(frozen=True, slots=True)
class NodeHealthRules:
    """Which signals count.

    Attributes:
        mode: the effect.
        conditions: (type, status) of bad conditions of nodes.
        signals: the signals of GPUs that count.
        xids: the XIDs that count.
        hold: seconds for which a signal of a GPU counts after it was last observed.
        throttled_above: the part of the time with thermal throttling above which it counts.
        most: the largest part of all nodes that are taken out; one node always can be.
        straggler_below: a rank is a straggler if its GPU runs below this part of its peers' clock; 0 = none is reported.
    """

    mode: HealthMode = HealthMode.CORDON
    conditions: tuple[tuple[str, str], ...] = BAD_CONDITIONS
    signals: tuple[HealthSignal, ...] = OF_GPUS
    xids: tuple[int, ...] = FATAL_XIDS
    hold: float = 600.0
    throttled_above: float = 0.5
    most: float = 0.2
    straggler_below: float = 0.75

    def most_unhealthy(self, nodes: int) -> int:
        """The largest number of nodes that are taken out, of so many."""
        return max(1, int(Decimal(str(self.most)) * nodes))  # 0.29 of 100 is 28 in binary


@dataclass(frozen=True, slots=True, order=True)
class GpuFault:
    """One observation of a source: a signal of one GPU.

    Attributes:
        node: the host name that the exporter reports.
        device: the GPU in words, for example ``GPU 3``.
        text: the value in words, for example ``XID 79``.
    """

    node: str
    signal: HealthSignal
    device: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuClock:
    """The average SM clock of one GPU of a pod over a window.

    Attributes:
        pod: namespace and name.
        device: the GPU in words.
        mhz: the clock.
    """

    pod: tuple[str, str]
    device: str
    mhz: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose GPU runs far slower than those of its peers.

    Attributes:
        uid, attempt: of its gang.
        pod, node: where it runs.
        device: the slowest GPU of the pod, in words.
        mhz, peers_mhz: its clock, and the median clock of its peers.
        podset, rank: of the pod; a rank that its labels do not have is None.
    """

    uid: str
    attempt: int
    cluster_queue: str
    pod: str
    node: str
    device: str
    mhz: float
    peers_mhz: float
    podset: str = ""
    rank: int | None = None

    @property
    def part(self) -> float:
        """Its clock as a part of that of its peers."""
        return self.mhz / self.peers_mhz

    def __str__(self) -> str:
        """For people."""
        rank = "" if self.rank is None else f"rank {self.rank} of podset {self.podset}, "
        clocks = f"{self.mhz:.0f} of {self.peers_mhz:.0f} MHz"
        return (
            f"{rank}pod {self.pod} on {self.node}: "
            f"{self.device} runs at {percent(self.part)} of the clock of its peers ({clocks})"
        )


class UnhealthyNodes(StrEnum):
    """The policy of a queue for its running gangs on an unhealthy node."""

    STAY = "Stay"  # as on a cordoned node
    DRAIN = "Drain"  # they are requeued, with notice

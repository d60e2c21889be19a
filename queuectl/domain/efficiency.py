"""GPUs by what becomes of them: the parts into which the GPUs of a cluster are divided, and its efficiency.

total = effective + wasted + unknown, and wasted = idle + fragmented + unhealthy + unallocated. Efficiency = effective / total.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

_NONE: Final = Fraction()


@dataclass(frozen=True, slots=True)
class GpuParts:
    """The GPUs of some nodes, as exact fractions. Each GPU is in one part, or divided between parts.

    Attributes:
        effective: held by gangs, times their measured utilization; 0 while a gang is stuck.
        idle: the rest of the GPUs that measured gangs hold.
        fragmented: free, but the next pod is expected to be unable to use them (fragmentation gradient descent).
        unhealthy: failed, or free on nodes that are not ready or cordoned.
        unallocated: all other free GPUs.
        unknown: held by a gang or another pod without a measurement.
    """

    effective: Fraction = _NONE
    idle: Fraction = _NONE
    fragmented: Fraction = _NONE
    unhealthy: Fraction = _NONE
    unallocated: Fraction = _NONE
    unknown: Fraction = _NONE

    @property
    def total(self) -> Fraction:
        return self.effective + self.wasted + self.unknown

    @property
    def wasted(self) -> Fraction:
        return self.idle + self.fragmented + self.unhealthy + self.unallocated

    @property
    def efficiency(self) -> float | None:
        """0..1; None without GPUs. An unknown GPU counts as not effective."""
        return float(self.effective / self.total) if self.total else None

    @property
    def highest_efficiency(self) -> float | None:
        """The efficiency if all that is unknown were effective; None without GPUs."""
        return float((self.effective + self.unknown) / self.total) if self.total else None

    def __add__(self, other: GpuParts) -> GpuParts:
        return GpuParts(
            _plus(self.effective, other.effective),
            _plus(self.idle, other.idle),
            _plus(self.fragmented, other.fragmented),
            _plus(self.unhealthy, other.unhealthy),
            _plus(self.unallocated, other.unallocated),
            _plus(self.unknown, other.unknown),
        )


def _plus(one: Fraction, other: Fraction) -> Fraction:
    """Most parts of a node are 0, and a sum of fractions is slow."""
    return one + other if other else one


PARTS: Final = tuple(field.name for field in fields(GpuParts))
NO_GPUS: Final = GpuParts()

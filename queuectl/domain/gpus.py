"""Which resources are GPUs, and how much of one each unit of them is.

A whole device counts as 1, a MIG instance as its part of the seven compute slices that an A100 or H100 has. The configuration
states what a name does not show (an A30 has four slices; the number of pods that share a time-sliced GPU)
(``accounting.gpuWeights``), and also which other resources are GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Final

from queuectl.domain.quantity import GPU, Resources

_DEVICES: Final = (GPU, "amd.com/gpu")
_SHARED: Final = ".shared"  # what the device plugin may append where GPUs are time-sliced
_MIG: Final = re.compile(r"nvidia\.com/mig-([1-9]\d?)g\.")
_SLICES: Final = 7
_EXACT: Final = 1e-6  # seven sevenths are 1


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """``given``: GPUs that a unit of a resource counts as, by resource, before the rule for its name. 0 = it is no GPU."""

    given: tuple[tuple[str, float], ...] = ()

    def of(self, resource: str) -> float:
        """GPUs that one unit of it counts as; 0 for what is none."""
        return _weight(self, resource)

    def counted(self, amounts: Resources) -> float:
        """GPUs in all of this."""
        return sum(gpus for _, gpus in self.by_resource(amounts))

    def by_resource(self, amounts: Resources) -> tuple[tuple[str, float], ...]:
        """The GPU resources among these, and the number of GPUs of each."""
        return _by_resource(self, amounts)


BY_NAME: Final = GpuWeights()
"""Where no configuration is at hand."""


def whole(gpus: float) -> int:
    """Rounded up to whole GPUs: the size that people speak of."""
    return ceil(gpus - _EXACT)


@lru_cache(maxsize=1024)
def _weight(weights: GpuWeights, resource: str) -> float:
    given = dict(weights.given).get(resource)
    if given is not None:
        return given
    if resource.removesuffix(_SHARED) in _DEVICES:
        return 1.0
    instance = _MIG.match(resource)
    return int(instance[1]) / _SLICES if instance is not None else 0.0


@lru_cache(maxsize=16384)
def _by_resource(weights: GpuWeights, amounts: Resources) -> tuple[tuple[str, float], ...]:
    found = ((name, weights.of(name) * amount) for name, amount in amounts.items())
    return tuple((name, gpus) for name, gpus in found if gpus)

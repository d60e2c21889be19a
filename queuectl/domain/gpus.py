"""Which resources are GPUs, and how much of a physical GPU one unit of each is, as an exact fraction.

The name of a resource and the labels of the node decide it (:mod:`queuectl.domain.gpu_labels`): a whole device counts as 1, a MIG
instance as its part of the compute slices, a replica of a shared device as its part of the replicas. The configuration
states what neither shows (``accounting.gpuWeights``), and also which other resources are GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from queuectl.domain.gpu_labels import label_keys, unit_of
from queuectl.domain.quantity import Resources

NO_LABELS: Final[Mapping[str, str]] = {}
_NONE: Final = Fraction()
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """``given``: GPUs that a unit of a resource counts as, on each node, before all rules. 0 = it is no GPU."""

    given: tuple[tuple[str, Fraction], ...] = ()

    def of(self, resource: str, labels: Mapping[str, str] = NO_LABELS) -> Fraction:
        """GPUs that one unit of it counts as on a node with these labels; 0 for what is none."""
        return _weight(self, resource, tuple(map(labels.get, label_keys(resource))))

    def counted(self, amounts: Resources, labels: Mapping[str, str] = NO_LABELS) -> Fraction:
        """GPUs in all of this, on a node with these labels."""
        keys = _label_keys(self, amounts)
        return _counted(self, amounts, tuple(map(labels.get, keys)))

    def by_resource(
        self, amounts: Resources, labels: Mapping[str, str] = NO_LABELS
    ) -> tuple[tuple[str, Fraction], ...]:
        """The GPU resources among these, and the number of GPUs of each."""
        names = _gpu_names(self, amounts)
        return tuple((name, self.of(name, labels) * amounts[name]) for name in names)

    def shared(self, resource: str, labels: Mapping[str, str]) -> bool:
        """Whether several units of it are the same device on a node with these labels, so that pods share the device."""
        return _shared(self, resource, tuple(map(labels.get, label_keys(resource))))

    def measured(self, amounts: Resources, labels: Mapping[str, str]) -> bool:
        """Whether exporters measure each of these GPUs separately on a node with these labels."""
        return all(self._measured(name, labels) for name in _gpu_names(self, amounts))

    def _measured(self, resource: str, labels: Mapping[str, str]) -> bool:
        unit = unit_of(resource, labels)
        if unit is None or (not unit.instance and self.of(resource, labels) < 1):
            return self.of(resource, labels) >= 1
        return unit.measured


class SharedGpus(StrEnum):
    """Which pods of a gang can be on a node where the device plugin offers each GPU to several pods."""

    NEVER = "Never"
    ONE_PER_NODE = "OnePerNode"  # one pod of the gang on each such node, with one replica
    ANY = "Any"  # also pods and replicas that can get the same GPU

    def unless(self, asked: SharedGpus | None) -> SharedGpus:
        """The rule for a podset that asks for ``asked``, where this is the rule of its ClusterQueue."""
        return self if asked is None or self is SharedGpus.NEVER else asked


BY_NAME: Final = GpuWeights()
"""Where no configuration is at hand."""


Gpus: TypeAlias = Fraction | int
"""An exact number of GPUs."""

PARTS: Final = 100_800
"""Sizes of gangs and amounts of the usage ledger are whole numbers of this part of a GPU.

It is a multiple of 1 to 10, 12, 14, 15, 16, 20, 21, 24, 25, 28, 32, 48, 50, 56, 64, 70, 96 and 100, and so of the instances and replicas
that a GPU is divided into. Another fraction is rounded to the nearest part.
"""


MOST_GPUS: Final = 10**9
"""A gang is smaller than this. Its number of :data:`PARTS` has 64 bits, also in sums over gangs."""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """The size of the pods of a podset.

    Attributes:
        each: GPUs of one pod, without claims that it shares.
        claims: name and GPUs of each ResourceClaim that its pods share. They count once for all pods of the gang.
    """

    each: Fraction = _NONE
    claims: tuple[tuple[str, Fraction], ...] = ()


def in_parts(gpus: Gpus | float) -> int:
    """The number of :data:`PARTS`."""
    return round(gpus * PARTS)


def of_parts(parts: int) -> Fraction:
    """The GPUs of a number of :data:`PARTS`."""
    return Fraction(parts, PARTS)


def summed(amounts: Iterable[Gpus]) -> Fraction:
    """The sum. Whole numbers, which most amounts are, are added as integers: a sum of fractions takes ten times as long."""
    numerator, rest = 0, _NONE
    for amount in amounts:
        if amount.denominator == 1:
            numerator += amount.numerator
        else:
            rest += amount
    return rest + numerator


def rounded(gpus: Gpus) -> float:
    """To a millionth of a GPU, for other programs."""
    return round(float(gpus), _DIGITS)


def as_number(gpus: Gpus) -> int | float:
    """For a document: a whole number as it is, another one to a millionth of a GPU."""
    return gpus.numerator if gpus.denominator == 1 else rounded(gpus)


def exact(given: float | str) -> Fraction:
    """A number of the configuration as it is written: 0.1 is a tenth, and ``1/7`` a seventh.

    Raises:
        ValueError: it is no number.
        ZeroDivisionError: it is a fraction of 0.
    """
    return Fraction(str(given))


@lru_cache(maxsize=4096)
def _weight(weights: GpuWeights, resource: str, values: tuple[str | None, ...]) -> Fraction:
    """``values``: of the labels on which a unit of the resource depends; a cluster has few different ones."""
    given = dict(weights.given).get(resource)
    if given is not None:
        return given
    unit = unit_of(resource, _labels(label_keys(resource), values))
    return unit.gpus if unit is not None else _NONE


@lru_cache(maxsize=4096)
def _shared(weights: GpuWeights, resource: str, values: tuple[str | None, ...]) -> bool:
    unit = unit_of(resource, _labels(label_keys(resource), values))
    if unit is None:
        return False
    return unit.shared or 0 < _weight(weights, resource, values) < unit.gpus


@lru_cache(maxsize=16384)
def _counted(weights: GpuWeights, amounts: Resources, values: tuple[str | None, ...]) -> Fraction:
    labels = _labels(_label_keys(weights, amounts), values)
    return sum((gpus for _, gpus in weights.by_resource(amounts, labels)), _NONE)


@lru_cache(maxsize=16384)
def _label_keys(weights: GpuWeights, amounts: Resources) -> tuple[str, ...]:
    """The labels on which the GPUs in these amounts depend."""
    keys = (key for name in _gpu_names(weights, amounts) for key in label_keys(name))
    return tuple(dict.fromkeys(keys))


def _labels(keys: tuple[str, ...], values: tuple[str | None, ...]) -> Mapping[str, str]:
    found = zip(keys, values, strict=True)
    return {key: value for key, value in found if value is not None}


@lru_cache(maxsize=16384)
def _gpu_names(weights: GpuWeights, amounts: Iterable[str]) -> tuple[str, ...]:
    """The GPU resources among these; labels do not change which resources are GPUs."""
    return tuple(name for name in amounts if weights.of(name))

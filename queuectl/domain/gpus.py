"""GPUs: which resources and labels name them, and how much of a physical GPU one unit of each is, as an exact fraction.

The amount depends on the name of the resource and on the labels of the node: a whole device counts as 1, a MIG
instance as its part of the compute slices, a replica of a shared device as its part of the replicas. The configuration
states what neither shows (``accounting.gpuWeights``), and also which other resources are GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.words import counted, shortened

# ---- Resources and labels of vendors
#
# One physical GPU can be several units of a resource. Hardware can partition it (MIG instances, AMD compute partitions), and the
# device plugin can offer each device or instance several times (replicas, by time-slicing or MPS).

AMD_GPU: Final = "amd.com/gpu"
INTEL_GPUS: Final = ("gpu.intel.com/i915", "gpu.intel.com/xe")
SHARED: Final = ".shared"
"""The suffix of a resource that NVIDIA's device plugin offers several times for each device, if it renames it."""

_ACCELERATORS: Final = (
    "aws.amazon.com/neuron",
    "cambricon.com/",
    "furiosa.ai/",
    "gaudi.intel.com",
    "google.com/tpu",
    "gpu.intel.com/",
    "habana.ai/",
    "huawei.com/Ascend",
    "neuron.aws.com",
    "qualcomm.com/qaic",
    "tpu.google.com",
)
"""How the names of resources and DeviceClasses of accelerators begin that are not GPUs, or are parts of GPUs."""

MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
_PRODUCT: Final = ".product"
_REPLICAS: Final = ".replicas"
_SHARING: Final = ".sharing-strategy"
_AMD_PRODUCTS: Final = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
_AMD_PARTITION: Final = "amd.com/gpu.compute-memory-partition"

_COUNT: Final = re.compile(r"[0-9]{1,63}")  # labels in files can be longer than those of nodes
_MIG_PROFILE: Final = re.compile(r"(?:([1-9])c\.)?([1-9])g\.\d")
_MIG_RESOURCE: Final = re.compile(r"nvidia\.com/mig-(?:([1-9])c\.)?([1-9])g\.\d")
_MIG_PRODUCT: Final = re.compile(r"-MIG-(?:([1-9])c\.)?([1-9])g\.\d[^-]*")
_MIG_INVALID: Final = "-MIG-INVALID"
_SHARED_PRODUCT: Final = "-SHARED"
_AMD_RESOURCE: Final = re.compile(r"amd\.com/([sdtqc]px)_nps\d")

_MIG_SLICES: Final = 7
_FEWER_SLICES: Final = (("A30", 4), ("RTX-PRO-6000", 4), ("RTX-PRO-5000", 2), ("RTX-PRO-4500", 2))
_AMD_PARTITIONS: Final[Mapping[str, int]] = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
_MI300A: Final = "MI300A"  # with six accelerator dies; the others that have partitions have eight
_MI300A_CPX: Final = 6


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"


class Sharing(StrEnum):
    """How pods share one device or instance."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class GpuUnit:
    """One unit of a GPU resource on a node.

    Attributes:
        vendor: of the GPU.
        part: of a physical GPU, that the device or instance behind the unit is.
        replicas: units that stand for this one device or instance; more than 1 = pods share it.
        sharing: how pods share it.
        instance: the device is a MIG instance, which exporters measure like a GPU.
    """

    vendor: Vendor
    part: Fraction = Fraction(1)
    replicas: int = 1
    sharing: Sharing = Sharing.NONE
    instance: bool = False

    @property
    def gpus(self) -> Fraction:
        """GPUs that the unit stands for."""
        return self.part / self.replicas

    @property
    def shared(self) -> bool:
        """Whether other pods can have the same device or instance."""
        return self.replicas > 1 or self.sharing is not Sharing.NONE

    @property
    def measured(self) -> bool:
        """Whether exporters measure it separately. Not a replica, and not a partition of an AMD GPU."""
        return not self.shared and (self.part == 1 or self.instance)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """The GPUs of a node by its product label.

    Attributes:
        vendor: of the GPUs.
        name: of the physical GPU, without suffixes for MIG and sharing.
        profile: of the MIG instances under the strategy ``single``, for example ``1g.5gb``; empty for whole GPUs.
        shared: the label has the suffix of shared GPUs.
        invalid: the strategy ``single`` found instances of several profiles, and the node offers none.
    """

    vendor: Vendor
    name: str
    profile: str = ""
    shared: bool = False
    invalid: bool = False


def vendor_of(resource: str) -> Vendor | None:
    """The vendor of a GPU resource; None for all other resources."""
    unit = unit_of(resource, {})
    return unit.vendor if unit is not None else None


def is_accelerator(resource: str) -> bool:
    """Whether a resource that is not a GPU is another accelerator, or a part of one."""
    return resource.startswith(_ACCELERATORS)


def model_of(labels: Mapping[str, str]) -> GpuModel | None:
    """The GPUs of a node with these labels; None without the product label of a vendor."""
    product = labels.get(GPU + _PRODUCT)
    if product:
        return _nvidia_model(product)
    product = next((labels[key] for key in _AMD_PRODUCTS if labels.get(key)), None)
    return GpuModel(Vendor.AMD, product) if product else None


@lru_cache(maxsize=1024)
def label_keys(resource: str) -> tuple[str, ...]:
    """The node labels on which :func:`unit_of` depends."""
    if resource.startswith("nvidia.com/"):
        device = resource.removesuffix(SHARED)
        return GPU + _PRODUCT, device + _REPLICAS, device + _SHARING
    return (*_AMD_PRODUCTS, _AMD_PARTITION) if resource.startswith("amd.com/") else ()


def unit_of(resource: str, labels: Mapping[str, str]) -> GpuUnit | None:
    """A unit of a resource on a node with these labels; None if the resource is not a GPU.

    A label that is missing or has an unexpected value counts as that of a whole GPU without sharing.
    """
    if resource.startswith("nvidia.com/"):
        device = resource.removesuffix(SHARED)
        return _nvidia_unit(
            resource,
            labels.get(GPU + _PRODUCT, ""),
            labels.get(device + _REPLICAS, ""),
            labels.get(device + _SHARING, ""),
        )
    if resource.startswith("amd.com/"):
        product = next((labels[key] for key in _AMD_PRODUCTS if key in labels), "")
        return _amd_unit(resource, product, labels.get(_AMD_PARTITION, ""))
    return GpuUnit(Vendor.INTEL) if resource in INTEL_GPUS else None


@lru_cache(maxsize=4096)
def _nvidia_unit(resource: str, product: str, replicas: str, sharing: str) -> GpuUnit | None:
    device = resource.removesuffix(SHARED)
    profile = _MIG_RESOURCE.match(device)
    if profile is None and device == GPU:
        profile = _MIG_PRODUCT.search(product)
    elif profile is None:
        return None
    part = Fraction(1)
    if profile is not None:
        part = Fraction(int(profile[1] or profile[2]), _slices(product))
    times = int(replicas) if _COUNT.fullmatch(replicas) is not None else 1
    known = sharing in set(Sharing)
    way = Sharing(sharing) if known else Sharing.NONE
    if way is Sharing.NONE and (times > 1 or resource != device):
        # Device plugins before 0.15 have no label for the way, and no MPS.
        way = Sharing.TIME_SLICING
    return GpuUnit(Vendor.NVIDIA, part, max(times, 1), way, profile is not None)


@lru_cache(maxsize=256)
def _nvidia_model(product: str) -> GpuModel:
    name = product.removesuffix(_SHARED_PRODUCT)
    shared = name != product
    if name.endswith(_MIG_INVALID):
        return GpuModel(Vendor.NVIDIA, name.removesuffix(_MIG_INVALID), shared=shared, invalid=True)
    profile = _MIG_PRODUCT.search(name)
    if profile is None:
        return GpuModel(Vendor.NVIDIA, name, shared=shared)
    instances = name[profile.start() :].removeprefix("-MIG-")  # also 1g.24gb-me
    return GpuModel(Vendor.NVIDIA, name[: profile.start()], instances, shared)


def mig_part(profile: str, product: str) -> Fraction | None:
    """The part of a GPU of this model that a MIG instance takes; None if the text is not a profile such as ``1g.5gb``."""
    found = _MIG_PROFILE.match(profile)
    return Fraction(int(found[1] or found[2]), _slices(product)) if found is not None else None


def amd_part(partition: str, product: str) -> Fraction:
    """The part of an AMD GPU that one of its partitions is, for example in the mode ``cpx_nps4``."""
    mode = partition.partition("_")[0]
    count = _AMD_PARTITIONS.get(mode, 1)
    return Fraction(1, _MI300A_CPX if mode == "cpx" and _MI300A in product else count)


def _slices(product: str) -> int:
    """Compute slices of a whole GPU of this model."""
    words = f"-{product.replace(' ', '-')}-"
    return next((count for name, count in _FEWER_SLICES if f"-{name}-" in words), _MIG_SLICES)


@lru_cache(maxsize=256)
def _amd_unit(resource: str, product: str, partition: str) -> GpuUnit | None:
    named = _AMD_RESOURCE.fullmatch(resource)
    if named is not None:
        mode = named[1]
    elif resource == AMD_GPU:
        mode = partition.partition("_")[0]
    else:
        return None
    return GpuUnit(Vendor.AMD, amd_part(mode, product))


# ---- Parts of a physical GPU

NO_LABELS: Final[Mapping[str, str]] = {}
ZERO_GPUS: Final = Fraction()
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """``configured``: GPUs that a unit of a resource counts as, on each node, before all rules. 0 = it is not a GPU."""

    configured: tuple[tuple[str, Fraction], ...] = ()

    def of(self, resource: str, labels: Mapping[str, str] = NO_LABELS) -> Fraction:
        """GPUs that one unit of it counts as on a node with these labels; 0 for other resources."""
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

    def unless(self, stated: SharedGpus | None) -> SharedGpus:
        """The rule for a podset that asks for ``stated``, where this is the rule of its ClusterQueue."""
        return self if stated is None or self is SharedGpus.NEVER else stated


BY_NAME: Final = GpuWeights()
"""Where no configuration is at hand."""


Gpus: TypeAlias = Fraction | int
"""An exact number of GPUs."""

PARTS: Final = 100_800
"""Sizes of gangs and amounts of the usage ledger are whole numbers of this part of a GPU.

It is a multiple of 1 to 10, 12, 14, 15, 16, 20, 21, 24, 25, 28, 32, 48, 50, 56, 64, 70, 96 and 100, and so of the instances and replicas
that a GPU is divided into. Another fraction is rounded to the nearest part.
"""


MOST_GPUS: Final = 10**7
"""A gang is smaller than this. Its number of :data:`PARTS` has 64 bits, also in sums over gangs, and multiplied by the milliseconds of
an hour, as in the usage ledger."""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """The size of the pods of a podset.

    Attributes:
        each: GPUs of one pod, without claims that it shares.
        claims: name and GPUs of each ResourceClaim that its pods share. They count once for all pods of the gang.
    """

    each: Fraction = ZERO_GPUS
    claims: tuple[tuple[str, Fraction], ...] = ()


def in_parts(gpus: Gpus | float) -> int:
    """The number of :data:`PARTS`."""
    return round(gpus * PARTS)


def of_parts(parts: int) -> Fraction:
    """The GPUs of a number of :data:`PARTS`."""
    return Fraction(parts, PARTS)


def summed(amounts: Iterable[Gpus]) -> Fraction:
    """The sum. Whole numbers, which most amounts are, are added as integers: a sum of fractions takes ten times as long."""
    numerator, rest = 0, ZERO_GPUS
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


# A Fraction has all digits of its number: those of ``1e999999999`` take minutes and hundreds of megabytes.
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3}|/[0-9]{1,30})?"
)


def exact(number: float | str) -> Fraction:
    """A number as it is written: 0.1 is a tenth, and ``1/7`` a seventh. Users write it in annotations too.

    Raises:
        ValueError: it is not a number, or has too many digits.
        ZeroDivisionError: it is a fraction of 0.
    """
    text = str(number).strip()
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{shortened(text)!r} is not a number of at most 30 digits")
    return Fraction(text)


@lru_cache(maxsize=4096)
def _weight(weights: GpuWeights, resource: str, label_values: tuple[str | None, ...]) -> Fraction:
    """``label_values``: of the labels on which a unit of the resource depends; a cluster has few different ones."""
    given = dict(weights.configured).get(resource)
    if given is not None:
        return given
    unit = unit_of(resource, _labels(label_keys(resource), label_values))
    return unit.gpus if unit is not None else ZERO_GPUS


@lru_cache(maxsize=4096)
def _shared(weights: GpuWeights, resource: str, label_values: tuple[str | None, ...]) -> bool:
    unit = unit_of(resource, _labels(label_keys(resource), label_values))
    if unit is None:
        return False
    return unit.shared or 0 < _weight(weights, resource, label_values) < unit.gpus


@lru_cache(maxsize=16384)
def _counted(
    weights: GpuWeights, amounts: Resources, label_values: tuple[str | None, ...]
) -> Fraction:
    labels = _labels(_label_keys(weights, amounts), label_values)
    return sum((gpus for _, gpus in weights.by_resource(amounts, labels)), ZERO_GPUS)


@lru_cache(maxsize=16384)
def _label_keys(weights: GpuWeights, amounts: Resources) -> tuple[str, ...]:
    """The labels on which the GPUs in these amounts depend."""
    keys = (key for name in _gpu_names(weights, amounts) for key in label_keys(name))
    return tuple(dict.fromkeys(keys))


def _labels(keys: tuple[str, ...], label_values: tuple[str | None, ...]) -> Mapping[str, str]:
    found = zip(keys, label_values, strict=True)
    return {key: value for key, value in found if value is not None}


@lru_cache(maxsize=16384)
def _gpu_names(weights: GpuWeights, amounts: Iterable[str]) -> tuple[str, ...]:
    """The GPU resources among these; labels do not change which resources are GPUs."""
    return tuple(name for name in amounts if weights.of(name))


# ---- Requests for a fraction of a GPU
#
# KAI and Run:ai read annotations of pods, HAMi reads resources. They divide a GPU by their own software. kube-scheduler counts whole
# units of resources: MIG instances and replicas are such units, parts of a unit are not.

ANNOTATIONS: Final = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Of a pod, for KAI and Run:ai."""
RESOURCES: Final = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""Of a container, for HAMi. Its nodes offer none of them: HAMi's own scheduler counts them."""
_PERCENT: Final = ("nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class GpuFraction:
    """A request for a fraction of a GPU.

    Attributes:
        field: with its path in the object.
        text: as it is written.
        gpus: the fraction for one pod; None = the request names no fraction, for example an amount of memory.
    """

    field: str
    text: str
    gpus: Fraction | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A unit that is a part of a GPU, on all nodes where it is the same."""

    resource: str
    gpus: Fraction
    kind: str
    nodes: int

    def __str__(self) -> str:
        where = counted(self.nodes, "node")
        return f"{self.resource}: 1 ({self.kind}, {self.gpus} of a GPU, on {where})"


def annotated_fraction(annotations: Mapping[str, str] | None, path: str) -> GpuFraction | None:
    """The request in the annotations of a pod template, whose path is ``path``."""
    given = annotations or {}
    for name in ANNOTATIONS:
        if name in given:
            gpus = _number(given[name]) if name == ANNOTATIONS[0] else None
            return GpuFraction(f"{path}: {name}", given[name], gpus)
    return None


def requested_fraction(requests: Mapping[str, int], path: str) -> GpuFraction | None:
    """The request in the resources of a pod, whose path is ``path``."""
    for name in RESOURCES:
        if name in requests:
            gpus = Fraction(requests[name], 100) if name in _PERCENT else None
            return GpuFraction(f"{path}: resource {name}", str(requests[name]), gpus)
    return None


def why_refused(fraction: GpuFraction, fleet: Fleet, weights: GpuWeights) -> str:
    """The sentence for a gang with this request: the reason, and what this cluster offers instead."""
    parts = _nearest(_parts(fleet, weights), fraction.gpus)
    offered = " or ".join(map(str, parts[:_NAMED]))
    instead = (
        f"request {offered} instead"
        if parts
        else "request whole GPUs: no node offers MIG instances or replicas"
    )
    return (
        f"{fraction.field} is {shortened(fraction.text)!r}: kube-scheduler does not divide a unit of a GPU "
        f"resource; {instead}"
    )


def _number(text: str) -> Fraction | None:
    try:
        return exact(text)
    except (ValueError, ZeroDivisionError):
        return None


@lru_cache(maxsize=2)
def _parts(fleet: Fleet, weights: GpuWeights) -> tuple[_Part, ...]:
    """The smallest first."""
    found: dict[tuple[str, Fraction, str], int] = {}
    for node in fleet.nodes:
        for resource in node.allocatable:
            gpus = weights.of(resource, node.labels)
            if 0 < gpus < 1:
                key = (resource, gpus, _kind(resource, node.labels))
                found[key] = found.get(key, 0) + 1
    parts = (_Part(*key, nodes) for key, nodes in found.items())
    return tuple(sorted(parts, key=lambda part: (part.gpus, part.resource, part.kind)))


def _kind(resource: str, labels: Mapping[str, str]) -> str:
    unit = unit_of(resource, labels)
    if unit is None:
        return "a part"
    if unit.sharing is not Sharing.NONE:
        return f"a replica by {unit.sharing}"
    return "a MIG instance" if unit.instance else "a partition"


def _nearest(parts: tuple[_Part, ...], gpus: Fraction | None) -> list[_Part]:
    """Those that are large enough, the smallest first; then the others, the largest first."""
    least = gpus or Fraction()
    enough = [part for part in parts if part.gpus >= least]
    return enough + [part for part in reversed(parts) if part.gpus < least]

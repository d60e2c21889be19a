"""GPUs as the vendors' device plugins and node labellers name them: resources of a node, and its labels.

One physical GPU can be several units of a resource. Hardware can partition it (MIG instances, AMD compute partitions), and the
device plugin can offer each device or instance several times (replicas, by time-slicing or MPS).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final

from queuectl.domain.quantity import GPU

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
    """A unit of a resource on a node with these labels; None if the resource is no GPU.

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
    times = int(replicas) if replicas.isascii() and replicas.isdecimal() else 1
    known = sharing in set(Sharing)
    way = Sharing(sharing) if known else Sharing.NONE
    if way is Sharing.NONE and (times > 1 or resource != device):
        way = (
            Sharing.TIME_SLICING
        )  # device plugins before 0.15 have no label for the way, and no MPS
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
    return GpuModel(
        Vendor.NVIDIA, name[: profile.start()], profile[0].removeprefix("-MIG-"), shared
    )


def mig_part(profile: str, product: str) -> Fraction | None:
    """The part of a GPU of this model that a MIG instance is; None if the text is no profile, such as ``1g.5gb``."""
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

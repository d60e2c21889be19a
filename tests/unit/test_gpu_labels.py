"""GPU resources and product labels of the vendors, as their device plugins and node labelers set them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.gpus import (
    BY_NAME,
    GpuModel,
    GpuWeights,
    Sharing,
    Vendor,
    model_of,
    unit_of,
    vendor_of,
)
from queuectl.domain.quantity import Resources

A100 = "NVIDIA-A100-SXM4-40GB"
GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.5gb"


def nvidia(product: str = A100, **labels: str) -> dict[str, str]:
    """Labels of GFD; in keyword arguments ``_`` is for ``-``."""
    named = {f"nvidia.com/gpu.{key.replace('_', '-')}": value for key, value in labels.items()}
    return {"nvidia.com/gpu.product": product, **named}


SLICED = nvidia(f"{A100}-SHARED", replicas="10", sharing_strategy="time-slicing", count="8")
RENAMED = nvidia(A100, replicas="4", sharing_strategy="time-slicing")
MPS = nvidia("Tesla-T4-SHARED", replicas="5", sharing_strategy="mps")
SINGLE = nvidia(f"{A100}-MIG-1g.5gb", replicas="1", sharing_strategy="none", count="56")
SINGLE_SHARED = nvidia(f"{A100}-MIG-3g.20gb-SHARED", replicas="2", sharing_strategy="time-slicing")
MIXED = nvidia(A100, replicas="0", sharing_strategy="none") | {
    f"{SLICE}.replicas": "3",
    f"{SLICE}.sharing-strategy": "time-slicing",
}
CPX = {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}
APU = CPX | {"amd.com/gpu.product-name": "AMD_Instinct_MI300A"}


@pytest.mark.parametrize(
    ("resource", "labels", "gpus"),
    [
        (GPU, {}, "1"),
        (GPU, nvidia(replicas="1", sharing_strategy="none"), "1"),
        (GPU, nvidia(replicas="0"), "1"),  # GFD: the GPU has MIG enabled
        (GPU, nvidia(replicas="many"), "1"),
        (GPU, SLICED, "1/10"),
        (GPU, nvidia(replicas="48"), "1/48"),
        (GPU, MPS, "1/5"),
        ("nvidia.com/gpu.shared", RENAMED, "1/4"),
        (GPU, SINGLE, "1/7"),
        (GPU, SINGLE_SHARED, "3/14"),
        (GPU, nvidia(f"{A100}-MIG-1c.3g.20gb"), "1/7"),
        (GPU, nvidia("NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme"), "1/7"),
        (GPU, nvidia("NVIDIA-A30-MIG-2g.12gb"), "1/2"),
        (GPU, nvidia(replicas="9" * 5000), "1"),  # a label in a file
        (SLICE, MIXED, "1/21"),
        ("nvidia.com/mig-2g.10gb", MIXED, "2/7"),
        ("nvidia.com/mig-1g.6gb", nvidia("NVIDIA-A30"), "1/4"),
        (
            "nvidia.com/mig-1g.24gb",
            nvidia("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
            "1/4",
        ),
        ("amd.com/gpu", {}, "1"),
        ("amd.com/gpu", CPX, "1/8"),
        ("amd.com/gpu", APU, "1/6"),
        ("amd.com/cpx_nps1", APU, "1/6"),
        ("amd.com/dpx_nps2", {}, "1/2"),
        ("amd.com/spx_nps1", {}, "1"),
        ("gpu.intel.com/xe", {}, "1"),
    ],
)
def test_a_unit_is_a_fraction_of_a_physical_gpu_of_its_node(
    resource: str, labels: Mapping[str, str], gpus: str
) -> None:
    assert BY_NAME.of(resource, labels) == Fraction(gpus)


@pytest.mark.parametrize(
    ("resource", "labels", "sharing", "measured"),
    [
        (GPU, nvidia(), Sharing.NONE, True),
        (GPU, SLICED, Sharing.TIME_SLICING, False),
        (GPU, MPS, Sharing.MPS, False),
        (GPU, nvidia(sharing_strategy="mps", replicas="1"), Sharing.MPS, False),
        (GPU, nvidia(replicas="4"), Sharing.TIME_SLICING, False),  # before there was MPS
        ("nvidia.com/gpu.shared", {}, Sharing.TIME_SLICING, False),
        (GPU, SINGLE, Sharing.NONE, True),
        (GPU, SINGLE_SHARED, Sharing.TIME_SLICING, False),
        (SLICE, MIXED, Sharing.TIME_SLICING, False),
        ("nvidia.com/mig-2g.10gb", MIXED, Sharing.NONE, True),
        ("amd.com/gpu", {}, Sharing.NONE, True),
        ("amd.com/gpu", CPX, Sharing.NONE, False),  # only the first partition has a value
        ("gpu.intel.com/i915", {}, Sharing.NONE, True),
    ],
)
def test_only_whole_gpus_and_mig_instances_are_measured_separately(
    resource: str, labels: Mapping[str, str], sharing: Sharing, measured: bool
) -> None:
    unit = unit_of(resource, labels)
    assert unit is not None
    assert (unit.sharing, unit.measured) == (sharing, measured)
    assert BY_NAME.measured(Resources({resource: 1, "cpu": 8}), labels) is measured


def test_a_fraction_that_only_the_configuration_states_is_a_shared_gpu() -> None:
    quarter = GpuWeights((("gpu.intel.com/i915", Fraction(1, 4)), ("example.com/g", Fraction(1))))
    assert not quarter.measured(Resources({"gpu.intel.com/i915": 1}), {})
    assert quarter.measured(Resources({"example.com/g": 1}), {})


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        ({}, None),
        (nvidia(), GpuModel(Vendor.NVIDIA, A100)),
        (SLICED, GpuModel(Vendor.NVIDIA, A100, shared=True)),
        (SINGLE, GpuModel(Vendor.NVIDIA, A100, "1g.5gb")),
        (SINGLE_SHARED, GpuModel(Vendor.NVIDIA, A100, "3g.20gb", shared=True)),
        (nvidia(f"{A100}-MIG-1g.24gb-me"), GpuModel(Vendor.NVIDIA, A100, "1g.24gb-me")),
        (nvidia(f"{A100}-MIG-INVALID"), GpuModel(Vendor.NVIDIA, A100, invalid=True)),
        (APU, GpuModel(Vendor.AMD, "AMD_Instinct_MI300A")),
        (
            {"beta.amd.com/gpu.product-name": "AMD_Instinct_MI210"},
            GpuModel(Vendor.AMD, "AMD_Instinct_MI210"),
        ),
    ],
)
def test_the_product_label_names_model_instances_and_sharing(
    labels: Mapping[str, str], model: GpuModel | None
) -> None:
    assert model_of(labels) == model


@pytest.mark.parametrize(
    ("resource", "vendor"),
    [
        (GPU, Vendor.NVIDIA),
        (SLICE, Vendor.NVIDIA),
        ("amd.com/cpx_nps4", Vendor.AMD),
        ("gpu.intel.com/xe", Vendor.INTEL),
        ("rdma/hca", None),
        ("amd.com/xilinx_u30", None),
    ],
)
def test_a_resource_belongs_to_one_vendor(resource: str, vendor: Vendor | None) -> None:
    assert vendor_of(resource) is vendor


MODELS = {"NVIDIA-A30": 4, A100: 7, "NVIDIA-H100-80GB-HBM3": 7, "NVIDIA-B200": 7}


@given(
    product=st.sampled_from(sorted(MODELS)),
    physical=st.integers(1, 16),
    replicas=st.integers(1, 64),
    instances=st.booleans(),
)
def test_all_units_of_a_node_are_its_physical_gpus(
    product: str, physical: int, replicas: int, instances: bool
) -> None:
    slices = MODELS[product] if instances else 1
    name = f"{product}-MIG-1g.5gb" if instances else product
    labels = nvidia(name, replicas=str(replicas))
    allocatable = Resources({GPU: physical * slices * replicas, "cpu": 64_000})
    assert BY_NAME.counted(allocatable, labels) == physical


@pytest.mark.parametrize("cut", [(7,), (4, 3), (4, 2, 1), (3, 2, 2), (2, 2, 2, 1), (1,) * 7])
def test_a_geometry_that_uses_all_slices_is_one_gpu(cut: tuple[int, ...]) -> None:
    amounts: dict[str, int] = {}
    for size in cut:
        name = f"nvidia.com/mig-{size}g.10gb"
        amounts[name] = amounts.get(name, 0) + 1
    assert BY_NAME.counted(Resources(amounts), nvidia()) == 1

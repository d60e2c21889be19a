"""Which resources are GPUs, and how much of one each unit of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.gpus import BY_NAME, GpuWeights, whole
from queuectl.domain.quantity import Resources
from queuectl.domain.records import JobRecord
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload

GIVEN = GpuWeights((("gpu.intel.com/xe", 1.0), ("nvidia.com/gpu.shared", 0.25)))


@pytest.mark.parametrize(
    ("resource", "weight"),
    [
        ("nvidia.com/gpu", 1),
        ("nvidia.com/gpu.shared", 1),  # among how many it is shared is not in the name
        ("amd.com/gpu", 1),
        ("nvidia.com/mig-1g.5gb", 1 / 7),
        ("nvidia.com/mig-1g.10gb.me", 1 / 7),
        ("nvidia.com/mig-3g.20gb", 3 / 7),
        ("nvidia.com/mig-7g.80gb", 1),
        ("nvidia.com/mig-1g.5gb.shared", 1 / 7),
        ("nvidia.com/mig-parted", 0),
        ("nvidia.com/gpumem", 0),
        ("gpu.intel.com/xe", 0),
        ("cpu", 0),
        ("pods", 0),
    ],
)
def test_the_resource_name_gives_the_fraction_of_a_gpu(resource: str, weight: float) -> None:
    assert BY_NAME.of(resource) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("resource", "weight"),
    [("gpu.intel.com/xe", 1), ("nvidia.com/gpu.shared", 0.25), ("nvidia.com/gpu", 1)],
)
def test_the_configuration_takes_precedence_over_the_name(resource: str, weight: float) -> None:
    assert GIVEN.of(resource) == weight


def test_the_configuration_can_exclude_a_resource_from_gpus() -> None:
    weights = GpuWeights((("nvidia.com/gpu", 0.0),))
    assert weights.by_resource(Resources({"nvidia.com/gpu": 8, "amd.com/gpu": 2})) == (
        ("amd.com/gpu", 2.0),
    )


AMOUNTS = st.dictionaries(
    st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-2g.10gb", "cpu", "memory"]),
    st.integers(0, 64),
).map(Resources)


@given(AMOUNTS, AMOUNTS)
def test_gpus_of_two_pods_are_those_of_each(one: Resources, other: Resources) -> None:
    both = BY_NAME.counted(one) + BY_NAME.counted(other)
    assert BY_NAME.counted(one + other) == pytest.approx(both)


@pytest.mark.parametrize(
    ("resource", "pods", "gpus"),
    [
        ("nvidia.com/gpu", 3, 3),
        ("amd.com/gpu", 3, 3),
        ("nvidia.com/mig-1g.5gb", 7, 1),
        ("nvidia.com/mig-1g.5gb", 8, 2),
        ("cpu", 8, 0),
    ],
)
def test_the_size_of_a_gang_is_in_whole_gpus(resource: str, pods: int, gpus: int) -> None:
    podsets = (PodSet("w", pods, PodShape(Resources({resource: 1}))),)
    workload = Workload("u", "Job", "team", "train", podsets)
    placement = Placement((PodSetPlacement("w", (("n", pods),)),))
    job = JobRecord("Job", "team", "train", "u", 1, 0.0, "q", podsets)
    assert (job.gpus, workload.gpus, Admitted(workload, placement).gpus) == (gpus, gpus, gpus)


@given(st.integers(0, 10_000))
def test_whole_gpus_stay_what_they_are(count: int) -> None:
    assert whole(float(count)) == whole(7 * count * (1 / 7)) == count

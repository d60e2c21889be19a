"""Which resources are GPUs, and how much of one each unit of them is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.gpus import BY_NAME, GpuWeights, exact, in_parts, of_parts, rounded
from queuectl.domain.jobs import JobRecord
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload

EIGHTH = Fraction(1, 8)
GIVEN = GpuWeights((("example.com/gpu", Fraction(1)), ("nvidia.com/gpu.shared", EIGHTH)))


@pytest.mark.parametrize(
    ("resource", "weight"),
    [
        ("nvidia.com/gpu", "1"),
        ("nvidia.com/gpu.shared", "1"),  # the number of replicas is not in the name
        ("amd.com/gpu", "1"),
        ("amd.com/cpx_nps4", "1/8"),
        ("gpu.intel.com/i915", "1"),
        ("gpu.intel.com/xe", "1"),
        ("nvidia.com/mig-1g.5gb", "1/7"),
        ("nvidia.com/mig-1g.10gb.me", "1/7"),
        ("nvidia.com/mig-3g.20gb", "3/7"),
        ("nvidia.com/mig-1c.3g.20gb", "1/7"),
        ("nvidia.com/mig-7g.80gb", "1"),
        ("nvidia.com/mig-1g.5gb.shared", "1/7"),
        ("nvidia.com/mig-parted", "0"),
        ("nvidia.com/gpumem", "0"),
        ("gpu.intel.com/i915_monitoring", "0"),
        ("example.com/gpu", "0"),
        ("cpu", "0"),
        ("pods", "0"),
    ],
)
def test_the_resource_name_gives_the_fraction_of_a_gpu(resource: str, weight: str) -> None:
    assert BY_NAME.of(resource) == Fraction(weight)


@pytest.mark.parametrize(
    ("resource", "weight"),
    [("example.com/gpu", 1), ("nvidia.com/gpu.shared", EIGHTH), ("nvidia.com/gpu", 1)],
)
def test_the_configuration_takes_precedence_over_the_name(resource: str, weight: Fraction) -> None:
    assert GIVEN.of(resource) == weight


def test_the_configuration_takes_precedence_over_the_labels_of_the_node() -> None:
    assert GIVEN.of("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "4"}) == EIGHTH


def test_the_configuration_can_exclude_a_resource_from_gpus() -> None:
    weights = GpuWeights((("nvidia.com/gpu", Fraction()),))
    assert weights.by_resource(Resources({"nvidia.com/gpu": 8, "amd.com/gpu": 2})) == (
        ("amd.com/gpu", Fraction(2)),
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0.1, Fraction(1, 10)),
        ("1/7", Fraction(1, 7)),
        (2, Fraction(2)),
        (5e-324, Fraction("5e-324")),
        (1e308, Fraction(10**308)),
        (" +.5", Fraction(1, 2)),
        ("2.", Fraction(2)),
    ],
)
def test_a_weight_is_exactly_as_it_is_written(written: float | str, meant: Fraction) -> None:
    assert exact(written) == meant


AMOUNTS = st.dictionaries(
    st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-2g.10gb", "cpu", "memory"]),
    st.integers(0, 64),
).map(Resources)


@given(AMOUNTS, AMOUNTS)
def test_gpus_of_two_pods_are_those_of_each(one: Resources, other: Resources) -> None:
    assert BY_NAME.counted(one + other) == BY_NAME.counted(one) + BY_NAME.counted(other)


@pytest.mark.parametrize(
    ("resource", "pods", "gpus"),
    [
        ("nvidia.com/gpu", 3, 3),
        ("amd.com/gpu", 3, 3),
        ("nvidia.com/mig-1g.5gb", 7, 1),
        ("nvidia.com/mig-1g.5gb", 8, Fraction(8, 7)),
        ("cpu", 8, 0),
    ],
)
def test_the_size_of_a_gang_is_exact(resource: str, pods: int, gpus: Fraction) -> None:
    podsets = (PodSet("w", pods, PodShape(Resources({resource: 1}))),)
    workload = Workload("u", "Job", "team", "train", podsets)
    placement = Placement((PodSetPlacement("w", (("n", pods),)),))
    job = JobRecord("Job", "team", "train", "u", 1, 0.0, "q", podsets)
    assert (job.gpus, workload.gpus, Admitted(workload, placement).gpus) == (gpus, gpus, gpus)


@given(st.integers(0, 10_000))
def test_whole_gpus_remain_whole(count: int) -> None:
    assert of_parts(in_parts(7 * count * Fraction(1, 7))) == rounded(Fraction(count)) == count

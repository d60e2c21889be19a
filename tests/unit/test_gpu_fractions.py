"""Requests for a fraction of a GPU: they are read, refused, and answered with what the cluster offers instead."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from msgspec import convert

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import BY_NAME, GpuFraction, SharedGpus, why_refused
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import PodSet
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import Template

T4 = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
MPS = {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.sharing-strategy": "mps"}


def asked(annotations: Mapping[str, str] | None = None, **limits: str) -> PodSet:
    """``limits``: of NVIDIA's resources, with ``_`` for ``-``."""
    named = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    template: dict[str, Any] = {
        "metadata": {"annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "main", "resources": {"limits": named}}]},
    }
    return read_podset("main", 1, convert(template, Template), "spec.template")


ANNOTATED = "spec.template.metadata.annotations: "
RESOURCE = "spec.template.spec: resource nvidia.com/"


@pytest.mark.parametrize(
    ("podset", "fraction"),
    [
        (asked(gpu="1"), None),
        (asked({"gpu-fraction": "0.3"}), GpuFraction(f"{ANNOTATED}gpu-fraction", "0.3", Fraction(3, 10))),
        (asked({"gpu-fraction": "half"}), GpuFraction(f"{ANNOTATED}gpu-fraction", "half")),
        (asked({"gpu-memory": "4096"}), GpuFraction(f"{ANNOTATED}gpu-memory", "4096")),
        (
            asked({"gpu-fraction-num-devices": "2"}),
            GpuFraction(f"{ANNOTATED}gpu-fraction-num-devices", "2"),
        ),
        (asked(gpu="1", gpumem="3000"), GpuFraction(f"{RESOURCE}gpumem", "3000")),
        (
            asked(gpu="1", gpumem_percentage="50"),
            GpuFraction(f"{RESOURCE}gpumem-percentage", "50", Fraction(1, 2)),
        ),
        (asked(gpucores="30"), GpuFraction(f"{RESOURCE}gpucores", "30", Fraction(3, 10))),
    ],
)  # fmt: skip
def test_annotations_and_resources_that_request_a_fraction_are_read(
    podset: PodSet, fraction: GpuFraction | None
) -> None:
    assert podset.gpu_fraction == fraction


def node(name: str, labels: Mapping[str, str] | None = None, **amounts: int) -> Node:
    named = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in amounts.items()}
    return Node(name, labels or {}, Resources(named))


MIG = Node("mig", {}, Resources({"nvidia.com/mig-1g.5gb": 7, "nvidia.com/mig-3g.20gb": 2}))
MIXED = Fleet((MIG, node("t4", T4, gpu=16), node("t4b", T4, gpu=16), node("whole", gpu=8)))


@pytest.mark.parametrize(
    ("fleet", "gpus", "offered"),
    [
        (
            MIXED, Fraction(2, 10),
            ("request nvidia.com/gpu: 1 (a replica by time-slicing, 1/4 of a GPU, on 2 nodes) or "
            "nvidia.com/mig-3g.20gb: 1 (a MIG instance, 3/7 of a GPU, on 1 node) or "
            "nvidia.com/mig-1g.5gb: 1 (a MIG instance, 1/7 of a GPU, on 1 node) instead"),
        ),
        (
            Fleet((node("m", MPS, gpu=80),)), None,
            "request nvidia.com/gpu: 1 (a replica by mps, 1/10 of a GPU, on 1 node) instead",
        ),
        (
            Fleet((node("whole", gpu=8),)), Fraction(1, 2),
            "request whole GPUs: no node offers MIG instances or replicas",
        ),
    ],
)  # fmt: skip
def test_the_refusal_names_units_that_nodes_of_the_cluster_offer(
    fleet: Fleet, gpus: Fraction | None, offered: str
) -> None:
    said = why_refused(GpuFraction("gpu-fraction", "x", gpus), fleet, BY_NAME)
    assert said == (
        "gpu-fraction is 'x': kube-scheduler does not divide a unit of a GPU resource; " + offered
    )


@pytest.mark.parametrize("rule", SharedGpus)
def test_an_annotation_of_the_pod_template_is_the_rule_for_shared_gpus(rule: SharedGpus) -> None:
    assert asked({"queuectl.dev/podset-shared-gpus": str(rule)}).shared_gpus is rule
    assert asked().shared_gpus is None


def test_an_unknown_rule_for_shared_gpus_is_an_error() -> None:
    with pytest.raises(RequestError, match="'all' is not Never, OnePerNode, Any"):
        asked({"queuectl.dev/podset-shared-gpus": "all"})


@pytest.mark.parametrize(
    "text",
    ["1e1000000", "1E-1000000", "0." + "3" * 5000, "9" * 5000, "nan", "1/0", "1/" + "7" * 40],
)
def test_a_fraction_with_too_many_digits_is_not_a_number_and_has_a_short_text_in_the_refusal(
    text: str,
) -> None:
    """A Fraction of ``1e999999999`` would take minutes, in which no other gang is read."""
    fraction = asked({"gpu-fraction": text}).gpu_fraction
    assert fraction is not None
    assert (fraction.text, fraction.gpus) == (text, None)
    assert len(why_refused(fraction, Fleet(()), BY_NAME)) < 400

"""Pods prefer nodes without devices that they do not request, and leave the CPUs and the memory that free GPUs need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.model.counts import fewest_then_sparing
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, world


def placed(
    nodes: Sequence[Node], *pending: Workload, running: Sequence[Admitted] = ()
) -> dict[str, dict[str, int]]:
    """Gang to its pods on each node."""
    snapshot = world(nodes, pending, running)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return {
        admission.uid: {
            name: pods for podset in admission.placement.podsets for name, pods in podset.nodes
        }
        for admission in made.admitted
    }


def alone(nodes: Sequence[Node], wanted: Workload, *running: Admitted) -> dict[str, int]:
    return placed(nodes, wanted, running=running)[wanted.uid]


def busy(gpus: int, cpus: int, on: str) -> Admitted:
    return holding(gang("busy", podset(gpu=gpus, cpu=cpus)), {on: 1})


SMALL_GPU = node("a0", gpu=8, cpu=32)
LARGE = node("c0", cpu=64)
TPU: Any = {"google.com/tpu": 4}
RDMA: Any = {"rdma/hca": 8}
FUSE: Any = {"example.com/fuse": 20}


@pytest.mark.parametrize(
    ("nodes", "pods", "where"),
    [
        pytest.param([SMALL_GPU, LARGE], podset(cpu=16), {"c0": 1}, id="although it is larger"),
        pytest.param(
            [node("a0", gpu=8, cpu=64), LARGE], podset(cpu=16), {"c0": 1}, id="of equal nodes"
        ),
        pytest.param(
            [node("a0", cpu=32, **TPU), LARGE], podset(cpu=16), {"c0": 1}, id="TPUs are spared"
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32, **RDMA), node("b0", gpu=8, cpu=64)],
            podset(gpu=1, cpu=4),
            {"b0": 1},
            id="a GPU pod without RDMA spares RDMA",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32, **RDMA), node("b0", gpu=8, cpu=64)],
            podset(gpu=1, cpu=4, **RDMA),
            {"a0": 1},
            id="a pod with RDMA takes it",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32, **FUSE), node("c0", cpu=64, **FUSE)],
            podset(cpu=16),
            {"c0": 1},
            id="a device of all nodes does not count",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32), node("c0", cpu=64, **RDMA)],
            podset(cpu=16),
            {"c0": 1},
            id="GPUs before other devices",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32), node("c0", cpu=16)],
            podset(count=3, cpu=16),
            {"a0": 2, "c0": 1},
            id="as far as they have room",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=64), node("c0", cpu=32), node("c1", cpu=32)],
            podset(count=4, cpu=16),
            {"a0": 4},
            id="fewest nodes first",
        ),
        pytest.param(
            [
                node("a0", "b/r0", gpu=8, cpu=32),
                node("a1", "b/r0", gpu=8, cpu=32),
                node("c0", "b/r0", cpu=32),
                node("c1", "b/r1", cpu=32),
            ],
            podset(count=4, cpu=16, required="rack"),
            {"a0": 2, "c0": 2},
            id="the requested rack first",
        ),
        pytest.param(
            [
                node("a0", "b/r0", gpu=8, cpu=48),
                node("a1", "b/r0", gpu=8, cpu=48),
                node("c0", "b/r1", cpu=64),
                node("c1", "b/r1", cpu=64),
            ],
            podset(count=5, cpu=16, required="rack"),
            {"c0": 1, "c1": 4},
            id="a rack without GPUs, of two",
        ),
        pytest.param(
            [node("a0", gpu=8, cpu=32), node("a1", gpu=8, cpu=32)],
            podset(count=2, cpu=16),
            {"a0": 2},
            id="only GPU nodes: no gang waits",
        ),
    ],
)
def test_a_gang_leaves_the_devices_that_it_does_not_request(
    nodes: Sequence[Node], pods: PodSet, where: dict[str, int]
) -> None:
    assert alone(nodes, gang("w", pods, queue=None)) == where


def test_eight_gangs_without_gpus_leave_all_gpu_nodes() -> None:
    nodes = [node(f"a{i}", gpu=8, cpu=32) for i in range(4)]
    nodes += [node(f"c{i}", cpu=64) for i in range(2)]
    gangs = [gang(f"w{i}", podset(cpu=16)) for i in range(8)]
    used = {name for where in placed(nodes, *gangs).values() for name in where}
    assert used == {"c0", "c1"}


@pytest.mark.parametrize(
    ("gpus", "cpus", "where"),
    [
        pytest.param(8, 16, "a1", id="all GPUs are in use: the rest of the CPUs is free"),
        pytest.param(8, 42, "a1", id="also less than a GPU needs"),
        pytest.param(4, 0, "a1", id="half of the CPUs are beyond what free GPUs need"),
        pytest.param(1, 16, "a0", id="free GPUs need all free CPUs: the tightest node"),
    ],
)
def test_on_gpu_nodes_a_gang_takes_cpus_that_free_gpus_do_not_need(
    gpus: int, cpus: int, where: str
) -> None:
    nodes = [node("a0", gpu=8, cpu=20), node("a1", gpu=8, cpu=64)]
    assert alone(nodes, gang("w", podset(cpu=16)), busy(gpus, cpus, "a1")) == {where: 1}


def test_several_podsets_without_gpus_in_one_rack_leave_the_rack_with_gpus() -> None:
    nodes = [node(f"a{i}", "b/r0", gpu=8, cpu=48) for i in range(2)]
    nodes += [node(f"c{i}", "b/r1", cpu=64) for i in range(2)]
    parts = [
        podset(name, count=2, cpu=cpu, required="rack", group="g")
        for name, cpu in (("x", 16), ("y", 8))
    ]
    assert set(alone(nodes, gang("w", *parts))) <= {"c0", "c1"}


@pytest.mark.parametrize(
    ("sizes", "avoided", "count", "chosen"),
    [
        ([4, 4, 4], [0, 0, 0], 5, [0, 1]),
        ([4, 4, 4], [1, 0, 0], 5, [1, 2]),
        ([9, 2, 2, 2], [1, 0, 0, 0], 8, [0]),
        ([6, 2, 2, 5], [1, 0, 0, 1], 7, [2, 3]),
        ([6, 2, 3, 5], [1, 0, 0, 1], 9, [0, 2]),
        ([4, 4], [1, 1], 3, [0]),
    ],
)
def test_of_the_fewest_domains_the_fewest_avoided_ones_are_chosen(
    sizes: list[int], avoided: list[int], count: int, chosen: list[int]
) -> None:
    found = fewest_then_sparing(np.array(sizes), count, np.array(avoided, dtype=np.bool_))
    assert len(found) == len(chosen)
    assert sum(sizes[i] for i in found.tolist()) >= count
    assert sum(avoided[i] for i in found.tolist()) == sum(avoided[i] for i in chosen)

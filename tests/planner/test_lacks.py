"""A reason names what the nodes lack for one more pod, on how many nodes, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from tests.planner.build import gang, holding, node, podset, resources, without_quota, world

GI = 1 << 30
WHOLE = podset(gpu=8, cpu=8000, memory=64 * GI)


def gpu_node(name: str, where: str = "b/r", cpu: int = 96, pods: int = 110) -> Node:
    return node(name, where, gpu=8, cpu=cpu * 1000, memory=1024 * GI, pods=pods)


def runs(name: str, at: str, count: int = 1, **amounts: Any) -> Admitted:
    return holding(gang(name, podset(count=count, **amounts)), {at: count})


def reason_of(
    nodes: Sequence[Node],
    asked: PodSet,
    running: Sequence[Admitted] = (),
    other_pods: Mapping[str, Resources] | None = None,
) -> Reason:
    workload = without_quota(gang("w", asked))
    return only_reason(world(nodes, [workload], running, other_pods=other_pods))


def only_reason(snapshot: Snapshot) -> Reason:
    [refusal] = plan(snapshot).pending
    return refusal.reasons[0]


ALONE = [gpu_node("n0")]
RACK = [gpu_node(f"n{i}", "r1") for i in range(4)]
CASES = {
    "cpu, held by other pods": (
        reason_of(ALONE, WHOLE, (), {"n0": resources(cpu=95_000)}),
        ("room for 1 pod × 8 nvidia.com/gpu + 8 cpu is needed; none fits on 1 eligible node: "
        "1 node lacks cpu (1 free; pods without a queue hold 95 of 96)"),
    ),
    "memory, held by two gangs": (
        reason_of(ALONE, WHOLE, [runs("a", "n0", memory=600 * GI), runs("b", "n0", memory=400 * GI)]),
        ("room for 1 pod × 8 nvidia.com/gpu + 64Gi memory is needed; none fits on 1 eligible node: "
        "1 node lacks memory (24Gi free; team/a, team/b hold 1000Gi of 1Ti)"),
    ),
    "pod slots": (
        reason_of([gpu_node("n0", pods=4)], WHOLE, [runs("a", "n0", count=4)]),
        ("room for 1 pod × 8 nvidia.com/gpu is needed; none fits on 1 eligible node: "
        "1 node lacks pod slots (0 free; team/a holds 4 of 4)"),
    ),
    "several resources of one node": (
        reason_of(ALONE, WHOLE, [runs("a", "n0", cpu=90_000)], {"n0": resources(gpu=1, cpu=1000)}),
        ("room for 1 pod × 8 nvidia.com/gpu + 8 cpu is needed; none fits on 1 eligible node: "
        "1 node lacks nvidia.com/gpu and cpu (7 nvidia.com/gpu free; pods without a queue hold 1 of 8)"),
    ),
    "other resources on other nodes": (
        reason_of(
            [gpu_node(f"n{i}") for i in range(3)],
            WHOLE,
            [runs("a", "n0", cpu=90_000), runs("b", "n1", cpu=50_000)],
            {"n1": resources(cpu=41_000), "n2": resources(gpu=2)},
        ),
        ("room for 1 pod × 8 nvidia.com/gpu + 8 cpu is needed; none fits on 3 eligible nodes: "
        "2 nodes lack cpu (at most 6 free; team/a, team/b hold 140 of 192, pods without a queue 41), "
        "1 node lacks nvidia.com/gpu (6 free; pods without a queue hold 2 of 8)"),
    ),
    "nodes that would be too small if they were empty come last": (
        reason_of(
            [gpu_node("n0"), *(node(f"c{i}", cpu=96_000, memory=1024 * GI) for i in range(2))],
            WHOLE,
            [runs("a", "n0", cpu=90_000)],
        ),
        ("room for 1 pod × 8 nvidia.com/gpu + 8 cpu is needed; none fits on 3 eligible nodes: "
        "1 node lacks cpu (6 free; team/a holds 90 of 96), 2 nodes have no nvidia.com/gpu"),
    ),
    "full nodes, and nodes of another kind": (
        reason_of(
            [gpu_node("n0"), node("c0", cpu=96_000, memory=1024 * GI), gpu_node("n1")],
            WHOLE,
            [runs("a", "n0", gpu=8), runs("b", "n1", gpu=4)],
        ),
        ("room for 1 pod × 8 nvidia.com/gpu is needed; none fits on 3 eligible nodes: "
        "2 nodes lack nvidia.com/gpu (at most 4 free; team/a, team/b hold 12 of 16), 1 node has no nvidia.com/gpu"),
    ),
    "the best rack": (
        reason_of(
            [*RACK, gpu_node("m0", "r2")],
            podset(count=4, required="rack", gpu=8, memory=512 * GI),
            [runs("a", "n1", memory=600 * GI), runs("b", "n2", memory=600 * GI), runs("c", "m0", gpu=1)],
        ),
        ("room for 2 more pods × 8 nvidia.com/gpu + 512Gi memory is needed in one rack; "
        "at most 2 of 4 fit (r1), where 2 nodes lack memory (at most 424Gi free; team/a, team/b hold 1200Gi of 2Ti)"),
    ),
    "no rack": (
        reason_of(
            RACK,
            podset(count=4, required="rack", gpu=8, memory=512 * GI),
            [],
            {f"n{i}": resources(memory=600 * GI) for i in range(4)},
        ),
        ("room for 4 pods × 8 nvidia.com/gpu + 512Gi memory is needed in one rack; "
        "no rack has room for any of them: 4 nodes lack memory (at most 424Gi free; pods without a queue hold 2400Gi of 4Ti)"),
    ),
    "one node for all pods": (
        reason_of(
            ALONE,
            podset(count=4, required="kubernetes.io/hostname", gpu=1, cpu=16_000),
            [runs("a", "n0", cpu=40_000)],
        ),
        ("one node with room for 4 pods × 1 nvidia.com/gpu + 16 cpu is needed; none of 1 eligible node has it: "
        "1 node lacks cpu (56 free; team/a holds 40 of 96)"),
    ),
    "more pods than fit alongside each other": (
        reason_of(ALONE, podset(count=6, gpu=1, cpu=16_000), [runs("a", "n0", cpu=10_000)]),
        ("room for 1 more pod × 1 nvidia.com/gpu + 16 cpu is needed; at most 5 of 6 fit on 1 eligible node: "
        "1 node lacks cpu for one more pod (team/a holds 10 of 96)"),
    ),
    "many gangs": (
        reason_of(ALONE, WHOLE, [runs(f"g{i}", "n0", gpu=1) for i in range(8)]),
        ("room for 1 pod × 8 nvidia.com/gpu is needed; none fits on 1 eligible node: "
        "1 node lacks nvidia.com/gpu (0 free; 8 gangs hold 8 of 8)"),
    ),
    "nodes that lack one more resource than most": (
        reason_of(
            [gpu_node(f"n{i}") for i in range(3)],
            WHOLE,
            [runs("a", "n0", gpu=1), runs("b", "n1", gpu=1), runs("c", "n2", gpu=1, cpu=90_000)],
        ),
        (
            "room for 1 pod × 8 nvidia.com/gpu is needed; none fits on 3 eligible nodes: "
            "3 nodes lack nvidia.com/gpu (at most 7 free; team/a, team/b, team/c hold 3 of 24)"
        ),
    ),
    "only CPU": (
        reason_of(ALONE, podset(cpu=32_000), [runs("a", "n0", cpu=90_000)]),
        ("room for 1 pod × 32 cpu is needed; none fits on 1 eligible node: "
        "1 node lacks cpu (6 free; team/a holds 90 of 96)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "message"), CASES.values(), ids=CASES)
def test_a_reason_names_what_is_short_and_who_holds_it(reason: Reason, message: str) -> None:
    assert (reason.code, reason.message) == (Code.TOPOLOGY_PLACEMENT_FAILED, message)


def test_the_numbers_are_details_too() -> None:
    reason = reason_of(ALONE, WHOLE, [runs("a", "n0", cpu=50_000)], {"n0": resources(cpu=45_000)})
    assert reason.details["limits"] == [
        {
            "resources": ["cpu"],
            "nodes": 1,
            "needs": 8000,
            "most": 1000,
            "of": 96_000,
            "running": 50_000,
            "daemonSets": 0,
            "otherPods": 45_000,
            "before": 0,
            "holders": ["team/a"],
        }
    ]


@pytest.mark.parametrize(
    ("nodes", "asked", "text"),
    [
        (
            [gpu_node(f"n{i}") for i in range(2)],
            podset(gpu=8, cpu=100_000),
            "none fits on 2 eligible nodes: 2 nodes have less than 100 cpu (at most 96)",
        ),
        (
            [gpu_node("n0"), node("n1", cpu=200_000, memory=GI)],
            podset(gpu=8, cpu=100_000),
            "none fits on 2 eligible nodes: 1 node has no nvidia.com/gpu, 1 node has less than 100 cpu (at most 96)",
        ),
        (
            ALONE,
            podset(count=8, required="kubernetes.io/hostname", gpu=1, cpu=16_000),
            "none of 1 eligible node has it: 1 node has less than 128 cpu (at most 96)",
        ),
        (
            ALONE,
            podset(count=7, gpu=1, cpu=16_000),
            "at most 6 of 7 fit on 1 eligible node: 1 node lacks cpu for one more pod",
        ),
        (ALONE, podset(gpu=8, fpga=1), "no node offers fpga"),
    ],
    ids=["cpu", "cpu here, GPUs there", "one node for all pods", "pods side by side", "no node"],
)  # fmt: skip
def test_a_gang_that_fits_no_empty_node_learns_which_resource_is_too_small(
    nodes: Sequence[Node], asked: PodSet, text: str
) -> None:
    reason = reason_of(nodes, asked)
    assert reason.code is Code.SHAPE_NEVER_FITS
    assert reason.message.endswith(f"even if all nodes were empty, {text}")


@pytest.mark.parametrize(
    ("used", "holders"),
    [
        (1000, "DaemonSets hold 1 of 96"),
        (3000, "pods without a queue hold 2 of 96, DaemonSets 1"),
        (2000, "DaemonSets hold 1 of 96, pods without a queue 1"),
    ],
)
def test_pods_of_daemon_sets_are_named_apart(used: int, holders: str) -> None:
    workload = without_quota(gang("w", podset(gpu=8, cpu=96_000)))
    snapshot = world(ALONE, [workload], other_pods={"n0": resources(cpu=used)})
    reason = only_reason(replace(snapshot, of_daemons={"n0": resources(cpu=1000)}))
    free = (96_000 - used) // 1000
    assert reason.message.endswith(f"1 node lacks cpu ({free} free; {holders})")


OBSTACLES = {
    "cpu of running gangs and other pods": (
        [gpu_node("n0")],
        [runs("a", "n0", cpu=50_000)],
        {"n0": resources(cpu=45_000)},
        ["running: 1 gang and pods without a queue hold 95 of 96 cpu on eligible nodes: team/a"],
    ),
    "cpu here, GPUs there": (
        [gpu_node("n0"), gpu_node("n1"), gpu_node("n2")],
        [],
        {f"n{i}": resources(cpu=95_000) if i else resources(gpu=1) for i in range(3)},
        [
            "+ 8 cpu is needed for each pod; eligible nodes have room for 0 pods in total: 2 nodes lack cpu (at most 1 free; ",
            "running: pods without a queue hold 190 of 288 cpu on eligible nodes",
        ],
    ),
    "a node without GPUs alongside a full one": (
        [gpu_node("n0"), node("c0", cpu=96_000, memory=1024 * GI)],
        [runs("a", "n0", cpu=90_000)],
        {},
        ["running: 1 gang holds 90 of 192 cpu on eligible nodes: team/a"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "running", "others", "messages"), OBSTACLES.values(), ids=OBSTACLES
)
def test_a_blocking_constraint_names_what_is_short_and_who_holds_it(
    nodes: Sequence[Node],
    running: Sequence[Admitted],
    others: Mapping[str, Resources],
    messages: list[str],
) -> None:
    snapshot = world(nodes, [without_quota(gang("w", WHOLE))], running, other_pods=others)
    found = diagnose(snapshot, "w")
    assert found is not None
    said = [obstacle.message for obstacle in found.conflict]
    assert [m for m in messages if not any(m in text for text in said)] == [], said


def test_gangs_that_start_first_are_named_as_such() -> None:
    nodes = [gpu_node("n0")]
    gangs = [gang("first", podset(cpu=90_000)), gang("w", WHOLE, queued_at=1.0)]
    snapshot = world(nodes, list(map(without_quota, gangs)))
    assert only_reason(snapshot).message.endswith(
        "1 node lacks cpu (6 free; gangs before it hold 90 of 96)"
    )

"""Lost work decides between victims without GPUs, and with every kind of accelerator."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.accounting import Accounting
from queuectl.domain.devices import CLAIM_PODSET
from queuectl.domain.gpus import GpuWeights
from queuectl.domain.queues import QueueConfig, ReclaimWithinCohort
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.preempt.cost import MOST_WORK, NODE, RESTART_COST, costs, sizes_of
from queuectl.planner.verify import verify
from tests.planner.build import FLAVOR, NOW, gang, holding, node, podset, queue, world

DAY = 86_400.0
ACCELERATORS = (
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
    "huawei.com/Ascend910",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/tiles",
    "nvidia.com/mig-1g.5gb",
    "deviceclass.resource.kubernetes.io/tpu.google.com",
    "example.com/accelerator",
)


def running(name: str, age: float, count: int = 1, **options: Any) -> Admitted:
    """A gang on a node that is not known, with the amounts of ``pod``."""
    amounts, on = options.pop("pod"), options.pop("on", "gone")
    held = holding(gang(name, podset(count=count, **amounts)), {on: count}, **options)
    return replace(held, started_at=NOW - age)


def lost(held: Admitted, snapshot: Snapshot | None = None) -> int:
    """Without the restart."""
    given = snapshot or world([])
    cost = costs([held], given.now, sizes_of(given))[held.workload.uid]
    return cost.lost_work - RESTART_COST


def victims(asked: dict[str, Any], *held: Admitted, **capacity: Any) -> set[str]:
    """The gangs that leave a node with these amounts for a gang of higher priority."""
    there = [node("n", **capacity)]
    here = [
        replace(each, placement=holding(each.workload, {"n": each.workload.pods}).placement)
        for each in held
    ]
    wanted = gang("wanted", podset(**asked), priority=10)
    snapshot = world(there, [wanted], here)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return {preemption.victim for preemption in made.preempted}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({"age": 3 * DAY}, {"age": 60}, id="the newest of two equal gangs"),
        pytest.param({"age": DAY, "count": 4}, {"age": 60}, id="the smaller one"),
        pytest.param({"age": 600, "count": 4}, {"age": 600}, id="the smaller one of the same age"),
        pytest.param(
            {"age": 600}, {"age": DAY, "checkpoint_at": NOW - 1}, id="the one with a checkpoint"
        ),
    ],
)
def test_of_gangs_without_gpus_the_one_that_loses_less_is_evicted(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    pod = {"cpu": 16_000}
    held = running("a", pod=pod, **old), running("b", pod=pod, **new)
    assert victims({"cpu": 16_000}, *held, cpu=16_000 * sum(h.workload.pods for h in held)) == {"b"}


def test_of_equal_losses_the_newest_gang_is_evicted() -> None:
    pod = {"gpu": 4}
    held = [
        running(name, age, pod=pod, utilization=0.0)
        for name, age in (("a", 900.0), ("b", 60.0), ("c", 300.0))
    ]
    assert victims({"gpu": 4}, *held, gpu=12) == {"b"}


def test_many_cpu_hours_are_not_lost_for_a_gpu_minute() -> None:
    cpus = running("cpus", 3 * DAY, pod={"cpu": 64_000})
    gpu = running("gpu", 120, pod={"gpu": 1, "cpu": 64_000})
    assert victims({"cpu": 64_000}, cpus, gpu, cpu=128_000, gpu=8) == {"gpu"}


def test_the_time_of_a_cpu_node_is_worth_less_than_that_of_a_gpu() -> None:
    cpus = running("cpus", 600, pod={"cpu": 64_000})
    gpu = running("gpu", 600, pod={"gpu": 1, "cpu": 64_000})
    assert victims({"cpu": 64_000}, cpus, gpu, cpu=128_000, gpu=8) == {"cpus"}


@pytest.mark.parametrize("resource", ACCELERATORS)
def test_each_accelerator_counts_without_a_weight(resource: str) -> None:
    pod: Any = {resource: 8}
    assert lost(running("old", 3 * DAY, pod=pod)) > lost(running("new", 60, pod=pod)) > 0
    assert lost(running("x", 60, count=2, pod=pod)) > lost(running("x", 60, pod=pod))


@pytest.mark.parametrize(
    ("pod", "nodes", "gpus"),
    [
        pytest.param({"gpu": 2, "cpu": 1}, {"gpu": 8, "cpu": 64}, 2, id="GPUs count as they are"),
        pytest.param({"gpu": 1, "cpu": 64}, {"gpu": 8, "cpu": 64}, 1, id="also with all CPUs"),
        pytest.param({"google.com/tpu": 4}, {"google.com/tpu": 4}, 4, id="a TPU as a GPU"),
        pytest.param({"google.com/tpu": 4}, {}, 4, id="also without nodes"),
        pytest.param(
            {"aws.amazon.com/neuroncore": 32},
            {"aws.amazon.com/neuroncore": 128},
            2,
            id="cores by their part of a node of 8",
        ),
        pytest.param({"cpu": 32}, {"cpu": 64}, NODE / 2, id="CPUs by their part of a node"),
        pytest.param(
            {"cpu": 16, "memory": 48}, {"cpu": 64, "memory": 64}, NODE * 3 / 4, id="the larger part"
        ),
        pytest.param({"cpu": 32_000}, {}, NODE / 2, id="64 CPUs without nodes"),
        pytest.param({"cpu": 128_000}, {}, NODE * 2, id="larger than usual nodes"),
        pytest.param(
            {"example.com/accelerator": 4},
            {"example.com/accelerator": 8},
            NODE / 2,
            id="an unknown device by its part of a node",
        ),
        pytest.param(
            {"nvidia.com/mig-1g.5gb": 1, "cpu": 48}, {"cpu": 64}, NODE * 3 / 4, id="mostly CPUs"
        ),
        pytest.param({}, {"cpu": 64}, NODE / 110, id="a pod without requests by its pod slot"),
    ],
)
def test_what_a_pod_counts_as(pod: Any, nodes: Any, gpus: float) -> None:
    snapshot = world([node("n", **nodes)] if nodes else [])
    assert lost(running("x", 110_000, pod=pod), snapshot) == pytest.approx(110_000 * gpus, abs=1)


def test_devices_of_claims_that_pods_share_count_for_a_gang_without_gpus() -> None:
    accelerator: dict[str, Any] = {"example.com/accelerator": 4}
    claims = replace(podset("w", 1, cpu=0, **accelerator), name=f"{CLAIM_PODSET}shared")
    sizes = sizes_of(world([node("n", **{name: 2 * count for name, count in accelerator.items()})]))
    pods = podset("w", 2, cpu=4)
    alone, sharing = (sizes.of_waiting(gang("x", *podsets)) for podsets in ([pods], [pods, claims]))
    more = sharing.without_accelerators - alone.without_accelerators
    assert more == pytest.approx(NODE / 2)


def test_nodes_of_different_sizes_and_deleted_nodes_do_not_change_the_loss() -> None:
    snapshot = world([node("small", cpu=32), node("large", cpu=128)])
    places = ("small", "large", "gone")
    assert len({lost(running("x", DAY, pod={"cpu": 32}, on=on), snapshot) for on in places}) == 1


def test_utilization_is_that_of_accelerators() -> None:
    idle: Any = {"utilization": 0.0}
    assert lost(running("x", DAY, pod={"gpu": 1, "cpu": 64_000}, **idle)) == 0
    assert lost(running("x", DAY, pod={"google.com/tpu": 1}, **idle)) == 0
    assert lost(running("x", DAY, pod={"cpu": 64_000}, **idle)) == DAY * NODE


def test_a_weight_counts_alone() -> None:
    def weighed(weight: Fraction) -> QueueConfig:
        given = GpuWeights((("google.com/tpu", weight),))
        rules = world([]).config.rules
        return replace(world([]).config, rules=replace(rules, accounting=Accounting(gpus=given)))

    held: Any = running("x", 110_000, pod={"google.com/tpu": 4})
    none = replace(world([]), config=weighed(Fraction(0)))
    assert lost(held, none) == pytest.approx(110_000 * NODE / 110, abs=1)


def test_absurd_amounts_stay_in_the_range_of_the_solver() -> None:
    held = running("x", NOW, count=10**6, pod={"cpu": 10**15})
    assert lost(held) == MOST_WORK


def test_a_gang_without_gpus_waits_before_it_reclaims_from_another() -> None:
    owner, borrower = (
        replace(
            queue(name, cpu=64_000, flavors=(FLAVOR,)),
            cohort="all",
            reclaim_within_cohort=ReclaimWithinCohort.ANY,
            reclaim_patience=30.0,
        )
        for name in ("owner", "borrower")
    )
    held = running("busy", DAY, pod={"cpu": 128_000}, on="n")
    held = replace(held, workload=replace(held.workload, queue="borrower"))
    wants = gang("wants", podset(cpu=64_000), queue="owner")
    for since, evicts in ((None, False), (NOW - 10, False), (NOW - 30, True)):
        pending = Pending(wants, reclaim_since=since)
        snapshot = world([node("n", cpu=128_000)], [pending], [held], owner, borrower)
        made = plan(snapshot)
        assert bool(made.preempted) is evicts
        if not evicts:
            assert made.pending[0].reasons[0].code is Code.WAITING_TO_RECLAIM

"""The figures of small traces, alongside values that are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Placement as Nodes
from queuectl.domain.workload import PodSetPlacement, Workload
from queuectl.simulate.parts import podsets_of
from queuectl.simulate.report import document
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order, PlacementRule
from queuectl.simulate.trace import read_trace
from tests.simulate.cases import outcome, setting, trace
from tests.support.counted import free_of

FIFO = Order.STRICT_FIFO


def figures(given: Setting, placement: PlacementRule = PlacementRule.PLANNER) -> dict[str, Any]:
    return document(outcome(given, placement, FIFO))


@pytest.mark.parametrize("placement", list(PlacementRule))
def test_every_figure_of_one_queue(placement: PlacementRule) -> None:
    """One node of 8 GPUs. The jobs run from 0 to 10, 10 to 30, 30 to 34 and 34 to 35."""
    jobs = trace(
        "0,10,1,8,a,50", "2,20,1,4,a,100", "5,4,1,8,a,0", "5,1,1,8,a,0", more="gpu_util_pct"
    )
    found = figures(setting({"a": 1}, jobs), placement)
    # At 5 the job of 1 s is before the job of 4 s: it runs from 30 to 31, the other one from 31 to 35.
    assert found["meanWaitSeconds"] == (0 + 8 + 25 + 26) / 4
    assert (found["p50WaitSeconds"], found["p99WaitSeconds"]) == (8, 26)
    assert found["meanCompletionSeconds"] == (10 + 28 + 26 + 30) / 4
    assert found["makespanSeconds"] == 35
    held = 10 * 8 + 20 * 4 + 5 * 8
    assert found["gpuHours"] == round(held / 3600, 3)
    assert found["allocation"] == round(held / (8 * 35), 6)
    assert found["utilization"] == round((10 * 8 * 0.5 + 20 * 4) / (8 * 35), 6)
    # While the second job runs, 4 GPUs are free. From 10 to 30 one pod of 4 and two pods of 8 wait or run: 4 × 2/3 GPUs.
    assert found["fragmentation"] == round(20 * 4 * (2 / 3) / (8 * 35), 6)
    assert found["bySize"]["5-8"]["meanWaitSeconds"] == (0 + 25 + 26) / 3
    assert found["bySize"]["3-4"]["finished"] == 1
    assert found["fairness"] == 1
    assert sum(found["overTime"]["allocatedGpus"]) * 35 / 100 == pytest.approx(held, abs=0.1)
    assert found["overTime"]["untilSeconds"][-1] == 35


@pytest.mark.parametrize("placement", list(PlacementRule))
def test_fairness_is_the_index_of_jain_over_the_shares_of_time_in_which_jobs_ran(
    placement: PlacementRule,
) -> None:
    """The jobs of a always run. Of the 40 s between submission and end in b, they run 20 s."""
    jobs = trace("0,10,1,8,a", "0,10,1,8,b", "0,10,1,8,b", "10,10,1,8,b")
    found = figures(setting({"a": 1, "b": 1}, jobs), placement)
    share = 30 / (10 + 20 + 20)
    assert found["fairness"] == round((1 + share) ** 2 / (2 * (1 + share**2)), 6)


@pytest.mark.parametrize("percent", [50, 99])
@pytest.mark.parametrize("number", [1, 2, 99, 100, 101, 200])
def test_percentiles_are_by_nearest_rank(number: int, percent: int) -> None:
    """Jobs of 1 s that are submitted together wait 0, 1, 2... seconds."""
    jobs = trace(*["0,1,1,8,a"] * number)
    found = figures(setting({"a": 1}, jobs), PlacementRule.BEST_FIT)
    least = next(n for n in range(number) if (n + 1) * 100 >= percent * number)
    assert found[f"p{percent}WaitSeconds"] == least


def test_a_failed_node_has_no_free_gpus() -> None:
    jobs = trace("0,100,1,2,a", "0,100,2,8,a")
    down = "0,a-001,down\n0,a-002,down\n"
    found = outcome(setting({"a": 3}, jobs, events=down), PlacementRule.BEST_FIT, FIFO)
    assert found.samples[0].fragmented == pytest.approx(6 * 2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_fragmentation_is_that_of_the_reports_of_the_controller(seed: int) -> None:
    draw = Random(seed)
    rows = [
        f"0,{draw.randrange(1, 9)},1,{draw.choice((1, 2, 3, 5, 8))},{draw.choice('ab')}"
        for _ in range(14)
    ]
    given = setting({"a": 3, "b": 2}, trace(*rows))
    free = given.free_gpus()
    jobs = read_trace(trace(*rows).encode(), "t.csv")
    left = {node.name: node.allocatable[GPU] for node in given.fleet.nodes}
    gangs: list[Admitted] = []
    waiting: list[Pending] = []
    for job in jobs:
        free.want(job.pods, job.gpus_per_pod, 1)
        workload = Workload(
            str(job.rank), "Job", "default", str(job.rank), podsets_of(job), job.queue[1], 0, 0.0
        )
        node = next(
            (n for n, gpus in left.items() if n[0] == job.queue[1] and gpus >= job.gpus), None
        )
        if node is None:
            waiting.append(Pending(workload))
            continue
        left[node] -= job.gpus
        free.hold([(node, job.gpus)], 1)
        gangs.append(Admitted(workload, Nodes((PodSetPlacement("main", ((node, 1),)),))))
    snapshot = replace(
        given.snapshot,
        admitted=tuple(gangs),
        pending=tuple(waiting),
        fleet=Fleet(given.fleet.nodes),
    )
    assert free.fragmented == pytest.approx(
        sum(one.fragmented for one in free_of(snapshot).values())
    )


def test_fragmentation_is_not_known_if_a_flavor_has_no_topology() -> None:
    """Then the planner counts quota and chooses no nodes."""
    found = figures(setting({"a": 2}, trace("0,10,1,4,a", "1,10,1,8,a"), topology=False))
    assert found["fragmentation"] is None
    assert "fragmentedGpus" not in found["overTime"]
    assert found["allocation"] == round((4 + 8) * 10 / (16 * 11), 6)

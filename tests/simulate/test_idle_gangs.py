"""Utilization changes during a job, and idle gangs are evicted by the rule of the controller, at times computed by hand.

The windows are short: a gang is idle if its GPUs were idle for 120 s, and it warms up for 60 s. Evaluations are at each full minute.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuectl.objects.documents import read_documents
from queuectl.offline.inputs import read_snapshot
from queuectl.simulate.outcomes import PolicyOutcome
from queuectl.simulate.report import document
from queuectl.simulate.setting import make_setting
from queuectl.simulate.simulation import Order, PlacementRule
from queuectl.simulate.trace import Curve, read_trace, read_utilization
from tests.simulate.cases import outcome, setting, trace, waits
from tests.traces.clusters import virtual_clusters

RULE = {"windowSeconds": 120, "memoryWindowSeconds": 120, "warmupSeconds": 60, "graceSeconds": 120}
JOBS = trace("0,3600,1,8,a,first,0", "100,60,1,8,a,second,1", more="job_id,priority")
IDLE_LATER = "job_id,after_s,gpu_util_pct\nfirst,0,90\nfirst,600,0\n"


def simulated(mode: str, use: str, jobs: str = JOBS, **rule: Any) -> PolicyOutcome:
    items = virtual_clusters({"a": 1})
    for item in items:
        if item["kind"] == "ClusterQueue":
            item["spec"]["policy"] = {"idleReclaim": {"mode": mode, **RULE, **rule}}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    snapshot = read_snapshot(read_documents(text.encode(), "cluster.json")).snapshot
    read = read_utilization(use.encode(), "use.csv")
    given = make_setting(snapshot, "t", read_trace(jobs.encode(), "t"), (), read)
    return outcome(given, PlacementRule.PLANNER)


@pytest.mark.parametrize("mode", ["Off", "DryRun"])
def test_without_the_mode_an_idle_gang_keeps_its_gpus(mode: str) -> None:
    assert waits(simulated(mode, IDLE_LATER)) == [0, 3500]


def test_an_idle_gang_is_evicted_for_a_pending_gang_of_higher_priority() -> None:
    """It is quiet from 600 s on. The window of 120 s is quiet at 720 s: the first warning. The grace of 120 s ends at 840 s."""
    found = simulated("OnDemand", IDLE_LATER)
    assert found.runs[1].finished_at == 840 + 60
    assert (found.total.evictions, found.total.lost) == (1, 840 * 8)
    assert waits(found)[1] == 740


def test_an_idle_gang_is_not_evicted_for_one_of_equal_priority_unless_its_queue_allows_it() -> None:
    equal = JOBS.replace("second,1", "second,0")
    assert simulated("OnDemand", IDLE_LATER, equal).total.evictions == 0
    assert simulated("OnDemand", IDLE_LATER, equal, yieldsToEqualPriority=True).total.evictions == 1


def test_a_gang_that_works_again_is_not_evicted() -> None:
    again = IDLE_LATER + "first,800,90\n"
    assert waits(simulated("OnDemand", again)) == [0, 3500]


def test_the_mode_always_evicts_without_a_pending_gang_and_backs_off_once() -> None:
    """It is idle from 600 s on and has saved them. Warnings are at 720 s and 780 s, the grace ends at 840 s, and the back-off at 940 s."""
    alone = trace("0,1000,1,8,a,first,0,300", more="job_id,priority,checkpoint_s")
    found = simulated("Always", IDLE_LATER, alone, cooldownSeconds=100)
    assert (found.total.evictions, found.total.lost) == (1, 240 * 8)
    assert waits(found) == [100]
    assert found.runs[0].finished_at == 940 + 400


def test_used_gpus_follow_the_utilization_over_the_work() -> None:
    found = simulated(
        "Off", "job_id,after_s,gpu_util_pct\nfirst,0,50\nfirst,1800,0\nsecond,0,100\n"
    )
    used = 1800 * 8 * 0.5 + 60 * 8
    assert document(found)["utilization"] == round(used / (8 * 3660), 6)


@pytest.mark.parametrize(
    ("begin", "end", "mean", "busy"),
    [(0, 10, 0.5, 0.5), (0, 20, 0.7, 0.9), (5, 15, 0.7, 0.9), (0, 100, 0.14, 0.5), (30, 40, 0, 0)],
)
def test_mean_and_busy_utilization_of_a_part(
    begin: float, end: float, mean: float, busy: float
) -> None:
    """Half for 10 s, nine tenths for 10 s, then nothing."""
    curve = Curve(((0, 0.5), (10, 0.9), (20, 0.0)))
    assert curve.mean(begin, end) == pytest.approx(mean)
    assert curve.busy(begin, end) == busy


def test_the_reference_rule_measures_utilization_too() -> None:
    given = setting({"a": 1}, trace("0,10,1,8,a,25", more="gpu_util_pct"))
    found = document(outcome(given, PlacementRule.BEST_FIT, Order.STRICT_FIFO))
    assert found["utilization"] == 0.25

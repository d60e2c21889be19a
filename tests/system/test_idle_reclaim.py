"""Idle gangs are evicted by the policy of their queue: measured by a real Prometheus, on a real control plane."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from queuectl.localcluster.client import get_plain
from queuectl.planner.preempt.cost import RESTART_COST
from tests.system.installation import Workspace
from tests.system.measured import MeasuredInstallation, judged_quickly, playing

pytestmark = pytest.mark.system

GRACE = 3


def lines(workspace: Workspace, name: str, event: str) -> list[dict[str, Any]]:
    """Of the history of a workload, those of one sort."""
    return [line for line in workspace.history(name) if line["event"] == event]


def last_warnings(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """Those of its current idle time: a late sample ends an idle time, and then the warnings begin again with the first."""
    warnings = lines(workspace, name, "IdleGPUs")
    numbers = [line["reason"]["details"]["warning"] for line in warnings]
    again = [place for place, number in enumerate(numbers) if number == 1]
    ends = [*again[1:], len(numbers)]
    assert all(numbers[a:z] in ([1], [1, 2]) for a, z in zip(again, ends, strict=True)), numbers
    return warnings[again[-1] :]


def idle_events(workspace: Workspace, name: str) -> list[str]:
    """Reasons of the Events on a job that are about idleness."""
    known = ("IdleGPUs", "IdleReclaimed", "WouldReclaim")
    return sorted(reason for reason, _ in workspace.events(name) if reason in known)


def counted(measured: MeasuredInstallation, workspace: Workspace) -> dict[str, float]:
    """The exported counts of the outcomes for a queue's idle gangs; without those that are 0."""
    text = get_plain(f"{measured.installation.controller.metrics}/metrics").text
    queue = re.escape(workspace.namespace)
    pattern = rf'^queuectl_idle_reclaim_total{{cluster_queue="{queue}",result="(\w+)"}} (\S+)$'
    found = re.findall(pattern, text, re.MULTILINE)
    return {result: float(value) for result, value in found if float(value)}


def idle_beside_busy(measured: MeasuredInstallation, workspace: Workspace) -> None:
    """All GPUs are held, half of them by a gang that does nothing, and one more gang waits; all of the same priority."""
    workspace.job("idle", playing("idle"), priority_class="low")
    workspace.until_state("idle", "Running")
    workspace.job("busy", playing("busy"), priority_class="low")
    workspace.until_state("busy", "Running")
    workspace.job("next", playing("busy"), seconds=12, priority_class="low")
    workspace.until(
        lambda: measured.gangs(workspace.namespace) == {"Idle": 1.0, "Active": 1.0},
        "one idle and one active gang",
    )
    assert measured.alarms() == {}


def test_on_demand_the_idle_gang_is_evicted_for_one_of_its_priority_and_runs_again(
    measured: MeasuredInstallation,
) -> None:
    with measured.installation.workspace(32) as workspace:
        queue = judged_quickly(
            workspace.namespace, 32, "OnDemand", graceSeconds=GRACE, yieldsToEqualPriority=True
        )
        workspace.rest.apply([queue])
        idle_beside_busy(measured, workspace)
        workspace.until_state("next", "Running")
        (preempted,) = lines(workspace, "idle", "Preempted")
        assert preempted["reason"]["details"]["why"] == "IdleReclaim"
        assert preempted["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        assert counted(measured, workspace)["on_demand"] == 1
        workspace.until(
            lambda: workspace.workload("idle")["attempt"] == 2, "the idle one runs again"
        )
        assert workspace.workload("busy")["attempt"] == 1
        assert lines(workspace, "busy", "IdleGPUs") == []


def test_a_dry_run_evicts_no_gang_and_records_victim_and_preemptor(
    measured: MeasuredInstallation,
) -> None:
    with measured.installation.workspace(32) as workspace:
        queue = judged_quickly(
            workspace.namespace, 32, "DryRun", graceSeconds=GRACE, yieldsToEqualPriority=True
        )
        workspace.rest.apply([queue])
        idle_beside_busy(measured, workspace)
        workspace.until(lambda: lines(workspace, "idle", "WouldReclaim"), "the record")
        workspace.until(
            lambda: "WouldReclaim" in idle_events(workspace, "idle"), "an Event on the job"
        )
        time.sleep(2 * GRACE)  # several cycles and samples, none of which adds a line
        (line,) = lines(workspace, "idle", "WouldReclaim")
        assert (
            f"for {workspace.namespace}/next; this loses less than 0.1 GPU-hours"
            in line["reason"]["message"]
        )
        assert last_warnings(workspace, "idle")
        warned = len(lines(workspace, "idle", "IdleGPUs"))
        assert counted(measured, workspace) == {"warned": warned, "would_reclaim": 1}
        assert [workspace.state(name) for name in ("idle", "busy", "next")] == [
            "Running",
            "Running",
            "Pending",
        ]
        assert workspace.workload("idle")["attempt"] == 1


def test_always_an_idle_gang_is_warned_twice_evicted_and_runs_again(
    measured: MeasuredInstallation,
) -> None:
    with measured.installation.workspace(32) as workspace:
        queue = judged_quickly(
            workspace.namespace, 32, "Always", graceSeconds=2 * GRACE, cooldownSeconds=20
        )
        workspace.rest.apply([queue])
        workspace.job("idle", playing("idle"))
        workspace.until_state("idle", "Backoff")
        first, second = last_warnings(workspace, "idle")
        warned = len(lines(workspace, "idle", "IdleGPUs"))
        (taken,) = lines(workspace, "idle", "IdleReclaimed")
        assert first["at"] < second["at"] < taken["at"]
        assert taken["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        workspace.until(
            lambda: idle_events(workspace, "idle") == ["IdleGPUs"] * warned + ["IdleReclaimed"],
            "the warnings and the eviction as Events",
        )
        assert counted(measured, workspace) == {"warned": warned, "always": 1}
        workspace.until_state("idle", "Running")
        assert workspace.workload("idle")["attempt"] == 2


def test_without_metrics_no_gang_is_evicted_and_cycles_continue(
    measured: MeasuredInstallation,
) -> None:
    with measured.installation.workspace(32) as workspace:
        workspace.rest.apply([judged_quickly(workspace.namespace, 32, "Always", graceSeconds=10)])
        workspace.job("idle", playing("idle"))
        workspace.until(lambda: lines(workspace, "idle", "IdleGPUs"), "a warning")
        measured.prometheus.pause()
        try:
            workspace.until(
                lambda: measured.gangs(workspace.namespace) == {"Unknown": 1.0},
                "nothing to be known",
            )
            assert measured.alarms().keys() == {"unreachable"}
            use = workspace.workload("idle")["use"]
            assert (use["state"], use["utilization"], use["covered"]) == ("Unknown", None, 0.0)
            assert use["message"]
            workspace.job("next", playing("busy"))
            workspace.until_state("next", "Running")
            time.sleep(12)  # longer than the grace
            assert lines(workspace, "idle", "IdleReclaimed") == []
            assert workspace.workload("idle")["attempt"] == 1
            assert workspace.state("idle") == "Running"
        finally:
            measured.prometheus.resume()
        workspace.until(lambda: measured.alarms() == {}, "Prometheus back")

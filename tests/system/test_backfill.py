"""Kueue's dilemma of large gangs on a real control plane, with seconds in place of hours: P16 of the comparison.

A large gang waits behind small ones that have known limits. In a best-effort order each small gang that comes starts before it. With
backfill it has a planned start, and only the small ones that end before it go first.
"""

from __future__ import annotations

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system
ONE = Pods(1, gpus=8)


def submit(workspace: Workspace, name: str, pods: Pods, runs: float, limit: int) -> None:
    """A Job that runs for some seconds, and would be ended at its limit."""
    document = m.job(name, workspace.namespace, "main", pods, seconds=runs)
    document["metadata"]["labels"]["queuectl.dev/max-exec-time-seconds"] = str(limit)
    workspace.submit(document)


def crowd(workspace: Workspace) -> None:
    """Three of four nodes run small gangs, and a gang that needs all four waits. Then come small gangs, short and long."""
    for number in range(3):
        submit(workspace, f"first{number}", ONE, 5, limit=9)
    for number in range(3):
        workspace.until_state(f"first{number}", "Running")
    submit(workspace, "large", Pods(4, gpus=8), 1, limit=30)
    workspace.until_state("large", "Pending")
    submit(workspace, "long", ONE, 8, limit=60)
    submit(workspace, "short", ONE, 0.5, limit=3)


def test_a_large_gang_starves_in_a_best_effort_order(installation: Installation) -> None:
    with installation.workspace(32, strategy="BestEffortFIFO") as workspace:
        crowd(workspace)
        workspace.until_state("first0", "Finished")
        assert workspace.state("long") == "Running"
        assert workspace.state("large") == "Pending", "each small gang that fits starts before it"
        assert workspace.workload("large")["plannedStart"] is None


def test_with_backfill_it_starts_when_it_was_planned_and_short_gangs_go_first(
    installation: Installation,
) -> None:
    with installation.workspace(32, strategy="Backfill") as workspace:
        crowd(workspace)
        workspace.until(lambda: workspace.workload("large")["plannedStart"], "a planned start")
        planned = workspace.workload("large")["plannedStart"]
        first = {f"{workspace.namespace}/first{number}" for number in range(3)}
        assert {each["workload"] for each in planned["awaits"]} <= first
        workspace.until_state("short", "Finished")
        assert workspace.state("large") == "Pending"
        assert workspace.workload("long")["reason"]["code"] == "WouldDelayPlannedStart"
        large = workspace.until_state("large", "Finished")
        assert large["startedAt"] <= planned["at"]
        assert not [e for e in workspace.history("large") if e["event"] == "PlannedStartMoved"]
        workspace.until_state("long", "Running")
        assert workspace.workload("long")["startedAt"] > large["startedAt"]

"""Kueue's dilemma of large gangs on a real control plane, with a minute instead of hours: P16 of the comparison.

A large gang waits behind small ones that have known limits. In a best-effort order each small gang that comes starts before it. With
backfill it has a planned start, and only the small ones that end before it go first.

Each gang but the short one runs until the test deletes it, so that no result depends on the speed of the machine.
"""

from __future__ import annotations

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from tests.system.actions import remove, until_reason
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system
ONE = PodSetManifest(1, gpus=8)
FIRST = [f"first{number}" for number in range(3)]


def submit(
    workspace: Workspace, name: str, pods: PodSetManifest, limit: int, runs: float | None = None
) -> None:
    """A Job that would be ended after ``limit`` seconds. ``runs``: its seconds, None = until it is deleted."""
    document = m.job(name, workspace.namespace, "main", pods, seconds=runs)
    document["metadata"]["labels"]["queuectl.dev/max-exec-time-seconds"] = str(limit)
    workspace.submit(document)


def crowd(workspace: Workspace) -> None:
    """Three of four nodes run small gangs, and a gang that needs all four waits. Then comes a small gang without an early end."""
    for name in FIRST:
        submit(workspace, name, ONE, limit=120)
    for name in FIRST:
        workspace.until_state(name, "Running")
    submit(workspace, "large", PodSetManifest(4, gpus=8), limit=600)
    workspace.until_state("large", "Pending")
    submit(workspace, "long", ONE, limit=600)


def test_a_large_gang_starves_in_a_best_effort_order(installation: Installation) -> None:
    with installation.workspace(32, strategy="BestEffortFIFO") as workspace:
        crowd(workspace)
        workspace.until_state("long", "Running")
        for name in FIRST:
            remove(workspace, name)
            workspace.until_state(name, "Finished")
        assert workspace.state("large") == "Pending", "each small gang that fits starts before it"
        assert workspace.workload("large")["plannedStart"] is None


def test_with_backfill_it_starts_when_it_was_planned_and_short_gangs_go_first(
    installation: Installation,
) -> None:
    with installation.workspace(32, strategy="Backfill") as workspace:
        crowd(workspace)
        submit(workspace, "short", ONE, limit=30, runs=0.5)
        workspace.until(lambda: workspace.workload("large")["plannedStart"], "a planned start")
        planned = workspace.workload("large")["plannedStart"]
        first = {f"{workspace.namespace}/{name}" for name in FIRST}
        assert {each["workload"] for each in planned["awaits"]} <= first
        workspace.until_state("short", "Finished")
        assert workspace.state("large") == "Pending"
        until_reason(workspace, "long", "Pending", "WouldDelayPlannedStart")
        for name in FIRST:
            remove(workspace, name)
        large = workspace.until_state("large", "Running")
        assert large["startedAt"] <= planned["at"]
        assert not [e for e in workspace.history("large") if e["event"] == "PlannedStartMoved"]
        assert workspace.state("long") == "Pending"
        remove(workspace, "large")
        long = workspace.until_state("long", "Running")
        assert long["startedAt"] > large["startedAt"]

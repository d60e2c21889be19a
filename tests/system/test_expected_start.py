"""The expected start of a pending gang on a real control plane, by REST, on the command line and in the timeline."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.objects.keys import MAX_EXECUTION, PREFIX
from tests.system.actions import until_reason
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system


def limited(workspace: Workspace, name: str, seconds: int) -> None:
    """A gang of 16 GPUs with a limit of run time."""
    document = m.job(name, workspace.namespace, "main", PodSetManifest(2, gpus=8))
    document["metadata"]["labels"][PREFIX + MAX_EXECUTION] = str(seconds)
    workspace.submit(document)


def test_a_pending_gang_is_expected_to_start_by_the_limit_of_the_running_one(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace:
        limited(workspace, "first", 3600)
        workspace.until_state("first", "Running")
        limited(workspace, "second", 600)
        limited(workspace, "third", 600)
        until_reason(workspace, "third", "Pending", "WaitingForQuota")
        workspace.until(
            lambda: workspace.workload("third")["expectedStart"], "the third gang has an estimate"
        )
        began = datetime.fromisoformat(workspace.workload("first")["startedAt"])

        def after(start: dict[str, Any]) -> list[int]:
            times = (start["median"], start["p90"])
            return [round((datetime.fromisoformat(at) - began).total_seconds()) for at in times]

        second = after(workspace.workload("second")["expectedStart"])
        explained = workspace.rest.explain(workspace.namespace, "third")
        third = after(explained["expectedStart"])
        # Jobs of other tests were shorter than their limits, so these can be expected to be: a limit is the latest end.
        assert 0 < second[0] <= second[1] <= 3600
        assert second[0] < third[0] <= third[1] <= 4200
        server = ["--server", workspace.installation.controller.api]
        shown = CliRunner().invoke(
            app, ["explain", "third", "-n", workspace.namespace, *server], catch_exceptions=False
        )
        assert "Expected: start in about" in shown.output
        assert "with a probability of 90%" in shown.output

"""GPU use of gangs, measured by a real Prometheus on a real control plane, and the decisions that follow from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo.api_connection import ApiConnection
from queuectl.localcluster.gpus import GpuPod, parse_profile
from queuectl.planner.preempt.cost import RESTART_COST
from tests.support.controllers import CheckedController
from tests.system.installation import QUICK, Workspace
from tests.system.measured import PODS_JOB, MeasuredInstallation, judged_quickly, playing
from tests.system.transcript import Page, shell

pytestmark = pytest.mark.system


@contextmanager
def beside(workspace: Workspace) -> Iterator[Workspace]:
    """The workspace as a standby replica shows it. The replica reads no metrics, because it has no source of them."""
    installation = workspace.installation
    (folder,) = (installation.controller.home / "queuectl").glob("pg*")
    url = {"QUEUECTL_DATABASE_URL": EmbeddedServer(folder).url()}
    controller = CheckedController.start(installation.cluster, QUICK | url, replica="-second")
    try:
        controller.wait_ready()
        with ApiConnection(controller.api) as rest:
            yield replace(
                workspace, installation=replace(installation, controller=controller, rest=rest)
            )
    finally:
        controller.stop()


def uses(workspace: Workspace) -> dict[str, Any]:
    """The GPU use of its gangs, by name."""
    return {name: one["use"] for name, one in workspace.workloads().items()}


def states(workspace: Workspace) -> dict[str, Any]:
    """The state of use of each gang, and its start."""
    return {name: use and (use["state"], use["since"]) for name, use in uses(workspace).items()}


def is_idle(workspace: Workspace, name: str) -> bool:
    use = uses(workspace)[name]
    return use is not None and use["state"] == "Idle"


def test_of_two_gangs_the_idle_one_is_evicted_and_runs_again_later(
    measured: MeasuredInstallation,
) -> None:
    with measured.installation.workspace(32) as workspace:
        workspace.rest.apply([judged_quickly(workspace.namespace, 32)])
        # The idle one has run longer: counted as if it worked, it would lose more.
        workspace.job("idle", playing("idle"), priority_class="low")
        workspace.until_state("idle", "Running")
        workspace.job("busy", playing("busy"), priority_class="low")
        workspace.until_state("busy", "Running")
        workspace.until(
            lambda: measured.gangs(workspace.namespace) == {"Idle": 1.0, "Active": 1.0},
            "one idle and one active gang",
        )
        assert measured.alarms() == {}
        assert f"{workspace.namespace}/idle" in dict(measured.called_idle())
        seen = uses(workspace)
        assert {name: use["state"] for name, use in seen.items()} == {
            "idle": "Idle",
            "busy": "Active",
        }
        assert seen["idle"]["utilization"] < 0.02 < 0.5 < seen["busy"]["utilization"]
        with beside(workspace) as standby:
            workspace.until(lambda: states(standby) == states(workspace), "both say the same")
        with shell({"QUEUECTL_SERVER": measured.installation.controller.api}) as typed:
            page = Page("utilization.md", typed)
            idle = {"team-b/idle-64": f"{workspace.namespace}/idle"}
            # On a busy machine, the other one has possibly led for a while, or a sample is late: the use is unknown for a few seconds.
            page.type("queuectl explain", instead=idle, within=30)
            page.end()
        workspace.job("urgent", playing("busy for 20; idle"), seconds=12, priority_class="high")
        workspace.until_state("urgent", "Running")
        assert workspace.state("busy") == "Running"
        assert workspace.state("idle") != "Running"
        (preempted,) = (line for line in workspace.history("idle") if line["event"] == "Preempted")
        assert preempted["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        workspace.until_state("idle", "Running")
        assert workspace.workload("busy")["attempt"] == 1


def test_a_tenant_who_exports_series_of_another_tenants_pods_does_not_make_them_idle(
    measured: MeasuredInstallation,
) -> None:
    """The exporter of the victim's nodes has lost whose the GPUs are: only the forged series exist."""
    with measured.installation.workspace(32) as workspace:
        workspace.rest.apply([judged_quickly(workspace.namespace, 32)])
        workspace.job("victim", playing("unseen"))
        workspace.until_state("victim", "Running")
        workspace.until(
            lambda: len(pods_of(measured, workspace)) == 2, "its exporters know both pods"
        )
        for load in pods_of(measured, workspace):
            measured.forger.put(replace(load, profile=parse_profile("idle")))
        # Whatever is believed of the victim is believed before a gang that starts now is idle.
        workspace.job("idle", playing("idle"))
        workspace.until_state("idle", "Running")
        workspace.until(lambda: is_idle(workspace, "idle"), "the other one is idle")
        assert uses(workspace)["victim"]["state"] == "Unknown"
    text = measured.installation.controller.log.read_text(errors="replace")
    said = [json.loads(line) for line in text.splitlines() if "utilization_untrusted_jobs" in line]
    assert said[0]["jobs"] == [PODS_JOB]
    assert "dcgm-exporter" in said[0]["trusts"]


def pods_of(measured: MeasuredInstallation, workspace: Workspace) -> list[GpuPod]:
    """The GPUs of the victim's pods."""
    return [
        load
        for (namespace, pod), load in measured.exporters.ever.items()
        if namespace == workspace.namespace and pod.startswith("victim-")
    ]

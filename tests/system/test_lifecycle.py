"""Holds, drains, timeouts and limits on a real control plane, with the controller killed on the way.

Each test names the moments at which the controller is killed by SIGKILL: `make test-faults` uses all of them, and `make test` two. Every workspace is audited when it ends: all pods of a gang start or none, no node is overcommitted, and no gang starts twice.
"""

from __future__ import annotations

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from tests.system.actions import (
    configured,
    reason,
    remove,
    restart_controller,
    restart_in_test_faults,
    run_command,
    stop_queue,
    until_empty,
    until_reason,
)
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.kills]
KINDS = pytest.mark.parametrize(
    "kind", ["Job", pytest.param("PyTorchJob", marks=pytest.mark.faults)]
)


@KINDS
def test_a_gang_is_held_and_released_while_the_controller_is_killed(
    installation: Installation, kind: str
) -> None:
    with installation.workspace(32) as workspace:
        workspace.gang(kind, "train", 4)
        workspace.until_state("train", "Running")
        run_command(workspace, "train", "hold")
        restart_controller(workspace)
        workspace.until_state("train", "Held")
        until_empty(workspace, "train")
        assert workspace.workload("train")["reason"]["message"] == "held by alice"
        restart_in_test_faults(workspace)
        workspace.gang(kind, "other", 4, seconds=2)
        workspace.until_state("other", "Finished")
        assert workspace.state("train") == "Held", "only a user releases it"
        run_command(workspace, "train", "release")
        restart_in_test_faults(workspace)
        again = workspace.until_state("train", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)
        messages = [line["reason"]["message"] for line in workspace.history("train")]
        assert (messages.count("held by alice"), messages.count("released by alice")) == (2, 1)


def test_a_drained_queue_resumes_in_order(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        for name, kind in zip(
            ("first", "second", "third"), ("PyTorchJob", "Job", "PyTorchJob"), strict=True
        ):
            workspace.gang(kind, name, 4)
            workspace.until_state(name, "Running" if name == "first" else "Pending")
        stop_queue(workspace, 32, "HoldAndDrain")
        restart_in_test_faults(workspace)
        for name in ("first", "second", "third"):
            until_reason(workspace, name, "Pending", "ClusterQueueStopped")
        until_empty(workspace, "first")
        restart_in_test_faults(workspace)
        until_reason(workspace, "second", "Pending", "ClusterQueueStopped")
        stop_queue(workspace, 32, "None")
        restart_in_test_faults(workspace)
        for name, follower in (("first", "second"), ("second", "third")):
            workspace.until_state(name, "Running")
            assert workspace.state(follower) == "Pending"
            remove(workspace, name)
        workspace.until_state("third", "Running")
        assert [workspace.workload(n)["attempt"] for n in ("first", "second", "third")] == [2, 1, 1]


def test_running_gangs_of_a_stopped_queue_continue(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.job("runs", PodSetManifest(4, gpus=8), seconds=6)
        workspace.until_state("runs", "Running")
        stop_queue(workspace, 32, "Hold")
        workspace.job("waits", PodSetManifest(1, gpus=8), seconds=1)
        until_reason(workspace, "waits", "Pending", "ClusterQueueStopped")
        restart_in_test_faults(workspace)
        workspace.until_state("runs", "Finished")
        assert workspace.workload("runs")["attempt"] == 1
        assert reason(workspace, "waits") == ("Pending", "ClusterQueueStopped")
        stop_queue(workspace, 32, "None")
        workspace.until_state("waits", "Finished")


@KINDS
def test_a_gang_is_stopped_when_it_has_run_too_long(installation: Installation, kind: str) -> None:
    with installation.workspace(32) as workspace:
        workspace.gang(kind, "other", 4)
        workspace.until_state("other", "Running")
        pods = PodSetManifest(4, gpus=8)
        document = (
            m.job("long", workspace.namespace, "main", pods)
            if kind == "Job"
            else m.pytorchjob(
                "long",
                workspace.namespace,
                "main",
                master=PodSetManifest(1, gpus=8),
                worker=PodSetManifest(3, gpus=8),
            )
        )
        document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "4"
        workspace.submit(document)
        workspace.until_state("long", "Pending")
        run_command(workspace, "other", "hold")
        workspace.until(lambda: workspace.workload("long").get("attempt") == 1, "it has started")
        restart_in_test_faults(workspace)
        until_reason(workspace, "long", "Deactivated", "MaximumExecutionTimeExceeded")
        assert not [p for p in workspace.pods("long") if not p.terminal]
        workspace.until(
            lambda: (
                "MaximumExecutionTimeExceeded" in {code for code, _ in workspace.events("long")}
            ),
            "an Event",
        )
        restart_in_test_faults(workspace)
        until_reason(workspace, "long", "Deactivated", "MaximumExecutionTimeExceeded")


@KINDS
def test_a_victim_gets_notice_before_its_eviction(installation: Installation, kind: str) -> None:
    with (
        installation.workspace(32) as workspace,
        configured(workspace, queuectl={"evictionGrace": "1h"}),
    ):
        workspace.gang(kind, "low", 4, priority_class="low")
        workspace.until_state("low", "Running")
        path = workspace.made[-1]
        workspace.gang(kind, "high", 4, priority_class="high", seconds=2)

        def requested() -> str | None:
            annotations = workspace.client.get(path)["metadata"].get("annotations", {})
            found: str | None = annotations.get("queuectl.dev/preempt-requested")
            return found

        workspace.until(requested, "the request to save")
        first = requested()
        restart_controller(workspace)
        workspace.until_state("high", "Reserved")
        assert requested() == first, "the deadline outlives the controller"
        assert len(workspace.running("low")) == 4
        ready = {"metadata": {"annotations": {"queuectl.dev/preempt-ready": "true"}}}
        workspace.client.patch(path, ready)
        restart_in_test_faults(workspace)
        workspace.until_state("high", "Finished")
        workspace.until_state("low", "Running")
        assert requested() is None

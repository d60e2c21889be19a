"""``queuectl explain`` answers the frequent questions of docs/how-to/why.md on a real control plane, and the fix that it suggests
starts the gang.
"""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from tests.system.actions import apply, remove, until_reason
from tests.system.installation import BLOCK, RACK, Installation, Workspace

pytestmark = pytest.mark.system


def explained(workspace: Workspace, name: str, code: str) -> str:
    """The output of ``queuectl explain`` for a pending gang with this reason."""
    until_reason(workspace, name, "Pending", code)
    server = workspace.installation.controller.api
    command = ["explain", f"{workspace.namespace}/{name}", "--server", server]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    print(result.output)
    return " ".join(result.output.split())


def on(document: Document, **labels: str) -> Document:
    """The job with a node selector."""
    document["spec"]["template"]["spec"]["nodeSelector"] = labels
    return document


def job(workspace: Workspace, name: str, pods: PodSetManifest, **options: Any) -> Document:
    return m.job(name, workspace.namespace, pods=pods, **{"queue": "main", **options})


def again(workspace: Workspace, name: str, document: Document) -> None:
    """Delete a job and create it with a change, as its owner does."""
    remove(workspace, name)
    workspace.until(lambda: not workspace.pods(name), f"{name} has no pod")
    workspace.submit(document)
    workspace.until_state(name, "Running")


def test_more_quota_starts_a_gang_that_waits_for_quota(installation: Installation) -> None:
    with installation.workspace(16) as workspace:
        workspace.job("first", PodSetManifest(2, gpus=8))
        workspace.until_state("first", "Running")
        workspace.job("second", PodSetManifest(1, gpus=8))
        shown = explained(workspace, "second", "WaitingForQuota")
        queue = workspace.namespace
        assert "8 requested, 16 of nominal quota 16 in use" in shown
        assert f"add 8 {GPU} of flavor gpu to the nominal quota of ClusterQueue {queue}" in shown
        more = m.cluster_queue(queue, "gpu", {GPU: 24, "cpu": "1M", "memory": "1P"})
        apply(workspace, more)
        workspace.until_state("second", "Running")


def test_a_coarser_level_starts_a_gang_that_no_rack_has_room_for(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        for rack in ("b0-r0", "b0-r1", "b1-r0", "b1-r1"):
            workspace.submit(
                on(job(workspace, f"in-{rack}", PodSetManifest(1, gpus=8)), **{RACK: rack})
            )
            workspace.until_state(f"in-{rack}", "Running")
        workspace.job("wide", PodSetManifest(4, gpus=8, required=RACK))
        shown = explained(workspace, "wide", "TopologyPlacementFailed")
        assert "at most 3 of 4 fit" in shown
        assert "request one block instead of one rack" in shown
        again(workspace, "wide", job(workspace, "wide", PodSetManifest(4, gpus=8, required=BLOCK)))


def test_a_node_in_use_again_starts_a_gang_that_waits_for_it(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        path = "/api/v1/nodes/b0-r0-h0"
        workspace.client.patch(path, {"spec": {"unschedulable": True}})
        try:
            workspace.until(
                lambda: workspace.client.get(path)["spec"].get("taints"), "the time of the cordon"
            )
            workspace.submit(
                on(job(workspace, "all", PodSetManifest(4, gpus=8)), **{RACK: "b0-r0"})
            )
            shown = explained(workspace, "all", "TopologyPlacementFailed")
            assert "it waits for b0-r0-h0 (cordoned since" in shown
            assert "repair or uncordon 1 node: b0-r0-h0 (cordoned since" in shown
        finally:
            workspace.client.patch(path, {"spec": {"unschedulable": None}})
        workspace.until_state("all", "Running")


def test_the_reason_of_a_gang_with_free_gpus_names_the_resource_that_the_nodes_lack(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        plain = job(workspace, "plain", PodSetManifest(4, cpu="90"), queue=None)
        workspace.submit(on(plain, **{RACK: "b0-r0"}))
        workspace.until(lambda: len(workspace.running("plain")) == 4, "the plain pods run")
        gang = on(job(workspace, "train", PodSetManifest(1, gpus=8, cpu="16")), **{RACK: "b0-r0"})
        workspace.submit(gang)
        shown = explained(workspace, "train", "TopologyPlacementFailed")
        assert "4 nodes lack cpu (at most 6 free; pods without a queue hold 360 of 384)" in shown
        assert f"remove the node selector {RACK}=b0-r0" in shown
        again(workspace, "train", job(workspace, "train", PodSetManifest(1, gpus=8, cpu="16")))


def test_without_the_rule_that_explain_names_a_gang_that_never_fits_starts(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        workspace.submit(on(job(workspace, "picky", PodSetManifest(1, gpus=8)), gpu="a100"))
        shown = explained(workspace, "picky", "ShapeNeverFits")
        assert "node selector gpu=a100 leaves 0 of 16 nodes eligible" in shown
        assert "remove the node selector gpu=a100" in shown
        again(workspace, "picky", job(workspace, "picky", PodSetManifest(1, gpus=8)))


def test_a_higher_priority_starts_a_gang_that_waits_in_order(installation: Installation) -> None:
    with installation.workspace(16, strategy="StrictFIFO") as workspace:
        workspace.job("first", PodSetManifest(1, gpus=8))
        workspace.until_state("first", "Running")
        workspace.job("head", PodSetManifest(2, gpus=8))
        explained(workspace, "head", "WaitingForQuota")
        workspace.job("small", PodSetManifest(1, gpus=8))
        shown = explained(workspace, "small", "WaitingInOrder")
        assert f"it waits behind {workspace.namespace}/head" in shown
        assert "raise the priority to 1 or more, to come before" in shown
        small = job(workspace, "small", PodSetManifest(1, gpus=8), priority_class="low")
        again(workspace, "small", small)

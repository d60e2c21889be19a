"""A cloud announces the end of a node, by a taint or a condition, on a real control plane: the gang saves its work and moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster.client import Client
from tests.system.actions import configured
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system

TAINT = {"key": "example.com/leaving", "effect": "NoSchedule"}
CONDITION = "VMEventScheduled"


@pytest.fixture
def workspace(installation: Installation) -> Iterator[Workspace]:
    with installation.workspace(32) as one:
        own = {
            "evictionGrace": "2s",
            "interruptionTaints": [TAINT["key"]],
            "interruptionConditions": {CONDITION: "True"},
        }
        with configured(one, queuectl=own):
            yield one


@pytest.mark.parametrize("by", ["taint", "condition"])
def test_a_gang_leaves_a_node_whose_end_is_announced(workspace: Workspace, by: str) -> None:
    workspace.job("train", PodSetManifest(2, gpus=8))
    workspace.until_state("train", "Running")
    leaving = str(workspace.running("train")[0].node)
    announce(workspace.client, leaving, by)
    try:
        workspace.until(lambda: workspace.workload("train").get("attempt") == 2, "it starts again")
        workspace.until_state("train", "Running")
        assert leaving not in {pod.node for pod in workspace.running("train")}
        lines = [line for line in workspace.history("train") if line["event"] == "NodeInterrupted"]
        assert len(lines) == 1
        text = TAINT["key"] if by == "taint" else f"{CONDITION}=True"
        assert f"{leaving}: {by} {text}" in str(lines[0])
    finally:
        withdraw(workspace.client, leaving, by)
    workspace.audit()


def announce(client: Client, node: str, by: str) -> None:
    """Set what an agent of the cloud sets."""
    if by == "taint":
        client.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [TAINT]}})
    else:
        set_conditions(client, node, [{"type": CONDITION, "status": "True", "reason": "Preempt"}])


def withdraw(client: Client, node: str, by: str) -> None:
    if by == "taint":
        client.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": []}})
    else:
        set_conditions(client, node, [])


def set_conditions(client: Client, node: str, added: list[dict[str, str]]) -> None:
    path = f"/api/v1/nodes/{node}"
    present = client.get(path)["status"].get("conditions") or []
    others = [one for one in present if one["type"] != CONDITION]
    client.patch(f"{path}/status", {"status": {"conditions": [*others, *added]}})

"""The pages show the quota that the planner uses."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration.queue_config import build
from queuectl.planner.cache import PlannerCache
from queuectl.reports.quotas import quotas_of


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}


def queue(name: str, headroom: str) -> dict[str, Any]:
    """A ClusterQueue whose quota follows the nodes."""
    quota = {"name": GPU, "nominalQuota": 100}
    group = {
        "coveredResources": [GPU],
        "flavors": [{"name": "h100", "resources": [quota]}],
    }
    policy = {"quotaFromNodes": {"headroom": headroom}}
    return document("ClusterQueue", name, {"resourceGroups": [group], "policy": policy})


@pytest.mark.parametrize(("name", "nominal"), [("near", 72), ("far", 40)])
def test_each_queue_keeps_its_own_headroom_once(name: str, nominal: int):
    """There are 160 GPUs, of which each is due a half; the snapshot has the quota of the nodes already."""
    flavor = document("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}})
    stated = build([flavor, queue("near", "10%"), queue("far", "50%")], 1)
    names = [f"node-{number:02}" for number in range(20)]
    offered = Resources({GPU: 8, PODS: 110})
    nodes = Fleet(tuple(Node(n, {HOSTNAME: n, "gpu": "h100"}, offered) for n in names))
    snapshot = Snapshot(0.0, nodes, quota_from_nodes(stated, nodes))
    quotas = quotas_of(stated, snapshot, PlannerCache())
    (bar,) = quotas.of_queue(quotas.config.cluster_queues[name])
    assert (bar.nominal, bar.left) == (nominal, nominal)

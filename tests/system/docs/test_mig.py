"""The page on MIG works as written: a gang starts on the instances of the node that queuectl suggests to reconfigure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from queuectl.localcluster import NodeSpec
from queuectl.localcluster.nodes import Nodes
from tests.system.demo_cluster import DemoCluster
from tests.system.mig_manager import CONFIG, mig_manager
from tests.system.transcript import ROOT, Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.gpus, pytest.mark.timeout(300)]

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
OFFERS = {"all-disabled": {GPU: 8}, "all-1g.10gb": {SMALL: 56}, "half-1g.10gb": {GPU: 4, SMALL: 28}}
LABELS = {"pool": "h100", "nvidia.com/mig.strategy": "mixed", CONFIG: "all-disabled"}


def example(*kinds: str) -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "examples" / "mig.yaml").read_text()
    return [one for one in yaml.safe_load_all(text) if one["kind"] in kinds]


def job(name: str, pods: int, resource: str, amount: int) -> dict[str, Any]:
    """Like the Job of the example."""
    (document,) = example("Job")
    document["metadata"] = {**document["metadata"], "name": name, "creationTimestamp": None}
    spec = document["spec"]
    spec |= {"parallelism": pods, "completions": pods}
    container = spec["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {resource: amount}, "limits": {resource: amount}}
    return document


@pytest.fixture
def nodes(demo_cluster: DemoCluster) -> Iterator[list[str]]:
    """Two nodes that a MIG manager can reconfigure."""
    cluster = demo_cluster.installation.cluster
    spec = NodeSpec(
        racks_per_block=1, hosts_per_rack=2, prefix="mig-", labels=tuple(LABELS.items())
    )
    made = Nodes(cluster.client).create(spec)
    with mig_manager(cluster.client, OFFERS):
        yield made
        demo_cluster.clear()
    for name in made:
        cluster.nodes.delete(name)


def test_the_page_on_the_reconfiguration_of_mig(
    demo_cluster: DemoCluster, nodes: list[str], shell: Shell
) -> None:
    cluster, rest = demo_cluster.installation.cluster, demo_cluster.installation.rest
    rest.apply(example("ResourceFlavor", "Topology", "ClusterQueue", "LocalQueue"))
    for name, other in zip(nodes, nodes[::-1], strict=True):
        cluster.nodes.cordon(other)
        demo_cluster.create(job(f"tune-{name}", 1, GPU, 4))
        demo_cluster.runs(f"team-a/tune-{name}")
        cluster.nodes.uncordon(other)
    demo_cluster.create(job("notebooks", 20, SMALL, 1))
    demo_cluster.waits("team-a/notebooks", "ShapeNeverFits")
    page = Page("reconfigure-mig.md", shell)
    for _ in range(2):
        page.type("queuectl plan -f docs/examples/mig.yaml")
    page.type("sed")
    page.type("queuectl plan -f fixed.yaml")
    chosen = suggested(shell)
    for begins in (
        "kubectl cordon",
        "queuectl drain",
        "kubectl label",
        "kubectl wait",
        "kubectl uncordon",
    ):
        page.type(begins, instead={"gpu-2": chosen})
    page.end()
    demo_cluster.runs("team-a/notebooks", *(f"team-a/tune-{name}" for name in nodes))
    pods = cluster.client.get("/api/v1/namespaces/team-a/pods")["items"]
    placed = [p["spec"]["nodeName"] for p in pods if p["metadata"]["name"].startswith("notebooks-")]
    assert placed == [chosen] * 20


def suggested(shell: Shell) -> str:
    """The node of the suggested fix."""
    status, printed = shell.type("queuectl explain team-a/notebooks -o json")
    assert status == 0, shell.errors
    (fix,) = [f for f in json.loads(printed)["suggestedFixes"] if f["code"] == "ReconfigureMIG"]
    ((node,), (gang,)) = fix["details"]["nodes"], fix["details"]["gangs"]
    assert (node["from"], node["to"]) == ("all-disabled", "half-1g.10gb")
    assert gang["workload"] == f"team-a/tune-{node['node']}"
    return str(node["node"])

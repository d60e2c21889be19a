"""The page on MIG works as written: a gang starts on the instances of the node that is reconfigured for it, by hand or by queuectl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from queuectl.cluster.apply import optional
from queuectl.domain.mig import ANNOTATION
from queuectl.localcluster import LocalCluster, NodeSpec
from queuectl.localcluster.nodes import Nodes
from tests.support.codeblocks import code
from tests.support.pages import PAGES
from tests.system.demo_cluster import DemoCluster
from tests.system.mig_manager import CONFIG, STATE, MigManager, mig_manager
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


@dataclass(frozen=True)
class MigNodes:
    """Two nodes that a MIG manager can reconfigure."""

    names: list[str]
    manager: MigManager
    cluster: LocalCluster

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.client.get(f"/api/v1/nodes/{name}")
        return found

    def phase(self, name: str) -> str:
        """The phase of the change in the annotation; empty without one."""
        text = self.read(name)["metadata"].get("annotations", {}).get(ANNOTATION)
        return str(json.loads(text)["phase"]) if text is not None else ""

    def phases(self) -> set[str]:
        return set(map(self.phase, self.names)) - {""}


@pytest.fixture
def nodes(demo_cluster: DemoCluster) -> Iterator[MigNodes]:
    cluster = demo_cluster.installation.cluster
    spec = NodeSpec(
        racks_per_block=1, hosts_per_rack=2, prefix="mig-", labels=tuple(LABELS.items())
    )
    made = Nodes(cluster.client).create(spec)
    with mig_manager(cluster.client, OFFERS) as manager:
        yield MigNodes(made, manager, cluster)
        demo_cluster.clear()
    for name in made:
        cluster.nodes.delete(name)


@pytest.fixture
def opt_in(demo_cluster: DemoCluster) -> Iterator[None]:
    """queuectl can change nodes."""
    client, documents = demo_cluster.installation.cluster.client, optional("mig-reconfiguration")
    client.apply(*documents)
    yield
    for document in documents:
        client.delete(client.path_of(document))


def configuration() -> list[dict[str, Any]]:
    """The example, with the flavor and the ClusterQueue of the page that let queuectl carry out the change."""
    (block,) = [b for b in code(PAGES["reconfigure-mig.md"].read_text()) if "Execute" in b]
    return [*example("Topology", "LocalQueue"), *yaml.safe_load_all(block)]


@pytest.mark.usefixtures("opt_in")
def test_the_page_on_the_reconfiguration_of_mig(
    demo_cluster: DemoCluster, nodes: MigNodes, shell: Shell
) -> None:
    page = Page("reconfigure-mig.md", shell)
    chosen = by_hand(demo_cluster, nodes, page)
    (other,) = set(nodes.names) - {chosen}
    demo_cluster.remove("team-a", f"tune-{other}")
    nodes.manager.paused.set()
    demo_cluster.installation.rest.apply(configuration())
    demo_cluster.create(job("more", 20, SMALL, 1))
    demo_cluster.until(lambda: nodes.phase(other) == "Applying", "the gang has left the node")
    demo_cluster.runs(f"team-a/tune-{chosen}")
    page.type("queuectl explain")
    page.type("queuectl get nodes")
    page.end()
    nodes.manager.paused.clear()
    demo_cluster.runs("team-a/more", "team-a/notebooks")
    assert nodes.phase(other) == "Succeeded"
    assert "unschedulable" not in nodes.read(other)["spec"]
    assert nodes.read(other)["metadata"]["labels"][CONFIG] == "half-1g.10gb"


@pytest.mark.usefixtures("opt_in")
def test_a_change_that_the_mig_manager_does_not_apply_is_rolled_back(
    demo_cluster: DemoCluster, nodes: MigNodes, shell: Shell
) -> None:
    nodes.manager.offers = {"all-disabled": OFFERS["all-disabled"]}
    demo_cluster.installation.rest.apply(configuration())
    demo_cluster.create(job("notebooks", 20, SMALL, 1))
    demo_cluster.until(lambda: nodes.phases() == {"Failed"}, "the change is rolled back")
    (name,) = filter(nodes.phase, nodes.names)
    labels = nodes.read(name)["metadata"]["labels"]
    assert (labels[CONFIG], labels[STATE]) == ("all-disabled", "success")
    assert "unschedulable" not in nodes.read(name)["spec"]
    sentence = (
        f"the MIG manager did not apply half-1g.10gb on node {name}, which has all-disabled again"
    )
    _, printed = shell.type("queuectl explain team-a/notebooks")
    assert sentence in printed
    events = "/apis/events.k8s.io/v1/namespaces/team-a/events"
    reported = [
        (event["type"], event["note"])
        for event in nodes.cluster.client.get(events)["items"]
        if event["reason"] == "MIGReconfiguration"
    ]
    assert ("Warning", sentence) in reported


def by_hand(demo_cluster: DemoCluster, nodes: MigNodes, page: Page) -> str:
    """The steps of a person. Returns the node that is changed."""
    cluster, rest, shell = nodes.cluster, demo_cluster.installation.rest, page.shell
    rest.apply(example("ResourceFlavor", "Topology", "ClusterQueue", "LocalQueue"))
    for name, other in zip(nodes.names, nodes.names[::-1], strict=True):
        cluster.nodes.cordon(other)
        demo_cluster.create(job(f"tune-{name}", 1, GPU, 4))
        demo_cluster.runs(f"team-a/tune-{name}")
        cluster.nodes.uncordon(other)
    demo_cluster.create(job("notebooks", 20, SMALL, 1))
    demo_cluster.waits("team-a/notebooks", "ShapeNeverFits")
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
    demo_cluster.runs("team-a/notebooks", *(f"team-a/tune-{name}" for name in nodes.names))
    pods = cluster.client.get("/api/v1/namespaces/team-a/pods")["items"]
    placed = [p["spec"]["nodeName"] for p in pods if p["metadata"]["name"].startswith("notebooks-")]
    assert placed == [chosen] * 20
    return chosen


def suggested(shell: Shell) -> str:
    """The node of the suggested fix."""
    status, printed = shell.type("queuectl explain team-a/notebooks -o json")
    assert status == 0, shell.errors
    (fix,) = [f for f in json.loads(printed)["suggestedFixes"] if f["code"] == "ReconfigureMIG"]
    ((node,), (gang,)) = fix["details"]["nodes"], fix["details"]["gangs"]
    assert (node["from"], node["to"]) == ("all-disabled", "half-1g.10gb")
    assert gang["workload"] == f"team-a/tune-{node['node']}"
    return str(node["node"])

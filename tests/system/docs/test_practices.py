"""The commands of the guides for the GPU Operator, PriorityClasses, ResourceQuotas, taints and OpenCost work as written."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import Document, configuration
from tests.system.demo_cluster import DemoCluster, whole
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]


def test_the_page_on_labels_of_the_gpu_operator(shell: Shell) -> None:
    page = Page("gpu-operator.md", shell)
    page.type("queuectl plan")
    page.type("sed")
    page.type("queuectl plan")
    page.end()


def test_the_page_on_simulations(demo_cluster: DemoCluster, shell: Shell) -> None:
    ran(demo_cluster)
    page = Page("simulate.md", shell)
    for _ in range(3):
        page.type("queuectl simulate")
    page.type("sed")
    page.type("queuectl simulate")
    page.type("printf")
    page.type("queuectl simulate")
    assert "team-a/training" in page.type("queuectl simulate --live")
    page.write("extra-nodes.yaml")
    assert "Backfill" in page.type("queuectl simulate --live")
    page.type("queuectl trace")
    assert "team-a/training" in (shell.folder / "trace.csv").read_text()
    page.type("queuectl trace")
    page.write("maintenance.yaml")
    page.type("queuectl simulate")
    page.end()


def test_the_page_on_advice(demo_cluster: DemoCluster, shell: Shell) -> None:
    ran(demo_cluster)
    page = Page("advise.md", shell)
    for _ in range(3):
        page.type("queuectl advise")
    page.type("queuectl advise")
    page.type("queuectl config diff", status=4)
    page.type("queuectl apply")
    page.end()


def ran(cluster: DemoCluster) -> None:
    """Three gangs of different sizes run in the queues of the demo."""
    cluster.installation.rest.apply(configuration())
    for name, nodes in (("big", 4), ("small", 1), ("other", 2)):
        cluster.submit("team-a", name, whole(nodes))
        cluster.runs(f"team-a/{name}")


def test_the_page_on_budgets(demo_cluster: DemoCluster, shell: Shell) -> None:
    """A Budget of no GPU-hours holds a gang until its top-up."""
    demo_cluster.installation.rest.apply(configuration())
    page = Page("budgets.md", shell)
    page.write("budget.yaml")
    shell.type("sed -i 's/gpuHoursPerMonth: 1000/gpuHoursPerMonth: 0/' budget.yaml")
    page.type("queuectl apply -f budget.yaml")
    page.type("queuectl get budgets")
    demo_cluster.submit("team-a", "paper", whole(1))
    demo_cluster.waits("team-a/paper", "BudgetSpent")
    page.type("queuectl topup")
    demo_cluster.runs("team-a/paper")
    page.type("queuectl topup")
    assert "paper deadline" in page.type("queuectl get budgettopups")
    assert "top up Budget team-a" in page.type("queuectl audit")
    assert "team-a" in page.type("queuectl report budgets", shows=False)  # of a budget of 0
    page.end()


def test_the_page_on_opencost(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("opencost.md", shell)
    page.type("cat")
    page.type("queuectl config prices")
    page.type("queuectl config prices")
    page.type("queuectl report cost")
    page.end("curl")  # of a server of OpenCost


def test_the_page_on_priority_classes(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("priorities.md", shell)
    page.write("research.yaml")
    page.type("kubectl apply")
    try:
        page.type("sed")
        demo_cluster.runs("team-a/train")
        page.type("queuectl get workloads")
        page.type("kubectl get job")
        page.type("sed")
        demo_cluster.runs("team-a/both")
        page.type("queuectl get workloads")
        page.type("kubectl delete job")
    finally:
        page.type("kubectl delete -f")
    page.end()


def test_the_page_on_quotas_of_namespaces(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("namespace-quotas.md", shell)
    page.write("defaults.yaml")
    page.write("quota.yaml")
    try:
        page.type("kubectl apply")
        page.type("sed")
        demo_cluster.runs("team-a/train")
        page.type("kubectl get pods")
        page.type("kubectl apply")
        page.type("sed")
        demo_cluster.waits("team-a/second", "ResourceQuotaExceeded")
        page.type("queuectl explain")
        page.type("kubectl patch")
        demo_cluster.runs("team-a/second")
        page.type("kubectl delete job")
    finally:
        page.type("kubectl delete -f")
    page.end()


def test_the_page_on_taints(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(configuration())
    page = Page("taints.md", shell)
    page.type("kubectl taint")
    try:
        page.write("flavor.yaml")
        page.type("queuectl apply")
        page.type("kubectl create")
        demo_cluster.runs("team-a/train")
        page.type("kubectl get pods")
        page.type("kubectl delete")
        page.type("kubectl label")
        page.type("kubectl taint")
        page.write("vision.yaml")
        page.type("queuectl apply")
        page.type("sed")
        demo_cluster.runs("team-b/train")
        page.type("queuectl explain")
        page.type("kubectl delete")
        page.type("queuectl delete")
        page.type("queuectl apply")
    finally:
        page.type("kubectl taint")
        page.type("kubectl label")
    page.end()


def test_the_page_on_admission_checks(demo_cluster: DemoCluster, shell: Shell) -> None:
    page = Page("admission-checks.md", shell)
    page.write("budget-check.yaml")
    page.type("queuectl apply -f budget-check.yaml")
    demo_cluster.installation.rest.apply(with_check("team-a", "budget-approval"))
    demo_cluster.submit("team-a", "train", whole(1))
    demo_cluster.waits("team-a/train", "WaitingForAdmissionChecks")
    page.type("queuectl check team-a/train")
    demo_cluster.runs("team-a/train")
    page.end()


def with_check(queue: str, check: str) -> list[Document]:
    """The configuration of the demo, with an admission check of one ClusterQueue."""
    documents = configuration()
    for document in documents:
        if document["kind"] == "ClusterQueue" and document["metadata"]["name"] == queue:
            rules = [{"name": check}]
            document["spec"]["admissionChecksStrategy"] = {"admissionChecks": rules}
    return documents

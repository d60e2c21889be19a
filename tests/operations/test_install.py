"""Helm installs the chart in a real control plane, with the commands of docs/how-to/install.md. queuectl then runs with a token of
the chart's ServiceAccount.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import manifests, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import ACCOUNT
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.progress import LineProgress
from tests.support.chart import helm_program
from tests.support.controllers import CheckedController
from tests.support.prometheus_operator import KINDS, definitions
from tests.system.demo_cluster import tools
from tests.system.installation import QUICK, Installation
from tests.system.rights_used import Right, granted_rights
from tests.system.transcript import Page, Shell, shell

pytestmark = pytest.mark.operations

ELSEWHERE = (
    "cat > kustomization.yaml",
    "kubectl apply -k",
    "kubectl create namespace",
    "kubectl -n queuectl-system exec",
    "kubectl create -f",
)
"""The commands of the page that tests/operations/test_takeover.py and tests/adoption type."""
CLAIM: Final = "data-queuectl-database-0"
FIRST_COMMANDS: Final = (
    "-n queuectl-system rollout status deployment queuectl",
    "-n queuectl-system exec deployment/queuectl -- queuectl init -n default | kubectl",
    "-n queuectl-system exec deployment/queuectl -- queuectl get clusterqueues",
)
UPGRADE: Final = (
    "helm upgrade queuectl deploy/chart --namespace queuectl-system --reuse-values --set kueueKeys.enabled=true"
    " --set queuedGpus.enabled=true --set forceDelete.enabled=true --set migReconfiguration.enabled=true --set dashboards.enabled=true"
    " --set serviceMonitor.enabled=true --set prometheusRule.enabled=true --set prometheusRule.recordingRules=true"
    " --set prometheusRule.runbookUrl=https://docs.example.com/how-to/runbook/"
)
EACH_ACCOUNT: Final = {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""Kubernetes lets each account create these."""


@dataclass(frozen=True)
class Installed:
    """A control plane with the chart, and a shell with all rights."""

    cluster: LocalCluster
    page: Page

    @property
    def shell(self) -> Shell:
        return self.page.shell

    def type(self, line: str) -> str:
        status, printed = self.shell.type(line)
        assert status == 0, f"{line}\n{printed}\n{self.shell.errors}"
        return printed

    def wait_in_force(self, *, kueue: bool = False) -> None:
        """Wait until the policies act."""

        async def wait() -> None:
            api = await Api.connect(Connection(kubeconfig=self.cluster.kubeconfig))
            try:
                await wait_until_in_force(api, kueue=kueue)
            finally:
                await api.close()

        asyncio.run(wait())


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    shape = ClusterSpec(nodes=(NodeSpec(racks_per_block=2, hosts_per_rack=2),), fsync=False)
    with LocalCluster.start(shape, progress=LineProgress()) as cluster:
        environment = tools(cluster)
        path = f"{helm_program().parent}:{environment['PATH']}"
        with shell(environment | {"PATH": path}) as started:
            yield Installed(cluster, Page("install.md", started))


def test_the_first_command_installs_everything(installed: Installed) -> None:
    """With the database of the chart, for which nothing must be prepared. tests/install runs its pods."""
    printed = installed.page.type("helm install")
    for command in FIRST_COMMANDS:
        assert f"\n  kubectl {command}" in printed
    client = installed.cluster.client
    for kind, name in (
        ("secrets", "queuectl-tls"),
        ("configmaps", "queuectl-ca"),
        ("secrets", "queuectl-bundled-database"),
        ("persistentvolumeclaims", CLAIM),
    ):
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/{kind}/{name}"
        wait_until(lambda path=path: client.exists(path), path, 60.0)  # type: ignore[misc]
        assert "data" not in client.get(path), "queuectl writes it, not Helm"


def test_the_replicas_run_on_different_nodes(installed: Installed) -> None:
    """The nodes are simulated, so the pods become ready without a process."""
    installed.page.type("kubectl -n queuectl-system rollout status", instead={"10m": "60s"})
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    chosen = "app.kubernetes.io/name=queuectl"
    pods = installed.cluster.client.get(path, labelSelector=chosen)["items"]
    assert len(pods) == len({pod["spec"]["nodeName"] for pod in pods}) == 2


def test_an_upgrade_to_a_database_of_ones_own_keeps_the_claim(installed: Installed) -> None:
    page = installed.page
    page.type("kubectl label namespace")
    page.type("kubectl -n queuectl-system create secret generic")
    page.write("values.yaml")
    page.type("helm upgrade --install")
    installed.type(f"kubectl -n queuectl-system get persistentvolumeclaim {CLAIM}")
    assert installed.shell.type("kubectl -n queuectl-system get statefulset queuectl-database")[0]


def test_the_namespace_of_the_page_refuses_privileged_pods(installed: Installed) -> None:
    """It accepts the pods of the chart, by the restricted profile of Pod Security."""
    template = json.loads(
        installed.type("kubectl -n queuectl-system get deployment queuectl -o json")
    )["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "privileged", "labels": template["metadata"]["labels"]},
        "spec": {**template["spec"], "hostNetwork": True},
    }
    (installed.shell.folder / "pod.json").write_text(json.dumps(pod))
    status, _ = installed.shell.type(
        "kubectl -n queuectl-system create --dry-run=server -f pod.json"
    )
    assert status == 1
    assert "violates PodSecurity" in installed.shell.errors


def test_the_account_of_the_chart_has_the_rights_of_the_manifests(installed: Installed) -> None:
    granted = {right._replace(account="", namespace="") for right in granted_rights(manifests())}
    assert rules_of(installed, SYSTEM_NAMESPACE) == granted
    everywhere = {right for right in granted_rights(manifests()) if not right.namespace}
    assert rules_of(installed, "default") == {right._replace(account="") for right in everywhere}


def rules_of(installed: Installed, namespace: str) -> set[Right]:
    """The lines that `kubectl auth can-i --list` shows for queuectl's account in a namespace."""
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }

    async def ask() -> Any:
        account = installed.cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, ACCOUNT)
        api = await Api.connect(Connection(kubeconfig=account))
        try:
            path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
            return json.loads(await api.request("POST", path, body=review))
        finally:
            await api.close()

    status = asyncio.run(ask())["status"]
    assert not status["incomplete"]
    return {
        Right("", group, resource, verb, "", name)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if resource not in EACH_ACCOUNT
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_queuectl_admits_a_gang_with_the_account_of_the_chart(installed: Installed) -> None:
    installed.wait_in_force()
    controller = CheckedController.start(installed.cluster, QUICK)
    try:
        controller.wait_ready()
        with ApiConnection(controller.api) as rest:
            installation = Installation(installed.cluster, controller, rest)
            with installation.workspace(32) as workspace:
                workspace.gang("Job", "train", 4)
                workspace.until_state("train", "Running")
    finally:
        controller.stop()


def test_an_upgrade_applies_the_opt_ins(installed: Installed) -> None:
    for file in definitions():
        installed.type(f"kubectl apply --server-side -f {file}")
    installed.type(UPGRADE)
    installed.wait_in_force(kueue=True)
    dashboards = "kubectl -n queuectl-system get configmaps -l grafana_dashboard=1 -o name"
    monitoring = f"kubectl -n queuectl-system get {','.join(KINDS)} -o name"
    assert (count(installed, dashboards), count(installed, monitoring)) == (5, 3)


def count(installed: Installed, line: str) -> int:
    return len(installed.type(line).split())


def test_the_prometheus_operator_accepts_its_objects(installed: Installed) -> None:
    """By the CustomResourceDefinitions of its release, which have no unknown fields."""
    manifest = "helm get manifest queuectl --namespace queuectl-system"
    chosen = "jq -s '.[] | select(.apiVersion == \"monitoring.coreos.com/v1\")'"
    installed.type(f"{manifest} | kubectl create --dry-run=client -o json -f - | {chosen} > m.json")
    apply = "kubectl apply --server-side --force-conflicts --dry-run=server --validate=strict -f -"
    assert installed.type(f"{apply} < m.json").count("serverside-applied") == 3
    assert installed.shell.type(f'sed \'s/"interval":/"period":/\' m.json | {apply}')[0] == 1
    assert ".spec.endpoints[0].period: field not declared in schema" in installed.shell.errors


def test_the_manifests_of_the_release_restore_policies(installed: Installed) -> None:
    installed.type("kubectl delete validatingadmissionpolicy queuectl-pods")
    ignore = '{"spec":{"failurePolicy":"Ignore"}}'
    installed.type(
        f"kubectl patch mutatingadmissionpolicy queuectl-jobs --type merge -p '{ignore}'"
    )
    installed.page.type("helm get manifest")
    policy = "get mutatingadmissionpolicy queuectl-jobs -o jsonpath='{.spec.failurePolicy}'"
    assert installed.type(f"kubectl {policy}").strip() == "Fail"
    installed.wait_in_force(kueue=True)
    installed.page.end(*ELSEWHERE)


def test_the_api_server_accepts_the_base_by_server_side_apply(installed: Installed) -> None:
    printed = installed.type(
        "kubectl apply --server-side --force-conflicts --dry-run=server -k deploy/base"
    )
    assert printed.count("serverside-applied") == len(manifests())


def test_an_uninstallation_leaves_only_the_priority_class(installed: Installed) -> None:
    """New pods of jobs that name it would be refused without it."""
    installed.type("helm uninstall queuectl --namespace queuectl-system --wait")
    kinds = ",".join(sorted({one["kind"] for one in manifests()} - {"Namespace"} | {*KINDS}))
    found = installed.type(
        f"kubectl get {kinds} --all-namespaces -l app.kubernetes.io/name=queuectl -o name"
    )
    assert found.split() == ["priorityclass.scheduling.k8s.io/queuectl-managed"]
    installed.type("helm install queuectl deploy/chart --namespace queuectl-system -f values.yaml")

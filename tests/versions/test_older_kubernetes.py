"""The page on Kubernetes 1.33 to 1.35: its commands, and what queuectl does after them. The pods are simulated, and processes serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.demo.api_connection import ApiConnection
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import KUBERNETES, SUPPORTED
from tests.support.chart import helm_program
from tests.support.controllers import CheckedController
from tests.system.actions import run_command
from tests.system.demo_cluster import create_secret, tools
from tests.system.installation import QUICK, Installation
from tests.system.transcript import Page, Shell, shell
from tests.versions.webhook import REPLICAS, in_force, serve

pytestmark = pytest.mark.system

NODES = NodeSpec(racks_per_block=2, hosts_per_rack=2)
MOVE = ("helm upgrade", "kubectl apply -k", "kubectl delete", "kubectl -n queuectl-system delete")
RUN = (
    "kubectl -n queuectl-system rollout",
    "kubectl -n queuectl-system patch",
    "kubectl -n queuectl-system delete pod",
    "queuectl",
)
BACK = ("kubectl -n queuectl-system delete secret", "helm upgrade --install")
"""tests/versions/test_changed_kubernetes.py types these."""
OBJECTS = (
    "kubectl get deployments,statefulsets,services,configmaps,secrets,mutatingwebhookconfigurations,clusterroles,validatingadmissionpolicies,"
    "networkpolicies,poddisruptionbudgets,serviceaccounts -A -o name"
)


@contextmanager
def prepared(release: str) -> Iterator[tuple[LocalCluster, Shell]]:
    """A control plane with the Secrets and the files of the page on installation, and a shell with all rights."""
    shape = ClusterSpec(nodes=(NODES,), fsync=False, kubernetes=release)
    with LocalCluster.start(shape, progress=LineProgress()) as cluster:
        environment = tools(cluster)
        path = f"{helm_program().parent}:{environment['PATH']}"
        with shell(environment | {"PATH": path}) as typing:
            page = Page("install.md", typing)
            create_secret(page)
            page.write("values.yaml")
            page.write("kustomization.yaml")
            yield cluster, typing


@pytest.mark.parametrize("release", SUPPORTED[: SUPPORTED.index(KUBERNETES)])
def test_the_chart_runs_with_the_webhook(release: str) -> None:
    with prepared(release) as (cluster, typing):
        page = Page("older-kubernetes.md", typing)
        page.type("helm upgrade --install")
        serve(cluster)
        for _ in range(2):
            page.type("kubectl -n queuectl-system rollout status")
        in_force(cluster, kueue=False)
        controller = CheckedController.start(cluster, QUICK)
        try:
            controller.wait_ready()
            with ApiConnection(controller.api) as rest:
                starts_twice(Installation(cluster, controller, rest))
            typing.type(f"export QUEUECTL_SERVER={controller.api}")
            page.type("queuectl doctor")
        finally:
            controller.stop()
        page.type("kubectl -n queuectl-system delete pod")
        page.type("kubectl -n queuectl-system patch secret")
        page.type("kubectl -n queuectl-system rollout restart")
        page.end(*MOVE)


def starts_twice(installation: Installation) -> None:
    """The second start needs the right to the status of Jobs."""
    with installation.workspace(32) as workspace:
        workspace.gang("Job", "train", 2)
        workspace.until_state("train", "Running")
        run_command(workspace, "train", "hold")
        workspace.until_state("train", "Held")
        run_command(workspace, "train", "release")
        workspace.until_state("train", "Running")


@pytest.mark.parametrize("release", [KUBERNETES])
def test_the_policies_replace_the_webhook(release: str) -> None:
    with prepared(release) as (cluster, typing):
        page = Page("older-kubernetes.md", typing)
        page.type(
            "helm upgrade --install", instead={"values.yaml": "values.yaml --set mutation=webhook"}
        )
        serve(cluster)
        in_force(cluster, kueue=False)
        page.type("helm upgrade queuectl")
        only_the_policies(cluster, typing)
        page.type("helm upgrade queuectl")  # before a downgrade of the cluster
        serve(cluster)
        in_force(cluster, kueue=False)
        typing.type("helm uninstall queuectl --namespace queuectl-system --wait")
        for replica in REPLICAS:
            cluster.kill(replica)

        typing.type("sed -i s:deploy/base:deploy/older-servers: kustomization.yaml")
        page.type("kubectl apply -k")
        serve(cluster)
        in_force(cluster, kueue=False)
        typing.type("sed -i s:deploy/older-servers:deploy/base: kustomization.yaml")
        page.type("kubectl apply -k")
        in_force(cluster, kueue=False)
        page.type("kubectl delete mutatingwebhookconfiguration")
        for kind in ("statefulset", "service"):
            page.type(f"kubectl -n queuectl-system delete {kind}")
        for _ in range(2):
            page.type("kubectl delete")
        only_the_policies(cluster, typing)
        page.end(*RUN, *BACK)


def only_the_policies(cluster: LocalCluster, typing: Shell) -> None:
    """They change new jobs without a replica of the webhook, and none of its objects is left."""
    for replica in REPLICAS:
        cluster.kill(replica)
    in_force(cluster, kueue=False)
    status, printed = typing.type(OBJECTS)
    assert status == 0
    assert "queuectl" in printed
    assert not [line for line in printed.split() if "webhook" in line or "job-status" in line]

"""Nodes that restart, lose their power, or lose devices, and what happens to the gangs on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.nodes import GPU
from tests.real import work
from tests.real.cluster import RealInstallation, wait_devices
from tests.real.node import Node
from tests.real.settings import NODE_DISK
from tests.system.demo_cluster import admin_shell
from tests.system.installation import SECONDS, Workspace
from tests.system.transcript import Page

pytestmark = pytest.mark.real

FOREVER = "echo ready; exec sleep 600"
SOON = [
    {
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 2,
    }
    for condition in ("not-ready", "unreachable")
]
"""Pods leave a lost node after 2 seconds instead of 300."""


@contextmanager
def whole(installation: RealInstallation, node: Node) -> Iterator[None]:
    """At the end, the node has power and all its devices, also after a failure."""
    try:
        yield
    finally:
        node.set_devices()
        node.power_on()
        installation.cluster.nodes.wait_ready([node.shape.name], seconds=120)
        wait_devices(installation.cluster, [node.shape])


@contextmanager
def out_of_service(installation: RealInstallation, node: Node) -> Iterator[None]:
    """The node is dead, and an administrator confirms that it has stopped, as docs/how-to/troubleshoot.md describes."""
    nodes, name = installation.cluster.nodes, node.shape.name
    given = {"b0-r0-h0": name}
    with admin_shell(installation) as shell, whole(installation, node):
        page = Page("troubleshoot.md", shell)
        node.power_off()
        wait_until(lambda: name not in nodes.ready(), f"{name} is lost", SECONDS)
        page.type("kubectl get nodes", instead=given)
        page.type("kubectl taint nodes", instead=given)
        try:
            yield
        finally:
            node.power_on()
            page.type("kubectl wait", instead=given)
            page.type("kubectl taint nodes", instead=given)


@contextmanager
def full_disk(node: Node) -> Iterator[None]:
    """A file that belongs to no pod fills the disk of the kubelet."""
    file = "/var/lib/kubelet/file"
    node.check("dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={NODE_DISK * 6 // 7 >> 20}")
    try:
        yield
    finally:
        node.check("rm", file)


def containers(workspace: Workspace, name: str) -> dict[str, str]:
    """The container id of each pod of a job."""
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"]
        for pod in work.pods(workspace, name)
    }


def devices(installation: RealInstallation, node: Node) -> int:
    """The allocatable devices of a node."""
    found = installation.cluster.client.get(f"/api/v1/nodes/{node.shape.name}")
    return int(found["status"]["allocatable"][GPU])


def test_a_restart_of_the_kubelet_leaves_the_gang_alone(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        work.run(workspace, "train", PodSetManifest(4, gpus=2), FOREVER)
        workspace.until_state("train", "Running")
        before = containers(workspace, "train")
        node = installation.nodes["b0-r0-h0"]
        with whole(installation, node):
            node.stop_kubelet()
            node.start_kubelet()
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)
        assert containers(workspace, "train") == before


def test_a_gang_waits_for_the_devices_of_a_restarted_kubelet(
    installation: RealInstallation,
) -> None:
    node = installation.nodes["b0-r0-h0"]
    with installation.workspace(8) as workspace, whole(installation, node):
        node.set_devices(unhealthy=("gpu-0", "gpu-1"))
        workspace.until(lambda: devices(installation, node) == 0, "its devices are missing")
        work.run(workspace, "train", PodSetManifest(4, gpus=2), "exit 0")
        workspace.until(
            lambda: workspace.workload("train").get("reason", {}).get("code"), "it is considered"
        )
        assert workspace.state("train") == "Pending"
        node.set_devices()
        workspace.until_state("train", "Finished")


def test_a_pod_that_the_kubelet_does_not_admit_fails_and_is_replaced(
    installation: RealInstallation,
) -> None:
    node = installation.nodes["b0-r0-h0"]
    with installation.workspace(8) as workspace, whole(installation, node):
        node.set_devices(refuse=True)
        work.run(workspace, "train", PodSetManifest(4, gpus=2), FOREVER, retries=6)
        workspace.until(
            lambda: any(
                pod["status"].get("reason") == "UnexpectedAdmissionError"
                for pod in work.pods(workspace, "train")
            ),
            "a pod is not admitted",
        )
        assert workspace.state("train") == "Starting", "one of its pods does not run"
        node.set_devices()
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)


def test_a_rank_of_a_node_without_power_runs_again_when_the_node_confirms_its_end(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        work.run(
            workspace,
            "train",
            PodSetManifest(2, gpus=2),
            FOREVER,
            retries=6,
            spec={"tolerations": SOON},
        )
        workspace.until_state("train", "Running")
        before = {pod.rank: pod.node for pod in workspace.running("train")}
        node = installation.nodes[str(before[0])]
        with whole(installation, node):
            node.power_off()
            workspace.until(lambda: len(workspace.pods("train")) == 3, "it has a replacement")
            for _ in range(20):
                (again,) = (pod for pod in workspace.pods("train") if pod.gated)
                assert again.rank == 0, "the process on the node can still run"
                time.sleep(0.25)
        workspace.until(lambda: len(workspace.running("train")) == 2, "both ranks run")
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)
        assert {pod.rank: pod.node for pod in workspace.running("train")}[1] == before[1]


def test_pods_of_a_rebooted_node_are_replaced_on_it(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        work.run(workspace, "train", PodSetManifest(4, gpus=2), FOREVER, retries=6)
        workspace.until_state("train", "Running")
        node = installation.nodes["b0-r0-h0"]
        lost = {pod.uid for pod in workspace.running("train") if pod.node == node.shape.name}
        with whole(installation, node):
            node.power_off()
        workspace.until(
            lambda: len({pod.uid for pod in workspace.running("train")} - lost) == 4,
            "four run again",
        )
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)


def test_a_gang_on_a_dead_node_is_evicted_when_its_last_pod_has_ended(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        work.run(workspace, "low", PodSetManifest(4, gpus=2), FOREVER, priority_class="low")
        workspace.until_state("low", "Running")
        node = installation.nodes["b0-r1-h1"]
        with whole(installation, node):
            node.power_off()
            work.run(workspace, "high", PodSetManifest(2, gpus=2), "exit 0", priority_class="high")
            workspace.until(lambda: workspace.state("low") == "Evicting", "it is evicted")
            workspace.until(
                lambda: len(workspace.pods("low")) == 1, "the pods of the other nodes end"
            )
            assert workspace.state("low") == "Evicting", "the kubelet of one pod does not answer"
        workspace.until_state("high", "Finished")
        assert workspace.until_state("low", "Running")["attempt"] == 2


def test_a_gang_leaves_a_node_whose_disk_stays_full(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        work.run(workspace, "train", PodSetManifest(2, gpus=2), FOREVER, retries=6)
        workspace.until_state("train", "Running")
        lost = str(workspace.running("train")[0].node)
        with full_disk(installation.nodes[lost]):
            workspace.until(
                lambda: workspace.workload("train").get("attempt") == 2, "it is requeued", 300
            )
            workspace.until_state("train", "Running")
            assert lost not in {pod.node for pod in workspace.running("train")}
        (left,) = (each for each in workspace.history("train") if each["toState"] == "Evicting")
        assert left["reason"]["code"] == "PinUnschedulable"


def test_a_rank_of_a_node_out_of_service_runs_on_another_node(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        work.run(workspace, "train", PodSetManifest(2, gpus=2), FOREVER, retries=6)
        workspace.until_state("train", "Running")
        before = {pod.rank: pod.node for pod in workspace.running("train")}
        node = installation.nodes[str(before[0])]
        with out_of_service(installation, node):
            workspace.until(lambda: len(workspace.running("train")) == 2, "both ranks run")
            after = {pod.rank: pod.node for pod in workspace.running("train")}
            assert after[0] not in before.values()
            assert after[1] == before[1]
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)


def test_a_gang_on_a_node_out_of_service_releases_its_capacity(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        work.run(
            workspace, "low", PodSetManifest(4, gpus=2), FOREVER, priority_class="low", retries=6
        )
        workspace.until_state("low", "Running")
        with out_of_service(installation, installation.nodes["b0-r1-h1"]):
            work.run(workspace, "high", PodSetManifest(2, gpus=2), "exit 0", priority_class="high")
            workspace.until_state("high", "Finished")
            workspace.until_state("low", "Pending")
            assert not workspace.pods("low")
        assert workspace.until_state("low", "Running")["attempt"] == 2

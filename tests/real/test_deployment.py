"""queuectl runs as the Deployment of `deploy/`, from the image of `make image`, and starts a gang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import manifests
from queuectl.db.embedded import DATABASE, PORT, USER
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import get_plain, wait_until
from tests.real import images, network
from tests.real.cluster import RealInstallation
from tests.real.deployment import (
    ARCHIVE,
    SECONDS,
    controller_pods,
    database,
    is_ready,
    rest_of,
    secrets,
    token_of_administrator,
)
from tests.support.contained import counted
from tests.system.demo_cluster import tools
from tests.system.transcript import Page, shell

pytestmark = pytest.mark.real


@contextmanager
def deployed(installation: RealInstallation) -> Iterator[Document]:
    """The Deployment instead of the process alongside the control plane. Yields one of its pods."""
    cluster = installation.cluster
    for node in installation.nodes.values():
        node.import_archive(ARCHIVE)
    installation.controller.kill()
    made = [one for one in manifests() if one["kind"] in ("Deployment", "Service")]
    [replicas] = [one["spec"]["replicas"] for one in made if one["kind"] == "Deployment"]
    with database() as url:
        cluster.client.apply(*secrets(url), *made)
        try:
            wait_until(lambda: _ready_pods(cluster) == replicas, "its pods", SECONDS)
            yield controller_pods(cluster)[0]
            nothing_set_aside(cluster)
        finally:
            for one in made:
                cluster.client.delete(cluster.client.path_of(one), missing_ok=True)
            wait_until(lambda: not controller_pods(cluster), "the end of its pods", SECONDS)
            installation.controller.restart()
            installation.controller.wait_ready()


def nothing_set_aside(cluster: LocalCluster) -> None:
    """By the metrics of each pod."""
    for pod in controller_pods(cluster):
        assert counted(get_plain(f"http://{pod['status']['podIP']}:8080/metrics").text) == []


def _ready_pods(cluster: LocalCluster) -> int:
    return sum(map(is_ready, controller_pods(cluster)))


@pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no image: run make image to write {ARCHIVE}")
def test_the_image_runs_as_the_deployment_and_starts_a_gang(installation: RealInstallation) -> None:
    cluster = installation.cluster
    with deployed(installation) as pod:
        address = pod["status"]["podIP"]
        assert get_plain(f"http://{address}:8081/readyz").is_success
        check_restrictions(installation, pod)
        submit(cluster, address)
        job = "/apis/batch/v1/namespaces/shipped/jobs/train"
        wait_until(lambda: cluster.client.get(job)["status"].get("succeeded") == 2, "it", SECONDS)
        ask_the_doctor(cluster)


def check_restrictions(installation: RealInstallation, pod: Document) -> None:
    """The security context, as the kernel of the node shows it. docs/explanation/kwok-and-kubelets.md has these values."""
    node = installation.nodes[pod["spec"]["nodeName"]]
    (status,) = pod["status"]["containerStatuses"]
    process = node.process_of(status["containerID"].rpartition("/")[2])
    names = ("Uid", "Gid", "NoNewPrivs", "CapEff", "CapBnd", "Seccomp", "root")
    assert {name: process[name] for name in names} == {
        "Uid": "65532",
        "Gid": "65532",
        "NoNewPrivs": "1",
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "Seccomp": "2",  # a filter
        "root": "ro",
    }


def ask_the_doctor(cluster: LocalCluster) -> None:
    """The first command of the page for on-call engineers finds no problem, with the rights of the pod."""
    with shell(tools(cluster)) as started:
        printed = Page("on-call.md", started).type("kubectl -n queuectl-system exec", shows=False)
    assert "https://127.0.0.1:8443 answers" in printed
    assert f"the certificate for queuectl.{SYSTEM_NAMESPACE}.svc" in printed
    assert f"{DATABASE} on {network.GATEWAY}:{PORT} as {USER}: reachable" in printed
    assert " is the leader: this replica" in printed


def submit(cluster: LocalCluster, address: str) -> None:
    """Configure a queue by the REST API of the pod, and submit a gang of two pods."""
    token = token_of_administrator(cluster, "shipped")
    with rest_of(cluster, address, token) as rest:
        rest.apply(
            [
                m.flavor("gpu"),
                m.cluster_queue("shipped", "gpu", {"nvidia.com/gpu": 8, "cpu": "1M"}),
                m.local_queue("shipped", "main", "shipped"),
            ]
        )
    document = m.job("train", "shipped", "main", PodSetManifest(2, gpus=2))
    document["spec"]["template"]["spec"]["containers"][0] |= {
        "image": images.BASE.name,
        "command": ["true"],
    }
    cluster.client.create("/apis/batch/v1/namespaces/shipped/jobs", document)

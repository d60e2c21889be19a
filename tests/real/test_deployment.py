"""queuectl runs as the Deployment of `deploy/`, from the image of `make image`, and starts a gang."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import manifests
from queuectl.db.directories import PORT
from queuectl.db.embedded import DATABASE, USER, EmbeddedServer
from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.demo.rest import ApiConnection
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import get_plain, tls, wait_until
from tests.real import images, network
from tests.real.cluster import RealInstallation
from tests.support.postgres import server_directory

pytestmark = pytest.mark.real

ARCHIVE: Final = (
    Path(__file__).parents[2] / "build" / "image" / f"queuectl-{version('queuectl')}.tar"
)
SECONDS: Final = 120.0
HOST: Final = f"queuectl.{SYSTEM_NAMESPACE}.svc"
EACH: Final = "all"
TRUST: Final = f"local {EACH} {EACH} trust\nhost {EACH} {EACH} 10.0.0.0/8 trust\n"
"""The database is in the network namespace of the run."""


@contextmanager
def database() -> Iterator[str]:
    """The URL of a Postgres server that pods reach."""
    with server_directory() as directory:
        rules = directory / "pg_hba.conf"
        rules.write_text(TRUST)
        rules.chmod(0o644)
        settings = {"listen_addresses": "127.0.0.1", "port": str(PORT), "hba_file": str(rules)}
        server = EmbeddedServer(directory / "server", durable=False, settings=settings)
        asyncio.run(server.start())
        try:
            yield f"postgresql://{USER}@{network.GATEWAY}:{PORT}/{DATABASE}"
        finally:
            asyncio.run(server.stop(immediate=True))


def secret(name: str, kind: str, data: dict[str, bytes]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "type": kind,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def controller_pods(cluster: LocalCluster) -> list[Document]:
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    listed: list[Document] = cluster.client.get(path)["items"]
    return listed


@contextmanager
def deployed(installation: RealInstallation) -> Iterator[Document]:
    """The Deployment in place of the process beside the control plane. Yields one of its pods."""
    cluster = installation.cluster
    for node in installation.nodes.values():
        node.import_archive(ARCHIVE)
    installation.controller.kill()
    pki = cluster.kubeconfig.parents[1] / "pki"
    pair = Authority.load(pki / "ca.crt", pki / "ca.key").server(HOST, [HOST])
    files = {"tls.crt": pair.certificate, "tls.key": pair.key}
    made = [one for one in manifests() if one["kind"] in ("Deployment", "Service")]
    [replicas] = [one["spec"]["replicas"] for one in made if one["kind"] == "Deployment"]
    with database() as url:
        keys = ("migration-url", "url", "api-url")
        cluster.client.apply(
            secret("queuectl-database", "Opaque", dict.fromkeys(keys, url.encode())),
            secret("queuectl-tls", "kubernetes.io/tls", files),
            *made,
        )
        try:
            wait_until(lambda: _ready_pods(cluster) == replicas, "its pods", SECONDS)
            yield controller_pods(cluster)[0]
        finally:
            for one in made:
                cluster.client.delete(cluster.client.path_of(one), missing_ok=True)
            wait_until(lambda: not controller_pods(cluster), "the end of its pods", SECONDS)
    installation.controller.restart()
    installation.controller.wait_ready()


def _ready_pods(cluster: LocalCluster) -> int:
    return sum(map(ready, controller_pods(cluster)))


def ready(pod: Document) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no image: run make image to write {ARCHIVE}")
def test_the_image_runs_as_the_deployment_and_starts_a_gang(installation: RealInstallation) -> None:
    cluster = installation.cluster
    with deployed(installation) as pod:
        address = pod["status"]["podIP"]
        assert get_plain(f"http://{address}:8080/readyz").is_success
        node = installation.nodes[pod["spec"]["nodeName"]]
        (status,) = pod["status"]["containerStatuses"]
        task = status["containerID"].rpartition("/")[2]
        process = node.process_of(task)
        assert (process["Uid"], process["NoNewPrivs"], process["CapEff"]) == (
            "65532",
            "1",
            "0" * 16,
        )

        submit(cluster, address)
        job = "/apis/batch/v1/namespaces/shipped/jobs/train"
        wait_until(lambda: cluster.client.get(job)["status"].get("succeeded") == 2, "it", SECONDS)


def submit(cluster: LocalCluster, address: str) -> None:
    """Configure a queue by the REST API of the pod, and submit a gang of two pods."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "admin", "namespace": "shipped"},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "shipped-admin"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "admin", "namespace": "shipped"}],
    }
    cluster.client.apply(*m.namespaces(["shipped"]), account, binding)
    token = cluster.client.create(
        "/api/v1/namespaces/shipped/serviceaccounts/admin/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )["status"]["token"]
    trusted = tls(cluster.authority, None)
    trusted.check_hostname = False  # the certificate has the name of the Service
    with ApiConnection(
        f"https://{address}:8443",
        verify=trusted,
        headers={"authorization": f"Bearer {token}"},
    ) as rest:
        rest.apply(
            [
                m.flavor("gpu"),
                m.cluster_queue("shipped", "gpu", {"nvidia.com/gpu": 8, "cpu": "1M"}),
                m.local_queue("shipped", "main", "shipped"),
            ]
        )
    document = m.job("train", "shipped", "main", Pods(2, gpus=2))
    document["spec"]["template"]["spec"]["containers"][0] |= {
        "image": images.BASE.name,
        "command": ["true"],
    }
    cluster.client.create("/apis/batch/v1/namespaces/shipped/jobs", document)

"""Helm installs the chart on real nodes with nothing prepared: the first gang, a lost database pod, and a database of one's own.

make image && make e2e-real TESTS=tests/install
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.distribution import version
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from tests.install import registry
from tests.real import images, sandbox
from tests.real.cluster import real_nodes
from tests.real.deployment import ARCHIVE, controller_pods, database, is_ready, secrets
from tests.real.node import Node, Shape
from tests.support.chart import helm_program
from tests.system.demo_cluster import tools
from tests.system.transcript import Shell, shell

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

SHAPES: Final = tuple(
    Shape(f"node-{n}", n, 2, {BLOCK: "b0", RACK: f"r{n}", PRODUCT: "test-device"}) for n in range(2)
)
KUBECTL: Final = f"kubectl -n {SYSTEM_NAMESPACE}"
INSTALL: Final = f"helm install queuectl deploy/chart -n {SYSTEM_NAMESPACE} --create-namespace --set image.repository=queuectl"
UPGRADE: Final = f"helm upgrade queuectl deploy/chart -n {SYSTEM_NAMESPACE} --reuse-values"
MOVE: Final = f"{KUBECTL} exec statefulset/queuectl-database -- queuectl db move"
QUEUES: Final = f"{KUBECTL} exec deployment/queuectl -c queuectl -- queuectl get clusterqueues"
SECONDS: Final = 300.0
FOLDER: Final = "/var/lib/queuectl-volume"


@dataclass
class Cluster:
    """Real nodes, and a shell with all rights."""

    plane: LocalCluster
    nodes: dict[str, Node]
    shell: Shell

    def type(self, line: str) -> str:
        status, printed = self.shell.type(line)
        assert status == 0, f"{line}\n{printed}\n{self.problems()}"
        return printed

    def problems(self) -> str:
        logs = f"for pod in $({KUBECTL} get pods -o name); do {KUBECTL} logs --all-containers --tail 30 $pod; done"
        return self.shell.type(f"{KUBECTL} get pods,pvc,events -o wide; {logs}")[1]

    def gang(self, name: str) -> None:
        """Submit a gang of two pods with the queue label, and wait until they have succeeded."""
        document = m.job(name, "default", "main", PodSetManifest(2, gpus=2, cpu="100m"))
        container = document["spec"]["template"]["spec"]["containers"][0]
        container |= {"image": images.BASE.name, "command": ["true"]}
        path = "/apis/batch/v1/namespaces/default/jobs"
        self.plane.client.create(path, document)
        self.until(lambda: self._succeeded(f"{path}/{name}"), name)

    def _succeeded(self, path: str) -> bool:
        return bool(self.plane.client.get(path)["status"].get("succeeded") == 2)

    def until(self, done: Any, what: str) -> None:
        try:
            wait_until(done, what, SECONDS)
        except BaseException:
            print(self.problems())
            raise

    def database_pod(self) -> Document:
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/queuectl-database-0"
        found: Document = self.plane.client.get(path)
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if sandbox.home() is None:
        pytest.skip("real nodes exist in the sandbox of `make e2e-real` only")
    if not ARCHIVE.exists():
        pytest.skip(f"no image: run make image to write {ARCHIVE}")
    with real_nodes(SHAPES) as (plane, nodes):
        environment = tools(plane)
        path = f"{helm_program().parent}:{environment['PATH']}"
        with shell(environment | {"PATH": path}) as started:
            started.type("exec 2>&1")
            yield Cluster(plane, nodes, started)


def notes(printed: str) -> list[str]:
    """The first three commands that the installation prints."""
    return re.findall(r"^  (kubectl .*)$", printed, re.MULTILINE)[:3]


def volume(node: Node) -> Document:
    """A local volume without a StorageClass, which the kubelet gives to the group of the pod."""
    node.check("mkdir", "-p", FOLDER)
    name = node.shape.name
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "database"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": FOLDER},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        },
    }


def test_one_command_installs_queuectl_and_its_notes_lead_to_the_first_gang(
    cluster: Cluster,
) -> None:
    for node in cluster.nodes.values():
        node.import_archive(ARCHIVE)
    began = time.monotonic()
    printed = cluster.type(f"{INSTALL} --set database.bundled.persistent=false")
    assert "ENDS WITH ITS POD" in printed
    for command in notes(printed):
        printed = cluster.type(command)
    assert "main" in printed
    ready = time.monotonic()
    cluster.gang("first")
    ended = time.monotonic()
    print(
        f"installed, ready and with queues after {ready - began:.0f} s; first gang after {ended - began:.0f} s"
    )
    restricted(cluster)
    findings = cluster.shell.type(
        f"{KUBECTL} exec deployment/queuectl -c queuectl -- queuectl doctor"
    )
    assert "the bundled database is for evaluation" in findings[1]
    assert "the MutatingAdmissionPolicies change new jobs" in findings[1]


def restricted(cluster: Cluster) -> None:
    """The server runs without root and capabilities on a read-only root file system."""
    pod = cluster.database_pod()
    node = cluster.nodes[pod["spec"]["nodeName"]]
    (status,) = pod["status"]["containerStatuses"]
    process = node.process_of(status["containerID"].rpartition("/")[2])
    assert (process["Uid"], process["CapEff"], process["root"]) == ("65532", "0" * 16, "ro")


def test_data_outlives_the_pod_and_moves_to_a_database_of_ones_own(
    cluster: Cluster,
) -> None:
    cluster.plane.client.apply(volume(cluster.nodes["node-0"]))
    for node in cluster.nodes.values():
        node.import_archive(ARCHIVE)
    for command in notes(cluster.type(INSTALL)):
        printed = cluster.type(command)
    assert "main" in printed
    uid = cluster.database_pod()["metadata"]["uid"]
    cluster.type(f"{KUBECTL} delete pod queuectl-database-0")
    assert cluster.database_pod()["metadata"]["uid"] != uid
    cluster.type(f"{KUBECTL} rollout status statefulset queuectl-database --timeout 5m")
    cluster.until(lambda: cluster.shell.type(QUEUES)[0] == 0, "an answer")
    assert "main" in cluster.type(QUEUES)
    with database() as url:
        cluster.plane.client.apply(*secrets(url))
        own = f"{UPGRADE} --set database.secretName=queuectl-database"
        cluster.type(own)
        cluster.until(lambda: "db move" in log_of_migration(cluster), "the refusal")
        assert not [pod for pod in controllers(cluster) if migrated(pod)]
        cluster.type(f"helm rollback queuectl -n {SYSTEM_NAMESPACE}")
        cluster.type(f"{KUBECTL} rollout status statefulset queuectl-database --timeout 5m")
        cluster.type(f"{KUBECTL} scale deployment queuectl --replicas=0")
        cluster.until(lambda: not controllers(cluster), "no replica")
        # The replicas ended while they had no database, so their registrations expire.
        cluster.until(lambda: "rows of" in cluster.shell.type(f"{MOVE} --to {url}")[1], "the move")
        cluster.type(own)
        cluster.type(f"{KUBECTL} rollout status deployment queuectl --timeout 10m")
        assert "main" in cluster.type(QUEUES)
        cluster.gang("moved")
        assert "data-queuectl-database-0" in cluster.type(f"{KUBECTL} get persistentvolumeclaims")
        cluster.type(f"helm uninstall queuectl -n {SYSTEM_NAMESPACE} --wait")
        assert "data-queuectl-database-0" in cluster.type(f"{KUBECTL} get persistentvolumeclaims")


def test_the_nodes_pull_the_image_from_a_registry_with_tls_and_a_pull_secret(
    cluster: Cluster,
) -> None:
    if not registry.is_built():
        pytest.skip("no registry: run python -m tests.install.registry to build it")
    with registry.running(cluster.plane) as served:
        for node in cluster.nodes.values():
            served.trusted_by(node)
        repository = served.push(cluster.nodes["node-0"], ARCHIVE, f"queuectl:{version()}")
        cluster.type(f"kubectl create namespace {SYSTEM_NAMESPACE}")
        login = f"--docker-username={registry.USER} --docker-password={registry.PASSWORD}"
        cluster.type(
            f"{KUBECTL} create secret docker-registry pull --docker-server={served.address} {login}"
        )
        values = f"image.repository={repository},database.bundled.persistent=false"
        began = time.monotonic()
        cluster.type(f"{INSTALL},{values}")
        cluster.until(lambda: "ErrImagePull" in pods(cluster), "a pull without the Secret fails")
        cluster.type(f"{UPGRADE} --set 'imagePullSecrets[0].name=pull'")
        # A StatefulSet does not replace a pod that was never ready.
        cluster.type(f"{KUBECTL} delete pod queuectl-database-0")
        cluster.type(f"{KUBECTL} rollout status deployment queuectl --timeout 10m")
        print(f"pulled and ready after {time.monotonic() - began:.0f} s")


def pods(cluster: Cluster) -> str:
    return cluster.type(f"{KUBECTL} get pods -o wide")


def log_of_migration(cluster: Cluster) -> str:
    return cluster.shell.type(f"{KUBECTL} logs -l app.kubernetes.io/name=queuectl -c migrate")[1]


def migrated(pod: Document) -> bool:
    """Whether it is a ready pod with the Secret of one's own."""
    named = str(pod["spec"]["containers"][0]["env"])
    return "'queuectl-database'" in named and is_ready(pod)


def controllers(cluster: Cluster) -> list[Document]:
    """The pods of the Deployment, without that of the database."""
    return [
        pod
        for pod in controller_pods(cluster.plane)
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") == "queuectl"
    ]

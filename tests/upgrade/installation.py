"""queuectl as the Deployment of a release on a real node, with simulated nodes for the gangs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.scenario import Document
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import wait_until
from tests.real.cluster import real_nodes
from tests.real.deployment import (
    controller_pods,
    database,
    is_ready,
    rest_of,
    secrets,
    token_of_administrator,
)
from tests.real.node import Node, Shape
from tests.system.demo_cluster import tools
from tests.system.transcript import Shell, shell
from tests.upgrade.load import NAMESPACE, NODES, configuration
from tests.upgrade.release import Release, deployment_on

REPLICAS: Final = 2
SECONDS: Final = 180.0
KUBECTL: Final = f"kubectl -n {SYSTEM_NAMESPACE}"
_NODE: Final = Shape(name="controllers", number=0, gpus=1)
_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/queuectl"


@dataclass
class Deployed:
    """A control plane on which releases are installed.

    Attributes:
        applied: the documents of the last release.
    """

    cluster: LocalCluster
    node: Node
    shell: Shell
    token: str
    applied: list[Document]

    def apply(self, release: Release) -> None:
        """Apply the manifests of a release, and delete the objects that only the last one has, as Helm does."""
        documents = deployment_on(_NODE.name, release, REPLICAS)
        client = self.cluster.client
        client.apply(*documents)
        kept = {client.path_of(one) for one in documents}
        for one in self.applied:
            if (path := client.path_of(one)) not in kept:
                client.delete(path, missing_ok=True)
        self.applied = documents

    def ready(self, release: Release) -> list[str]:
        """The ready pods of a release, by name."""
        found = [one for one in controller_pods(self.cluster) if is_ready(one)]
        return [one["metadata"]["name"] for one in found if _image(one) == release.image]

    def pods(self, release: Release) -> list[str]:
        """The pods of a release that are not being deleted, by name."""
        found = [one for one in controller_pods(self.cluster) if _image(one) == release.image]
        living = [one["metadata"] for one in found if "deletionTimestamp" not in one["metadata"]]
        return [str(one["name"]) for one in living]

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the rollout."""
        self.cluster.client.patch(_DEPLOYMENT, {"spec": {"paused": paused}})

    def roll_out(self) -> None:
        """Wait until all pods are of the applied release, as an administrator does."""
        status, printed = self.shell.type(f"{KUBECTL} rollout status deployment queuectl")
        assert status == 0, printed
        wait_until(
            lambda: len(controller_pods(self.cluster)) == REPLICAS, "the end of old pods", SECONDS
        )

    def until_leader_of(self, release: Release) -> str:
        """Wait until a pod of a release leads. Returns its name."""
        wait_until(lambda: self.leader() in self.pods(release), "a new leader", SECONDS)
        return self.leader()

    def leader(self) -> str:
        """The holder of the Lease."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/queuectl"
        return str(self.cluster.client.get(path)["spec"].get("holderIdentity", ""))

    def run(self, release: Release, command: str) -> tuple[int, str]:
        """Run queuectl in a ready pod of a release: its exit status and its output."""
        [pod, *_] = self.ready(release)
        status, printed = self.shell.type(f"{KUBECTL} exec {pod} -c queuectl -- queuectl {command}")
        return status, printed.strip()

    def log_of_migration(self, pod: str) -> str:
        """The log of the init container of a pod, also of its last run."""
        _, printed = self.shell.type(f"{KUBECTL} logs {pod} -c migrate")
        _, before = self.shell.type(f"{KUBECTL} logs {pod} -c migrate --previous")
        return before + printed

    def rest(self, release: Release) -> ApiConnection:
        """The REST API of a ready pod of a release."""
        [name, *_] = self.ready(release)
        pods = controller_pods(self.cluster)
        [pod] = [one for one in pods if one["metadata"]["name"] == name]
        return rest_of(self.cluster, pod["status"]["podIP"], self.token)

    def problems(self) -> str:
        """The state of the pods, for the message of a failure."""
        _, printed = self.shell.type(f"{KUBECTL} get pods -o wide; {KUBECTL} get events")
        return printed


def _image(pod: Document) -> str:
    return str(pod["spec"]["containers"][0]["image"])


@contextmanager
def deployed(first: Release, *others: Release) -> Iterator[Deployed]:
    """The first release with its queue, and the images of the others on its node."""
    with database() as url, real_nodes([_NODE]) as (cluster, nodes):
        node = nodes[_NODE.name]
        for release in (first, *others):
            node.import_archive(release.archive.path)
        cluster.nodes.create(NODES, wait_seconds=SECONDS)
        token = token_of_administrator(cluster, "administration")
        cluster.client.apply(*m.namespaces([NAMESPACE, SYSTEM_NAMESPACE]), *secrets(url))
        with shell(tools(cluster)) as started:
            started.type("exec 2>&1")
            made = Deployed(cluster, node, started, token, [])
            made.apply(first)
            try:
                made.roll_out()
                with made.rest(first) as rest:
                    rest.apply(configuration())
                yield made
            except BaseException:
                print(made.problems())
                raise

"""The webhook as the StatefulSet of deploy/older-servers, behind its Services: replicas end while users submit jobs, and no job is refused."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.apply import manifests, older_servers
from queuectl.cluster.writes import BINDING, NAME
from queuectl.demo import scenario as m
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.scenario import Document
from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client, wait_until
from tests.real.cluster import NODES, RealInstallation
from tests.real.deployment import ARCHIVE, is_ready
from tests.real.node import Node
from tests.real.test_nodes import whole
from tests.support.jobs import batch_job
from tests.versions.submissions import submitting
from tests.versions.webhook import REPLICAS, offer_successor, served_at

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no image: run make image to write {ARCHIVE}"),
]

SECONDS: Final = 180.0
NAMESPACE: Final = "older"
STATEFULSET: Final = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/statefulsets/{NAME}"
PODS: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
ROUTER: Final = f"/api/v1/nodes/{NODES[0].name}"
"""The node by which the API server reaches Services."""


@dataclass(frozen=True)
class Webhook:
    """The webhook on the nodes of an installation."""

    installation: RealInstallation

    @property
    def client(self) -> Client:
        return self.installation.cluster.client

    def pods(self) -> list[Document]:
        found: list[Document] = self.client.get(
            PODS, labelSelector=f"app.kubernetes.io/name={NAME}"
        )["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def node(self, pod: Document) -> Node:
        return self.installation.nodes[pod["spec"]["nodeName"]]

    def wait_ready(self, *before: Document) -> None:
        """Wait until both replicas are ready, without these pods."""
        ended = {pod["metadata"]["uid"] for pod in before}

        def done() -> bool:
            pods = self.pods()
            names = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
            return names == list(REPLICAS) and not ended & {p["metadata"]["uid"] for p in pods}

        wait_until(done, "the replicas of the webhook", SECONDS)

    def refusal(self, queue: str | None = "main") -> str | None:
        """The reason why a Job is refused, None if it is accepted; a dry run."""
        document = batch_job("new", namespace=NAMESPACE, queue=queue)
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        try:
            made = self.client.create(path, document, dryRun="All")
        except ApiServerError as error:
            return str(error)
        assert made["spec"].get("suspend", False) is (queue is not None)
        return None


@pytest.fixture(scope="module")
def webhook(installation: RealInstallation) -> Iterator[Webhook]:
    """The webhook instead of the MutatingAdmissionPolicies."""
    cluster, made = installation.cluster, older_servers()
    for node in installation.nodes.values():
        node.import_archive(ARCHIVE)
    client = cluster.client
    client.patch(ROUTER, {"spec": {"unschedulable": True}})
    client.apply(*m.namespaces([NAMESPACE]), *made)
    for one in manifests():
        if one["kind"] == BINDING:
            client.delete(client.path_of(one))
    found = Webhook(installation)
    try:
        found.wait_ready()
        wait_until(lambda: found.refusal() is None, "the API server calls it", SECONDS)
        yield found
    finally:
        for one in reversed(made):
            client.delete(client.path_of(one), missing_ok=True)
        install(cluster, KUEUE_KEYS)
        wait_until(lambda: not found.pods(), "the end of its pods", SECONDS)
        client.patch(ROUTER, {"spec": {"unschedulable": None}})


def evict(webhook: Webhook) -> None:
    """As `kubectl drain`."""
    [pod, _] = webhook.pods()
    name = pod["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
    }

    def evicted() -> bool:
        try:
            webhook.client.create(f"{PODS}/{name}/eviction", eviction)
        except ApiServerError as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:  # the budget is not counted yet
                raise
            return False
        return True

    wait_until(evicted, "the eviction", SECONDS)
    webhook.wait_ready(pod)


def roll_out(webhook: Webhook) -> None:
    """As `kubectl rollout restart`."""
    before = webhook.pods()
    annotations = {"kubectl.kubernetes.io/restartedAt": dt.datetime.now(dt.UTC).isoformat()}
    template = {"metadata": {"annotations": annotations}}
    webhook.client.patch(STATEFULSET, {"spec": {"template": template}})
    webhook.wait_ready(*before)


def kill(webhook: Webhook) -> None:
    """SIGKILL for the process of each replica, one after the other. The kubelet starts it again."""
    pause = webhook.client.get(STATEFULSET)["spec"]["minReadySeconds"]
    for number, pod in enumerate(webhook.pods()):
        [status] = pod["status"]["containerStatuses"]
        webhook.node(pod).kill_container(status["containerID"].rpartition("/")[2])

        def restarted(number: int = number, before: int = status["restartCount"]) -> bool:
            found = webhook.pods()[number]
            count: int = found["status"]["containerStatuses"][0]["restartCount"]
            return count > before and is_ready(found)

        wait_until(restarted, "the replica runs again", SECONDS)
        time.sleep(pause)  # kube-proxy sets the address of the replica


def lose_power(webhook: Webhook) -> None:
    """The node of the first replica loses its power and gets it again."""
    node = webhook.node(webhook.pods()[0])
    with whole(webhook.installation, node):
        node.power_off()
        wait_until(lambda: not is_ready(webhook.pods()[0]), "the node is lost", SECONDS)
    webhook.wait_ready()


def renew(webhook: Webhook) -> None:
    """The replicas serve a successor of their certificate."""
    hosts = [f"{name}.{SYSTEM_NAMESPACE}.svc" for name in REPLICAS]
    successor = offer_successor(webhook.client, hosts).certificate
    urls = [f"https://{one['status']['podIP']}:9443" for one in webhook.pods()]
    wait_until(
        lambda: set(map(served_at, urls)) == {successor},
        "the replicas serve the successor",
        SECONDS,
    )


EVENTS: Final[dict[str, Callable[[Webhook], None]]] = {
    "a replica is evicted": evict,
    "a rollout replaces the replicas": roll_out,
    "each replica is killed": kill,
    "a node loses its power": lose_power,
    "the certificate is renewed": renew,
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_no_job_is_refused_while(webhook: Webhook, event: Callable[[Webhook], None]) -> None:
    with submitting(webhook.refusal) as found:
        event(webhook)
    assert found.refused == []


def test_without_a_replica_only_jobs_in_queues_are_refused(webhook: Webhook) -> None:
    webhook.client.patch(STATEFULSET, {"spec": {"replicas": 0}})
    wait_until(lambda: not webhook.pods(), "no replica", SECONDS)
    assert "failed calling webhook" in str(webhook.refusal())
    assert webhook.refusal(None) is None
    webhook.client.patch(STATEFULSET, {"spec": {"replicas": len(REPLICAS)}})
    webhook.wait_ready()
    wait_until(lambda: webhook.refusal() is None, "a replica answers", SECONDS)

"""The operators of job kinds run on a local cluster: each makes the pods of a minimal object of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuectl.localcluster import LocalCluster, NodeSpec, RequestError, testing
from queuectl.localcluster.client import Document
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.testing import wait_until
from tests.cluster.kubernetes_world import new_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node, without an operator."""
    with testing.local_cluster(nodes=(NodeSpec(1, 1, 1),), operators=()) as one:
        yield one


@pytest.fixture
def namespace(cluster: LocalCluster) -> str:
    return new_namespace(cluster.client)


def jobset(namespace: str, **spec: Any) -> Document:
    job = {"spec": {"completions": 2, "parallelism": 2, "template": {"spec": POD}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "work", "replicas": 2, "template": job}], **spec},
    }


def pods(cluster: LocalCluster, namespace: str) -> list[Document]:
    items: list[Document] = cluster.client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return items


def until_running(cluster: LocalCluster, namespace: str, names: set[str]) -> list[Document]:
    """Wait until exactly the pods whose names begin so run, one for each name."""

    def found() -> bool:
        now = pods(cluster, namespace)
        matched = [
            name for name in names for one in now if one["metadata"]["name"].startswith(name)
        ]
        running = all(one["status"]["phase"] == "Running" for one in now)
        return running and len(now) == len(names) and set(matched) == names

    wait_until(found, f"running pods {', '.join(sorted(names))}", 60.0)
    return pods(cluster, namespace)


def create(cluster: LocalCluster, document: Document) -> Document:
    path = cluster.client.path_of(document).rpartition("/")[0]
    return cluster.client.create(path, document)


def test_jobset_makes_its_pods(cluster: LocalCluster, namespace: str) -> None:
    cluster.add_operator("jobset", progress=LineProgress())
    create(cluster, jobset(namespace))
    made = until_running(cluster, namespace, {f"one-work-{j}-{i}-" for j in (0, 1) for i in (0, 1)})
    labels = [one["metadata"]["labels"] for one in made]
    assert {one["jobset.sigs.k8s.io/job-index"] for one in labels} == {"0", "1"}


def test_the_webhooks_of_jobset_default_and_refuse(cluster: LocalCluster, namespace: str) -> None:
    cluster.add_operator("jobset", progress=LineProgress())
    made = create(cluster, jobset(namespace, suspend=True))
    assert made["spec"]["network"]["enableDNSHostnames"]
    path = cluster.client.path_of(made)
    with pytest.raises(RequestError, match=r"jobset.*immutable"):
        cluster.client.patch(path, {"spec": {"replicatedJobs": []}})

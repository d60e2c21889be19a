"""The operators of job kinds run on a local cluster: each makes the pods of a minimal object of its kind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from queuectl.localcluster import ApiServerError, LocalCluster, NodeSpec, build, testing
from queuectl.localcluster.client import Document
from queuectl.localcluster.operators import OPERATORS
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.testing import wait_until
from queuectl.localcluster.yaml_files import objects
from queuectl.objects.kinds import KINDS, unqueued
from tests.cluster.kubernetes_world import new_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

CONTAINER = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
POD = {"containers": [CONTAINER]}
JOB_POD = {"restartPolicy": "Never"} | POD


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node, without an operator."""
    with testing.local_cluster(nodes=(NodeSpec(1, 1, 1),), operators=()) as one:
        yield one


@pytest.fixture
def namespace(cluster: LocalCluster) -> str:
    return new_namespace(cluster.client)


def custom(kind: str, version: str, namespace: str, spec: Document, name: str = "one") -> Document:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def jobset(namespace: str, **more: Any) -> Document:
    job = {"spec": {"completions": 2, "parallelism": 2, "template": {"spec": JOB_POD}}}
    jobs = [{"name": "work", "replicas": 2, "template": job}]
    return custom("JobSet", "jobset.x-k8s.io/v1alpha2", namespace, {"replicatedJobs": jobs} | more)


def mpijob(namespace: str) -> Document:
    replicas = {
        role: {"replicas": count, "template": {"spec": POD}}
        for role, count in (("Launcher", 1), ("Worker", 2))
    }
    return custom("MPIJob", "kubeflow.org/v2beta1", namespace, {"mpiReplicaSpecs": replicas})


def ray_cluster_spec() -> Document:
    worker = {"groupName": "work", "replicas": 2, "minReplicas": 2, "maxReplicas": 2}
    template = {"rayStartParams": {}, "template": {"spec": POD}}
    return {"headGroupSpec": template, "workerGroupSpecs": [worker | template]}


def raycluster(namespace: str) -> Document:
    return custom("RayCluster", "ray.io/v1", namespace, ray_cluster_spec())


def rayjob(namespace: str) -> Document:
    # In the default mode, KubeRay makes one more pod at some time, which submits the entrypoint to Ray.
    spec = {
        "entrypoint": "true",
        "submissionMode": "HTTPMode",
        "rayClusterSpec": ray_cluster_spec(),
    }
    return custom("RayJob", "ray.io/v1", namespace, spec)


def trainingruntime(namespace: str) -> Document:
    container = CONTAINER | {"name": "node"}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job = {"name": "node", "template": {"metadata": step, "spec": {"template": pod}}}
    spec = {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {"spec": {"replicatedJobs": [job]}},
    }
    return custom("TrainingRuntime", "trainer.kubeflow.org/v1alpha1", namespace, spec, "torch")


def trainjob(namespace: str) -> Document:
    runtime = {"name": "torch", "kind": "TrainingRuntime"}
    spec = {"runtimeRef": runtime, "trainer": {"numNodes": 2}}
    return custom("TrainJob", "trainer.kubeflow.org/v1alpha1", namespace, spec)


def leaderworkerset(namespace: str) -> Document:
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": POD}}}
    return custom("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", namespace, spec)


def appwrapper(namespace: str) -> Document:
    metadata = {"name": "one-pod", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata | {"name": "one-job"}}
    job |= {"spec": {"completions": 2, "parallelism": 2, "template": {"spec": JOB_POD}}}
    spec = {"components": [{"template": pod}, {"template": job}]}
    return custom("AppWrapper", "workload.codeflare.dev/v1beta2", namespace, spec)


def sparkapplication(namespace: str) -> Document:
    spec = {
        "type": "Scala",
        "mode": "cluster",
        "sparkVersion": "4.0.1",
        "image": "none",
        "mainClass": "com.example.Main",
        "mainApplicationFile": "local:///main.jar",
        "driver": {"serviceAccount": "default"},
        "executor": {"instances": 1},
    }
    return custom("SparkApplication", "sparkoperator.k8s.io/v1beta2", namespace, spec)


def pods(cluster: LocalCluster, namespace: str) -> list[Document]:
    items: list[Document] = cluster.client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return items


def until_running(cluster: LocalCluster, namespace: str, expected: dict[str, int]) -> None:
    """Wait until as many pods as expected run for each pattern of names, and no other pod exists."""

    def found() -> bool:
        now = {one["metadata"]["name"]: one["status"]["phase"] for one in pods(cluster, namespace)}
        counts = {one: sum(1 for name in now if re.fullmatch(one, name)) for one in expected}
        running = set(now.values()) == {"Running"}
        return running and counts == expected and len(now) == sum(expected.values())

    wait_until(found, f"running pods {expected}", 60.0)


def create(cluster: LocalCluster, document: Document) -> Document:
    path = cluster.client.path_of(document).rpartition("/")[0]
    return cluster.client.create(path, document)


@pytest.mark.parametrize(
    ("operator", "documents", "expected"),
    [
        ("jobset", [jobset], {"one-work-[01]-[01]-.{5}": 4}),
        ("mpi-operator", [mpijob], {"one-launcher-.{5}": 1, "one-worker-[01]": 2}),
        ("kuberay-operator", [raycluster], {"one-head-.{5}": 1, "one-work-worker-.{5}": 2}),
        ("trainer-controller-manager", [trainingruntime, trainjob], {"one-node-0-[01]-.{5}": 2}),
        ("lws", [leaderworkerset], {"one-[01]": 2, "one-[01]-1": 2}),
        ("appwrapper", [appwrapper], {"one-pod": 1, "one-job-.{5}": 2}),
        # Its driver runs no program here, so it creates no executor.
        ("spark-operator", [sparkapplication], {"one-driver": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_makes_the_pods_of_an_object(
    cluster: LocalCluster,
    namespace: str,
    operator: str,
    documents: list[Callable[[str], Document]],
    expected: dict[str, int],
) -> None:
    cluster.add_operator(operator, progress=LineProgress())
    for document in documents:
        create(cluster, document(namespace))
    until_running(cluster, namespace, expected)
    assert not any(cluster.health().values())


def test_a_rayjob_makes_its_raycluster(cluster: LocalCluster, namespace: str) -> None:
    cluster.add_operator("kuberay-operator", progress=LineProgress())
    create(cluster, rayjob(namespace))
    until_running(cluster, namespace, {"one-.{5}-head-.{5}": 1, "one-.{5}-work-worker-.{5}": 2})


def test_the_webhooks_of_an_operator_default_and_refuse(
    cluster: LocalCluster, namespace: str
) -> None:
    cluster.add_operator("jobset", progress=LineProgress())
    made = create(cluster, jobset(namespace, suspend=True))
    assert made["spec"]["network"]["enableDNSHostnames"]
    path = cluster.client.path_of(made)
    with pytest.raises(ApiServerError, match=r"jobset.*immutable"):
        cluster.client.patch(path, {"spec": {"replicatedJobs": []}})


def has_pods(schema: Document) -> bool:
    """Whether an object can have the spec of a pod: a list of containers, or a template without a schema."""
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            fields = value.get("properties", {})
            free = fields.get("template", {}).get("x-kubernetes-preserve-unknown-fields")
            if "containers" in fields or free:
                return True
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return "x-kubernetes-embedded-resource" in str(schema)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "lws"])
def test_each_kind_with_pods_is_in_the_list_of_kinds(name: str) -> None:
    """Else a new kind has no policy for objects outside the queues. Admission checks the pods of LeaderWorkerSets one by one."""
    build.ensure(LineProgress(), units=[OPERATORS[name].unit])
    files = build.cached(OPERATORS[name].unit).files
    crds = [one for file in files if file.startswith("crds/") for one in objects(files[file])]
    found = {
        one["spec"]["names"]["plural"]
        for one in crds
        if any(has_pods(version["schema"]) for version in one["spec"]["versions"])
    }
    assert found
    assert found <= set(unqueued(KINDS))

"""A local cluster works as documented: identities, jobs by annotation, PyTorchJobs, nodes, restarts."""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from queuectl.localcluster import (
    ApiServerError,
    ClusterSpec,
    LocalCluster,
    LocalClusterError,
    NodeSpec,
)
from queuectl.localcluster.client import Client, Document, get_plain
from queuectl.localcluster.exporter import PROFILE, start_for
from queuectl.localcluster.testing import wait_until
from tests.cluster.kubernetes_world import new_namespace
from tests.support.controlplane import NODES, ControlPlane, in_force

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

TINY = ClusterSpec(nodes=(NodeSpec(1, 1, 1),), fsync=False, operators=())


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[LocalCluster]:
    yield control_plane.cluster
    # KWOK applies a stage to every object if its expression does not compile.
    assert "stage match" not in control_plane.cluster.log("kwok").read_text()


@pytest.fixture
def namespace(cluster: LocalCluster) -> Iterator[str]:
    """A namespace. At the end the test waits for the deletion of its pods, but not of the namespace, which takes 5 s more."""
    name = new_namespace(cluster.client)
    yield name
    for kind in ("/apis/batch/v1/{}jobs", "/apis/kubeflow.org/v1/{}pytorchjobs", "/api/v1/{}pods"):
        cluster.client.delete(
            kind.format(f"namespaces/{name}/"), propagationPolicy="Background", gracePeriodSeconds=0
        )
    wait_until(lambda: not pods(cluster.client, name), f"{name} empty", 30.0)
    cluster.client.delete(f"/api/v1/namespaces/{name}")


def template(gpus: int = 0, container: str = "main", **annotations: object) -> Document:
    return {
        "metadata": {
            "annotations": {
                f"kwok.queuectl.dev/{k.replace('_', '-')}": str(v) for k, v in annotations.items()
            }
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": container,
                    "image": "none",
                    "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
                }
            ],
        },
    }


def job(namespace: str, name: str, pods: int, pod: Document, **spec: Any) -> Document:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": pod,
            **spec,
        },
    }


def conditions(client: Client, document: Document) -> set[str]:
    status = client.get(client.path_of(document)).get("status", {})
    return {one["type"] for one in status.get("conditions") or [] if one["status"] == "True"}


def pods(client: Client, namespace: str) -> list[Document]:
    items: list[Document] = client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return items


def phases(client: Client, namespace: str) -> set[str]:
    return {one["status"]["phase"] for one in pods(client, namespace)}


def test_every_component_is_healthy(cluster: LocalCluster) -> None:
    assert set(cluster.health()) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "training-operator",
    }
    assert not any(cluster.health().values())


def test_nodes_have_topology_labels_and_gpus(cluster: LocalCluster) -> None:
    node = cluster.client.get("/api/v1/nodes/b0-r1-h0")
    assert (
        node["metadata"]["labels"].items()
        >= {
            "topology.queuectl.dev/block": "b0",
            "topology.queuectl.dev/rack": "b0-r1",
            "kubernetes.io/hostname": "b0-r1-h0",
            "nvidia.com/gpu.clique": "b0-r1-c0",
            "type": "kwok",
        }.items()
    )
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert not node["spec"].get("taints")


def test_a_job_runs_for_the_time_in_its_annotation(cluster: LocalCluster, namespace: str) -> None:
    work = job(namespace, "work", 4, template(gpus=8, run_seconds=0.5), completionMode="Indexed")
    cluster.client.apply(work)
    wait_until(lambda: "Complete" in conditions(cluster.client, work), "the job to complete", 30)


def test_exporters_of_its_nodes_report_the_gpu_use_of_pods(
    cluster: LocalCluster, namespace: str
) -> None:
    targets = get_plain(start_for(cluster)).json()
    urls = [f"http://{one['targets'][0]}{one['labels']['__metrics_path__']}" for one in targets]
    assert len(urls) == NODES.count
    pod = template(gpus=8)
    pod["metadata"]["annotations"][PROFILE] = "busy=0.7"
    cluster.client.apply(job(namespace, "busy", 1, pod))
    engine = re.compile(rf'ENGINE_ACTIVE{{.*namespace="{namespace}".*}} 0\.7$', re.MULTILINE)

    def seen() -> list[int]:
        texts = [get_plain(one).text for one in urls]
        return sorted(len(engine.findall(text)) for text in texts)

    wait_until(lambda: seen() == [0] * (NODES.count - 1) + [8], "8 busy GPUs of one node", 30)


def test_a_job_without_annotation_runs_until_it_is_suspended(
    cluster: LocalCluster, namespace: str
) -> None:
    work = job(namespace, "work", 2, template())
    cluster.client.apply(work)
    wait_until(lambda: phases(cluster.client, namespace) == {"Running"}, "the pods to run", 30)
    cluster.client.patch(cluster.client.path_of(work), {"spec": {"suspend": True}})
    wait_until(lambda: not pods(cluster.client, namespace), "the deletion of the pods", 30)


def test_a_pod_fails_with_the_exit_code_in_its_annotation(
    cluster: LocalCluster, namespace: str
) -> None:
    work = job(namespace, "work", 1, template(run_seconds=60, fail_after_seconds=0.2, exit_code=42))
    cluster.client.apply(work)
    wait_until(lambda: "Failed" in conditions(cluster.client, work), "the job to fail", 30)
    [pod] = pods(cluster.client, namespace)
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 42


def test_a_gated_pod_never_runs(cluster: LocalCluster, namespace: str) -> None:
    pod = template()
    pod["spec"]["schedulingGates"] = [{"name": "example.com/hold"}]
    gated, free = (
        job(namespace, "gated", 1, pod),
        job(namespace, "free", 1, template(run_seconds=0.5)),
    )
    cluster.client.apply(gated, free)
    wait_until(
        lambda: "Complete" in conditions(cluster.client, free), "the other job to complete", 30
    )
    [held] = [one for one in pods(cluster.client, namespace) if one["spec"].get("schedulingGates")]
    assert held["status"]["phase"] == "Pending"
    assert "nodeName" not in held["spec"]


def test_termination_takes_the_time_in_its_annotation(
    cluster: LocalCluster, namespace: str
) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **template(terminate_seconds=2)}
    pod["metadata"] |= {"name": "slow", "namespace": namespace}
    cluster.client.apply(pod)
    wait_until(lambda: phases(cluster.client, namespace) == {"Running"}, "the pod to run", 30)
    path = cluster.client.path_of(pod)
    cluster.client.delete(path)
    assert cluster.client.get(path)["metadata"]["deletionTimestamp"]
    assert cluster.client.get(path)["status"]["phase"] == "Running"
    wait_until(lambda: not cluster.client.exists(path), "the deletion of the pod", 10)


def test_a_pytorchjob_runs_and_succeeds_by_the_real_operator(
    cluster: LocalCluster, namespace: str
) -> None:
    def replicas(count: int) -> Document:
        pod = template(gpus=8, container="pytorch", run_seconds=3)
        return {"replicas": count, "restartPolicy": "Never", "template": pod}

    work = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(2)}},
    }
    cluster.client.apply(work)
    wait_until(lambda: "Running" in conditions(cluster.client, work), "the PyTorchJob to run", 30)
    assert {one["metadata"]["name"] for one in pods(cluster.client, namespace)} == {
        "train-master-0",
        "train-worker-0",
        "train-worker-1",
    }
    wait_until(
        lambda: "Succeeded" in conditions(cluster.client, work), "the PyTorchJob to succeed", 30
    )


def test_the_operator_refuses_a_malformed_pytorchjob(cluster: LocalCluster, namespace: str) -> None:
    work = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template(container="wrong")}
            }
        },
    }
    with pytest.raises(ApiServerError, match="pytorch") as refused:
        cluster.client.apply(work)
    assert refused.value.status in {400, 403, 422}


def test_a_request_without_identity_is_refused(cluster: LocalCluster) -> None:
    client = cluster.anonymous_client()
    with pytest.raises(ApiServerError) as refused:
        client.get("/api/v1/nodes")
    client.close()
    assert refused.value.status == 401


def test_a_plain_user_may_do_nothing_until_a_role_allows_it(
    cluster: LocalCluster, namespace: str
) -> None:
    client = cluster.client_for_user("alice", ["team-a"])
    with pytest.raises(ApiServerError) as refused:
        client.get("/api/v1/nodes")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    cluster.client.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "team-a", "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "view",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team-a"}
            ],
        }
    )
    path = f"/api/v1/namespaces/{namespace}/pods"
    wait_until(lambda: client.get(path)["items"] == [], "the role to take effect", 10)
    client.close()


def test_a_namespace_is_deleted_with_its_content(cluster: LocalCluster) -> None:
    with cluster.namespace() as namespace:
        cluster.client.apply(job(namespace, "stays", 1, template()))
        assert cluster.client.exists(f"/api/v1/namespaces/{namespace}")
    assert not cluster.client.exists(f"/api/v1/namespaces/{namespace}")


def test_each_kubeconfig_has_the_identity_of_its_user(
    cluster: LocalCluster, namespace: str
) -> None:
    if cluster.kubectl is None:
        pytest.skip("kubectl is not built; make controlplane builds it")
    cluster.client.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "robot", "namespace": namespace},
        }
    )
    robot = f"system:serviceaccount:{namespace}:robot"
    for kubeconfig, user in (
        (cluster.kubeconfig, "queuectl-localcluster-admin"),
        (cluster.kubeconfig_for_user("bob"), "bob"),
        (cluster.kubeconfig_for_service_account(namespace, "robot"), robot),
    ):
        assert kubeconfig.stat().st_mode & 0o077 == 0
        command = [
            str(cluster.kubectl),
            "--kubeconfig",
            str(kubeconfig),
            "auth",
            "whoami",
            "-o=jsonpath={.status.userInfo.username}",
        ]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == user


def test_a_lost_node_leaves_its_pods_behind_until_it_is_restored(
    cluster: LocalCluster, namespace: str
) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **template()}
    pod["metadata"] |= {"name": "stuck", "namespace": namespace}
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "b0-r0-h0"}
    cluster.client.apply(pod)
    wait_until(lambda: phases(cluster.client, namespace) == {"Running"}, "the pod to run", 30)
    path = cluster.client.path_of(pod)

    cluster.nodes.lose("b0-r0-h0")
    assert "b0-r0-h0" not in cluster.nodes.ready()
    cluster.client.delete(path)
    with pytest.raises(LocalClusterError, match="the deletion of the pod"):
        wait_until(lambda: not cluster.client.exists(path), "the deletion of the pod", 2)

    cluster.nodes.restore("b0-r0-h0")
    wait_until(lambda: not cluster.client.exists(path), "the deletion of the pod", 30)
    cluster.nodes.wait_ready(["b0-r0-h0"], seconds=30)


def test_nodes_can_be_added_cordoned_and_deleted(cluster: LocalCluster) -> None:
    [name] = cluster.nodes.create(NodeSpec(1, 1, 1, gpus=0, prefix="cpu-"))
    assert "nvidia.com/gpu" not in cluster.client.get(f"/api/v1/nodes/{name}")["status"]["capacity"]
    cluster.nodes.cordon(name)
    wait_until(lambda: name not in cluster.nodes.ready(), "the cordon to take effect", 10)
    cluster.nodes.uncordon(name)
    cluster.nodes.wait_ready([name], seconds=10)
    cluster.nodes.delete(name)
    assert name not in cluster.nodes.names()


@pytest.mark.faults
def test_jobs_run_after_a_restart_of_the_api_server(cluster: LocalCluster, namespace: str) -> None:
    cluster.client.apply(job(namespace, "before", 2, template(run_seconds=0.2)))
    cluster.restart_apiserver()
    cluster.kill_apiserver()
    assert cluster.health()["kube-apiserver"] is not None
    cluster.start_apiserver()
    after = job(namespace, "after", 2, template(run_seconds=0.2))
    cluster.client.apply(after)
    wait_until(lambda: "Complete" in conditions(cluster.client, after), "the job to complete", 60)
    cluster.nodes.wait_ready(cluster.nodes.names(), seconds=30)
    asyncio.run(in_force(cluster.kubeconfig))  # for the next tests


def test_two_clusters_at_once_are_independent(
    cluster: LocalCluster,
) -> None:
    with LocalCluster.start(TINY) as other:
        assert other.server != cluster.server
        assert not any(other.health().values())
        assert not any(cluster.health().values())
        assert len(other.nodes.names()) == 1
        assert len(cluster.nodes.names()) == NODES.count
        unknown_user = Client(
            other.server, other.authority, cluster._authority().client("root", ["system:masters"])
        )
        with pytest.raises(ApiServerError) as refused:
            unknown_user.get("/api/v1/nodes")
        unknown_user.close()
        assert refused.value.status == 401

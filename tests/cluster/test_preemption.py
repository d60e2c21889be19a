"""Pods outside the queues and the pods of gangs, on a real API server with kube-scheduler and simulated kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from queuectl.localcluster import ApiServerError
from queuectl.localcluster.testing import wait_until
from queuectl.objects import keys
from tests.cluster.kubernetes_world import KubernetesWorld
from tests.cluster.test_policies import a_pod, owner
from tests.cluster.world import a_node, alive, place, start, submitted
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.support.jobs import batch_job, template

pytestmark = pytest.mark.system

Document = dict[str, Any]
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
SYSTEM = ["system-node-critical", "system-cluster-critical"]
REFUSED = "could preempt a part of a gang"


def asking(priority_class: str, name: str = "urgent", **spec: Any) -> Document:
    """A pod that needs all GPUs of a node."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = a_pod({"priorityClassName": priority_class, "containers": [container], **spec})
    pod["metadata"]["name"] = name
    return pod


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
async def highest(world: KubernetesWorld) -> AsyncIterator[str]:
    """The name of a PriorityClass of users with the highest value."""
    name = f"{world.namespace}-highest"
    body = {
        "metadata": {"name": name},
        "value": keys.POD_PRIORITY,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    await asyncio.to_thread(world.admin.create, CLASSES, body)
    yield name
    await asyncio.to_thread(world.admin.delete, f"{CLASSES}/{name}")


async def test_kube_scheduler_preempts_no_gang_for_a_pod_of_a_class_of_users(
    world: KubernetesWorld, highest: str
) -> None:
    job = await submitted(world, batch_job("gang", namespace=world.namespace, gpus=8))
    node = a_node(world)
    await place(world, await start(world, job, 1), node)
    pod = asking(highest, nodeSelector={"kubernetes.io/hostname": node})
    await asyncio.to_thread(world.user.create, pods(world.namespace), pod)
    path = f"{pods(world.namespace)}/urgent"

    def refused() -> bool:
        conditions = world.admin.get(path)["status"].get("conditions", ())
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    await asyncio.to_thread(wait_until, refused, "kube-scheduler finds no node", 30)
    stored = await asyncio.to_thread(world.admin.get, path)
    assert "nominatedNodeName" not in stored["status"]
    [running] = alive(world, job.uid)
    assert (running.node, running.terminating) == (node, False)


@pytest.mark.parametrize("name", SYSTEM)
@pytest.mark.parametrize("spec", [{}, {"nodeName": "n1"}], ids=["to schedule", "on a node"])
async def test_no_pod_of_a_system_class_is_created_in_another_namespace(
    world: KubernetesWorld, name: str, spec: Document
) -> None:
    """A kubelet preempts for a system class as well, so the node makes no difference. A cluster admin is not an exception."""
    for client in (world.user, world.admin):
        with pytest.raises(ApiServerError, match=REFUSED):
            await asyncio.to_thread(
                client.create, pods(world.namespace), asking(name, **spec), dryRun="All"
            )


async def test_the_pods_of_the_control_plane_and_of_queuectl_keep_their_class(
    world: KubernetesWorld,
) -> None:
    for namespace in ("kube-system", SYSTEM_NAMESPACE):
        for name in SYSTEM:
            document = asking(name, serviceAccountName="default")
            document["spec"]["securityContext"] = {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            document["spec"]["containers"][0]["securityContext"] = {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            await asyncio.to_thread(world.admin.create, pods(namespace), document, dryRun="All")


async def test_an_administrator_allows_a_namespace_by_its_label(world: KubernetesWorld) -> None:
    label = {"metadata": {"labels": {"queuectl.dev/allow-preemption": "true"}}}
    await asyncio.to_thread(world.admin.patch, f"/api/v1/namespaces/{world.namespace}", label)

    def accepted() -> bool:
        try:
            world.user.create(pods(world.namespace), asking(SYSTEM[0]), dryRun="All")
        except ApiServerError as error:
            assert REFUSED in str(error)  # noqa: PT017 - the label acts with a delay
            return False
        return True

    async with asyncio.timeout(20):
        while not await asyncio.to_thread(accepted):
            pass


async def test_a_user_of_one_namespace_cannot_label_it(world: KubernetesWorld) -> None:
    """The roles `edit` and `admin` of Kubernetes include no change of a namespace."""
    binding = {
        "metadata": {"name": "admins"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "admin",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "carol"}],
    }
    target = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{world.namespace}/rolebindings"
    await asyncio.to_thread(world.admin.create, target, binding)
    carol = world.plane.cluster.client_for_user("carol")
    label = {"metadata": {"labels": {"queuectl.dev/allow-preemption": "true"}}}
    try:
        with pytest.raises(ApiServerError, match="forbidden"):
            await asyncio.to_thread(carol.patch, f"/api/v1/namespaces/{world.namespace}", label)
    finally:
        carol.close()


def daemon_set(priority_class: str | None) -> Document:
    one = template()
    one["metadata"]["labels"] = {"app": "agent"}
    one["spec"] |= {"restartPolicy": "Always"}
    if priority_class is not None:
        one["spec"]["priorityClassName"] = priority_class
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": one}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent"},
        "spec": spec,
    }


def daemon_sets(world: KubernetesWorld) -> str:
    return f"/apis/apps/v1/namespaces/{world.namespace}/daemonsets"


async def test_a_daemonset_of_an_administrator_runs_on_each_node(world: KubernetesWorld) -> None:
    """Even if it is older than the policies: its pods are not checked again."""
    document = daemon_set(SYSTEM[0])
    await asyncio.to_thread(world.admin.create, daemon_sets(world), document)

    def nodes() -> set[str | None]:
        own = [p for p in world.view.pods.values() if p.namespace == world.namespace]
        return {pod.node for pod in own if pod.node}

    await world.until(lambda: nodes() == set(world.view.nodes), "a pod on each node")


async def test_no_other_user_creates_a_daemonset_of_a_system_class(world: KubernetesWorld) -> None:
    for name in SYSTEM:
        with pytest.raises(ApiServerError, match=REFUSED):
            await asyncio.to_thread(
                world.user.create, daemon_sets(world), daemon_set(name), dryRun="All"
            )
    await asyncio.to_thread(world.user.create, daemon_sets(world), daemon_set(None))
    change = {"spec": {"template": {"spec": {"priorityClassName": SYSTEM[0]}}}}
    with pytest.raises(ApiServerError, match=REFUSED):
        await asyncio.to_thread(world.user.patch, f"{daemon_sets(world)}/agent", change)
    other = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    await asyncio.to_thread(world.user.patch, f"{daemon_sets(world)}/agent", other)


async def test_a_user_cannot_pretend_that_a_pod_is_of_a_daemonset(world: KubernetesWorld) -> None:
    document = asking(SYSTEM[0])
    document["metadata"]["ownerReferences"] = [owner(kind="DaemonSet", apiVersion="apps/v1")]
    with pytest.raises(ApiServerError, match=REFUSED):
        await asyncio.to_thread(world.user.create, pods(world.namespace), document, dryRun="All")


ACCOUNTS = {
    "ReplicaSet": "system:serviceaccount:kube-system:replicaset-controller",
    "StatefulSet": "system:serviceaccount:kube-system:statefulset-controller",
    "ReplicationController": "system:serviceaccount:kube-system:replication-controller",
    "Job": "system:serviceaccount:kube-system:job-controller",
    "TFJob": "system:serviceaccount:kubeflow:training-operator",
}


@pytest.mark.parametrize("kind", ACCOUNTS)
async def test_no_controller_creates_such_a_pod_for_a_user(
    world: KubernetesWorld, kind: str
) -> None:
    users = [ACCOUNTS[kind], "system:kube-controller-manager"]
    document = asking(SYSTEM[0])
    document["metadata"]["ownerReferences"] = [owner(kind=kind)]
    for user in users:
        with world.plane.engineer(user) as client, pytest.raises(ApiServerError, match=REFUSED):
            await asyncio.to_thread(client.create, pods(world.namespace), document, dryRun="All")


@pytest.mark.parametrize("controller", [None, "ReplicaSet", "StatefulSet"])
async def test_the_label_of_a_gang_permits_no_such_pod(
    world: KubernetesWorld, controller: str | None
) -> None:
    """The policy about classes leaves out the pods of gangs, so another one refuses the label."""
    document = asking(SYSTEM[0])
    document["metadata"]["labels"] = {keys.ATTEMPT_LABEL: "1", keys.WORKLOAD_LABEL: "x"}
    if controller is not None:
        document["metadata"]["ownerReferences"] = [owner(kind=controller)]
    client = world.plane.engineer(ACCOUNTS[controller]) if controller else nullcontext(world.user)
    refused = "only the controllers of Jobs and of the other job kinds create such pods"
    with client as user, pytest.raises(ApiServerError, match=refused):
        await asyncio.to_thread(user.create, pods(world.namespace), document, dryRun="All")


async def test_a_queued_pod_has_the_class_of_managed_pods_whatever_it_asks_for(
    world: KubernetesWorld,
) -> None:
    document = asking(SYSTEM[0])
    document["metadata"]["labels"] = {keys.QUEUE_LABEL: "team-a"}
    stored = await asyncio.to_thread(
        world.user.create, pods(world.namespace), document, dryRun="All"
    )
    assert stored["spec"]["priorityClassName"] == keys.POD_PRIORITY_CLASS
    assert (stored["spec"]["priority"], stored["spec"]["preemptionPolicy"]) == (
        keys.POD_PRIORITY,
        "Never",
    )


@pytest.mark.parametrize("controller", ["Job", "TFJob"])
async def test_the_pods_of_an_appwrapper_have_the_class_of_managed_pods(
    world: KubernetesWorld, controller: str
) -> None:
    """Its operator adds labels and the gate to the templates of the components, and no PriorityClass."""
    labels = {keys.KIND_LABEL: "AppWrapper", keys.ATTEMPT_LABEL: "1", keys.WORKLOAD_LABEL: "x"}
    gate = {"schedulingGates": [{"name": keys.GATE}]}
    document = a_pod(gate, labels=labels, ownerReferences=[owner(kind=controller)])
    with world.plane.engineer(ACCOUNTS[controller]) as client:
        stored = await asyncio.to_thread(
            client.create, pods(world.namespace), document, dryRun="All"
        )
    assert stored["spec"]["priorityClassName"] == keys.POD_PRIORITY_CLASS
    assert (stored["spec"]["priority"], stored["spec"]["preemptionPolicy"]) == (
        keys.POD_PRIORITY,
        "Never",
    )
    assert stored["spec"]["schedulingGates"] == gate["schedulingGates"]


async def test_the_report_of_a_node_about_a_pod_of_its_files_is_accepted(
    world: KubernetesWorld,
) -> None:
    node = a_node(world)
    document = asking(SYSTEM[0], nodeName=node)
    document["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    kubelet = world.plane.cluster.client_for_user(
        f"system:node:{node}", ["system:nodes", "engineers"]
    )
    try:
        await asyncio.to_thread(kubelet.create, pods(world.namespace), document, dryRun="All")
    finally:
        kubelet.close()


# ---- resizes


RESIZES: dict[str, Document] = {
    "more CPU": {"requests": {"cpu": "2"}},
    "less CPU": {"requests": {"cpu": "500m"}},
    "more memory": {"requests": {"memory": "2Gi"}},
}


def burstable(name: str, **metadata: Any) -> Document:
    pod = a_pod(**metadata)
    pod["metadata"]["name"] = name
    requests = {"cpu": "1", "memory": "1Gi"}
    pod["spec"]["containers"][0]["resources"] = {"requests": requests}
    return pod


async def test_the_requests_of_a_pod_of_a_gang_are_not_resized(world: KubernetesWorld) -> None:
    """Those of another pod can be. The limits of a pod of a gang can change as well."""
    document = batch_job("gang", namespace=world.namespace)
    document["spec"]["template"]["spec"]["containers"] = burstable("x")["spec"]["containers"]
    job = await submitted(world, document)
    await place(world, await start(world, job, 1), a_node(world))
    [pod] = alive(world, job.uid)
    queued = burstable("queued", labels={keys.QUEUE_LABEL: "team-a"})
    for one in (queued, burstable("free")):
        await asyncio.to_thread(world.user.create, pods(world.namespace), one)
    running = [pod.name, "free"]
    await asyncio.to_thread(_support_resizes, world, running)

    async def refused(name: str, resources: Document) -> bool:
        return "stay as they were planned" in await asyncio.to_thread(
            _resize, world, name, resources
        )

    for what, resources in RESIZES.items():
        assert await refused(pod.name, resources), what
        assert await refused("queued", resources), what
        assert await asyncio.to_thread(_resize, world, "free", resources) == ""
    assert await asyncio.to_thread(_resize, world, pod.name, {"limits": {"cpu": "4"}}) == ""


def _support_resizes(world: KubernetesWorld, names: list[str]) -> None:
    """As a kubelet that can resize reports: the resources of each container."""
    for name in names:
        path = f"{pods(world.namespace)}/{name}"
        wait_until(lambda: bool(world.admin.get(path)["status"].get("containerStatuses")), name, 30)  # noqa: B023
        [container] = world.admin.get(path)["status"]["containerStatuses"]
        reported = {"requests": {"cpu": "1", "memory": "1Gi"}}
        status = {"status": {"containerStatuses": [{**container, "resources": reported}]}}
        kind = "application/strategic-merge-patch+json"
        world.admin._request("PATCH", f"{path}/status", status, kind)


def _resize(world: KubernetesWorld, name: str, resources: Document) -> str:
    """The message with which the API server refuses it; empty if it does not."""
    path = f"{pods(world.namespace)}/{name}/resize"
    change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    try:
        world.user._request("PATCH", path, change, "application/strategic-merge-patch+json")
    except ApiServerError as error:
        return str(error)
    return ""

"""The user for whom the pods and the jobs of controllers count, on a real API server with kube-controller-manager."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client
from queuectl.objects import keys
from queuectl.objects.kinds.leaderworkerset import GROUP_LABEL, NAME_LABEL
from queuectl.objects.kinds.makers import MAKERS
from tests.cluster.kubernetes_world import KubernetesWorld
from tests.cluster.test_policies import a_pod, owner
from tests.support.jobs import batch_job, template

pytestmark = pytest.mark.system

Document = dict[str, Any]
QUEUE = {keys.QUEUE_LABEL: "team-a"}
ACCOUNTS = "system:serviceaccount:kube-system:"
MANAGER = "system:kube-controller-manager"


def labeled(labels: Document, annotations: Mapping[str, str]) -> Document:
    """A pod template."""
    made = template()
    made["spec"]["restartPolicy"] = "Always"
    return {**made, "metadata": {"labels": labels, "annotations": dict(annotations)}}


def maker(
    kind: str, annotations: Mapping[str, str] | None = None, *, queue: bool = True
) -> Document:
    """An object of which a controller makes a pod. Its template alone has the label of the queue, except for a Deployment."""
    own = QUEUE if queue else {}
    app = {"app": kind.lower()}
    in_template = {} if kind == "Deployment" else own
    spec: Document = {"template": labeled({**app, **in_template}, annotations or {})}
    spec |= {} if kind == "DaemonSet" else {"replicas": 1}
    spec["selector"] = app if kind == "ReplicationController" else {"matchLabels": app}
    if kind == "StatefulSet":
        spec["serviceName"] = "none"
    labels = own if kind == "Deployment" else {}
    api = "v1" if kind == "ReplicationController" else "apps/v1"
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": "made", "labels": labels},
        "spec": spec,
    }


def cron_job(annotations: Mapping[str, str] | None = None) -> Document:
    job = {
        "metadata": {"labels": QUEUE, "annotations": dict(annotations or {})},
        "spec": {"template": template()},
    }
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": job}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "made"},
        "spec": spec,
    }


def document_of(kind: str, annotations: Mapping[str, str] | None = None) -> Document:
    return cron_job(annotations) if kind == "CronJob" else maker(kind, annotations)


def path(world: KubernetesWorld, kind: str, name: str = "") -> str:
    [one] = [each for each in MAKERS if each.kind == kind]
    base = f"/apis/{one.group}" if one.group else "/api"
    return f"{base}/{one.version}/namespaces/{world.namespace}/{one.plural}" + (
        f"/{name}" if name else ""
    )


def user_of(stored: Document) -> str | None:
    """The name that the template of an object has."""
    spec = stored["spec"]
    metadata = (spec.get("jobTemplate") or spec["template"]).get("metadata", {})
    found: str | None = metadata.get("annotations", {}).get(keys.SUBMITTED_BY)
    return found


OF_PODS = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"]
KINDS = [*OF_PODS, "CronJob"]


@pytest.mark.parametrize("kind", OF_PODS)
async def test_the_pods_of_a_controller_count_for_the_user_of_their_object(
    world: KubernetesWorld, kind: str
) -> None:
    await asyncio.to_thread(world.user.create, path(world, kind), maker(kind))

    def users() -> set[str]:
        pods = [p for p in world.view.pods.values() if p.namespace == world.namespace]
        return {pod.member.job.submitter for pod in pods if pod.member is not None}

    await world.until(users, f"the controller of the {kind} creates a pod")
    assert users() == {"alice"}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_user_names_another_one_in_a_template(world: KubernetesWorld, kind: str) -> None:
    """Admission overwrites the name in a new object, and an update changes it never."""
    forged = document_of(kind, {keys.SUBMITTED_BY: "bob"})
    stored = await asyncio.to_thread(world.user.create, path(world, kind), forged)
    assert user_of(stored) == "alice"
    where = "jobTemplate" if kind == "CronJob" else "template"
    for other in ("bob", "", None):
        annotations = {"metadata": {"annotations": {keys.SUBMITTED_BY: other}}}
        await asyncio.to_thread(
            world.user.patch, path(world, kind, "made"), {"spec": {where: annotations}}
        )
        now = await asyncio.to_thread(world.admin.get, path(world, kind, "made"))
        assert user_of(now) == "alice"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_user_stays_when_another_one_replaces_the_object(
    world: KubernetesWorld, kind: str
) -> None:
    await asyncio.to_thread(world.user.create, path(world, kind), document_of(kind))

    def replace(client: Client) -> Document:
        known = client.get(path(world, kind, "made"))
        document = document_of(kind)
        document["spec"] = {**known["spec"], **document["spec"]}
        replaced: Document = client._request("PUT", path(world, kind, "made"), document)
        return replaced

    with world.plane.engineer("bob") as bob:
        assert user_of(await asyncio.to_thread(replace, bob)) == "alice"


async def test_the_user_who_puts_an_object_into_a_queue_is_its_user(world: KubernetesWorld) -> None:
    made = await asyncio.to_thread(
        world.user.create, path(world, "Deployment"), maker("Deployment", queue=False)
    )
    assert user_of(made) is None
    with world.plane.engineer("bob") as bob:
        queued = {"metadata": {"labels": QUEUE}}
        now = await asyncio.to_thread(bob.patch, path(world, "Deployment", "made"), queued)
    assert user_of(now) == "bob"


async def test_an_object_outside_the_queues_is_not_changed(world: KubernetesWorld) -> None:
    for kind in OF_PODS:
        stored = await asyncio.to_thread(
            world.user.create, path(world, kind), maker(kind, queue=False), dryRun="All"
        )
        assert user_of(stored) is None


@pytest.mark.parametrize("account", [ACCOUNTS + "cronjob-controller", MANAGER])
async def test_a_job_of_a_cronjob_counts_for_the_user_of_the_cronjob(
    world: KubernetesWorld, account: str
) -> None:
    """The controller copies the annotations. A CronJob from before the policies has no name."""
    of = [owner(kind="CronJob")]
    target = f"/apis/batch/v1/namespaces/{world.namespace}/jobs"
    found = {}
    for name in ("alice", None):
        document = batch_job("made", namespace=world.namespace)
        document["metadata"] |= {
            "ownerReferences": of,
            "annotations": {keys.SUBMITTED_BY: name} if name else {},
        }
        with world.plane.engineer(account) as controller:
            stored = await asyncio.to_thread(controller.create, target, document, dryRun="All")
        found[name] = stored["metadata"]["annotations"][keys.SUBMITTED_BY]
    assert found == {"alice": "alice", None: f"system:serviceaccounts:{world.namespace}"}


async def test_a_cronjob_without_a_label_keeps_its_user_where_its_jobs_get_the_default_queue(
    world: KubernetesWorld,
) -> None:
    label = {"metadata": {"labels": {keys.DEFAULT_QUEUE_LABEL: "true"}}}
    document = cron_job()
    del document["spec"]["jobTemplate"]["metadata"]

    def made() -> str | None:
        return user_of(world.user.create(path(world, "CronJob"), document, dryRun="All"))

    assert await asyncio.to_thread(made) is None
    namespace = f"/api/v1/namespaces/{world.namespace}"
    await asyncio.to_thread(world.admin.patch, namespace, label)
    async with asyncio.timeout(20):  # the API server reads the label with a delay
        while (user := await asyncio.to_thread(made)) is None:
            pass
    assert user == "alice"


@pytest.mark.parametrize(
    "kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"]
)
async def test_pods_of_an_object_from_before_the_policies_count_for_its_namespace(
    world: KubernetesWorld, kind: str
) -> None:
    """They affect no other namespace. The owner reference alone names no user."""
    [one] = [each for each in MAKERS if each.kind == kind]
    assert one.created is not None
    account = ACCOUNTS + one.created.controller
    of = [owner(kind=kind, apiVersion="apps/v1")]
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    for user in (account, MANAGER):
        with world.plane.engineer(user) as controller:
            stored = await asyncio.to_thread(
                controller.create, pods, a_pod(labels=QUEUE, ownerReferences=of), dryRun="All"
            )
        annotations = stored["metadata"]["annotations"]
        assert annotations[keys.SUBMITTED_BY] == f"system:serviceaccounts:{world.namespace}"


async def test_a_user_is_the_user_of_an_own_pod_whatever_it_names(world: KubernetesWorld) -> None:
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    for kind in OF_PODS:
        document = a_pod(
            labels=QUEUE,
            annotations={keys.SUBMITTED_BY: "bob"},
            ownerReferences=[owner(kind=kind, apiVersion="apps/v1")],
        )
        stored = await asyncio.to_thread(world.user.create, pods, document, dryRun="All")
        assert stored["metadata"]["annotations"][keys.SUBMITTED_BY] == "alice"


async def test_a_user_is_the_user_of_an_own_job_whatever_it_names(world: KubernetesWorld) -> None:
    document = batch_job("mine", namespace=world.namespace)
    document["metadata"] |= {
        "annotations": {keys.SUBMITTED_BY: "bob"},
        "ownerReferences": [owner(kind="CronJob")],
    }
    target = f"/apis/batch/v1/namespaces/{world.namespace}/jobs"
    stored = await asyncio.to_thread(world.user.create, target, document, dryRun="All")
    assert stored["metadata"]["annotations"][keys.SUBMITTED_BY] == "alice"


# ---- groups of LeaderWorkerSets


GROUP = {NAME_LABEL: "theirs", GROUP_LABEL: "0"}


@pytest.mark.parametrize("kind", OF_PODS)
async def test_no_user_makes_pods_of_a_leaderworkerset(world: KubernetesWorld, kind: str) -> None:
    document = maker(kind)
    document["spec"]["template"]["metadata"]["labels"] |= {**GROUP, **QUEUE}
    with pytest.raises(ApiServerError, match=r"leaderworkerset\.sigs\.k8s\.io"):
        await asyncio.to_thread(world.user.create, path(world, kind), document, dryRun="All")
    plain = maker(kind)
    await asyncio.to_thread(world.user.create, path(world, kind), plain)
    change = {"spec": {"template": {"metadata": {"labels": {**GROUP, **QUEUE}}}}}
    with pytest.raises(ApiServerError, match=r"leaderworkerset\.sigs\.k8s\.io"):
        await asyncio.to_thread(world.user.patch, path(world, kind, "made"), change)


async def test_no_pod_of_a_user_joins_a_group_of_a_leaderworkerset(world: KubernetesWorld) -> None:
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    with pytest.raises(ApiServerError, match=r"leaderworkerset\.sigs\.k8s\.io"):
        await asyncio.to_thread(world.user.create, pods, a_pod(labels={**QUEUE, **GROUP}))
    await asyncio.to_thread(world.user.create, pods, a_pod(labels=QUEUE))
    for key in GROUP:
        change = {"metadata": {"labels": {key: "0"}}}
        with pytest.raises(ApiServerError, match=r"of a pod.* cannot change"):
            await asyncio.to_thread(world.user.patch, f"{pods}/forged", change)
    outside = a_pod(labels=GROUP)
    outside["metadata"]["name"] = "outside"
    await asyncio.to_thread(world.user.create, pods, outside)  # in no queue


async def test_the_operator_of_leaderworkersets_makes_the_pods_of_its_groups(
    world: KubernetesWorld,
) -> None:
    document = maker("StatefulSet")
    document["spec"]["template"]["metadata"]["labels"] |= {**GROUP, **QUEUE}
    operator = "system:serviceaccount:lws-system:lws-controller-manager"
    with world.plane.engineer(operator) as client:
        await asyncio.to_thread(client.create, path(world, "StatefulSet"), document, dryRun="All")
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    of = [owner(kind="StatefulSet", apiVersion="apps/v1")]
    pod = a_pod(labels={**QUEUE, **GROUP}, ownerReferences=of)
    with world.plane.engineer(ACCOUNTS + "statefulset-controller") as client:
        await asyncio.to_thread(client.create, pods, pod, dryRun="All")


def test_each_kind_whose_pods_count_for_its_user_is_tested_here() -> None:
    tested = {*KINDS, "RayService"}  # tests/kinds/test_rayservices.py
    assert {one.kind for one in MAKERS if one.created is not None} == tested

"""The real control plane as a :class:`tests.cluster.world.World`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.connection import Connection
from queuectl.demo.scenario import FAIL_SECONDS, RUN_SECONDS
from queuectl.domain.errors import WriteRefused
from queuectl.domain.jobs import PodRecord
from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import START_SECONDS, Client
from queuectl.localcluster.testing import wait_until
from queuectl.objects.kinds import KINDS, path
from tests.cluster.world import RESOURCES, View, scheduled
from tests.support.controlplane import NODES, ControlPlane, in_force

SECONDS = 30.0


class KubernetesWorld:
    """Users act through ``user``, operators and kubelets through ``admin``, queuectl through ``cluster``."""

    def __init__(
        self, plane: ControlPlane, cluster: KubernetesCluster, user: Client, namespace: str
    ) -> None:
        self.plane = plane
        self.cluster = cluster
        self.user = user
        self.admin = plane.cluster.client
        self.namespace = namespace
        self.view = View()

    async def submit(self, document: Mapping[str, Any]) -> str:
        collection = path(KINDS[document["kind"]], document["metadata"]["namespace"])
        with refusals():
            created = await asyncio.to_thread(self.user.create, collection, document)
        return str(created["metadata"]["uid"])

    async def user_patch(self, resource: str, name: str, patch: Mapping[str, Any]) -> None:
        with refusals():
            await asyncio.to_thread(self.user.patch, self.path_of(resource, name), patch)

    async def delete_job(self, kind: str, name: str) -> None:
        await asyncio.to_thread(self._delete, self.path_of(kind, name))

    async def finish(self, uid: str) -> None:
        for pod in self.view.pods_of(uid):
            await self._annotate(pod, RUN_SECONDS)

    async def create(self, resource: str, document: Mapping[str, Any]) -> None:
        collection = f"/api/v1/namespaces/{self.namespace}/{resource}"
        if resource == "runtimeclasses":
            collection = f"/apis/node.k8s.io/v1/{resource}"
        await asyncio.to_thread(self.admin.create, collection, document)

    async def protect(self, pod: PodRecord, budgets: int) -> None:
        collection = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        for number in range(budgets):
            budget = {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": f"all-{number}"},
                "spec": {"maxUnavailable": 0, "selector": {}},
            }
            await asyncio.to_thread(self.admin.create, collection, budget)

    async def scheduled(self, pod: PodRecord) -> Mapping[str, Any]:
        return scheduled(await asyncio.to_thread(self.admin.get, self.path_of("Pod", pod.name)))

    async def fail(self, pod: PodRecord) -> None:
        await self._annotate(pod, FAIL_SECONDS)

    async def delete_node(self, name: str) -> None:
        """Delete the node, and its pods at once as the pod garbage collector does after a minute."""
        await asyncio.to_thread(self.plane.cluster.nodes.delete, name)
        for pod in [pod for pod in self.view.pods.values() if pod.node == name]:
            target = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
            await asyncio.to_thread(self._remove, target)

    def _delete(self, target: str) -> None:
        """Delete as kubectl does. The default of the API server would orphan the pods of a Job."""
        self.user.delete(target, propagationPolicy="Background")

    def _remove(self, target: str) -> None:
        self.admin.delete(target, missing_ok=True, gracePeriodSeconds=0)

    async def interrupt(self) -> None:
        await asyncio.to_thread(self.plane.cluster.kill_apiserver)
        await asyncio.to_thread(self.plane.cluster.start_apiserver)
        await in_force(self.plane.cluster.kubeconfig)  # for users; queuectl connects again at once

    async def events_of(self, uid: str) -> list[tuple[str, str, str]]:
        return [(e["type"], e["reason"], e["note"]) for e in await self.event_documents(uid)]

    async def event_documents(self, uid: str) -> list[dict[str, Any]]:
        collection = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        events = (await asyncio.to_thread(self.admin.get, collection))["items"]
        return [event for event in events if event["regarding"].get("uid") == uid]

    def pods_end(self, *, slowly: bool) -> None:
        if slowly:
            self.plane.cluster.pause("kwok")
        else:
            self.plane.cluster.resume("kwok")

    async def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                while not holds():  # noqa: ASYNC110 - of what the cluster does
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited {SECONDS:.0f} s for {what}; {self._seen()}") from None

    def _seen(self) -> str:
        """The jobs and pods that the watch shows."""
        jobs = (
            f"{job.name}: suspended={job.suspended} drained={job.drained} attempt={job.attempt} {job.outcome or ''}"
            for job in self.view.jobs.values()
        )
        pods = (
            f"{pod.name}: {pod.phase} attempt={pod.attempt} gated={pod.gated} terminating={pod.terminating}"
            for pod in self.view.pods.values()
        )
        return "; ".join([*jobs, *pods])

    async def _annotate(self, pod: PodRecord, key: str) -> None:
        target = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        patch = {"metadata": {"annotations": {key: "0"}}}
        await asyncio.to_thread(self.admin.patch, target, patch)

    def path_of(self, resource: str, name: str) -> str:
        if resource == "Pod":
            return f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        return path(KINDS[resource], self.namespace, name)


@contextlib.contextmanager
def refusals():
    """Translate errors of the test client to those of the domain."""
    try:
        yield
    except ApiServerError as error:
        if error.status in (403, 422):
            raise WriteRefused(str(error)) from error
        raise


@asynccontextmanager
async def world_on(plane: ControlPlane) -> AsyncIterator[KubernetesWorld]:
    """A world with a new namespace and a watch. Lost nodes are restored at the end."""
    namespace = await asyncio.to_thread(new_namespace, plane.cluster.client)
    cluster = await KubernetesCluster.connect(Connection(kubeconfig=plane.kubeconfig))
    with plane.engineer() as user:
        world = KubernetesWorld(plane, cluster, user, namespace)
        watch = asyncio.create_task(cluster.watch(world.view.sink, world.view.synced.append))
        try:
            await world.until(lambda: set(world.view.synced) == RESOURCES, "the first lists")
            yield world
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await cluster.close()
            await asyncio.to_thread(tidy, plane, namespace)


def new_namespace(admin: Client) -> str:
    name = f"team-{secrets.token_hex(3)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    # After a restart of the API server, the watches of kube-controller-manager can come back half a minute later.
    wait_until(lambda: admin.exists(account), f"the service account of {name}", START_SECONDS)
    return name


def tidy(plane: ControlPlane, namespace: str) -> None:
    """Delete the namespace in the background, and restore the nodes.

    PyTorchJobs are deleted first: while the API server starts, its discovery does not have their group yet, and a
    namespace that ends then leaves them behind.
    """
    plane.cluster.client.delete(path(KINDS["PyTorchJob"], namespace))
    plane.cluster.client.delete(f"/api/v1/namespaces/{namespace}")
    there = set(plane.cluster.nodes.names())
    missing = [node for node in NODES.documents() if node["metadata"]["name"] not in there]
    for node in missing:
        plane.cluster.client.create("/api/v1/nodes", node)
    plane.cluster.nodes.wait_ready(node["metadata"]["name"] for node in missing)

"""The environment of a conformance test: a cluster, its users, and the state that the watch shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from queuectl.cluster.resources import watched
from queuectl.control.ports import Cluster
from queuectl.domain.errors import WriteConflict
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.records import (
    Deleted,
    Delta,
    LimitRangeRecord,
    ListCompleted,
    NodeRecord,
    ResourceQuotaRecord,
    RuntimeClassRecord,
    Upserted,
)
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS, KINDS, job_resources
from queuectl.objects.kinds.description import nested
from queuectl.objects.kubernetes.pods import pin_patch
from tests.support.jobs import LEADERS

RESOURCES = {resource.name for resource in watched()}


@dataclass
class View:
    """The state that the watch has shown, kept as the mirror keeps it."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    resource_quotas: dict[str, ResourceQuotaRecord] = field(default_factory=dict)
    limit_ranges: dict[str, LimitRangeRecord] = field(default_factory=dict)
    runtime_classes: dict[str, RuntimeClassRecord] = field(default_factory=dict)
    synced: list[str] = field(default_factory=list)

    def sink(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Upserted(JobRecord() as job):
                    self.jobs[job.uid] = job
                case Upserted(PodRecord() as pod):
                    self.pods[pod.uid] = pod
                case Upserted(NodeRecord() as node):
                    self.nodes[node.node.name] = node
                case Upserted(ResourceQuotaRecord() as quota):
                    self.resource_quotas[quota.uid] = quota
                case Upserted(LimitRangeRecord() as found):
                    self.limit_ranges[found.uid] = found
                case Upserted(RuntimeClassRecord() as found):
                    self.runtime_classes[found.name] = found
                case Deleted():
                    self._drop(delta.resource, {delta.key})
                case ListCompleted():
                    self._drop(delta.resource, self._keys(delta.resource) - delta.keys)

    def _drop(self, resource: str, gone: set[str]) -> None:
        for table in self._tables(resource):
            for key in gone & set(table):
                del table[key]

    def _keys(self, resource: str) -> set[str]:
        kinds = job_resources(KINDS)
        if resource in kinds:
            return {uid for uid, job in self.jobs.items() if job.kind == kinds[resource]}
        return {key for table in self._tables(resource) for key in table}

    def _tables(self, resource: str) -> list[dict[str, Any]]:
        tables: dict[str, dict[str, Any]] = {
            "pods": self.pods,
            "nodes": self.nodes,
            "limitranges": self.limit_ranges,
            "runtimeclasses": self.runtime_classes,
        }
        if resource in job_resources(KINDS):
            return [self.jobs]
        return [tables[resource]] if resource in tables else []

    def pods_of(self, uid: str) -> list[PodRecord]:
        return [pod for pod in self.pods.values() if pod.owner == uid]


class World(Protocol):
    """A cluster, its users, and the state in the watch. ``namespace`` is that of the test."""

    view: View
    namespace: str

    @property
    def cluster(self) -> Cluster: ...

    async def submit(self, document: Mapping[str, Any]) -> str:
        """Submit as a user. Returns the uid."""

    async def user_patch(self, resource: str, name: str, patch: Mapping[str, Any]) -> None:
        """Patch as a user with all rights who is not queuectl. Raises WriteRefused."""

    async def delete_job(self, kind: str, name: str) -> None: ...

    async def finish(self, uid: str) -> None:
        """Let its running pods succeed."""

    async def fail(self, pod: PodRecord) -> None: ...

    async def delete_node(self, name: str) -> None: ...

    async def create(self, resource: str, document: Mapping[str, Any]) -> None:
        """Create an object of the core API in the test's namespace, or a RuntimeClass, as an administrator. ``resource``: plural."""

    async def protect(self, pod: PodRecord, budgets: int) -> None:
        """Create PodDisruptionBudgets that have no pod to spare, for all pods of the test's namespace."""

    async def scheduled(self, pod: PodRecord) -> Mapping[str, Any]:
        """The current condition PodScheduled of the pod."""

    async def interrupt(self) -> None:
        """Let the API server close all connections and forget old versions."""

    async def events_of(self, uid: str) -> list[tuple[str, str, str]]:
        """(type, reason, message)."""

    def pods_end(self, *, slowly: bool) -> None:
        """Set the termination of pods. ``slowly``: deleted pods stay until this is called again."""

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Run the cluster until the condition holds."""


async def submitted(world: World, document: Mapping[str, Any]) -> JobRecord:
    uid = await world.submit(document)
    await world.until(lambda: uid in world.view.jobs, "the job to be seen")
    return world.view.jobs[uid]


async def patched(
    world: World, uid: str, make: Callable[[JobRecord], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], int]:
    """Patch a job as the actuator does: retry from the newest record after a conflict. Returns the patch and its answer."""
    while True:
        job = world.view.jobs[uid]
        patch = make(job)
        try:
            return patch, await world.cluster.patch_job(job.kind, job.namespace, job.name, patch)
        except WriteConflict:
            seen = job.version
            await world.until(lambda: world.view.jobs[uid].version > seen, "a newer job")  # noqa: B023


async def start(world: World, job: JobRecord, attempt: int) -> list[PodRecord]:
    """Resume the job, and wait for all gated pods of the attempt."""
    await world.until(lambda: world.view.jobs[job.uid].drained, "confirmed suspension")
    await patched(world, job.uid, lambda now: KINDS[job.kind].start_patch(now, attempt, "Starting"))

    def present() -> list[PodRecord]:
        pods = world.view.pods_of(job.uid)
        return [pod for pod in pods if pod.attempt == attempt and pod.gated]

    await world.until(lambda: len(present()) == job.pods, f"pods of attempt {attempt}")
    return sorted(present(), key=lambda pod: (pod.podset, pod.rank or 0))


async def place(world: World, pods: Sequence[PodRecord], node: str) -> None:
    """Pin the pods to a node and wait until they run there."""
    for pod in pods:
        await world.cluster.patch_pod(pod.namespace, pod.name, pin_patch(pod, node))

    def running() -> bool:
        seen = [world.view.pods.get(pod.uid) for pod in pods]
        return all(pod is not None and pod.ready and pod.node == node for pod in seen)

    await world.until(running, f"{len(pods)} pods to run on {node}")


async def stop(world: World, job: JobRecord, attempt: int) -> None:
    await patched(world, job.uid, lambda now: KINDS[job.kind].stop_patch(now, attempt, "Evicting"))


def scheduled(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition PodScheduled of a Pod document."""
    [found] = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
    return dict(found)


def a_node(world: World) -> str:
    return min(world.view.nodes)


def alive(world: World, uid: str) -> list[PodRecord]:
    return [pod for pod in world.view.pods_of(uid) if not pod.terminal]


def forbidden_patch(kind: str, what: str) -> dict[str, Any]:
    """A change of a pending job that a user tries."""
    template: dict[str, Any] = {}
    match what:
        case "resume":
            resumed = {"suspend": False}
            return nested("spec" if kind == "Job" else "spec.runPolicy", resumed)
        case "take the label off":
            return {"metadata": {"labels": {keys.QUEUE_LABEL: None}}}
        case "change the queue":
            return {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
        case "ungate the template":
            template = {"spec": {"schedulingGates": None}}
        case "forge":
            template = {"metadata": {"labels": {keys.ATTEMPT_LABEL: "9"}}}
    if kind == "Job":
        return {"spec": {"template": template}}
    return replicas_patch(kind, {first_role(kind): {"template": template}})


MORE = {"requests": {"cpu": "9"}, "limits": {"cpu": "9"}}
TEMPLATE: dict[str, dict[str, Any]] = {
    "asks for more": {"spec": {"containers": [{"name": "main", "image": "x", "resources": MORE}]}},
    "names a topology": {
        "metadata": {"annotations": {"queuectl.dev/podset-required-topology": "rack"}}
    },
    "selects nodes": {"spec": {"nodeSelector": {"zone": "a"}}},
    "tolerates a taint": {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}},
}
"""Changes of a pod template, by their effect."""
RESIZED: Final = ("is larger", *TEMPLATE)


def resized(kind: str, how: str) -> dict[str, Any]:
    """A patch of the spec that changes the pods of the job. ``how``: a key of RESIZED."""
    if how == "is larger":
        if kind == "Job":
            return {"parallelism": 3, "completions": 3}
        more = 2 if LEADERS[kind] else 3
        return dict(replicas_patch(kind, {"Worker": {"replicas": more}})["spec"])
    template = {"template": TEMPLATE[how]}
    if kind == "Job":
        return template
    return dict(replicas_patch(kind, {first_role(kind): template})["spec"])


def first_role(kind: str) -> str:
    """The replica type of the first pod of :func:`tests.support.jobs.job_of`."""
    return LEADERS[kind] or "Worker"


def replicas_patch(kind: str, replicas: dict[str, Any]) -> dict[str, Any]:
    """A patch of some podsets, for a job of any kind but ``batch/v1`` Job."""
    [one] = [described for described in DESCRIPTIONS if described.kind == kind]
    return nested(one.podsets[0].path, replicas)

"""A cluster in memory with the Protocol ``Cluster`` and its controllers, for tests in one process.

    cluster = FakeCluster(NodeSpec(racks_per_block=2, hosts_per_rack=4).documents())
    uid = cluster.submit(batch_job("train", queue="team-a", pods=8, gpus=1))
    cluster.settle()                    # controllers, scheduler and kubelets until nothing changes; step() is one pass
    cluster.pods_of(uid)                # PodRecords
    cluster.finish(uid)                 # its running pods succeed; settle() then completes the job

Nothing happens by itself: the test sets the time, controllers act in ``step``, and the watch delivers when the event loop
runs. The test arranges faults beforehand:

    cluster.fault(3, Moment.AFTER)      # the 3rd patch from now happens, its answer is lost
    cluster.fault(3, Moment.BEFORE, Killed)  # any exception: a SIGKILL before the 3rd patch is sent
    cluster.down = True                 # no write is answered, no watch delivers; on False all watches list again
    cluster.hold_watch(), cluster.cut_watch()
    cluster.controllers.hold_ends = True   # deleted pods stay Terminating
    cluster.refuses = lambda write: 422 if write.name == "train" else None   # a webhook denies it, with this status

The same conformance tests run with it and the real control plane (tests/cluster/conformance.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import msgspec

from queuectl.cluster.client import failure
from queuectl.cluster.writes import meant, of_another
from queuectl.domain.containment import Containment
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.jobs import JobRecord, PodRecord, PriorAdmission
from queuectl.domain.records import Delta, LeaderRecord
from queuectl.objects.files.workloads import WireLeftWorkload, read_prior_admission
from queuectl.objects.kinds import KINDS, JobKinds, leaderworkerset
from queuectl.objects.kubernetes.provisioning import WORKLOAD
from tests.doubles.admission import (
    CONTROLLER,
    born,
    check_job,
    check_node,
    check_pod,
    pod_born,
    set_born,
)
from tests.doubles.apiserver import Document, Server, Watcher
from tests.doubles.controllers import Controllers, gang_of, phase, pod_record
from tests.doubles.known import KNOWN
from tests.doubles.writing import condition

_T = TypeVar("_T")

NAMESPACES = ("default", "queuectl-system")

BUDGETS = {
    1: (
        429,
        b'{"message": "a disruption budget", "details": {"causes": [{"reason": "DisruptionBudget"}]}}',
    ),
    2: (500, b'{"message": "This pod has more than one PodDisruptionBudget"}'),
}
"""The answers of an API server to an Eviction of a pod with one PodDisruptionBudget, and with several."""


class Moment(Enum):
    """Whether a write fails before or after its effect."""

    BEFORE = "it never happened"
    AFTER = "it happened, its answer was lost"


def answer_lost() -> BaseException:
    return ClusterUnavailable("the connection broke")


@dataclass(frozen=True)
class Written:
    """One requested patch, with any outcome. ``resource`` is the kind of a job, or ``Pod``."""

    resource: str
    namespace: str
    name: str
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class RecordedEvent:
    """One Event."""

    uid: str
    kind: str
    reason: str
    message: str


class FakeCluster:
    """See :class:`queuectl.control.ports.Cluster` and the docstring of the module."""

    def __init__(
        self,
        nodes: Iterable[Mapping[str, Any]] = (),
        *,
        namespaces: Sequence[str] = NAMESPACES,
        clock: Callable[[], float] | None = None,
        kinds: JobKinds = KINDS,
    ) -> None:
        """Make one.

        Args:
            nodes: Node documents.
            namespaces: that exist.
            clock: unix seconds; the default is constant.
            kinds: that queuectl manages.
        """
        self.kinds = kinds
        self.containment: Containment | None = None  # of the process; None = one of each watch
        self.server = Server(clock or (lambda: 1_800_000_000.0))
        self.controllers = Controllers(self.server)
        self.writes: list[Written] = []
        self.events: list[RecordedEvent] = []
        self.deleted: list[str] = []  # pods that were deleted by force
        self.missing_policies: list[str] = []
        self.kueue = False  # a Kueue is installed
        self.kueue_keys: bool | None = True  # the policies include Kueue's label; None = refused
        self.workloads: list[Mapping[str, Any]] = []  # of an earlier Kueue
        self.leader: LeaderRecord | None = None
        self.budgets: dict[str, int] = {}  # PodDisruptionBudgets without a pod to spare, by pod
        self.refuses: Callable[[Written], int | None] = lambda _: None
        self._faults: dict[int, tuple[Moment, Callable[[], BaseException]]] = {}
        self._lease_versions = itertools.count(1)
        self._down = False
        for name in namespaces:
            self.server.create("namespaces", {"metadata": {"name": name}})
        for node in nodes:
            self.add_node(node)

    # ---- the Protocol

    async def watch(
        self,
        sink: Callable[[Sequence[Delta]], None],
        synced: Callable[[str], None],
        *,
        kueue: bool = True,
    ) -> None:
        watcher = Watcher(self.server, kueue=kueue, kinds=self.kinds, containment=self.containment)
        watcher.hold(self._down)
        self.server.watchers.append(watcher)
        completed: set[str] = set()
        try:
            while True:
                await watcher.wake.wait()
                if watcher.held:
                    watcher.wake.clear()
                    continue
                for resource, batch, complete in watcher.take():
                    sink(batch)
                    if complete and resource not in completed:
                        completed.add(resource)
                        synced(resource)
        finally:
            self.server.watchers.remove(watcher)

    async def catch_up(self) -> None:
        while self._down:  # noqa: ASYNC110 - as the real one asks again
            await asyncio.sleep(0.001)
        version = self.server.version
        for watcher in self.server.watchers:
            watcher.list_if_older(version)
        while any(w.shown < version for w in self.server.watchers):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def uncompared(self) -> list[str]:
        return ["all resources: the API server is down"] if self._down else []

    async def patch_job(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        return await self._write(
            Written(kind, namespace, name, patch),
            lambda: self._patch(CONTROLLER, kind, namespace, name, patch),
        )

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> int:
        return await self._write(
            Written("Pod", namespace, name, patch),
            lambda: self._patch(CONTROLLER, "Pod", namespace, name, patch),
        )

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        await self._answering()
        meta = self.server.get("pods", namespace, name)["metadata"]
        if meta["uid"] != uid or meta["resourceVersion"] != str(version):
            raise WriteConflict(f"pods {namespace}/{name}: the preconditions do not hold")
        self.deleted.append(name)
        self.server.remove("pods", self.server.get("pods", namespace, name))

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        await self._write(
            Written("Pod", namespace, name, {"metadata": {"uid": uid}}),
            lambda: self._stop_pod(namespace, name, uid),
        )

    def _stop_pod(self, namespace: str, name: str, uid: str) -> None:
        pod = self.server.get("pods", namespace, name)
        if pod["metadata"]["uid"] != uid:
            raise WriteConflict(f"pods {namespace}/{name}: the preconditions do not hold")
        self.server.delete("pods", pod)

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        def evict() -> int:
            pod = self.server.get("pods", namespace, name)
            meta = pod["metadata"]
            if meta["uid"] != uid or meta["resourceVersion"] != str(version):
                raise WriteConflict(f"pods {namespace}/{name}: the preconditions do not hold")
            running = pod["status"].get("phase") == "Running"
            if running and (budgets := self.budgets.get(name, 0)):
                raise failure(f"POST pods {namespace}/{name}/eviction", *BUDGETS[min(budgets, 2)])
            self.server.delete("pods", pod)
            return version

        expected = {"metadata": {"uid": uid, "resourceVersion": str(version)}}
        await self._write(Written("Pod", namespace, name, expected), evict)

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> int:
        return await self._write(
            Written("Node", "", name, patch),
            lambda: self._patch(CONTROLLER, "Node", "", name, patch),
        )

    async def patch_namespace(self, name: str, patch: Mapping[str, Any]) -> None:
        await self._answering()
        self.server.patch("namespaces", "", name, dict(patch), lambda old, new: None)

    async def create_object(self, resource: str, document: Mapping[str, Any]) -> None:
        meta = document["metadata"]

        def create() -> None:
            try:
                self.server.create(resource, dict(document))
            except WriteConflict:
                there = self.server.get(resource, meta["namespace"], meta["name"])["metadata"]
                if there.get("annotations", {}).get(WORKLOAD) != meta["annotations"][WORKLOAD]:
                    raise WriteRefused(of_another(meta["name"])) from None

        await self._write(Written(resource, meta["namespace"], meta["name"], document), create)

    async def delete_object(self, resource: str, namespace: str, name: str) -> None:
        def delete() -> None:
            with contextlib.suppress(ObjectGone):
                self.server.remove(resource, self.server.get(resource, namespace, name))

        await self._write(Written(resource, namespace, name, {"metadata": {}}), delete)

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        assert job.has_object, f"{job.kind} {job.namespace}/{job.name} has no object for an Event"
        await self._answering()
        self.events.append(RecordedEvent(job.uid, kind, reason, message))

    async def read_leader(self) -> LeaderRecord | None:
        await self._answering()
        return self.leader

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        await self._answering()
        if self.leader is None and over is not None:
            raise ObjectGone("the lease does not exist")
        if self.leader is not None and (over is None or over.version != self.leader.version):
            raise WriteConflict("another process wrote the lease")
        self.leader = replace(record, version=str(next(self._lease_versions)))
        return self.leader

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        await self._answering()
        return list(self.missing_policies)

    async def kueue_runs(self) -> bool:
        await self._answering()
        return self.kueue

    async def kueue_keys_act(self) -> bool | None:
        await self._answering()
        return self.kueue_keys

    async def read_admissions(self) -> list[PriorAdmission]:
        await self._answering()
        left = [read_prior_admission(msgspec.convert(w, WireLeftWorkload)) for w in self.workloads]
        return [admission for admission in left if admission is not None]

    async def close(self) -> None:
        await asyncio.sleep(0)

    # ---- what users and operators do

    def submit(self, document: Mapping[str, Any]) -> str:
        """Create a job through admission. Returns its uid."""
        namespace = document["metadata"].get("namespace", "default")
        job = born(dict(document), self.server.objects["namespaces"].get(("", namespace)))
        return str(self.server.create(_plural(job["kind"]), job)["metadata"]["uid"])

    def submit_set(self, document: Mapping[str, Any]) -> Document:
        """Create a LeaderWorkerSet through admission. Returns it as stored."""
        return self.server.create(leaderworkerset.PLURAL, set_born(dict(document)))

    def submit_pod(self, document: Mapping[str, Any]) -> str:
        """Create a pod of a user through admission. Returns its uid."""
        pod = pod_born(dict(document))
        return str(self.server.create("pods", pod)["metadata"]["uid"])

    def delete_pod_of_user(self, name: str, namespace: str = "default") -> None:
        self.server.delete("pods", self.server.get("pods", namespace, name))

    def user_patch(
        self, resource: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> None:
        """Apply a merge patch of a user who is not queuectl. ``resource``: a job's kind or ``Pod``."""
        self._patch("alice", resource, namespace, name, patch)

    def delete_job(self, uid: str) -> None:
        self.server.delete(_plural(self._job(uid)["kind"]), self._job(uid))

    def add_node(self, document: Mapping[str, Any]) -> None:
        """Add a node, which is Ready."""
        node = self.server.create("nodes", dict(document))
        self.set_ready(node["metadata"]["name"], ready=True)

    def delete_node(self, name: str) -> None:
        self.server.remove("nodes", self.server.get("nodes", "", name))

    def cordon(self, name: str, *, unschedulable: bool = True) -> None:
        node = self.server.get("nodes", "", name)
        self.server.edit("nodes", node, lambda d: d["spec"].update(unschedulable=unschedulable))

    def taint(self, name: str, key: str, effect: str) -> None:
        """Add a taint to a node."""
        node = self.server.get("nodes", "", name)
        taints = [*node["spec"].get("taints", ()), {"key": key, "effect": effect}]
        self.server.edit("nodes", node, lambda d: d["spec"].update(taints=taints))

    def set_node_condition(self, name: str, kind: str, status: str) -> None:
        """Set a condition that another program than the kubelet sets."""
        node, at = self.server.get("nodes", "", name), self.server.clock()
        self.server.edit("nodes", node, lambda d: condition(d, kind, status, at))

    def set_ready(self, name: str, *, ready: bool) -> None:
        """Set the condition Ready. The kubelet of a node that is not ready does nothing."""
        node = self.server.get("nodes", "", name)
        status, at = "True" if ready else "Unknown", self.server.clock()
        self.server.edit("nodes", node, lambda d: condition(d, "Ready", status, at))

    # ---- controllers

    def step(self) -> bool:
        """Run one pass of all controllers, the scheduler and the kubelets. Returns whether anything changed."""
        return self.controllers.step()

    def settle(self, passes: int = 100) -> None:
        """Run passes until nothing changes."""
        for _ in range(passes):
            if not self.step():
                return
        raise AssertionError(f"the controllers are still busy after {passes} passes")

    def finish(self, uid: str) -> None:
        """Let all running pods of a job succeed."""
        for pod in self.server.all("pods"):
            if gang_of(pod) == uid and phase(pod) == "Running":
                self.controllers.set_phase(pod, "Succeeded")

    def fail_pod(self, name: str, namespace: str = "default") -> None:
        self.controllers.set_phase(self.server.get("pods", namespace, name), "Failed")

    # ---- queries

    def job(self, uid: str) -> JobRecord:
        """The job, as its reader decodes it."""
        document = self._job(uid)
        kind = KNOWN[document["kind"]]
        return kind.read(msgspec.convert(document, kind.wire))

    def uids(self) -> list[str]:
        """The uids of all jobs of all kinds."""
        return [
            document["metadata"]["uid"]
            for kind in KNOWN.values()
            for document in self.server.all(kind.plural)
        ]

    def exists(self, uid: str) -> bool:
        return any(self._jobs(uid))

    def pods_of(self, uid: str) -> list[PodRecord]:
        """The pods of a job or index, in order of creation, including terminated pods until they are removed."""
        job, _, index = uid.partition(".")
        pods = [pod_record(pod) for pod in self.server.all("pods") if gang_of(pod) == job]
        return [pod for pod in pods if not index or pod.rank == int(index)]

    def all_pods(self) -> list[PodRecord]:
        return [pod_record(pod) for pod in self.server.all("pods")]

    # ---- faults

    def fault(
        self, patch: int, moment: Moment, error: Callable[[], BaseException] = answer_lost
    ) -> None:
        """Let the ``patch``-th patch from now (1 = the next) fail with what ``error`` makes."""
        self._faults[len(self.writes) + patch] = (moment, error)

    @property
    def down(self) -> bool:
        """The API server does not answer."""
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        self._down = value
        for watcher in self.server.watchers:
            watcher.cut()
            watcher.hold(value)

    def hold_watch(self, *, held: bool = True) -> None:
        """Delay the delivery of changes until the watch is released."""
        for watcher in self.server.watchers:
            watcher.hold(held)

    def cut_watch(self) -> None:
        """Drop the events that were not delivered; the watches list again."""
        for watcher in self.server.watchers:
            watcher.cut()

    # ---- inside

    async def _answering(self) -> None:
        await asyncio.sleep(0)
        if self._down:
            raise ClusterUnavailable("the API server is down")

    async def _write(self, written: Written, action: Callable[[], _T]) -> _T:
        await self._answering()
        self.writes.append(written)
        moment, error = self._faults.pop(len(self.writes), (None, answer_lost))
        if moment is Moment.BEFORE:
            raise error()
        if (code := self.refuses(written)) is not None:
            raise self._refusal(written, code)
        result = action()
        if moment is Moment.AFTER:
            raise error()
        return result

    def _refusal(self, written: Written, code: int) -> ClusterError:
        """The error of the real adapter for a webhook's answer with this status."""
        target = f"{_plural(written.resource)} {written.namespace}/{written.name}"
        error = failure(f"PATCH {target}", code, b'{"message": "a webhook denies it"}')
        if not isinstance(error, WriteConflict | ObjectGone):
            return error
        meta = self.server.get(_plural(written.resource), written.namespace, written.name)[
            "metadata"
        ]
        found = (meta["uid"], meta["resourceVersion"])
        return meant(error, target, written.patch["metadata"], *found)

    def _patch(
        self, user: str, resource: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        check = {"Pod": check_pod, "Node": check_node}.get(resource, check_job)
        patched = self.server.patch(
            _plural(resource),
            namespace,
            name,
            dict(patch),
            lambda old, new: check(user, old, new),
        )
        return int(patched["metadata"]["resourceVersion"])

    def _jobs(self, uid: str) -> Iterable[Document]:
        for kind in KNOWN.values():
            for document in self.server.all(kind.plural):
                if document["metadata"]["uid"] == uid:
                    yield document

    def _job(self, uid: str) -> Document:
        return next(iter(self._jobs(uid)))


def _plural(resource: str) -> str:
    plurals = {"Pod": "pods", "Node": "nodes"}
    return plurals.get(resource) or (KNOWN[resource].plural if resource in KNOWN else resource)

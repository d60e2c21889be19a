"""queuectl on a real control plane: the basis of the system tests.

Every test gets its own namespace, queues and a recording of everything that happened to nodes, jobs and pods. When
it ends, the recording is replayed revision by revision and audited, and its jobs are removed.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection, ApiRefused
from queuectl.demo.audit import Queue, checks
from queuectl.demo.controller import KUEUE_KEYS, ControllerProcess, install
from queuectl.demo.recorder import PODS, Recorder
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.quantity import Resources
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, get_plain, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.progress import LineProgress
from queuectl.objects.kinds import KINDS, JobKinds
from tests.support.controllers import CheckedController
from tests.support.controlplane import ENGINEER

BLOCK = "topology.queuectl.dev/block"
RACK = "topology.queuectl.dev/rack"
SECONDS = 90.0
"""Seconds until a wait fails. It is not a performance goal."""

QUICK = {
    "QUEUECTL_LEASE_DURATION": "4",
    "QUEUECTL_LEASE_RENEW": "1",
    "QUEUECTL_REASON_DELAY_SECONDS": "0.2",
}
_numbers = itertools.count(1)


@dataclass
class Installation:
    """A control plane with queuectl on it."""

    cluster: LocalCluster
    controller: ControllerProcess
    rest: ApiConnection
    kinds: JobKinds = field(default_factory=lambda: KINDS, kw_only=True)

    @contextmanager
    def workspace(self, gpus: int, called: str | None = None, **queue: Any) -> Iterator[Workspace]:
        """A namespace with a queue ``main`` of so many GPUs; audited and emptied at the end. ``called``: None = any name."""
        name = called or f"test-{next(_numbers)}"
        self.controller.wait_ready()  # the test before can have killed it
        self.cluster.client.apply(*m.namespaces([name]))
        quotas: dict[str, int | str] = {"nvidia.com/gpu": gpus, "cpu": "1M", "memory": "1P"}
        self.rest.apply(
            [
                m.topology("gpus", BLOCK, RACK),
                m.flavor("gpu", topology="gpus"),
                m.cluster_queue(name, "gpu", quotas, **queue),
                m.local_queue(name, "main", name),
                m.priority_class("low", 10),
                m.priority_class("high", 100),
            ]
        )
        with Recorder(self.cluster.kubeconfig, self.kinds) as recorder:
            workspace = Workspace(self, name, recorder)
            try:
                yield workspace
                workspace.audit()
            finally:
                workspace.empty()


@dataclass
class Workspace:
    """The namespace, queues and recording of one test."""

    installation: Installation
    namespace: str
    recorder: Recorder
    made: list[str] = field(default_factory=list)
    limits: dict[Queue, Resources] = field(default_factory=dict)
    """The upper bound of the requests of all pods in a LocalQueue."""

    @property
    def client(self) -> Client:
        return self.installation.cluster.client

    @property
    def rest(self) -> ApiConnection:
        return self.installation.rest

    def submit(self, document: Document) -> Document:
        """Returns it as admission made it."""
        path = self.client.path_of(document)
        created = self.client.create(path.rsplit("/", 1)[0], document)
        self.made.append(path)
        return created

    def job(self, name: str, pods: PodSetManifest, **options: Any) -> Document:
        """Submit a Job, to ``main`` unless another queue is given."""
        return self.submit(m.job(name, self.namespace, pods=pods, **{"queue": "main", **options}))

    def pytorchjob(self, name: str, workers: int, gpus: int = 8, **options: Any) -> Document:
        """Submit a PyTorchJob of a master and workers of as many GPUs."""
        pods = {
            "master": PodSetManifest(1, gpus=gpus),
            "worker": PodSetManifest(workers, gpus=gpus),
        }
        return self.submit(
            m.pytorchjob(name, self.namespace, **{"queue": "main", **pods, **options})
        )

    def gang(self, kind: str, name: str, pods: int, gpus: int = 8, **options: Any) -> Document:
        """Submit a gang of either kind, of so many GPUs in each pod."""
        if kind == "Job":
            return self.job(name, PodSetManifest(pods, gpus=gpus), **options)
        return self.pytorchjob(name, pods - 1, gpus, **options)

    def workloads(self) -> dict[str, dict[str, Any]]:
        """Workloads of the namespace by name, as the REST API returns them; empty while it does not answer."""
        try:
            found = self.rest.workloads(self.namespace).values()
        except ApiRefused:
            return {}
        return {workload["name"]: workload for workload in found}

    def workload(self, name: str) -> dict[str, Any]:
        """One of them; empty while it is not known, or the API does not answer."""
        return self.workloads().get(name, {})

    def state(self, name: str) -> str:
        return str(self.workload(name).get("state", ""))

    def until(self, done: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        try:
            wait_until(lambda: bool(done()), what, seconds)
        except LocalClusterError as error:
            log = self.installation.controller.log.read_text(errors="replace").splitlines()[-15:]
            said = [str(error), *self.states(), *self.trouble(), *log]
            raise AssertionError("\n".join(said)) from error

    def trouble(self) -> list[str]:
        """Nodes that take no pods, and pods of others, for a failure's message."""
        nodes, pods = (self.client.get(f"/api/v1/{kind}")["items"] for kind in ("nodes", "pods"))
        return [
            *(
                f"node {n['metadata']['name']}: {n['spec']}"
                for n in nodes
                if n["spec"].get("taints") or n["spec"].get("unschedulable")
            ),
            *(
                f"pod {p['metadata']['namespace']}/{p['metadata']['name']} on {p['spec'].get('nodeName')}"
                for p in pods
                if p["metadata"]["namespace"] != self.namespace
            ),
        ]

    def states(self) -> list[str]:
        """Of every workload, for a failure's message."""
        return [
            f"{w['name']}: {w['state']}@{w['attempt']} {w['reason']} {pods_of(self.pods(w['name']))}"
            for w in self.workloads().values()
        ]

    def until_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait for the state, and until the recording has the pods that queuectl has seen."""
        self.until(lambda: self.state(name) == state, f"{name} {state}")
        self.recorder.settle(PODS)
        return self.workload(name)

    def pods(self, name: str) -> list[PodRecord]:
        """Pods of a workload that exist, as the watch shows them. The first one can have its name."""
        _, pods = self.recorder.now()
        own = (p for p in pods if p.namespace == self.namespace)
        return [p for p in own if p.name == name or p.name.startswith(f"{name}-")]

    def running(self, name: str) -> list[PodRecord]:
        return [p for p in self.pods(name) if p.phase is PodPhase.RUNNING and not p.terminating]

    def until_running(
        self, name: str, pods: int, each: Callable[[PodRecord], bool], expectation: str
    ) -> None:
        """Wait until so many pods run and ``each`` of them is as it must be, in one read of all of them."""

        def found() -> bool:
            now = self.running(name)
            return len(now) == pods and all(map(each, now))

        self.until(found, expectation)

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of queuectl's Events on a job."""
        listed = self.client.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [
            (e["reason"], e.get("note", ""))
            for e in listed["items"]
            if e["regarding"]["name"] == name and "queuectl" in e.get("reportingController", "")
        ]

    def history(self, name: str) -> list[dict[str, Any]]:
        """Lines of a workload's history; none while the API does not know it."""
        path = f"/api/v1/namespaces/{self.namespace}/workloads/{name}/history?limit=500"
        answer = get_plain(self.installation.controller.api + path)
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return []
        answer.raise_for_status()
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def audit(self) -> None:
        """Replay everything that happened so far and check it."""
        self.recorder.settle()
        found = checks(self.recorder.recording(), limits=self.limits)
        problems = [problem for finding in found for problem in finding.problems]
        assert not problems, "\n".join(problems)

    def clear(self) -> None:
        """Delete its jobs, and wait until queuectl has finished them. Another test can use the same names."""
        self.empty()
        self.made.clear()
        self.until(
            lambda: all(one["state"] == "Finished" for one in self.workloads().values()),
            f"{self.namespace} clear",
        )

    def empty(self) -> None:
        """Delete every job that was created here, and wait until its pods are deleted."""
        for path in self.made:
            self.client.delete(path, missing_ok=True, propagationPolicy="Background")
        self.until(
            lambda: not [p for p in self.recorder.now()[1] if p.namespace == self.namespace],
            f"{self.namespace} empty",
        )


Admission = Callable[[LocalCluster], AbstractContextManager[None]]


@contextmanager
def policies(cluster: LocalCluster) -> Iterator[None]:
    """The admission of deploy/."""
    install(cluster, KUEUE_KEYS)
    yield


@contextmanager
def installed(
    nodes: NodeSpec,
    settings: Mapping[str, str] | None = None,
    admission: Admission = policies,
    kinds: JobKinds = KINDS,
    **spec: Any,
) -> Iterator[Installation]:
    """A control plane of these nodes with queuectl leading on it."""
    with (
        leading_controller(nodes, settings, admission, **spec) as (cluster, controller),
        ApiConnection(controller.api) as rest,
    ):
        yield Installation(cluster, controller, rest, kinds=kinds)


@contextmanager
def leading_controller(
    nodes: NodeSpec,
    settings: Mapping[str, str] | None = None,
    admission: Admission = policies,
    **spec: Any,
) -> Iterator[tuple[LocalCluster, ControllerProcess]]:
    """A control plane of these nodes, and queuectl leading on it with these settings."""
    shape = ClusterSpec(nodes=(nodes,), fsync=False, **spec)
    with LocalCluster.start(shape, progress=LineProgress()) as cluster, admission(cluster):
        cluster.client.apply(*ENGINEER)
        with controller_on(cluster, settings) as controller:
            yield cluster, controller


@contextmanager
def controller_on(
    cluster: LocalCluster, settings: Mapping[str, str] | None = None
) -> Iterator[ControllerProcess]:
    """queuectl leading on a control plane with its manifests."""
    controller = CheckedController.start(cluster, QUICK | dict(settings or {}))
    try:
        controller.wait_ready()
        yield controller
    finally:
        controller.stop()


def pods_of(pods: list[PodRecord]) -> dict[str, int]:
    """How many are in which condition, for a failure's message."""
    marks = Counter(
        f"{p.phase}@{p.attempt}{' gated' * p.gated}{' leaving' * p.terminating}" for p in pods
    )
    return dict(marks)


def since(began: float) -> str:
    """Seconds since, for a line printed with the test."""
    return f"{time.perf_counter() - began:.2f} s"

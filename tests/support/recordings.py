"""Recordings of a small cluster, written event by event, for tests of the audit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from queuectl.demo.recorder import Fact, ObjectRevision, Recording
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobOutcome, JobRecord, PodGroupMember, PodPhase, PodRecord
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.records import NodeRecord
from queuectl.domain.workload import PodSet, PodShape, TopologyMode, TopologyRequest

RACK = "rack"


@dataclass
class Script:
    """Each method appends one revision and returns the new object. A pod is identified by ``job/rank`` and its attempt."""

    events: list[ObjectRevision] = field(default_factory=list)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    @property
    def recording(self) -> Recording:
        return Recording(tuple(self.events))

    def node(self, name: str, rack: str = "r0", gpus: int = 8) -> None:
        allocatable = Resources({GPU: gpus, PODS: 110})
        self._add(name, NodeRecord(Node(name, {RACK: rack}, allocatable), 0))

    def job(self, name: str, pods: int, gpus: int = 8, *, rack: bool = False) -> None:
        shape = PodShape(Resources({GPU: gpus, PODS: 1}))
        topology = TopologyRequest(TopologyMode.REQUIRED, RACK) if rack else None
        podsets = (PodSet("main", pods, shape, topology),)
        self._job(JobRecord("Job", "team", name, name, 0, 0.0, "queue", podsets))

    def change_job(self, name: str, **changes: Any) -> None:
        self._job(replace(self.jobs[name], **changes))

    def succeed(self, name: str) -> None:
        self.change_job(name, outcome=JobOutcome.SUCCEEDED)

    def born(self, job: str, rank: int, attempt: int = 1) -> str:
        """A gated pod."""
        key = f"{job}/{rank}.{attempt}"
        shape = self.jobs[job].podsets[0].shape
        self._pod(
            PodRecord(
                "team",
                key,
                key,
                0,
                shape.requests,
                job,
                gated=True,
                attempt=attempt,
                podset="main",
                rank=rank,
                owner_kind="Job",
            )
        )
        return key

    def leaderworkerset(self, name: str, pods: int, *, staged: bool = False) -> None:
        """Its groups have so many pods each. ``staged``: the workers come after their leader."""
        podsets = (PodSet("main", pods, PodShape(Resources({GPU: 8, PODS: 1}))),)
        record = JobRecord("LeaderWorkerSet", "team", name, name, 0, 0.0, "queue", podsets)
        self._job(replace(record, groups=1, staged=staged, of_pods=True))

    def grouped(
        self, group: str, rank: int, total: int | None, *, parent: str = "", fast: bool = False
    ) -> str:
        """A gated pod of a group of pods, or of the group of the LeaderWorkerSet ``parent``."""
        key = f"{group}/{rank}.{len(self.events)}"
        record = JobRecord("Pod", "team", key, key, 0, 0.0, "queue", of_pods=True)
        member = PodGroupMember(record, group, parent, total, fast)
        self._pod(PodRecord("team", key, key, 0, Resources({GPU: 8}), gated=True, member=member))
        return key

    def release(self, key: str, node: str, attempt: int = 1, workload: str = "w") -> None:
        """Let a pod of a group start, and bind it to its node."""
        pod = self.pods[key]
        assert pod.member is not None
        member = replace(pod.member, workload=workload)
        self._pod(replace(pod, gated=False, pin=node, attempt=attempt, member=member))
        self.bind(key)

    def pin(self, key: str, node: str) -> None:
        self._pod(replace(self.pods[key], gated=False, pin=node))

    def bind(self, key: str, node: str | None = None) -> None:
        self._pod(replace(self.pods[key], node=node or self.pods[key].pin))

    def twin(self, key: str, node: str) -> None:
        """Another pod of the same rank and attempt, on a node."""
        self._pod(replace(self.pods[key], uid=f"{key}-twin", name=f"{key}-twin", node=node))

    def end(self, key: str, phase: PodPhase = PodPhase.SUCCEEDED) -> None:
        self._pod(replace(self.pods[key], phase=phase))

    def gone(self, key: str) -> None:
        self._add(key, self.pods.pop(key), gone=True)

    def start(self, job: str, places: list[str], attempt: int = 1) -> list[str]:
        """Start a gang: all pods are created, then pinned, then bound."""
        self.change_job(job, suspended=False, attempt=attempt)
        keys = [self.born(job, rank, attempt) for rank in range(len(places))]
        for key, node in zip(keys, places, strict=True):
            self.pin(key, node)
        for key in keys:
            self.bind(key)
        return keys

    def stop(self, keys: list[str]) -> None:
        """Suspend a job: its pods end and are deleted."""
        self.change_job(self.pods[keys[0]].owner, suspended=True)
        for key in keys:
            self.end(key, PodPhase.FAILED)
            self.gone(key)

    def _pod(self, pod: PodRecord) -> None:
        self.pods[pod.uid] = pod
        self._add(pod.uid, pod)

    def _job(self, job: JobRecord) -> None:
        self.jobs[job.uid] = job
        self._add(job.uid, job)

    def _add(self, key: str, fact: Fact, *, gone: bool = False) -> None:
        version = len(self.events) + 1
        self.events.append(ObjectRevision(version, float(version), key, fact, gone))

"""Random gangs of both kinds in several queues, and random commands for them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from queuectl.demo import scenario as m
from queuectl.demo.audit import Queue
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import JobRecord
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster.errors import LocalClusterError
from tests.chaos import hostile
from tests.chaos.stage import Stage
from tests.system.installation import BLOCK, RACK

NAMESPACE = "chaos"
PREFIX = f"/api/v1/namespaces/{NAMESPACE}/workloads"


@dataclass(frozen=True)
class Quotas:
    """GPUs of the queues: two that borrow from each other, one that changes, one for probes, one of hostile objects.

    Attributes:
        cohort: of the queues a and b together.
        solo: of the queue solo, alternating.
    """

    cohort: int = 64
    solo: tuple[int, int] = (16, 32)
    probe: int = 16

    @property
    def limits(self) -> dict[Queue, Resources]:
        """The most that the pods of each LocalQueue use."""
        return {
            (NAMESPACE, "a"): Resources({GPU: self.cohort}),
            (NAMESPACE, "b"): Resources({GPU: self.cohort}),
            (NAMESPACE, "solo"): Resources({GPU: max(self.solo)}),
            (NAMESPACE, "probe"): Resources({GPU: self.probe}),
            (hostile.NAMESPACE, hostile.QUEUE): Resources({GPU: hostile.GPUS}),
        }

    @property
    def sums(self) -> dict[frozenset[str], int]:
        """The most that LocalQueues use together."""
        return {
            frozenset({"a", "b"}): self.cohort,
            frozenset({"solo"}): max(self.solo),
            frozenset({hostile.QUEUE}): hostile.GPUS,
        }

    def configuration(self) -> list[Document]:
        """The queues, and what they need."""
        queues = []
        for name in ("a", "b"):
            queue = m.cluster_queue(f"chaos-{name}", "gpu", {GPU: self.cohort // 2, "cpu": "1M"})
            queue["spec"] |= {
                "cohortName": "chaos",
                "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
            }
            queues.append(queue)
        queues.append(solo(max(self.solo)))
        queues.append(m.cluster_queue("chaos-probe", "gpu", {GPU: self.probe, "cpu": "1M"}))
        names = ("a", "b", "solo", "probe")
        return [
            m.topology("gpus", BLOCK, RACK),
            m.flavor("gpu", topology="gpus"),
            m.priority_class("low", 10),
            m.priority_class("high", 100),
            *queues,
            *(m.local_queue(NAMESPACE, name, f"chaos-{name}") for name in names),
            *hostile.configuration(),
        ]


def solo(gpus: int) -> Document:
    return m.cluster_queue("chaos-solo", "gpu", {GPU: gpus, "cpu": "1M"}, strategy="StrictFIFO")


@dataclass
class Load:
    """Keeps a number of gangs in the cluster.

    Attributes:
        gangs: this number.
        longest: seconds that a gang runs at most.
        sizes: numbers of GPUs that a pod can have.
        submitted: path of each job, by name.
        deleted: names of those that were deleted on purpose.
        held: names of gangs that can be held.
    """

    stage: Stage
    random: Random
    gangs: int
    longest: float
    quotas: Quotas = Quotas()
    sizes: tuple[int, ...] = (4, 8)
    submitted: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    running: bool = True
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def tick(self) -> None:
        """Submit missing gangs, and at times hold or release one."""
        if not self.running:
            return
        try:
            for _ in range(self.missing()):
                self.submit(self.gang())
        except LocalClusterError:  # the next tick retries; existing gangs are known by name
            return
        if self.random.random() < 0.02:
            self.hold_or_release()

    def missing(self) -> int:
        """The number of gangs to submit now."""
        return min(2, self.gangs - len(self.live()))

    def live(self) -> list[JobRecord]:
        """Jobs that have not ended, in the newest state of the recorder."""
        return [job for job in self.jobs() if job.outcome is None]

    def jobs(self) -> list[JobRecord]:
        return [job for job in self.stage.recorder.jobs() if job.namespace == NAMESPACE]

    def gang(self) -> Document:
        draw = self.random
        name, pods = f"g{next(self._numbers)}", draw.randint(1, 4)
        shape = PodSetManifest(
            pods, gpus=draw.choice(self.sizes), required=RACK if draw.random() < 0.3 else None
        )
        options: dict[str, Any] = {
            "seconds": round(draw.uniform(1.0, self.longest), 1),
            "priority_class": draw.choice(("low", "low", "high")),
        }
        queue = draw.choice(("a", "b", "a", "b", "solo"))
        if draw.random() < 0.6 or pods == 1:
            return m.job(name, NAMESPACE, queue, shape, retries=100, **options)
        one = PodSetManifest(1, gpus=shape.gpus, required=shape.required, group="all")
        rest = PodSetManifest(pods - 1, gpus=shape.gpus, required=shape.required, group="all")
        if shape.required is None:
            one, rest = (
                PodSetManifest(1, gpus=shape.gpus),
                PodSetManifest(pods - 1, gpus=shape.gpus),
            )
        document = m.pytorchjob(name, NAMESPACE, queue, master=one, worker=rest, **options)
        for replica in document["spec"]["pytorchReplicaSpecs"].values():
            replica["restartPolicy"] = "OnFailure"
        return document

    def submit(self, document: Document) -> str:
        """Create a job. Returns its name."""
        name = str(document["metadata"]["name"])
        path = self.stage.client.path_of(document)
        self.stage.client.create(path.rsplit("/", 1)[0], document)
        self.submitted[name] = path
        return name

    def hold_or_release(self) -> None:
        if self.held:
            self.release(self.random.choice(sorted(self.held)))
        elif live := self.live():
            name = self.random.choice(sorted(job.name for job in live))
            self.held.add(
                name
            )  # before the answer, which a fault may drop although the gang is held
            self.stage.ask(f"{PREFIX}/{name}/hold")

    def release(self, name: str) -> None:
        ended = {job.name for job in self.jobs() if job.outcome is not None}
        if name in ended | self.deleted or self.stage.ask(f"{PREFIX}/{name}/release"):
            self.held.discard(name)

    def ended(self) -> set[str]:
        """Names of the jobs that have ended, also of those that are deleted since."""
        return {
            event.fact.name
            for event in self.stage.recorder.recording().events
            if isinstance(event.fact, JobRecord) and event.fact.outcome is not None
        }

    def clear(self) -> None:
        """Delete every job."""
        self.running = False
        for path in self.submitted.values():
            self.stage.client.delete(path, missing_ok=True, propagationPolicy="Background")

    def wind_up(self) -> None:
        """Submit no more gangs, and release the held ones."""
        self.running = False
        for name in sorted(self.held):
            self.release(name)


TTL_SECONDS = 30
BEHIND = 20
"""Gangs that one tick submits at most, while the load is behind its rate."""


@dataclass
class SteadyLoad(Load):
    """Submits gangs at a rate. Jobs are deleted half a minute after their end.

    Attributes:
        gangs: in all.
        seconds: in which all are submitted.
    """

    seconds: float = 3600.0
    _began: float = field(default_factory=time.monotonic)
    _sent: int = 0

    def missing(self) -> int:
        due = min(1.0, (time.monotonic() - self._began) / self.seconds) * self.gangs
        return min(BEHIND, int(due) - self._sent)

    def submit(self, document: Document) -> str:
        spec = document["spec"]
        policy = spec if document["kind"] == "Job" else spec["runPolicy"]
        policy["ttlSecondsAfterFinished"] = TTL_SECONDS
        name = super().submit(document)
        self._sent += name.startswith("g")  # not those of probes
        return name

    def clear(self) -> None:
        """Delete every job that is not deleted yet."""
        there = {job.name for job in self.jobs()}
        self.submitted = {name: path for name, path in self.submitted.items() if name in there}
        super().clear()

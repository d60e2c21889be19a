"""Random gangs of both kinds in several queues, and random commands for them."""

from __future__ import annotations

import itertools
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
COHORT = 64  # GPUs of the queues a and b together
SOLO = (16, 32)  # GPUs of the queue solo, alternating
PROBE = 16
LIMITS: dict[Queue, Resources] = {
    (NAMESPACE, "a"): Resources({GPU: COHORT}),
    (NAMESPACE, "b"): Resources({GPU: COHORT}),
    (NAMESPACE, "solo"): Resources({GPU: max(SOLO)}),
    (NAMESPACE, "probe"): Resources({GPU: PROBE}),
    (hostile.NAMESPACE, hostile.QUEUE): Resources({GPU: hostile.GPUS}),
}


def configuration() -> list[Document]:
    """Queues for 120 of the 128 GPUs: two that borrow from each other, one that changes, one for probes, one of hostile objects."""
    queues = []
    for name, gpus in (("a", COHORT // 2), ("b", COHORT // 2)):
        queue = m.cluster_queue(f"chaos-{name}", "gpu", {GPU: gpus, "cpu": "1M"})
        queue["spec"] |= {
            "cohortName": "chaos",
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        }
        queues.append(queue)
    queues.append(solo(max(SOLO)))
    queues.append(m.cluster_queue("chaos-probe", "gpu", {GPU: PROBE, "cpu": "1M"}))
    return [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus"),
        m.priority_class("low", 10),
        m.priority_class("high", 100),
        *queues,
        *(m.local_queue(NAMESPACE, name, f"chaos-{name}") for name in ("a", "b", "solo", "probe")),
        *hostile.configuration(),
    ]


def solo(gpus: int) -> Document:
    return m.cluster_queue("chaos-solo", "gpu", {GPU: gpus, "cpu": "1M"}, strategy="StrictFIFO")


@dataclass
class Load:
    """Keeps a number of gangs in the cluster.

    Attributes:
        submitted: path of each job, by name.
        deleted: names of those that were deleted on purpose.
        held: names of gangs that can be held.
    """

    stage: Stage
    random: Random
    gangs: int
    longest: float
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
            for _ in range(min(2, self.gangs - len(self.live()))):
                self.submit(self.gang())
        except LocalClusterError:  # the next tick retries; existing gangs are known by name
            return
        if self.random.random() < 0.02:
            self.hold_or_release()

    def live(self) -> list[JobRecord]:
        """Jobs that have not ended, in the newest state of the recorder."""
        return [job for job in self.jobs() if job.outcome is None]

    def jobs(self) -> list[JobRecord]:
        return [job for job in self.stage.recorder.jobs() if job.namespace == NAMESPACE]

    def gang(self) -> Document:
        draw = self.random
        name, pods = f"g{next(self._numbers)}", draw.randint(1, 4)
        shape = PodSetManifest(
            pods, gpus=draw.choice((4, 8)), required=RACK if draw.random() < 0.3 else None
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

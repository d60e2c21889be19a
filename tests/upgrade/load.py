"""Gangs that run during an upgrade, gangs that are submitted and finish in the meantime, and the figures of both."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.recorder import Recorder, Recording
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.nodes import BLOCK, RACK

NAMESPACE: Final = "upgrade"
STEADY: Final = 100
NODES: Final = NodeSpec(blocks=2, racks_per_block=8, hosts_per_rack=8)
GPUS: Final = NODES.count * NODES.gpus
_SECONDS: Final = 300.0
_EVERY: Final = 2.0
_RUN: Final = 10.0


def configuration() -> list[Document]:
    return [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus"),
        m.cluster_queue(NAMESPACE, "gpu", {"nvidia.com/gpu": GPUS, "cpu": "1M"}),
        m.local_queue(NAMESPACE, "main", NAMESPACE),
    ]


@dataclass
class Load:
    """The gangs of a run.

    Attributes:
        steady: uids of the pods of each gang that runs all the time.
        submitted: names of the gangs that finish.
    """

    client: Client
    recorder: Recorder
    steady: dict[str, set[str]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Submit the gangs that run all the time, of two pods, and wait until all of them run."""
        self.client.each(self._create, map(_steady, range(STEADY)))
        running = "all pods of the gangs"
        wait_until(lambda: len(self._running()) == 2 * STEADY, running, _SECONDS)
        for pod in self._running():
            self.steady.setdefault(pod.owner, set()).add(pod.uid)

    @contextmanager
    def flow(self) -> Iterator[None]:
        """Submit a gang each two seconds, which runs for ten seconds. At the end, wait until all of them are finished."""
        stop = threading.Event()
        failures: list[LocalClusterError] = []

        def submit() -> None:
            for number in itertools.count():
                if stop.wait(_EVERY):
                    return
                name = f"flow-{number}"
                try:
                    self._create(_gang(name, seconds=_RUN))
                except LocalClusterError as error:
                    failures.append(error)
                    return
                self.submitted.append(name)

        thread = threading.Thread(target=submit, name="submissions")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not failures, failures
        wait_until(lambda: not self.unfinished(), "the end of the short gangs", _SECONDS)

    def unfinished(self) -> list[str]:
        """The short gangs that have not finished."""
        done = {job.name for job in self.recorder.jobs() if job.outcome is not None}
        return [name for name in self.submitted if name not in done]

    def lost(self) -> list[str]:
        """The gangs that no longer run with their first pods, and the short gangs that have not finished."""
        now: dict[str, set[str]] = defaultdict(set)
        for pod in self._running():
            now[pod.owner].add(pod.uid)
        gone = [uid for uid, pods in self.steady.items() if not pods <= now[uid]]
        return gone + self.unfinished()

    def _running(self) -> list[PodRecord]:
        _, pods = self.recorder.now()
        return [
            pod
            for pod in pods
            if pod.namespace == NAMESPACE
            and pod.name.startswith("steady-")
            and pod.phase is PodPhase.RUNNING
            and not pod.terminating
        ]

    def _create(self, document: Document) -> None:
        self.client.create(self.client.path_of(document).rsplit("/", 1)[0], document)


def _steady(number: int) -> Document:
    """Three of four are Jobs. Two of four have a required topology."""
    name = f"steady-{number:03}"
    if number % 4 == 0:
        return m.pytorchjob(
            name, NAMESPACE, "main", master=PodSetManifest(gpus=4), worker=PodSetManifest(gpus=4)
        )
    return _gang(name, required=RACK if number % 2 else None)


def _gang(name: str, *, seconds: float | None = None, required: str | None = None) -> Document:
    return m.job(
        name, NAMESPACE, "main", PodSetManifest(2, gpus=4, required=required), seconds=seconds
    )


@dataclass(frozen=True)
class Starts:
    """For each gang, the times of its submission and of its start, in Unix seconds."""

    times: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, recording: Recording) -> Starts:
        """A gang starts when its job is no longer suspended."""
        submitted: dict[str, float] = {}
        started: dict[str, float] = {}
        for event in recording.events:
            if isinstance(event.fact, JobRecord) and event.fact.namespace == NAMESPACE:
                submitted.setdefault(event.key, event.at)
                if not event.fact.suspended:
                    started.setdefault(event.key, event.at)
        return cls(tuple(sorted((submitted[uid], at) for uid, at in started.items())))

    def between(self, began: float, ended: float) -> tuple[int, float]:
        """The number of gangs that started in a time, and the longest wait of a gang that was submitted in it."""
        waits = [start - at for at, start in self.times if began <= at < ended]
        return sum(began <= start < ended for _, start in self.times), max(waits, default=0.0)

    def longest_pause(self, began: float, ended: float) -> float:
        """The longest time between two starts."""
        starts = sorted(start for _, start in self.times if began <= start < ended)
        return max((b - a for a, b in itertools.pairwise(starts)), default=0.0)


def evicted(recording: Recording) -> set[str]:
    """The gangs with a second attempt, or whose job was suspended after its start."""
    found: set[str] = set()
    started: set[str] = set()
    for event in recording.events:
        job = event.fact
        if not isinstance(job, JobRecord) or job.namespace != NAMESPACE:
            continue
        if not job.suspended:
            started.add(event.key)
        if job.attempt > 1 or (job.suspended and event.key in started and job.outcome is None):
            found.add(f"{job.name} (attempt {job.attempt})")
    return found


def restarted(recording: Recording) -> set[str]:
    """The pods with a restarted container, and the names that more than one pod had."""
    uids: dict[str, set[str]] = defaultdict(set)
    found: set[str] = set()
    for event in recording.events:
        pod = event.fact
        if isinstance(pod, PodRecord) and pod.namespace == NAMESPACE:
            uids[f"{pod.owner}/{pod.podset}/{pod.rank}"].add(pod.uid)
            if pod.restarts:
                found.add(pod.name)
    return found | {key for key, pods in uids.items() if len(pods) > 1}

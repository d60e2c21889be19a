"""The gangs that hold GPUs, with their pods. Their GPU utilization is evaluated."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from queuectl.domain.gpus import GpuWeights
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import IdleReclaim, QueueConfig
from queuectl.domain.records import JobRecord, PodRecord
from queuectl.domain.utilization import PodKey
from queuectl.state.claims import idle_rule
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that holds GPUs, or instances of them. ``started_at``: unix seconds; None = not known yet."""

    namespace: str
    name: str
    uid: str
    gpus: int
    started_at: float | None

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class HeldGang:
    """A gang whose pods hold GPUs.

    Attributes:
        ready_at: the time at which all its pods were ready (unix seconds); None = not all are ready.
    """

    uid: str
    attempt: int
    cluster_queue: str
    rule: IdleReclaim
    ready_at: float | None
    pods: tuple[HeldPod, ...]

    @property
    def gpus(self) -> int:
        return sum(pod.gpus for pod in self.pods)


def held_gangs(
    mirror: Mirror, ledger: Ledger, config: QueueConfig, borrowing: Container[str] = ()
) -> list[HeldGang]:
    """All gangs that hold GPUs now; ``borrowing``: ClusterQueues that use more than their nominal quota."""
    gangs = []
    for entry in ledger.entries(State.STARTING, State.RUNNING):
        weights = config.rules.accounting.gpus
        pods = tuple(_pods(entry, mirror.pods_of(entry), weights))
        if pods:
            gangs.append(
                HeldGang(
                    entry.uid,
                    entry.attempt,
                    entry.cluster_queue,
                    _rule(entry, mirror.jobs.get(entry.uid), config, borrowing),
                    _ready_at(entry, pods),
                    pods,
                )
            )
    return gangs


def _rule(
    entry: Entry, job: JobRecord | None, config: QueueConfig, borrowing: Container[str]
) -> IdleReclaim:
    queue = config.cluster_queues.get(entry.cluster_queue)
    if queue is None:
        return IdleReclaim()
    return idle_rule(job, queue, borrowing=queue.name in borrowing)


def _ready_at(entry: Entry, pods: Iterable[HeldPod]) -> float | None:
    """A replacement warms up again, and the gang with it."""
    if entry.state is not State.RUNNING or entry.unready_since is not None:
        return None
    starts = [pod.started_at for pod in pods if pod.started_at is not None]
    return max([entry.ready_at or entry.since, *starts])


def _pods(entry: Entry, pods: Iterable[PodRecord], weights: GpuWeights) -> Iterable[HeldPod]:
    for pod in pods:
        gpus = accelerators(pod.requests, weights)
        if gpus and pod.attempt == entry.attempt and not pod.terminal and pod.node is not None:
            yield HeldPod(pod.namespace, pod.name, pod.uid, gpus, pod.started_at)


def accelerators(requests: Resources, weights: GpuWeights) -> int:
    """The number of GPUs, or of instances, that a pod requests. Exporters report each separately."""
    return sum(requests[name] for name in requests if weights.of(name))

"""The gangs that hold GPUs, with their pods and the last samples of their utilization."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.domain.containment import Boundary
from queuectl.domain.gpus import NO_LABELS, GpuWeights
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import LIVE, Entry, State
from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import IdleReclaim, QueueConfig
from queuectl.domain.utilization import GangUse, PodKey
from queuectl.state.claims import idle_rule
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

# ---- Gangs and their pods


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that holds GPUs, or instances of them.

    Attributes:
        gpus: how many GPUs, instances or replicas.
        started_at: unix seconds; None = not known yet.
        shared: exporters do not measure its GPUs apart from those of other pods: they are replicas of a GPU, or a
            partition whose use the vendor does not report.
    """

    namespace: str
    name: str
    uid: str
    gpus: int
    started_at: float | None
    shared: bool = False

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
) -> Iterator[HeldGang]:
    """The gangs that hold GPUs, each as it is when it is read; the ledger can change in between. One that cannot be read is set aside.

    ``borrowing``: ClusterQueues that use more than their nominal quota.
    """
    sizes, weights = mirror.gpus(config), config.rules.accounting.gpus
    for entry in list(ledger.entries(*LIVE)):
        try:
            pods = tuple(_pods(entry, mirror, weights, sizes))
            rule = _rule(entry, mirror.jobs.get(entry.uid), config, borrowing)
        except Exception as error:  # noqa: BLE001 - contained
            mirror.containment.failed(Boundary.SERIES, entry.uid, error)
            continue
        if pods:
            ready_at = _ready_at(entry, pods)
            yield HeldGang(entry.uid, entry.attempt, entry.cluster_queue, rule, ready_at, pods)


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


def _pods(entry: Entry, mirror: Mirror, weights: GpuWeights, sizes: GpuSizes) -> Iterable[HeldPod]:
    for pod in mirror.pods_of(entry):
        claims = [claim.content.allocated or () for claim in mirror.devices.claims_of(pod.uid)]
        devices = sum(map(sizes.count_of, claims))
        parts = any(one.share for claim in claims for one in claim)
        gpus = devices or accelerators(pod.requests, weights)
        if gpus and pod.attempt == entry.attempt and not pod.terminal and pod.node is not None:
            node = mirror.fleet.by_name.get(pod.node)
            labels = node.labels if node is not None else NO_LABELS
            shared = parts if devices else not weights.measured(pod.requests, labels)
            yield HeldPod(pod.namespace, pod.name, pod.uid, gpus, pod.started_at, shared)


def accelerators(requests: Resources, weights: GpuWeights) -> int:
    """The number of GPUs, or of instances, that a pod requests. Exporters report each separately."""
    return sum(requests[name] for name in requests if weights.of(name))


# ---- Samples of utilization

KEPT_SECONDS: Final = 2 * FRESH_SECONDS  # a mark of the ledger can be late


class SampleLog:
    """The samples of one leader, in memory only: samples that it has not accounted for are unknown to the next leader."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Mapping[str, GangUse]]] = []

    def note(self, uses: Mapping[str, GangUse], at: float) -> None:
        """Add the sample of time ``at`` (unix seconds), by uid, and drop samples older than ``KEPT_SECONDS``."""
        self._samples = [one for one in self._samples if one[0] > at - KEPT_SECONDS]
        self._samples.append((at, uses))

    def of(self, uid: str) -> tuple[GangUse, ...]:
        """The samples of a gang, oldest first."""
        return tuple(use for _, uses in self._samples if (use := uses.get(uid)) is not None)

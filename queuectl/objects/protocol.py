"""The cluster protocol: what the ledger's entry still owes the cluster, as compare-and-swap writes.

Level-triggered: the answer follows from entry, job and pods alone, so after a crash the same picture gives the same
writes, and a write that already happened is not asked for again.

- Starting and not yet resumed: one patch of the job.
- Live: one patch per gated pod of this attempt, once all its pods exist; later, one per replacement.
- Evicting: one patch that suspends, or one that withdraws a start that never landed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from queuectl.domain.fleet import Node
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.records import JobRecord, PodRecord
from queuectl.domain.workload import PodSetPlacement
from queuectl.objects.kinds import KINDS
from queuectl.objects.pods import pin_patch


@dataclass(frozen=True, slots=True)
class Write:
    """One merge patch of one object. ``uid`` and ``version`` are what it is conditioned on."""

    resource: str  # kind of the job, or "Pod"
    namespace: str
    name: str
    uid: str
    version: int
    patch: Mapping[str, Any]


POD = "Pod"


def owed(
    entry: Entry,
    job: JobRecord,
    pods: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
) -> list[Write]:
    """Writes to send now, in order. ``nodes`` by name, ``flavors`` by name; ``pods``: all the job controls."""
    if entry.state is State.EVICTING:
        return _stop(entry, job)
    if not entry.state.live or job.outcome is not None:
        return []
    if job.suspended:
        return _start(entry, job) if entry.intent is not None else []
    if job.attempt != entry.attempt:
        return []
    return _place(entry, job, [p for p in pods if p.attempt == entry.attempt], nodes, flavors)


def _start(entry: Entry, job: JobRecord) -> list[Write]:
    placed = entry.placement.podsets if entry.placement is not None else ()
    asked = {podset.name: podset.count for podset in job.podsets}
    fewer = {
        p.podset: p.pods for p in placed if p.pods is not None and p.pods < asked.get(p.podset, 0)
    }
    patch = KINDS[job.kind].start_patch(job, entry.attempt, status_text(entry), fewer)
    return [_job_write(job, patch)]


def _stop(entry: Entry, job: JobRecord) -> list[Write]:
    if job.suspended and job.attempt >= entry.attempt:
        return []
    patch = KINDS[job.kind].stop_patch(job, entry.attempt, status_text(entry))
    return [_job_write(job, patch)]


def _job_write(job: JobRecord, patch: Mapping[str, Any]) -> Write:
    return Write(job.kind, job.namespace, job.name, job.uid, job.version, patch)


def status_text(entry: Entry) -> str:
    """Text of the status annotation: ``State: Reason: sentence``."""
    reason = f"{entry.state}: {entry.reason.code}"
    return f"{reason}: {entry.reason.message}" if entry.reason.message else reason


def _place(
    entry: Entry,
    job: JobRecord,
    pods: list[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
) -> list[Write]:
    gated = [pod for pod in pods if pod.gated and not pod.terminating and not pod.terminal]
    if not gated or entry.placement is None or not _whole(job, pods):
        return []
    writes = []
    for podset in entry.placement.podsets:
        own = [pod for pod in pods if pod.podset == podset.podset]
        waiting = [pod for pod in gated if pod.podset == podset.podset]
        labels, tolerations = _flavor_terms(podset, flavors)
        for pod, node in assign(podset, own, waiting, nodes):
            hostname = nodes[node].hostname if node is not None else None
            patch = pin_patch(pod, hostname, labels, tolerations)
            writes.append(Write(POD, pod.namespace, pod.name, pod.uid, pod.version, patch))
    return writes


def _whole(job: JobRecord, pods: list[PodRecord]) -> bool:
    """Whether every pod of the gang exists, or the gang was already let go once (then these are replacements)."""
    if any(not pod.gated for pod in pods):
        return True
    counts = Counter(pod.podset for pod in pods if not pod.terminating and not pod.terminal)
    return all(counts[podset.name] >= job.expects(podset) for podset in job.podsets)


def _flavor_terms(
    podset: PodSetPlacement, flavors: Mapping[str, ResourceFlavor]
) -> tuple[dict[str, str], list[Any]]:
    chosen = [flavors[name] for name in sorted(set(podset.flavors.values())) if name in flavors]
    labels = {key: value for flavor in chosen for key, value in flavor.node_labels}
    return labels, [toleration for flavor in chosen for toleration in flavor.tolerations]


def assign(
    podset: PodSetPlacement,
    pods: Iterable[PodRecord],
    waiting: Iterable[PodRecord],
    nodes: Mapping[str, Node],
) -> list[tuple[PodRecord, str | None]]:
    """Give each waiting pod a slot: the placement minus what pods already hold; by rank where there is one.

    A slot is held by a pod until it is terminal, so a replacement stays gated while its predecessor is still
    terminating. Slots on nodes that are gone or not ready are given to nobody. A quota-only placement has no slots:
    its pods go anywhere (None).
    """
    ranked = sorted(waiting, key=lambda pod: (pod.rank is None, pod.rank or 0, pod.name))
    if not podset.nodes:
        return [(pod, None) for pod in ranked]
    slots = [node for node, count in podset.nodes for _ in range(count)]
    names = {nodes[node].hostname: node for node, _ in podset.nodes if node in nodes}
    taken: set[int] = set()  # slots of the pods' own ranks
    held: Counter[str] = Counter()  # of the others, by node
    for pod in pods:
        if not pod.gated and not pod.terminal:
            node = pod.node or names.get(pod.pin or "", "")
            own = pod.rank % len(slots) if pod.rank is not None else -1
            if own >= 0 and own not in taken and slots[own] == node:
                taken.add(own)
            else:
                held[node] += 1
    free: dict[int, str] = {}
    for index, node in reversed(list(enumerate(slots))):
        if index in taken:
            continue
        if held[node] > 0:  # which of a node's slots it holds does not matter: they are alike
            held[node] -= 1
        elif node in nodes and nodes[node].ready:
            free[index] = node
    return _by_rank(ranked, free, len(slots))


def _by_rank(
    ranked: list[PodRecord], free: dict[int, str], size: int
) -> list[tuple[PodRecord, str | None]]:
    given: dict[str, str] = {}
    for pod in ranked:
        if pod.rank is not None and pod.rank % size in free:
            given[pod.uid] = free.pop(pod.rank % size)
    left = [free[index] for index in sorted(free)]
    rest = [pod for pod in ranked if pod.uid not in given]
    given.update({pod.uid: node for pod, node in zip(rest, left, strict=False)})
    return [(pod, given[pod.uid]) for pod in ranked if pod.uid in given]

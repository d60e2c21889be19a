"""The cluster protocol: the writes that an entry of the ledger still owes the cluster, as compare-and-swap writes.

It is level-triggered: the result follows from entry, job and pods alone. After a crash the same observations give the same writes,
and a write that has taken effect is not repeated.

- Pending, and moved to another queue: one patch of its label.
- Starting and not yet resumed: one patch of the job.
- Live: one patch for each gated pod of this attempt, after all its pods exist; later, one for each replacement.
- Evicting with notice: one patch with the time by which the job must stop.
- Evicting: one patch that suspends, or one that withdraws a start without effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from queuectl.domain.fleet import Node
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.records import JobRecord, PodRecord
from queuectl.domain.redaction import redacted_for
from queuectl.domain.workload import Planned, PodSetPlacement
from queuectl.objects.keys import STATUS_ANNOTATION
from queuectl.objects.kinds import KINDS
from queuectl.objects.kubernetes.pods import pin_patch
from queuectl.objects.times import format_time


@dataclass(frozen=True, slots=True)
class Write:
    """One merge patch of one object. ``uid`` and ``version`` are its conditions.

    ``attempt``: of the workload that owes it.
    """

    resource: str  # kind of the job, or "Pod"
    namespace: str
    name: str
    uid: str
    version: int
    patch: Mapping[str, Any]
    purpose: Purpose = Purpose.PIN
    attempt: int = 0

    def bare(self) -> Write | None:
        """The same without the status annotation, which can exceed the limit of the object; None if it has none."""
        metadata = self.patch["metadata"]
        others = {
            k: v for k, v in metadata.get("annotations", {}).items() if k != STATUS_ANNOTATION
        }
        if len(others) == len(metadata.get("annotations", {})):
            return None
        kept = {key: value for key, value in metadata.items() if key != "annotations"}
        if others:
            kept["annotations"] = others
        return replace(self, patch={**self.patch, "metadata": kept})


POD = "Pod"


def outstanding_writes(
    entry: Entry,
    job: JobRecord,
    pods: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
) -> list[Write]:
    """Writes to send now, in order. ``nodes`` and ``flavors`` are by name; ``pods``: all pods that the job controls."""
    if job.attempt > entry.attempt:  # of a restored backup: the next observation changes the entry
        return []
    if entry.state is State.EVICTING:
        return _stop(entry, job) if entry.stop_at is None else _notify(entry, job, entry.stop_at)
    if entry.intent is Intent.MOVE:
        return _relabel(entry, job)
    if not entry.state.live or job.outcome is not None:
        return []
    if job.suspended:
        return _start(entry, job) if entry.intent is not None and as_planned(entry, job) else []
    if job.attempt != entry.attempt:
        return []
    return _place(entry, job, [p for p in pods if p.attempt == entry.attempt], nodes, flavors)


def planned_of(job: JobRecord, limit: float | None = None) -> Planned:
    """The requests and the digest of the job for which a start is decided now. ``limit``: seconds that it can run."""
    asked = (
        job.queue,
        job.priority_class,
        job.pod_priority_class,
        job.labels,
        *(
            (
                podset.name,
                podset.count,
                podset.min_count,
                sorted(podset.shape.requests.items()),
                podset.shape.rules,
                sorted(podset.shape.incidental),
                sorted(podset.limits.items()),
                podset.topology,
                podset.group,
                *filter(None, (podset.shared_gpus, podset.gpu_fraction, podset.shape.devices)),
                *(["one NUMA node"] if podset.one_numa_node else ()),
            )
            for podset in job.podsets
        ),
    )
    digest = blake2b(repr(asked).encode(), digest_size=16).hexdigest()
    requests = {podset.name: podset.shape.requests for podset in job.podsets}
    return Planned(requests, digest, limit)


def as_planned(entry: Entry, job: JobRecord) -> bool:
    """Whether a job that is not yet resumed still has the requests for which its start was decided."""
    return entry.planned is None or entry.planned.digest == planned_of(job).digest


def _relabel(entry: Entry, job: JobRecord) -> list[Write]:
    queue = entry.queue_set
    if queue is None or job.queue == queue or not job.suspended or job.outcome is not None:
        return []
    patch = KINDS[job.kind].queue_patch(job, _public_status(entry), queue)
    return [_job_write(entry, job, patch, Purpose.MOVE)]


def _start(entry: Entry, job: JobRecord) -> list[Write]:
    placed = entry.placement.podsets if entry.placement is not None else ()
    asked = {podset.name: podset.count for podset in job.podsets}
    fewer = {
        p.podset: p.pods for p in placed if p.pods is not None and p.pods < asked.get(p.podset, 0)
    }
    patch = KINDS[job.kind].start_patch(job, entry.attempt, _public_status(entry), fewer)
    return [_job_write(entry, job, patch, Purpose.START)]


def _stop(entry: Entry, job: JobRecord) -> list[Write]:
    if job.suspended and job.attempt >= entry.attempt:
        return []
    patch = KINDS[job.kind].stop_patch(job, entry.attempt, _public_status(entry))
    return [_job_write(entry, job, patch, Purpose.STOP)]


def _notify(entry: Entry, job: JobRecord, at: float) -> list[Write]:
    deadline = format_time(at)
    if job.suspended or job.preempt_requested == deadline:
        return []
    patch = KINDS[job.kind].notice_patch(job, _public_status(entry), deadline)
    return [_job_write(entry, job, patch, Purpose.NOTICE)]


def _job_write(entry: Entry, job: JobRecord, patch: Mapping[str, Any], purpose: Purpose) -> Write:
    place = (job.namespace, job.name, job.uid, job.version)
    return Write(job.kind, *place, patch, purpose, entry.attempt)


def _public_status(entry: Entry) -> str:
    """The status annotation for the object. Its readers do not always have access to other teams, so it does not name them."""
    return status_text(replace(entry, reason=redacted_for(entry.namespace, entry.reason)))


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
    planned = entry.planned
    if planned is not None and any(planned.larger(pod.podset, pod.requests) for pod in gated):
        return []  # the gang is stopped
    writes = []
    for podset in entry.placement.podsets:
        if podset.pods == 0:
            continue  # all its pods have finished: a late pod has no slot
        own = [pod for pod in pods if pod.podset == podset.podset]
        waiting = [pod for pod in gated if pod.podset == podset.podset]
        slots = slots_of(podset)
        for pod, number in assign(podset, own, waiting, nodes):
            node, charged = slots[number]
            hostname = nodes[node].hostname if node is not None else None
            patch = pin_patch(pod, hostname, *_flavor_terms(charged, flavors))
            place_of = (pod.namespace, pod.name, pod.uid, pod.version)
            writes.append(Write(POD, *place_of, patch, Purpose.PIN, entry.attempt))
    return writes


def _whole(job: JobRecord, pods: list[PodRecord]) -> bool:
    """Whether all pods of the gang exist, or pods of the gang were released before (then these are replacements)."""
    if any(not pod.gated for pod in pods):
        return True
    counts = Counter(pod.podset for pod in pods if not pod.terminating and not pod.terminal)
    return all(counts[podset.name] >= job.expects(podset) for podset in job.podsets)


def _flavor_terms(
    charged: Mapping[str, str], flavors: Mapping[str, ResourceFlavor]
) -> tuple[dict[str, str], list[Any]]:
    chosen = [flavors[name] for name in sorted(set(charged.values())) if name in flavors]
    labels = {key: value for flavor in chosen for key, value in flavor.node_labels}
    return labels, [toleration for flavor in chosen for toleration in flavor.tolerations]


def slots_of(podset: PodSetPlacement) -> list[tuple[str | None, Mapping[str, str]]]:
    """Node and flavors (by resource) of each slot, in the order of ranks.

    A placement of quota only has slots without nodes: one for each pod of each share, or one slot if it is not split, because
    the pods are then equal.
    """
    slots: list[tuple[str | None, Mapping[str, str]]] = []
    for share in podset.by_share():
        nodes = share.nodes or ((None, share.pods or 1),)
        slots += [(node, share.flavors) for node, count in nodes for _ in range(count)]
    return slots


def assign(
    podset: PodSetPlacement,
    pods: Collection[PodRecord],
    waiting: Iterable[PodRecord],
    nodes: Mapping[str, Node],
) -> list[tuple[PodRecord, int]]:
    """Assign a slot (its number) to each gated pod: the placement minus the slots that pods hold, by rank if the pods have ranks.

    A pod holds its slot until it is terminal. Thus a replacement stays gated while its predecessor terminates. A rank stays gated
    even if its slot is on another node in the meantime: its predecessor can still run on a node that does not answer. Slots on
    nodes that are deleted, not ready or cordoned stay empty. Pods of a placement of quota only hold no slots: they can run on
    each node, and without ranks their names decide the share of each.
    """
    running = {pod.rank for pod in pods if not (pod.gated or pod.terminal)} - {None}
    ranked = sorted((pod for pod in waiting if pod.rank not in running), key=_by_rank_and_name)
    slots = slots_of(podset)
    if not podset.nodes:
        living = sorted((pod for pod in pods if not pod.terminal), key=_by_rank_and_name)
        place = {pod.uid: number for number, pod in enumerate(living)}
        return [
            (pod, (place.get(pod.uid, 0) if pod.rank is None else pod.rank) % len(slots))
            for pod in ranked
        ]
    names = {nodes[node].hostname: node for node, _ in podset.nodes if node in nodes}
    tolerations = ranked[0].tolerations if ranked else ()
    taken: set[int] = set()  # slots of the pods with ranks
    held: Counter[str | None] = Counter()  # slots of the other pods, by node
    for pod in pods:
        if not pod.gated and not pod.terminal:
            node = pod.node or names.get(pod.pin or "", "")
            own = pod.rank % len(slots) if pod.rank is not None else -1
            if own >= 0 and own not in taken and slots[own][0] == node:
                taken.add(own)
            else:
                held[node] += 1
    free: set[int] = set()
    for number, (name, _) in reversed(list(enumerate(slots))):
        if number in taken:
            continue
        if held[name] > 0:  # all slots of a node are equal
            held[name] -= 1
        elif name is not None and name in nodes and nodes[name].takes(tolerations):
            free.add(number)
    return _by_rank(ranked, free, len(slots))


def _by_rank_and_name(pod: PodRecord) -> tuple[bool, int, str]:
    return pod.rank is None, pod.rank or 0, pod.name


def _by_rank(ranked: list[PodRecord], free: set[int], size: int) -> list[tuple[PodRecord, int]]:
    given: dict[str, int] = {}
    for pod in ranked:
        if pod.rank is not None and pod.rank % size in free:
            given[pod.uid] = pod.rank % size
            free.remove(pod.rank % size)
    rest = [pod for pod in ranked if pod.uid not in given]
    given.update({pod.uid: number for pod, number in zip(rest, sorted(free), strict=False)})
    return [(pod, given[pod.uid]) for pod in ranked if pod.uid in given]

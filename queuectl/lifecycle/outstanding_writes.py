"""The cluster protocol: the writes that an entry of the ledger still owes the cluster, as compare-and-swap writes.

It is level-triggered: the result follows from entry, job and pods alone. After a crash the same observations give the same writes,
and a write that has taken effect is not repeated.

- Pending, and moved to another queue: one patch of its label.
- Starting and not yet resumed: one patch of the job, if its controller counts no pods of earlier attempts.
- Live: one patch for each gated pod of this attempt, after all its pods exist; later, one for each replacement.
- Live, after its user has taken pods from the gang of an elastic Job: one patch with the number of pods that this gang has left.
- Evicting with notice: one patch with the time by which the job must stop.
- Evicting: one patch that suspends, or one that withdraws a start without effect.

A workload that consists of pods has no object to suspend or resume. Its start is the patches of its pods; its stop deletes the pods that
are released, and withdraws the start of the pods that are not: their maker creates deleted pods again, with the gate. An index of an
array is such a workload. Its pod is evicted, which its Job does not count as a failure, and the first start resumes the Job. So is a
pod that is added to an elastic job, but its start writes to the pod alone, and only while the job can have it: the job is resumed,
suspended and moved for its gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from queuectl.domain.arrays import object_of
from queuectl.domain.fleet import Node, NodeRules, Toleration
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.quantity import NOTHING
from queuectl.domain.queues import ResourceFlavor, added_tolerations
from queuectl.domain.redaction import redacted_for
from queuectl.domain.words import format_time, printable
from queuectl.domain.workload import DecidedRequest, PodSet, PodSetPlacement, slots_left
from queuectl.lifecycle.old_pods import counted_pods
from queuectl.objects.keys import STATUS_ANNOTATION
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.objects.kinds import pods as plain
from queuectl.objects.kinds.job import array_patch, base_patch
from queuectl.objects.kubernetes.pods import pin_patch
from queuectl.state.readiness import by_podset
from queuectl.state.usage import node_of

# ---- Writes


@dataclass(frozen=True, slots=True)
class Write:
    """One merge patch of one object, or the end of a pod. ``uid`` and ``version`` are its conditions.

    ``attempt``: of the workload that owes it. ``node``: of a pin, if it has one. ``deletes``: the pod, with its grace period; only its uid is a
    condition. ``evicts``: the pod. ``send_at``: not before this time (unix seconds).
    """

    resource: str  # kind of the job, or "Pod"
    namespace: str
    name: str
    uid: str
    version: int
    patch: Mapping[str, Any]
    purpose: Purpose = Purpose.PIN
    attempt: int = 0
    node: str | None = None
    deletes: bool = False
    evicts: bool = False
    send_at: float = 0.0

    def bare(self) -> Write | None:
        """The same without the status annotation, which can exceed the limit of the object; None if it has none."""
        metadata = self.patch.get("metadata", {})
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
_ARRAY_STATUS: Final = "Array: each index has its own state"
"""Status annotation of an array."""


def outstanding_writes(
    entry: Entry,
    job: JobRecord,
    pods: Collection[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
    kinds: JobKinds = KINDS,
    backed: Container[str] = frozenset(),
) -> list[Write]:
    """Writes to send now, in order.

    Args:
        entry: of the workload.
        job: its job.
        pods: all pods that the job controls.
        nodes: by name.
        flavors: by name.
        kinds: of jobs.
        backed: see :meth:`Node.takes`.
    """
    if job.attempt > entry.attempt:  # of a restored backup: the next observation changes the entry
        return []
    if job.of_pods:
        return _of_pods(entry, job, list(pods), nodes, flavors, kinds, backed)
    if entry.state is State.EVICTING:
        if entry.stop_at is not None:
            return _notify(entry, job, entry.stop_at, kinds)
        return _stop(entry, job, kinds)
    if entry.intent is Intent.MOVE:
        return _relabel(entry, job, kinds)
    if not entry.state.live or job.outcome is not None:
        return []
    if job.suspended:
        if entry.intent is None or suspended_again(entry, job) or counted_pods(job, pods):
            return []
        return _start(entry, job, kinds) if as_planned(entry, job) else []
    if job.attempt != entry.attempt:
        return []
    own = [p for p in pods if p.attempt == entry.attempt]
    return _resize(entry, job) or _place(entry, job, own, nodes, flavors, backed)


def suspended_again(entry: Entry, job: JobRecord) -> bool:
    """Whether another client suspended the job after the start of this attempt took effect. ``job``: suspended."""
    return not job.of_pods and job.attempt == entry.attempt


def _resize(entry: Entry, job: JobRecord) -> list[Write]:
    """Pods that its user gives an elastic Job later are not part of the gang that has its slots."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    if job.array is None or not job.resizable or not placed:
        return []
    (podset,), (slots,) = job.podsets, placed
    held = slots.count if slots.nodes else slots.pods_of(podset)
    ended = sum(n < job.array.base for n in job.array.succeeded | job.array.failed)
    if held + ended >= job.array.base:
        return []
    patch = base_patch(job, _public_status(entry), held + ended)
    return [_job_write(entry, job, patch, Purpose.RESIZE)]


def _of_pods(
    entry: Entry,
    job: JobRecord,
    pods: list[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
    kinds: JobKinds,
    backed: Container[str],
) -> list[Write]:
    alive = [pod for pod in pods if pod.alive]
    if entry.state is State.EVICTING and entry.stop_at is not None:
        return _notify_pods(entry, job, alive, format_time(entry.stop_at))
    if entry.state is State.EVICTING:
        return _stop_pods(entry, job, alive)
    if entry.intent is Intent.MOVE:
        return _relabel_pods(entry, job, alive, kinds)
    if not entry.state.live or job.outcome is not None:
        return []
    if job.suspended and (entry.intent is None or not as_planned(entry, job)):
        return []
    if job.index is not None and (job.index.barred or not job.index.started):
        return _open(entry, job)
    if job.error is not None and job.index is None:  # a pod that contradicts the others stays gated
        return []
    own = [pod for pod in pods if pod.attempt == entry.attempt or pod.waits]
    writes = _place(entry, job, own, nodes, flavors, backed)
    by_uid = {pod.uid: pod for pod in own}
    return [
        replace(w, patch=plain.released(w.patch, by_uid[w.uid], job, entry.attempt)) for w in writes
    ]


def _open(entry: Entry, job: JobRecord) -> list[Write]:
    """Resume the array of an index. An elastic job is resumed for its gang only."""
    if job.index is None or job.index.grown:
        return []
    array = object_of(job)
    return [_job_write(entry, array, array_patch(array, _ARRAY_STATUS), Purpose.START)]


def _stop_pods(entry: Entry, job: JobRecord, pods: Iterable[PodRecord]) -> list[Write]:
    writes = []
    for pod in pods:
        if not pod.gated:
            stop, indexed = _pod_write(entry, pod, {}, Purpose.STOP), job.index is not None
            writes.append(replace(stop, deletes=not indexed, evicts=indexed))
        elif pod.attempt < entry.attempt:  # a release that was sent can still take effect
            patch = plain.withdraw_patch(pod, job.uid, entry.attempt)
            writes.append(_pod_write(entry, pod, patch, Purpose.STOP))
    return writes


def _notify_pods(
    entry: Entry, job: JobRecord, pods: Iterable[PodRecord], deadline: str
) -> list[Write]:
    return [
        _pod_write(entry, pod, plain.notice_patch(pod, deadline), Purpose.NOTICE)
        for pod in pods
        if not pod.gated and pod.preempt_requested != deadline and not job.suspended
    ]


def _relabel_pods(
    entry: Entry, job: JobRecord, pods: Iterable[PodRecord], kinds: JobKinds
) -> list[Write]:
    """The label of the array of an index, or those of the pods of a group. A pod of an elastic job has the queue of its gang."""
    queue = entry.queue_set
    if job.index is not None:
        return [] if job.index.grown else _relabel(entry, job, kinds)
    if queue is None:
        return []
    return [
        _pod_write(entry, pod, plain.queue_patch(pod, queue), Purpose.MOVE)
        for pod in pods
        if pod.gated and pod.member is not None and pod.member.job.queue != queue
    ]


def _pod_write(entry: Entry, pod: PodRecord, patch: Mapping[str, Any], purpose: Purpose) -> Write:
    place = (pod.namespace, pod.name, pod.uid, pod.version)
    return Write(POD, *place, patch, purpose, entry.attempt)


def planned_of(job: JobRecord, limit: float | None = None) -> DecidedRequest:
    """The requests and the digest of the job for which a start is decided now. ``limit``: seconds that it can run."""
    position = (job.queue, job.priority_class, job.pod_priority_class, job.labels)
    digest = _digest((*position, *map(_fields_of, job.podsets)))
    requests = {podset.name: podset.shape.requests for podset in job.podsets}
    return DecidedRequest(requests, digest, limit)


def request_digest(job: JobRecord) -> str:
    """The digest of what the pods of a job request, without its position in queue order."""
    return _digest(tuple(map(_fields_of, job.podsets)))


def _fields_of(podset: PodSet) -> tuple[Any, ...]:
    """The fields that a decision depends on."""
    return (
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
        *(["a deadline"] if podset.has_deadline else ()),
    )


def _digest(fields: tuple[Any, ...]) -> str:
    return blake2b(repr(fields).encode(), digest_size=16).hexdigest()


def as_planned(entry: Entry, job: JobRecord) -> bool:
    """Whether a job that is not yet resumed still has the requests for which its start was decided."""
    return entry.planned is None or entry.planned.digest == planned_of(job).digest


def as_checked(entry: Entry, job: JobRecord) -> bool:
    """Whether a job still has the request for which it is held for admission checks. True for a job that is not held."""
    held = entry.state is State.RESERVED and bool(entry.checks.statuses)
    # A hold of an earlier release has no record of its request.
    return not held or entry.checks.request in ("", request_digest(job))


def _relabel(entry: Entry, job: JobRecord, kinds: JobKinds) -> list[Write]:
    queue = entry.queue_set
    if queue is None or job.queue == queue or not job.suspended or job.outcome is not None:
        return []
    status = _public_status(entry) if job.index is None else _ARRAY_STATUS
    patch = kinds[job.kind].queue_patch(object_of(job), status, queue)
    return [_job_write(entry, object_of(job), patch, Purpose.MOVE)]


def _start(entry: Entry, job: JobRecord, kinds: JobKinds) -> list[Write]:
    placed = entry.placement.podsets if entry.placement is not None else ()
    asked = {podset.name: podset.count for podset in job.podsets}
    fewer = {
        p.podset: p.pods for p in placed if p.pods is not None and p.pods < asked.get(p.podset, 0)
    }
    patch = kinds[job.kind].start_patch(job, entry.attempt, _public_status(entry), fewer)
    return [_job_write(entry, job, patch, Purpose.START)]


def _stop(entry: Entry, job: JobRecord, kinds: JobKinds) -> list[Write]:
    if job.suspended and job.attempt >= entry.attempt:
        return []
    patch = kinds[job.kind].stop_patch(job, entry.attempt, _public_status(entry))
    return [_job_write(entry, job, patch, Purpose.STOP)]


def _notify(entry: Entry, job: JobRecord, at: float, kinds: JobKinds) -> list[Write]:
    deadline = format_time(at)
    if job.suspended or job.preempt_requested == deadline:
        return []
    patch = kinds[job.kind].notice_patch(job, _public_status(entry), deadline)
    return [_job_write(entry, job, patch, Purpose.NOTICE)]


def _job_write(entry: Entry, job: JobRecord, patch: Mapping[str, Any], purpose: Purpose) -> Write:
    place = (job.namespace, job.name, job.uid, job.version)
    return Write(job.kind, *place, patch, purpose, entry.attempt)


def _public_status(entry: Entry) -> str:
    """The status annotation for the object. Its readers do not always have access to other teams, so it does not name them."""
    return status_text(replace(entry, reason=redacted_for(entry.namespace, entry.reason)))


def status_text(entry: Entry) -> str:
    """Text of the status annotation: ``State: Reason: sentence``. A terminal can show it."""
    reason = f"{entry.state}: {entry.reason.code}"
    return printable(f"{reason}: {entry.reason.message}" if entry.reason.message else reason)


def _place(
    entry: Entry,
    job: JobRecord,
    pods: list[PodRecord],
    nodes: Mapping[str, Node],
    flavors: Mapping[str, ResourceFlavor],
    backed: Container[str],
) -> list[Write]:
    gated = [pod for pod in pods if pod.waits]
    if not gated or entry.placement is None or not _whole(job, pods):
        return []
    planned = entry.planned
    if planned is not None and any(planned.larger(pod.podset, pod.requests) for pod in gated):
        return []  # the gang is stopped
    writes, asked = [], {one.name: one for one in job.podsets}
    own, waiting = by_podset(pods), by_podset(gated)
    for podset in entry.placement.podsets:
        if podset.pods == 0:
            continue  # all its pods have finished: a late pod has no slot
        slots = _slots_of(podset)
        updates = [u for u in entry.checks.updates if u.podset == podset.podset]
        numbers = slot_numbers(podset, asked.get(podset.podset), job.ended)
        added = added_tolerations(podset, updates, flavors)
        mine, gated_ones = own[podset.podset], waiting[podset.podset]
        for pod, number in assign(podset, mine, gated_ones, nodes, numbers, added, backed):
            node, charged = slots[number]
            patch = pin_patch(
                pod, node, *_flavor_terms(charged, flavors, nodes.get(node or "")), updates
            )
            writes.append(replace(_pod_write(entry, pod, patch, Purpose.PIN), node=node))
    return writes


def _whole(job: JobRecord, pods: list[PodRecord]) -> bool:
    """Whether all pods of the gang exist, or pods of the gang were released before (then these are replacements, or late pods).

    Late pods come only when others run. Their slots are theirs from the start.
    """
    if job.staged or any(not pod.gated for pod in pods):
        return True
    counts = Counter(pod.podset for pod in pods if pod.alive)
    at_once = job.pods_at_once
    return all(counts[podset.name] >= at_once[podset.name] for podset in job.first_podsets)


def _flavor_terms(
    charged: Mapping[str, str], flavors: Mapping[str, ResourceFlavor], node: Node | None
) -> tuple[dict[str, str], list[Any]]:
    """The labels and tolerations of flavors. Labels that the planned node does not have were added to a flavor since the plan."""
    chosen = [flavors[name] for name in sorted(set(charged.values())) if name in flavors]
    labels = {key: value for flavor in chosen for key, value in flavor.node_labels}
    if node is not None:
        labels = {key: value for key, value in labels.items() if node.labels.get(key) == value}
    return labels, [toleration for flavor in chosen for toleration in flavor.tolerations]


# ---- The slot of each pod


def _slots_of(podset: PodSetPlacement) -> list[tuple[str | None, Mapping[str, str]]]:
    """Node and flavors (by resource) of each slot, in the order of ranks.

    A placement of quota only has slots without nodes: one for each pod of each share, or one slot if it is not split, because
    the pods are then equal.
    """
    slots: list[tuple[str | None, Mapping[str, str]]] = []
    for share in podset.by_share():
        nodes = share.nodes or ((None, share.pods or 1),)
        slots += [(node, share.flavors) for node, count in nodes for _ in range(count)]
    return slots


def slot_numbers(
    placed: PodSetPlacement, requested: PodSet | None, ended: Collection[int]
) -> Callable[[int], int]:
    """The number of the slot of each rank.

    The slots of a gang that has started again belong to the ranks that had not ended, in their order, and of the others in
    their slices. Slots without a pod are freed later.
    """
    size = len(_slots_of(placed))
    if requested is not None and ended:
        for group in (requested.slice_size, 1):
            places = slots_left(requested.count, ended, group)
            if len(places) * group == size:
                return lambda rank: places.get(rank // group, 0) * group + rank % group
    return lambda rank: rank % size


def assign(
    podset: PodSetPlacement,
    pods: Collection[PodRecord],
    waiting: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    slot: Callable[[int], int] | None = None,
    added: Collection[Toleration] = (),
    backed: Container[str] = frozenset(),
) -> list[tuple[PodRecord, int]]:
    """Assign a slot (its number) to each gated pod: the placement minus the slots that pods hold, by rank if the pods have ranks.

    A pod holds its slot until it is terminal. Thus a replacement stays gated while its predecessor terminates. A rank stays gated
    even if its slot is on another node in the meantime: its predecessor can still run on a node that does not answer. Slots on
    nodes that are deleted or take no new pods stay empty. Pods of a placement of quota only hold no slots: they can run on
    each node, and without ranks their names decide the share of each.

    ``slot``: of each rank, as :func:`slot_numbers` gives it; None = ranks are numbers of slots. ``added``: the tolerations that pods get
    with their nodes. ``backed``: see :meth:`Node.takes`.
    """
    running = {pod.rank for pod in pods if not (pod.gated or pod.terminal)} - {None}
    ranked = sorted((pod for pod in waiting if pod.rank not in running), key=by_rank_and_name)
    slots = _slots_of(podset)
    slot = slot or slot_numbers(podset, None, ())
    if not podset.nodes:
        living = sorted((pod for pod in pods if not pod.terminal), key=by_rank_and_name)
        place = {pod.uid: number for number, pod in enumerate(living)}
        return [
            (pod, place.get(pod.uid, 0) % len(slots) if pod.rank is None else slot(pod.rank))
            for pod in ranked
        ]
    rules = NodeRules(tolerations=(*(ranked[0].tolerations if ranked else ()), *added))
    requests = ranked[0].requests if ranked else NOTHING
    with_ranks: set[int] = set()  # slots of the pods with ranks
    held: Counter[str | None] = Counter()  # slots of the other pods, by node
    names = {nodes[name].hostname: name for name, _ in slots if name is not None and name in nodes}
    for pod in pods:
        if not pod.gated and not pod.terminal:
            node = node_of(pod, names)
            own = slot(pod.rank) if pod.rank is not None else -1
            if own >= 0 and own not in with_ranks and slots[own][0] == node:
                with_ranks.add(own)
            else:
                held[node] += 1
    free: set[int] = set()
    for number, (name, _) in reversed(list(enumerate(slots))):
        if number in with_ranks:
            continue
        if held[name] > 0:  # all slots of a node are equal
            held[name] -= 1
        elif name is not None and name in nodes and nodes[name].takes(rules, requests, backed):
            free.add(number)
    return _by_rank(ranked, free, slot)


def by_rank_and_name(pod: PodRecord) -> tuple[bool, int, str]:
    """The order in which pods take slots."""
    return pod.rank is None, pod.rank or 0, pod.name


def _by_rank(
    ranked: list[PodRecord], free: set[int], slot: Callable[[int], int]
) -> list[tuple[PodRecord, int]]:
    given: dict[str, int] = {}
    for pod in ranked:
        if pod.rank is not None and (own := slot(pod.rank)) in free:
            given[pod.uid] = own
            free.remove(own)
    rest = [pod for pod in ranked if pod.uid not in given]
    given.update({pod.uid: number for pod, number in zip(rest, sorted(free), strict=False)})
    return [(pod, given[pod.uid]) for pod in ranked if pod.uid in given]

"""The readiness of running gangs, and their slow ranks.

The placement of a gang has a ready part, and a part that its pods still need. A rank is slow if its GPUs run far slower than those of its
peers. That is a report: nothing is evicted for it. Pods of one gang are compared if their nodes have the same GPU model. A pod counts
with its slowest GPU, since a step of training waits for it. Pods that share a GPU, and pods younger than the window, are left out.
Without enough measured pods no rank is slow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import Final, NamedTuple

from queuectl.domain.gpus import model_of
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.node_health import GpuClock, NodeHealthRules, Straggler
from queuectl.domain.words import counted
from queuectl.domain.workload import FlavorShare, Placement, PodSet, PodSetPlacement
from queuectl.state.gpu_holders import HeldGang
from queuectl.state.mirror import Mirror
from queuectl.state.usage import node_of

# ---- Ready and missing pods


def all_ready(job: JobRecord, pods: Sequence[PodRecord]) -> bool:
    """Whether each expected pod is ready or has succeeded. ``pods``: of this attempt.

    Pods that come only after others have ended are not expected yet.
    """
    own, at_once = _of_job(job, pods), job.pods_at_once
    born = (podset for podset in job.podsets if podset.name not in job.unborn)
    return all(_ready(podset, at_once[podset.name], own[podset.name]) for podset in born)


def _ready(podset: PodSet, expected: int, pods: Iterable[PodRecord]) -> bool:
    ready = done = alive = 0
    for pod in pods:
        done += pod.phase is PodPhase.SUCCEEDED
        alive += pod.alive
        ready += pod.ready and pod.alive
    # The job no longer expects the pods that its status counts as succeeded. Each other one counts only until a new pod replaces it.
    not_replaced = min(done - (podset.count - expected), expected - alive)
    return ready + max(0, not_replaced) >= expected


def by_podset(pods: Iterable[PodRecord], unnamed: str = "") -> Mapping[str, list[PodRecord]]:
    """Pods by podset. ``unnamed``: the podset of those that name none."""
    found = defaultdict[str, list[PodRecord]](list)
    for pod in pods:
        found[pod.podset or unnamed].append(pod)
    return found


def _of_job(job: JobRecord, pods: Iterable[PodRecord]) -> Mapping[str, list[PodRecord]]:
    """Pods by podset. Pods of an adopted gang do not always name it; with one podset, they belong to that."""
    return by_podset(pods, job.podsets[0].name if len(job.podsets) == 1 else "")


def held_by_others(pods: Iterable[PodRecord]) -> str:
    """The scheduling gates and schedulers of others for which released pods wait; empty without one."""
    return _counted(filter(None, map(_held_by, pods)))


_NOT_CREATED: Final = "missing (if their creation is refused, an Event of the job names the cause)"


def not_ready(job: JobRecord, pods: Sequence[PodRecord]) -> str:
    """How many pods of a gang are not ready, and why. ``pods``: of this attempt, and those that are to replace others."""
    expected = sum(pods for podset, pods in job.pods_at_once.items() if podset not in job.unborn)
    alive = [pod for pod in pods if pod.alive]
    done = sum(pod.phase is PodPhase.SUCCEEDED for pod in pods)
    done = max(0, min(done, expected - len(alive)))  # the others were replaced
    short = max(1, expected - done - sum(pod.ready for pod in alive))
    causes = [_why_not_ready(pod) for pod in alive if not (pod.ready or pod.gated)]
    # A pod that replaces another one is released when that has left its node.
    causes += ["terminating" for pod in pods if pod.terminating and not pod.terminal]
    causes += ["not released to a node" for pod in alive if pod.gated]
    missing = "missing" if job.of_pods else _NOT_CREATED
    causes = [*causes, *[missing] * short][:short]
    verb = "is" if short == 1 else "are"
    return f"{short} of {counted(expected, 'pod')} {verb} not ready: {_counted(causes)}"


def _counted(causes: Iterable[str]) -> str:
    """Each cause with its number, the most frequent first."""
    return ", ".join(f"{number} {cause}" for cause, number in Counter(causes).most_common())


def _held_by(pod: PodRecord) -> str:
    """The scheduling gates or the scheduler of others for which a pod waits."""
    if pod.gated or not pod.alive:
        return ""
    if pod.gates:
        return f"with the scheduling gate {', '.join(pod.gates)}"
    return f"for the scheduler {pod.scheduler}" if pod.scheduler else ""


def _why_not_ready(pod: PodRecord) -> str:
    return _held_by(pod) or pod.status_reason or "not ready yet"


def needed(job: JobRecord, pods: Iterable[PodRecord]) -> dict[str, int]:
    """Pods that have not succeeded, by podset. ``pods``: of this attempt."""
    at_once = job.pods_at_once
    if job.followed:
        return at_once
    succeeded = _of_job(job, (pod for pod in pods if pod.phase is PodPhase.SUCCEEDED))
    return {
        podset.name: max(0, min(at_once[podset.name], podset.count - len(succeeded[podset.name])))
        for podset in job.podsets
    }


def missing(job: JobRecord, pods: Sequence[PodRecord]) -> dict[str, int]:
    """The number of pods that its controller must still create, by podset. ``pods``: of this attempt."""
    alive = _of_job(job, (pod for pod in pods if not pod.terminal))
    return {podset: max(0, left - len(alive[podset])) for podset, left in needed(job, pods).items()}


def in_the_way(job: JobRecord, pods: Iterable[PodRecord]) -> str:
    """The reason for which a job that waits cannot start: ended pods that its controller keeps, and does not replace. Empty without one.

    ``pods``: of all its attempts.
    """
    if not job.kept_podsets:
        return ""
    ended = [
        p.name for p in pods if p.podset in job.kept_podsets and p.terminal and not p.terminating
    ]
    if not ended:
        return ""
    names = ", ".join(sorted(ended)[:3]) + (", …" if len(ended) > 3 else "")
    return f"its controller keeps {counted(len(ended), 'pod')} of an earlier attempt that ended, and creates no others in their place: delete {names}"


def still_needed(
    placement: Placement, job: JobRecord, pods: Sequence[PodRecord], names: Mapping[str, str]
) -> Placement:
    """The placement without the slots of pods that have succeeded; the same object if no pod has.

    The slots are known after each pod that is still needed has its slot: they are the other slots.

    Args:
        placement: of the attempt.
        job: its object.
        pods: of this attempt.
        names: hostname label -> node name.
    """
    left = needed(job, pods)
    if job.restarts or not any(left.values()):
        return placement  # one that is about to finish frees all its slots then
    alive = _of_job(job, (pod for pod in pods if not pod.terminal))
    podsets, kept = {podset.name: podset for podset in job.podsets}, []
    for placed in placement.podsets:
        podset = podsets.get(placed.podset)
        if podset is None:
            kept.append(placed)
        else:
            kept.append(_kept(placed, podset, left[podset.name], alive[podset.name], names))
    same = all(new is old for new, old in zip(kept, placement.podsets, strict=True))
    return placement if same else Placement(tuple(kept))


def on_their_nodes(placement: Placement, job: JobRecord, pods: Sequence[PodRecord]) -> Placement:
    """The placement on the nodes where all its pods run; the same object if they run there or not all of them run.

    They run elsewhere if the database does not have the repair that moved them: it was restored from a backup, or lost its last
    commits. The cluster is right about running pods.

    Args:
        placement: of the attempt.
        job: its object.
        pods: of this attempt.
    """
    there = _of_job(job, (pod for pod in pods if not pod.terminal))
    found = tuple(_where_they_run(placed, there[placed.podset]) for placed in placement.podsets)
    return placement if found == placement.podsets else Placement(found)


def _where_they_run(placed: PodSetPlacement, pods: Sequence[PodRecord]) -> PodSetPlacement:
    """Slots that a pod fills keep their numbers."""
    left = Counter(pod.node for pod in pods if pod.node is not None and not pod.terminating)
    if not placed.nodes or not len(pods) == left.total() == placed.count:
        return placed
    moved = left - Counter(placed.by_node)
    if not moved:
        return placed
    others, slots = moved.elements(), []
    for node in (node for node, count in placed.nodes for _ in range(count)):
        stays = left[node] > 0
        left[node] -= stays
        slots.append(node if stays else next(others))
    return replace(placed, nodes=tuple((node, len([*run])) for node, run in groupby(slots)))


def _kept(
    placed: PodSetPlacement,
    podset: PodSet,
    left: int,
    alive: Iterable[PodRecord],
    names: Mapping[str, str],
) -> PodSetPlacement:
    """``left``: its pods that are still needed; ``alive``: those that have not ended."""
    if left >= (placed.count if placed.nodes else placed.pods_of(podset)):
        return placed
    if not placed.nodes:
        # If shares without nodes differ, the rank of a pod decides its share, so the slots keep their numbers.
        return placed if placed.shares else replace(placed, pods=left)
    held = Counter(node for p in alive if (node := node_of(p, names)) is not None)
    if sum(min(held[node], count) for node, count in placed.by_node.items()) < left:
        return placed
    return _without(placed, held, placed.count - left)


def _without(placed: PodSetPlacement, held: Counter[str], surplus: int) -> PodSetPlacement:
    """Drop a number of slots that no pod holds, the last first. The others keep their order, and thus that of their ranks."""
    empty = Counter(placed.by_node)
    empty.subtract(held)
    slots = [node for node, count in placed.nodes for _ in range(count)]
    shares = [share.pods for share in placed.shares]
    owner = [number for number, pods in enumerate(shares) for _ in range(pods)]
    nodes = []
    for index in reversed(range(len(slots))):
        if surplus > 0 and empty[slots[index]] > 0:
            empty[slots[index]] -= 1
            surplus -= 1
            if owner:
                shares[owner[index]] -= 1
        else:
            nodes.append(slots[index])
    split = zip(placed.shares, shares, strict=True)
    return replace(
        placed,
        nodes=tuple((node, len([*run])) for node, run in groupby(reversed(nodes))),
        pods=len(nodes),
        shares=tuple(FlavorShare(pods, share.flavors) for share, pods in split if pods),
    )


# ---- Slow ranks

WINDOW: Final = 300.0
"""Seconds over which clocks are averaged."""
_PEERS: Final = 2  # with fewer other pods, the slow one is not known


class _Pod(NamedTuple):
    record: PodRecord
    node: str
    slowest: GpuClock


def find_stragglers(
    gangs: Iterable[HeldGang],
    clocks: Iterable[GpuClock],
    mirror: Mirror,
    rules: NodeHealthRules,
    now: float,
    window: float = WINDOW,
) -> list[Straggler]:
    """The stragglers of these gangs, as of ``now`` (unix seconds)."""
    by_pod = defaultdict[tuple[str, str], list[GpuClock]](list)
    for one in clocks:
        by_pod[one.pod].append(one)
    return [
        straggler
        for gang in gangs
        for group in _comparable(gang, by_pod, mirror, now - window)
        for straggler in _slow(gang, group, rules.straggler_below)
    ]


def _comparable(
    gang: HeldGang,
    clocks: Mapping[tuple[str, str], list[GpuClock]],
    mirror: Mirror,
    begin: float,
) -> Iterable[list[_Pod]]:
    """The measured pods of a gang by GPU model. ``begin``: of the window."""
    groups = defaultdict[str, list[_Pod]](list)
    for pod in gang.pods:
        record, measured = mirror.pods.get(pod.uid), clocks.get(pod.key, [])
        node = mirror.nodes.get(record.node) if record is not None and record.node else None
        young = pod.started_at is None or pod.started_at > begin
        if record is None or node is None or young or pod.shared or len(measured) != pod.gpus:
            continue
        model = model_of(node.node.labels)
        slowest = min(measured, key=lambda each: each.mhz)
        groups[model.name if model is not None else ""].append(
            _Pod(record, node.node.name, slowest)
        )
    return groups.values()


def _slow(gang: HeldGang, pods: list[_Pod], below: float) -> Iterator[Straggler]:
    """The stragglers among comparable pods, the slowest first."""
    peers = len(pods) - 1
    if peers < _PEERS:
        return
    ordered = sorted(pods, key=lambda each: each.slowest.mhz)
    for place, pod in enumerate(ordered):
        # The median of the others, which does not sort them again for each pod.
        middle = [n + 1 if n >= place else n for n in ((peers - 1) // 2, peers // 2)]
        usual = fmean(ordered[n].slowest.mhz for n in middle)
        if pod.slowest.mhz < below * usual:
            yield Straggler(
                gang.uid,
                gang.attempt,
                gang.cluster_queue,
                pod.record.name,
                pod.node,
                pod.slowest.device,
                pod.slowest.mhz,
                usual,
                pod.record.podset,
                pod.record.rank,
            )

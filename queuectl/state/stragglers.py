"""Finds ranks of gangs whose GPUs run far slower than those of their peers. It is a report: nothing is evicted for it.

Pods of one gang are compared if their nodes have the same GPU model. A pod counts with its slowest GPU, since a step of training waits
for it. Pods that share a GPU, and pods younger than the window, are left out. Without enough measured pods no rank is slow (I5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Final, NamedTuple

from queuectl.domain.gpus import model_of
from queuectl.domain.jobs import PodRecord
from queuectl.domain.node_health import GpuClock, NodeHealthRules, Straggler
from queuectl.state.gpu_holders import HeldGang
from queuectl.state.mirror import Mirror

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
    for pod in pods:
        peers = [other.slowest.mhz for other in pods if other is not pod]
        if len(peers) < _PEERS:
            return
        usual = median(peers)
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

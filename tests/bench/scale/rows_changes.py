"""Rows about changes of what runs: quota that its owner takes back, and lost nodes."""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.localcluster.nodes import KUBELET, RACK
from tests.bench.scale.fill import fill_of
from tests.bench.scale.fleet import GENERATIONS, GPUS_PER_NODE, NEWEST, Fleet
from tests.bench.scale.gangs import NORMAL, Gang
from tests.bench.scale.rows import Row, RowFigures, register
from tests.bench.scale.rows_starts import add_starts, check_starts
from tests.bench.scale.stage import PodLine, ScaleStage
from tests.bench.scale.times import Timeline, median, percentile

LOST_NODES: Final = 64
_FULL_SIZE: Final = 2400
"""Nodes from which on so many nodes are lost. A smaller fleet loses the same part."""
_TAINTS: Final = (
    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown"},
)
"""The last is that of a node that is known to be off: its pods are deleted at once, and removed although no kubelet confirms their end. Without
it, Kubernetes waits for 300 s, and keeps the pods until the kubelet is back."""


# ---- Reclaim


def owners_gangs(fleet: Fleet) -> list[Gang]:
    """Gangs of the owner of the newest generation that need all its quota: half a rack each, and a rest."""
    pods = fleet.hosts_per_rack // 2
    number, rest = divmod(fleet.owned, pods * GPUS_PER_NODE)
    sizes = [pods] * number + ([rest // GPUS_PER_NODE] if rest else [])
    return [
        Gang(
            f"owner-{i:03}",
            fleet.owner,
            size,
            GPUS_PER_NODE,
            product=NEWEST.product,
            required=RACK,
            priority=NORMAL,
        )
        for i, size in enumerate(sizes)
    ]


def reclaim(stage: ScaleStage, reached: RowFigures) -> None:
    """The owner of 2,000 GPUs, which others borrow, needs all of them."""
    gangs = owners_gangs(stage.fleet)
    reached.note(f"{stage.fleet.owned:,} GPUs, {len(gangs)} gangs of one rack each")
    began = time.time()
    try:
        stage.submit(gangs)
        stage.wait_bound(gangs)
        stage.wait_bound(gangs, running=True)
    finally:
        add_starts(stage, reached, gangs, began)
        _add_evictions(stage, reached)
    check_starts(stage, gangs)


def _add_evictions(stage: ScaleStage, reached: RowFigures) -> None:
    deleted = stage.follow().deleted
    victims = [gang for gang in fill_of(stage.fleet).gangs if gang.key in deleted]
    reached.add("evicted gangs", len(victims))
    reached.add("evicted pods", sum(len(deleted[gang.key]) for gang in victims))
    reached.add("evicted GPUs", sum(len(deleted[gang.key]) * gang.gpus for gang in victims))


# ---- Lost nodes


@dataclass(frozen=True, slots=True)
class LostGang:
    """A gang of which pods were on lost nodes. ``alive``: its pods on other nodes, by name."""

    key: str
    pods: int
    lost: frozenset[str]
    alive: frozenset[str]

    def repaired_at(self, timeline: Timeline) -> float | None:
        """When the last pod was bound, once all its pods are on nodes that are not lost; None before."""
        deleted = timeline.deleted.get(self.key, {})
        bound = {
            pod: at for pod, at in timeline.bound.get(self.key, {}).items() if pod not in deleted
        }
        whole = len(self.alive - deleted.keys()) + len(bound) >= self.pods
        return max(bound.values()) if whole and bound else None

    def repair_seconds(self, timeline: Timeline) -> float | None:
        """From the removal of its last lost pod to :meth:`repaired_at`; None before. 0 if its new pods were bound earlier."""
        removed = [at for pod, at in timeline.removed.get(self.key, {}).items() if pod in self.lost]
        repaired = self.repaired_at(timeline)
        if repaired is None or not removed:
            return None
        return max(0.0, repaired - max(removed))


def lost_gangs(pods: Iterable[PodLine], nodes: frozenset[str]) -> list[LostGang]:
    """The gangs with pods on these nodes."""
    names: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for pod in pods:
        if pod.node is not None and not pod.terminating:
            names[pod.job][pod.node not in nodes].add(pod.name)
    return [
        LostGang(job, len(lost) + len(alive), frozenset(lost), frozenset(alive))
        for job, (lost, alive) in names.items()
        if lost
    ]


def nodes_to_lose(fleet: Fleet, pods: Iterable[PodLine], number: int) -> frozenset[str]:
    """Nodes with pods of the oldest generation, evenly spread over it."""
    halls = {f"h{hall}-" for hall in GENERATIONS[0].halls}
    used = sorted({pod.node for pod in pods if pod.node and pod.node[:3] in halls})
    return frozenset(used[i * len(used) // number] for i in range(min(number, len(used))))


def lose_nodes(stage: ScaleStage, nodes: Sequence[str]) -> float:
    """Set nodes NotReady with the taints of nodes that are off, all at once.

    The node lifecycle controller would taint one node in ten seconds (`--node-eviction-rate`). The label is changed before: without it, KWOK
    no longer is the kubelet of a node, and does not set the node Ready again.

    Returns:
        Unix seconds of the first write of a status.
    """
    client = stage.cluster.client
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "set by the benchmark",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    taints = [taint | {"timeAdded": now} for taint in _TAINTS]
    stopped: Mapping[str, object] = {"metadata": {"labels": {KUBELET: "stopped"}}}
    client.each(lambda node: client.patch(f"/api/v1/nodes/{node}", stopped), nodes)
    time.sleep(_KWOK_SECONDS)
    began = time.time()
    client.each(
        lambda node: client.patch(
            f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}}
        ),
        nodes,
    )
    client.each(
        lambda node: client.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}}), nodes
    )
    return began


_KWOK_SECONDS: Final = 3.0
"""KWOK reads the change of a label from its watch."""


def repair(stage: ScaleStage, reached: RowFigures) -> None:
    """64 nodes are lost at the same time."""
    fleet = stage.fleet
    number = LOST_NODES if fleet.nodes >= _FULL_SIZE else max(2, LOST_NODES * fleet.nodes // 2400)
    nodes = nodes_to_lose(fleet, stage.pods, number)
    gangs = lost_gangs(stage.pods, nodes)
    lost = sum(len(gang.lost) for gang in gangs)
    reached.note(f"{len(nodes)} nodes with {lost} pods of {len(gangs)} gangs")
    reached.note(
        "includes Kubernetes' garbage collection of pods, every 20 s, and the back-off of the Job controller, 10 s for the first failed pod"
    )
    began = lose_nodes(stage, sorted(nodes))

    def repaired(timeline: Timeline) -> list[float]:
        return [at for gang in gangs if (at := gang.repaired_at(timeline)) is not None]

    try:
        stage.wait(
            lambda timeline: len(repaired(timeline)) == len(gangs),
            lambda timeline: f"{len(repaired(timeline))} of {len(gangs)} gangs are whole again",
        )
    finally:
        seconds = [at - began for at in repaired(stage.follow())]
        reached.add("gangs whole again", len(seconds))
        reached.add("lost to all pods bound again, p50", median(seconds), "s")
        reached.add("lost to all pods bound again, p99", percentile(seconds, 0.99), "s")
        reached.add("lost to all pods bound again, last", max(seconds, default=float("nan")), "s")
        later = [
            took for gang in gangs if (took := gang.repair_seconds(stage.timeline)) is not None
        ]
        reached.add("lost pods removed to all pods bound again, p50", median(later), "s")
        reached.add("lost pods removed to all pods bound again, p99", percentile(later, 0.99), "s")
        moved = [
            gang for gang in gangs if gang.alive & stage.timeline.deleted.get(gang.key, {}).keys()
        ]
        reached.add("gangs evicted as a whole", len(moved))
        _note_returned(stage, reached, nodes)


def _note_returned(stage: ScaleStage, reached: RowFigures, nodes: frozenset[str]) -> None:
    if returned := sorted(nodes & stage.cluster.nodes.ready()):
        reached.note(f"{len(returned)} lost nodes are ready again, such as {returned[0]}")


register(
    Row("d", "reclaim of 2,000 GPUs by the owner of their quota", reclaim),
    Row("e", "64 nodes lost at the same time", repair, lists_pods=True),
)

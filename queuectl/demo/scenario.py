"""What is on the programme: 512 GPUs, two teams, a rush of gangs in three acts, and what must come of each.

1. **Prologue**: two gangs of 64 GPUs, equal but for what their GPUs do, fill most of team-b's quota.
2. **Rush**: gangs from 1 to 256 GPUs, both kinds interleaved, far more than fits at once.
3. **Emergency**: once one of the first two was measured to be idle, a gang of higher priority that fits only if one of them
   gives way. It must be the idle one.

What GPUs do is played by the stand-in of their exporters (localcluster/exporter.py), which a real Prometheus scrapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from queuectl.demo.manifests import (
    TERMINATE_SECONDS,
    Document,
    Pods,
    cluster_queue,
    flavor,
    job,
    local_queue,
    priority_class,
    pytorchjob,
    topology,
)
from queuectl.domain.quantity import CPU, GPU, MEMORY, Resources
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from queuectl.objects import keys

NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8, gpus=8)
GPUS: Final = NODES.count * NODES.gpus
QUEUE: Final = "training"
QUOTAS: Final = {"team-a": 352, "team-b": 160}
LIMITS: Final = {(team, QUEUE): Resources({GPU: quota}) for team, quota in QUOTAS.items()}
CPU_PER_GPU: Final = 12
GIB_PER_GPU: Final = 128
BATCH, URGENT = "batch", "urgent"
IN_A_HURRY: Final[Document] = {
    "mode": "OnDemand",
    "windowSeconds": 4,
    "memoryWindowSeconds": 4,
    "warmupSeconds": 1,
    "graceSeconds": 1,
}
"""``idleReclaim`` of every queue here: a demo has seconds where a cluster has half an hour."""
SCRAPE_SECONDS: Final = 1.0
SETTINGS: Final = {
    "QUEUECTL_UTILIZATION__LOOK_SECONDS": "1",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE_SECONDS),
    "QUEUECTL_UTILIZATION__PATIENCE_SECONDS": "5",
    # What the rules of deploy/ record spans two minutes; here gangs are judged by seconds.
    "QUEUECTL_UTILIZATION__RECORDING_RULES": "off",
    "QUEUECTL_ACCOUNT_SECONDS": "1",
}
"""Of queuectl, for the same reason: with looks and the usage ledger every second, the demo's reports are complete."""

WHAT_TO_WATCH: Final = """\
Two teams share 512 GPUs in 8 racks of 64: team-a starts its gangs in strict order, team-b lets small ones pass.
busy-64 and idle-64 start first and fill team-b. Nobody says which of them computes: queuectl finds out from the
Prometheus that scrapes the GPU exporters. Once it has, urgent-64 comes, and the one whose GPUs idle must give way.
too-wide-80 wants ten whole nodes in one rack of eight: it waits, and says why. All others must start whole, and finish.
"""


class Act(IntEnum):
    """When a gang is submitted."""

    PROLOGUE = 1
    RUSH = 2
    EMERGENCY = 3


class Fate(IntEnum):
    """What must come of a gang."""

    FINISHES = 1
    GIVES_WAY = 2  # is preempted once, runs again, finishes
    NEVER_FITS = 3


@dataclass(frozen=True, slots=True)
class Gang:
    """One job of the programme. ``within``: the level whose one domain must hold it."""

    document: Document
    gpus: int
    act: Act = Act.RUSH
    fate: Fate = Fate.FINISHES
    within: str | None = None

    @property
    def namespace(self) -> str:
        return str(self.document["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def ref(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def priority_class(self) -> str:
        return str(self.document["metadata"]["labels"][keys.PREFIX + keys.PRIORITY_CLASS])


def configuration() -> list[Document]:
    """The documents that `queuectl apply` would take."""
    documents = [
        topology("datacenter", BLOCK, RACK),
        flavor("h100", topology="datacenter", **{PRODUCT: NODES.product}),
        priority_class(BATCH, 100),
        priority_class(URGENT, 1000),
    ]
    for team, strategy in (("team-a", "StrictFIFO"), ("team-b", "BestEffortFIFO")):
        gpus = QUOTAS[team]
        memory = f"{gpus * GIB_PER_GPU}Gi"
        quotas: dict[str, int | str] = {CPU: gpus * CPU_PER_GPU, MEMORY: memory, GPU: gpus}
        documents.append(cluster_queue(team, "h100", quotas, strategy=strategy))
        documents.append(local_queue(team, QUEUE, team))
    return documents


def hurried(document: Document) -> Document:
    """A ClusterQueue that judges idleness as :data:`IN_A_HURRY` says; anything else as it is."""
    if document["kind"] != "ClusterQueue":
        return document
    return document | {"spec": document["spec"] | {"policy": {"idleReclaim": IN_A_HURRY}}}


def programme() -> list[Gang]:
    """Every gang, in the order of submission."""
    return [*_prologue(), *_rush_of_team_a(), *_rush_of_team_b(), _emergency()]


def _prologue() -> Iterable[Gang]:
    for name, profile, fate in (
        ("busy-64", "busy=0.9", Fate.FINISHES),
        ("idle-64", "idle", Fate.GIVES_WAY),
    ):
        played = {TERMINATE_SECONDS: "2", PROFILE: profile}
        rack = replace(_pods(8, 8, required=RACK), annotations=played)
        yield _job("team-b", name, rack, 20, act=Act.PROLOGUE, fate=fate, within=RACK)


def _rush_of_team_a() -> Iterable[Gang]:
    yield _pytorchjob("team-a", "two-shapes-33", _pods(1, 1), _pods(4, 8), 9)
    yield _job("team-a", "one-rack-32", _pods(8, 4, required=RACK), 8, within=RACK)
    yield _job("team-a", "train-128", _pods(16, 8, required=BLOCK), 9, within=BLOCK)
    yield _pytorchjob("team-a", "tune-48", _pods(1, 8), _pods(5, 8, preferred=RACK), 7)
    big = _pods(31, 8, preferred=BLOCK)
    yield _pytorchjob("team-a", "pretrain-256", _pods(1, 8, preferred=BLOCK), big, 9)
    yield _job("team-a", "train-64", _pods(8, 8, required=RACK), 8, within=RACK)
    yield _job("team-a", "eval-8", _pods(1, 8), 5)
    yield _job("team-a", "debug-1", _pods(1, 1), 4)


def _rush_of_team_b() -> Iterable[Gang]:
    yield _job("team-b", "sweep-4", _pods(4, 1), 6, indexed=False)
    yield _pytorchjob("team-b", "tune-16", _pods(1, 8), _pods(1, 8), 7)
    wide = _pods(10, 8, required=RACK)
    yield _job("team-b", "too-wide-80", wide, 5, fate=Fate.NEVER_FITS, within=RACK)
    yield _job("team-b", "eval-2", _pods(2, 1), 5)
    yield _pytorchjob("team-b", "tune-24", _pods(1, 8), _pods(2, 8), 6)


def _emergency() -> Gang:
    pods = _pods(8, 8, required=RACK)
    return _job("team-b", "urgent-64", pods, 7, act=Act.EMERGENCY, within=RACK, priority=URGENT)


def _pods(
    count: int, gpus: int, *, required: str | None = None, preferred: str | None = None
) -> Pods:
    cpu, memory = str(gpus * CPU_PER_GPU // 2), f"{gpus * GIB_PER_GPU // 2}Gi"
    return Pods(count, gpus, cpu, memory, required, preferred)


def _job(
    team: str,
    name: str,
    pods: Pods,
    seconds: float,
    *,
    act: Act = Act.RUSH,
    fate: Fate = Fate.FINISHES,
    within: str | None = None,
    priority: str = BATCH,
    indexed: bool = True,
) -> Gang:
    document = job(
        name, team, QUEUE, pods, seconds=seconds, priority_class=priority, indexed=indexed
    )
    return Gang(document, pods.count * pods.gpus, act, fate, within)


def _pytorchjob(team: str, name: str, master: Pods, worker: Pods, seconds: float) -> Gang:
    document = pytorchjob(
        name, team, QUEUE, master=master, worker=worker, seconds=seconds, priority_class=BATCH
    )
    return Gang(document, master.count * master.gpus + worker.count * worker.gpus)

"""Nodes with GPUs that MIG can cut, a queue for their instances, and a part of NVIDIA's MIG manager, for tests in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import Document, State
from queuectl.domain.mig import ANNOTATION, CONFIG, STATE, MigPhase, MigReconfiguration
from queuectl.mig.reconfigurer import EVENT
from queuectl.mig.settings import MigSettings
from queuectl.objects.kubernetes.mig_reconfiguration import read_mig_reconfiguration
from tests.control.rig import QUICK, Rig, live, rig
from tests.doubles.cluster import FakeCluster, RecordedEvent

GPU: Final = "nvidia.com/gpu"
SMALL: Final = "nvidia.com/mig-1g.10gb"
WHOLE, HALF = "all-disabled", "half-1g.10gb"
OFFERS: Final = {WHOLE: {GPU: 8, SMALL: 0}, HALF: {GPU: 4, SMALL: 28}}
LABELS: Final = {
    "pool": "h100",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
    CONFIG: WHOLE,
    STATE: "success",
}
CONFIGS: Final = {
    WHOLE: [{"devices": "all", "mig-enabled": False}],
    HALF: [
        {"devices": [0, 1, 2, 3], "mig-enabled": False},
        {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
    ],
}


@dataclass
class MigManager:
    """It follows the label of each node. Call :meth:`step` in each turn.

    Attributes:
        fails: configurations that it cannot apply.
        broken: nodes whose GPUs it cannot cut.
        busy: it takes no label up while this is set.
        slow: nodes on which it takes no label up.
        applied: configurations in the order in which it took them up, by node.
    """

    cluster: FakeCluster
    fails: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    busy: bool = False
    slow: set[str] = field(default_factory=set)
    applied: list[tuple[str, str]] = field(default_factory=list)

    def step(self) -> None:
        for node in self.cluster.server.all("nodes"):
            labels = node["metadata"]["labels"]
            name, config = node["metadata"]["name"], labels[CONFIG]
            if not self.busy and STATE not in labels and name not in self.slow:
                self.applied.append((name, config))
                self.cluster.server.edit("nodes", node, partial(self._apply, config))

    def _apply(self, config: str, node: Document) -> None:
        broken = config != WHOLE and node["metadata"]["name"] in self.broken
        failed = broken or config in self.fails
        node["metadata"]["labels"][STATE] = "failed" if failed else "success"
        if not failed:
            amounts = {name: str(n) for name, n in OFFERS[config].items()}
            node["status"]["allocatable"].update(amounts)


def mig_node(name: str) -> Document:
    labels = {**LABELS, "kubernetes.io/hostname": name}
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": amounts},
    }


def documents(mode: str, defragment: str, budget: int) -> list[Document]:
    """Configuration for all nodes."""
    policy = {"migConfigs": CONFIGS, "migReconfiguration": mode}
    levels = [{"nodeLabel": "kubernetes.io/hostname"}]
    quotas = {GPU: 16, SMALL: 56, "cpu": "1k", "pods": 1000}
    group = {
        "coveredResources": [*quotas],
        "flavors": [
            {
                "name": "gpu",
                "resources": [{"name": k, "nominalQuota": v} for k, v in quotas.items()],
            }
        ],
    }
    return [
        _document("Topology", "gpus", {"levels": levels}),
        _document(
            "ResourceFlavor",
            "gpu",
            {"nodeLabels": {"pool": "h100"}, "topologyName": "gpus", "policy": policy},
        ),
        _document(
            "ClusterQueue",
            "pool",
            {
                "namespaceSelector": {},
                "policy": {"defragment": defragment, "defragmentBudget": budget},
                "resourceGroups": [group],
            },
        ),
    ]


def _document(kind: str, name: str, spec: Mapping[str, Any]) -> Document:
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def job(name: str, pods: int, resource: str, amount: int) -> Document:
    document = m.job(name, "default", "research", PodSetManifest(count=pods), retries=6)
    container = document["spec"]["template"]["spec"]["containers"][0]
    amounts = {"cpu": "1", resource: str(amount)}
    container["resources"] = {"requests": amounts, "limits": {resource: str(amount)}}
    return document


@dataclass
class MigWorld:
    """A rig with two nodes and a MIG manager."""

    rig: Rig
    manager: MigManager

    async def two_tunes(self) -> list[str]:
        """A gang on four GPUs of each node."""
        cluster, uids = self.rig.cluster, []
        for name, other in (("n0", "n1"), ("n1", "n0")):
            cluster.cordon(other)
            uids.append(cluster.submit(job(f"tune-{name}", 1, GPU, 4)))
            await self.rig.until_state(uids[-1], State.RUNNING)
            assert [p.node for p in live(cluster.pods_of(uids[-1]))] == [name]
            cluster.cordon(other, unschedulable=False)
        return uids

    def notebooks(self, pods: int = 20) -> str:
        return self.rig.cluster.submit(job("notebooks", pods, SMALL, 1))

    def node(self, name: str) -> Document:
        return self.rig.cluster.server.get("nodes", "", name)

    def change(self, name: str) -> MigReconfiguration | None:
        """The change in the annotation of a node; None without a node."""
        node = self.rig.cluster.server.objects["nodes"].get(("", name), {"metadata": {}})
        text = node["metadata"].get("annotations", {}).get(ANNOTATION)
        return read_mig_reconfiguration(text) if text is not None else None

    def phase(self, name: str) -> MigPhase | None:
        change = self.change(name)
        return change.phase if change is not None else None

    def phases(self) -> list[MigPhase]:
        """Of all nodes with an annotation."""
        found = map(self.phase, self.changed())
        return [phase for phase in found if phase is not None]

    def changed(self) -> list[str]:
        """Nodes with an annotation."""
        return [name for name in ("n0", "n1") if self.change(name) is not None]

    def warnings(self) -> list[RecordedEvent]:
        """The Events of gangs about changes that failed. They follow the annotation of the node."""
        events = self.rig.cluster.events
        return [one for one in events if one.kind == "Warning" and one.reason == EVENT]

    def cordoned(self, name: str) -> bool:
        return bool(self.node(name)["spec"].get("unschedulable"))

    async def until_phase(self, phase: MigPhase) -> str:
        """The first node in this phase."""
        found: list[str] = []

        def reached() -> bool:
            found[:] = [name for name in ("n0", "n1") if self.phase(name) is phase]
            return bool(found)

        await self.rig.until(reached, phase)
        return found[0]


@asynccontextmanager
async def mig_rig(
    url: str,
    *,
    mode: str = "Execute",
    defragment: str = "Execute",
    budget: int = 10**9,
    nodes: int = 2,
    **limits: float,
) -> AsyncIterator[MigWorld]:
    """``limits``: of the settings."""
    cluster = FakeCluster(mig_node(f"n{i}") for i in range(nodes))
    async with rig(url, nodes, cluster=cluster) as world:
        given: dict[str, Any] = {"wait_seconds": 0.0, **limits}
        world.settings = QUICK.model_copy(update={"mig": MigSettings(**given)})
        for document in documents(mode, defragment, budget):
            await world.store.put_config(document)
        manager = MigManager(cluster)
        world.each_turn = manager.step
        yield MigWorld(world, manager)

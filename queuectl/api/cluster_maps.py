"""Nodes, domains and the cluster map as answers. The workload of a gang that the caller may not see is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

from pydantic import Field

from queuectl.api.access import Visible
from queuectl.api.schemas import View
from queuectl.domain.cluster_map import (
    ClusterMap,
    GangOnMap,
    MapDomain,
    NodeOccupancy,
    TopologyLayout,
    utilization_of,
)
from queuectl.domain.gpus import rounded
from queuectl.domain.mig import MigPhase, MigReconfiguration
from queuectl.domain.quantity import CPU
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.domain.utilization import UseState
from queuectl.domain.words import utc
from queuectl.reports.node_sums import NodeGroup, NodeSum


class TenantView(View):
    workload: str = Field(
        description=f"namespace/name; `{ANOTHER_TEAM}` for one that you are not allowed to see."
    )
    uid: str | None = Field(
        description="null = you are not allowed to see it; the same for the next fields."
    )
    kind: str | None
    cluster_queue: str | None
    pods: int = Field(description="Number of its pods on this node.")
    gpus: float = Field(description="GPUs that its pods hold on this node.")
    leaving: bool = Field(description="Whether it is being evicted.")
    use: UseState | None = Field(description="Its GPU utilization; null = not measured.")
    utilization: float | None = Field(description="Mean utilization of all its GPUs, 0 to 1.")


class MigReconfigurationView(View):
    """A change of the MIG configuration of a node."""

    from_config: str
    to_config: str
    phase: MigPhase
    active: bool = Field(description="Whether it continues. The node is cordoned then.")
    since: datetime = Field(description="When the phase began.")
    failures: int = Field(
        description="Changes of the node in succession that the MIG manager did not apply."
    )


class TaintedDeviceView(View):
    """A taint that takes a device out of placement."""

    device: str = Field(description="driver/pool/device, as in ResourceClaims.")
    taint: str = Field(
        description="key=value:effect, with the name of the DeviceTaintRule if one sets it."
    )


class NodeView(View):
    name: str
    ready: bool
    schedulable: bool = Field(description="Whether the node is not cordoned, and not unhealthy.")
    unhealthy: str | None = Field(
        description="The evidence that hardware of the node fails; null = none is known."
    )
    tainted_devices: list[TaintedDeviceView] = Field(
        description="The taints that take devices of the node out of placement."
    )
    mig_reconfiguration: MigReconfigurationView | None = Field(
        description="The last change of its MIG configuration by queuectl; null = there was none."
    )
    domains: dict[str, str] = Field(description="Label value by topology level.")
    gpus: float = Field(description="All GPUs; an instance counts as a part of a GPU.")
    free_gpus: float = Field(description="GPUs that are not in use.")
    fragmented_gpus: float = Field(
        description="Free GPUs that the next pod is expected not to be able to use."
    )
    capacity: dict[str, float] = Field(
        description="Allocatable amounts in whole units: cores, bytes, devices, pods."
    )
    free: dict[str, float] = Field(description="The free part of the allocatable amounts.")
    others: dict[str, float] = Field(description="Amounts that pods outside the queues hold.")
    tenants: list[TenantView] = Field(description="The gangs on the node, largest first.")


class NodePageView(View):
    items: list[NodeView]
    next_cursor: str | None = Field(
        description="Value of `cursor` for the next page; null = this is the last page."
    )


class NodeSumView(View):
    flavors: list[str] = Field(
        description="The ResourceFlavors whose labels the nodes have; empty = none."
    )
    model: str = Field(description="Model of the GPUs by the labels of the nodes; empty = none.")
    nodes: int
    gpus: float = Field(description="GPUs of all these nodes.")
    used_gpus: float = Field(description="GPUs that pods hold.")
    free_gpus: float = Field(description="Free GPUs on schedulable nodes.")
    closed_nodes: int = Field(description="Nodes that are ready, and cordoned or unhealthy.")
    down_nodes: int = Field(description="Nodes that are not ready.")


class NodeSumsView(View):
    items: list[NodeSumView] = Field(description="Each node is in one item.")


class LargestView(View):
    node: str
    free_gpus: float


class DomainView(View):
    level: str = Field(description="Node label of its level.")
    path: list[str] = Field(description="Label values from the coarsest level to its own.")
    nodes: int
    open_nodes: int = Field(description="Nodes that are ready and not cordoned.")
    gpus: float = Field(description="GPUs of all its nodes.")
    free_gpus: float = Field(description="Free GPUs on schedulable nodes.")
    fragmented_gpus: float = Field(
        description="Free GPUs that the next pod is expected not to be able to use."
    )
    largest_free: LargestView | None = Field(
        description="The largest number of free GPUs on one node; null = no node is schedulable."
    )
    gangs: int = Field(description="Number of workloads with pods in the domain.")
    utilization: float | None = Field(
        description="Mean utilization of the GPUs in use with a measurement, 0 to 1; null = without any."
    )


class TopologyDomains(View):
    topology: str
    levels: list[str] = Field(
        description="Node labels of the levels, coarse to fine, without the level of nodes."
    )
    domains: list[DomainView] = Field(
        description="The domains, level by level: a domain follows the domain that contains it."
    )


class DomainsView(View):
    items: list[TopologyDomains]


class LevelColumns(View):
    topology: str
    label: str
    domains: list[list[str]] = Field(description="The path of each domain.")
    of: list[int] = Field(
        description="For each node, the index of its domain in `domains`; -1 = none."
    )


class WorkloadColumns(View):
    names: list[str] = Field(
        description=f"namespace/name; one entry `{ANOTHER_TEAM}` for all workloads that you are not allowed to see."
    )
    kinds: list[str | None]
    cluster_queues: list[str | None]
    gpus: list[float]
    uses: list[UseState | None]
    utilization: list[float | None]


class ClusterMapView(View):
    """All nodes in columns, for a map: item i of each column belongs to node i."""

    names: list[str]
    gpus: list[float]
    free: list[float] = Field(description="Free GPUs.")
    status: list[int] = Field(description="0 = schedulable, 1 = cordoned, 2 = not ready.")
    utilization: list[float | None] = Field(
        description="Mean utilization of the GPUs in use with a measurement, 0 to 1; null = without any."
    )
    who: list[list[int]] = Field(
        description="For each node, the indexes of its gangs in `workloads`, largest first."
    )
    levels: list[LevelColumns]
    workloads: WorkloadColumns


def node_sums_view(sums: Mapping[NodeGroup, NodeSum]) -> NodeSumsView:
    """The sums of all groups."""
    return NodeSumsView(
        items=[
            NodeSumView(
                flavors=list(flavors),
                model=model,
                nodes=total.nodes,
                gpus=rounded(total.gpus),
                used_gpus=rounded(total.used),
                free_gpus=rounded(total.free),
                closed_nodes=total.closed,
                down_nodes=total.down,
            )
            for (flavors, model), total in sums.items()
        ]
    )


def node_view(occupancy: NodeOccupancy, cluster_map: ClusterMap, visible: Visible) -> NodeView:
    """One node with the gangs on it."""
    node = occupancy.node
    labels = {level.label for layout in cluster_map.layouts for level in layout.levels}
    return NodeView(
        name=node.name,
        ready=node.ready,
        schedulable=not node.unschedulable,
        unhealthy=node.unhealthy or None,
        tainted_devices=[TaintedDeviceView(device=d, taint=t) for d, t in occupancy.tainted],
        mig_reconfiguration=_mig_view(node.mig) if node.mig is not None else None,
        domains={label: node.labels[label] for label in sorted(labels & node.labels.keys())},
        gpus=rounded(occupancy.gpus),
        free_gpus=rounded(occupancy.free_gpus),
        fragmented_gpus=rounded(occupancy.fragmented),
        capacity=_units(node.allocatable),
        free=_units(occupancy.free),
        others=_units(occupancy.other_pods),
        tenants=[
            _tenant(
                cluster_map.gangs[t.gang],
                t.pods,
                t.gpus,
                visible=sees(cluster_map.gangs[t.gang], visible),
            )
            for t in occupancy.tenants
        ],
    )


def _mig_view(change: MigReconfiguration) -> MigReconfigurationView:
    return MigReconfigurationView(
        from_config=change.source.config,
        to_config=change.target.config,
        phase=change.phase,
        active=change.phase.active,
        since=utc(change.since),
        failures=change.failures,
    )


def sees(gang: GangOnMap, visible: Visible) -> bool:
    """Whether the caller is allowed to see the gang."""
    return visible is None or gang.workload.namespace in visible


def _tenant(gang: GangOnMap, pods: int, gpus: Fraction, *, visible: bool) -> TenantView:
    workload = gang.workload
    return TenantView(
        workload=workload.ref if visible else ANOTHER_TEAM,
        uid=workload.uid if visible else None,
        kind=workload.kind if visible else None,
        cluster_queue=gang.cluster_queue if visible else None,
        pods=pods,
        gpus=rounded(gpus),
        leaving=visible and gang.leaving,
        use=gang.use.state if visible and gang.use is not None else None,
        utilization=gang.utilization if visible else None,
    )


def _units(amounts: Mapping[str, int]) -> dict[str, float]:
    return {name: v / 1000 if name == CPU else v for name, v in sorted(amounts.items())}


def domains_view(layouts: Sequence[TopologyLayout]) -> DomainsView:
    """The domains of all topologies."""
    return DomainsView(
        items=[
            TopologyDomains(
                topology=layout.name,
                levels=[level.label for level in layout.levels],
                domains=[
                    _domain(lv.label, domain) for lv in layout.levels for domain in lv.domains
                ],
            )
            for layout in layouts
        ]
    )


def _domain(level: str, domain: MapDomain) -> DomainView:
    largest = domain.largest
    return DomainView(
        level=level,
        path=list(domain.path),
        nodes=domain.nodes,
        open_nodes=domain.open,
        gpus=rounded(domain.gpus),
        free_gpus=rounded(domain.free),
        fragmented_gpus=rounded(domain.fragmented),
        largest_free=(
            LargestView(node=largest[0], free_gpus=rounded(largest[1])) if largest else None
        ),
        gangs=domain.gangs,
        utilization=domain.utilization,
    )


def cluster_map_document(cluster_map: ClusterMap, visible: Visible) -> dict[str, Any]:
    """A :class:`ClusterMapView` as plain JSON: validation of 5,000 nodes by the model takes longer than all other steps."""
    shown = [gang for gang in cluster_map.gangs if sees(gang, visible)]
    place = {id(gang): number for number, gang in enumerate(shown)}
    hidden = len(shown)
    who = [place.get(id(gang), hidden) for gang in cluster_map.gangs]
    occupancies = cluster_map.occupancies
    return {
        "names": [occupancy.node.name for occupancy in occupancies],
        "gpus": [_short(occupancy.gpus) for occupancy in occupancies],
        "free": [_short(occupancy.free_gpus) for occupancy in occupancies],
        "status": [
            0 if occupancy.open else 1 if occupancy.node.ready else 2 for occupancy in occupancies
        ],
        "utilization": [
            _percent(utilization_of(occupancy.tenants, cluster_map.gangs))
            for occupancy in occupancies
        ],
        "who": [
            list(dict.fromkeys(who[t.gang] for t in occupancy.tenants)) for occupancy in occupancies
        ],
        "levels": [
            {
                "topology": layout.name,
                "label": level.label,
                "domains": [list(domain.path) for domain in level.domains],
                "of": list(level.of),
            }
            for layout in cluster_map.layouts
            for level in layout.levels
        ],
        "workloads": _columns(shown, [g for g in cluster_map.gangs if not sees(g, visible)]),
    }


def _columns(shown: Sequence[GangOnMap], hidden: Sequence[GangOnMap]) -> dict[str, Any]:
    """The visible gangs, and all others together as one."""
    last = [None] if hidden else []
    return {
        "names": [g.workload.ref for g in shown] + [ANOTHER_TEAM for _ in last],
        "kinds": [g.workload.kind for g in shown] + last,
        "clusterQueues": [g.cluster_queue for g in shown] + last,
        "gpus": [_short(g.gpus) for g in shown]
        + [_short(sum((g.gpus for g in hidden), Fraction())) for _ in last],
        "uses": [g.use.state.value if g.use is not None else None for g in shown] + last,
        "utilization": [_percent(g.utilization) for g in shown] + last,
    }


def _percent(part: float | None) -> float | None:
    return round(part, 2) if part is not None else None


def _short(gpus: Fraction) -> float:
    """``8`` instead of ``8.0``, to shorten the response."""
    return int(gpus) if gpus.denominator == 1 else rounded(gpus)

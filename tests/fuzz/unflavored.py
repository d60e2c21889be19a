"""Gangs with pods that get no flavor, added to a snapshot: no ClusterQueue covers what they request.

Such pods are placed by the labels of the nodes alone. They name levels of a topology, labels that no topology has, and labels that no node has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import ClusterQueue, ResourceGroup
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodShape,
    Slice,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from tests.planner.build import LEVELS
from tests.planner.degenerate import MISSPELLED

PREFIX: Final = "unflavored"
ZONE: Final = "zone"
"""A label of nodes that no topology names."""


def with_unflavored(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The snapshot with one to three of them, in ClusterQueues that ignore what they do not cover."""
    config = snapshot.config
    uncovered = frozenset((PODS, *rng.sample(("cpu", "memory"), rng.randint(0, 2))))
    queues = {name: _without(queue, uncovered) for name, queue in config.cluster_queues.items()}
    names = sorted(name for _, name in config.local_queues)
    gangs = [_gang(rng, f"{PREFIX}-{i}", rng.choice(names)) for i in range(rng.randint(1, 3))]
    pending = [*snapshot.pending, *map(Pending, gangs)]
    rng.shuffle(pending)
    rules = replace(config.rules, ignore_undeclared=True)
    return replace(
        snapshot,
        config=replace(config, cluster_queues=queues, rules=rules),
        fleet=Fleet(tuple(_zoned(rng, node) for node in snapshot.fleet.nodes)),
        admitted=tuple(_uncharged(gang, uncovered) for gang in snapshot.admitted),
        pending=tuple(pending),
    )


def _without(queue: ClusterQueue, uncovered: frozenset[str]) -> ClusterQueue:
    """The ClusterQueue without quota of some resources."""

    def left(group: ResourceGroup) -> ResourceGroup:
        covered = tuple(one for one in group.covered if one not in uncovered)
        flavors = tuple(
            replace(
                quotas,
                nominal={r: n for r, n in quotas.nominal.items() if r in covered},
                borrowing={r: n for r, n in quotas.borrowing.items() if r in covered},
                lending={r: n for r, n in quotas.lending.items() if r in covered},
            )
            for quotas in group.flavors
        )
        return ResourceGroup(covered, flavors)

    groups = tuple(made for group in queue.groups if (made := left(group)).covered)
    return replace(queue, groups=groups)


def _uncharged(gang: Admitted, uncovered: frozenset[str]) -> Admitted:
    """A running gang that was started by such a ClusterQueue. Otherwise it exceeds its quota, and is not moved."""
    podsets = tuple(
        replace(placed, flavors={r: f for r, f in placed.flavors.items() if r not in uncovered})
        for placed in gang.placement.podsets
    )
    return replace(gang, placement=Placement(podsets))


def _zoned(rng: random.Random, node: Node) -> Node:
    zone = rng.choice(("z1", "z1", "z1", "z2", None))
    return replace(node, labels={**node.labels, ZONE: zone}) if zone is not None else node


def _gang(rng: random.Random, uid: str, queue: str) -> Workload:
    podsets = tuple(_podsets(rng))
    priority, at = rng.randint(0, 5), float(rng.randint(0, 5))
    return Workload(uid, "Job", "team", uid, podsets, queue, priority, at)


def _podsets(rng: random.Random) -> Iterator[PodSet]:
    """The last one can request GPUs, which have a flavor."""
    group, shared = rng.choice((None, None, "g")), _topology(rng)
    count = rng.choice((1, 1, 2))
    for i in range(count):
        amounts = {PODS: 1}
        if i and rng.random() < 0.5:
            amounts[GPU] = rng.choice((1, 2))
        topology = shared if group or rng.random() < 0.5 else _topology(rng)
        slices = topology.slices if topology is not None else ()
        pods = rng.choice((1, 2, 4)) * max((layer.size for layer in slices), default=1)
        yield PodSet(f"p{i}", pods, PodShape(Resources(amounts)), topology, group)


def _topology(rng: random.Random) -> TopologyRequest | None:
    if rng.random() < 0.15:
        return None
    levels = (ZONE, *LEVELS, MISSPELLED)
    mode = rng.choice(tuple(TopologyMode))
    level = None if mode is TopologyMode.UNCONSTRAINED else rng.choice(levels)
    slices = (Slice(rng.choice(levels), rng.choice((1, 2))),) if rng.random() < 0.5 else ()
    return TopologyRequest(mode, level, slices, balanced=rng.random() < 0.15)

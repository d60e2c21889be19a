"""Over how many domains a plan spreads the gangs it starts, beside the fewest that could hold them.

Counted podset by podset and level by level, single nodes included. The fewest is that of an empty cluster: of the nodes that
take pods and that the podset may use, the domains with the most room, until all its pods have a place. So a ratio above 1 is
what others that run, and its own other podsets, cost it in neighbourhood; a required or preferred level does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from queuectl.domain.fleet import NodeRules
from queuectl.domain.plan import Admission
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSetPlacement, PodShape
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, index_of
from queuectl.planner.problem.topology import Ints, Tree

_Fewest: TypeAlias = tuple[int, ...]  # per level of a tree, and of nodes

_MOST_KNOWN: Final = 4096


class Spread(NamedTuple):
    """Domains of one level, summed over podsets: those that are used, and the fewest that would do."""

    used: int
    least: int


def spreads(
    snapshot: Snapshot, admissions: Iterable[Admission], cache: PlannerCache | None = None
) -> dict[str, Spread]:
    """Of every podset that is started, by level label.

    Repaired gangs are left out: most of their pods stay where they are. So are podsets split over flavors, and those of
    flavors without a topology.
    """
    index = index_of(snapshot.fleet, cache or PlannerCache())
    started = {admission.uid: admission for admission in admissions if not admission.repaired}
    used: Counter[str] = Counter()
    least: Counter[str] = Counter()
    for workload in (p.workload for p in snapshot.pending if p.workload.uid in started):
        shapes = {podset.name: podset.shape for podset in workload.podsets}
        for placed in started[workload.uid].placement.podsets:
            for level, here, fewest in _levels(
                snapshot.config, index, shapes[placed.podset], placed
            ):
                used[level] += here
                least[level] += fewest
    return {level: Spread(used[level], least[level]) for level in used}


def _levels(
    config: QueueConfig, index: FleetIndex, shape: PodShape, placed: PodSetPlacement
) -> Iterator[tuple[str, int, int]]:
    """Level, domains used, and the fewest."""
    flavors = tuple(config.flavors[name] for name in dict.fromkeys(placed.flavors.values()))
    known = (config.topologies.get(flavor.topology or "") for flavor in flavors)
    topology = next((one for one in known if one is not None), None)
    if topology is None or placed.shares or not placed.nodes:
        return
    tree = index.tree(topology.levels)
    fewest = _known_fewest(index, tree, shape, flavors, placed.count)
    nodes = [index.position[name] for name, _ in placed.nodes]
    for level, domain, least in zip(tree.levels, tree.domain, fewest, strict=False):
        yield level, len(set(domain[nodes].tolist())), least
    if tree.node_level is not None:
        yield tree.node_level, len(set(nodes)), fewest[-1]


def _known_fewest(
    index: FleetIndex,
    tree: Tree,
    shape: PodShape,
    flavors: tuple[ResourceFlavor, ...],
    pods: int,
) -> _Fewest:
    """Remembered as long as the fleet stays as it is: gangs come in few shapes."""
    known = index.fewest
    asked = (tree, shape, flavors, pods)
    if asked not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        room = _room(index, shape, flavors, pods)
        room[tree.position >= index.size] = 0  # nodes that lack a level's label
        sums = [tree.sums(level, room) for level in range(tree.depth)]
        known[asked] = tuple(_fewest(rooms, pods) for rooms in (*sums, room))
    return known[asked]


def _room(index: FleetIndex, shape: PodShape, flavors: Iterable[ResourceFlavor], most: int) -> Ints:
    """(N,): how many such pods each node could hold if nobody else were there; no more than ``most``."""
    rules = shape.rules
    for flavor in flavors:
        rules = NodeRules(
            tuple(sorted({*rules.selector, *flavor.node_labels})),
            rules.affinity,
            rules.tolerations + flavor.tolerations,
        )
    room = np.where(index.mask(rules) & index.ready, most, 0)
    for resource, amount in shape.requests.items():
        if amount:
            room = np.minimum(room, index.allocatable[index.column[resource]] // amount)
    return room


def _fewest(rooms: Ints, pods: int) -> int:
    """Domains with the most room that together hold so many pods; all of them, where they do not."""
    filled = np.cumsum(np.sort(rooms)[::-1])
    return min(int(np.searchsorted(filled, pods)) + 1, len(rooms))

"""The number of domains over which a plan spreads the gangs that it starts, compared with the lowest possible number.

It is counted for each podset and each level, and for single nodes. The lowest possible number is for an empty cluster: of the
schedulable nodes that the podset can use, the domains with the most capacity, until all its pods fit. A ratio above 1 shows the
effect of running gangs and of the gang's other podsets. A required or preferred level does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from queuectl.domain.plan import Admission
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSetPlacement, PodShape
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, Ints, Tree, index_of

_Fewest: TypeAlias = tuple[int, ...]  # per level of a tree, and of nodes

_MOST_KNOWN: Final = 4096


class DomainSpread(NamedTuple):
    """Domains of one level, summed over podsets: the used number, and the lowest possible number."""

    used: int
    least: int


def spreads(
    snapshot: Snapshot, admissions: Iterable[Admission], cache: PlannerCache | None = None
) -> dict[str, DomainSpread]:
    """The domains of all started podsets, by the label of the level.

    Repaired gangs are left out, because most of their pods do not move. Podsets that are split over flavors, and podsets of flavors
    without a topology, are left out, too.
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
    return {level: DomainSpread(used[level], least[level]) for level in used}


def _levels(
    config: QueueConfig, index: FleetIndex, shape: PodShape, placed: PodSetPlacement
) -> Iterator[tuple[str, int, int]]:
    """Level, used domains, and the lowest possible number."""
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
    """The lowest possible numbers, cached while the nodes do not change: gangs have few shapes."""
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
    """(N,): the number of such pods that fit each empty node; at most ``most``."""
    rules = shape.rules
    for flavor in flavors:
        rules = flavor.rules_of(rules)
    room = np.where(index.mask(rules) & index.ready, most, 0)
    for resource, amount in shape.requests.items():
        if amount:
            room = np.minimum(room, index.allocatable[index.column[resource]] // amount)
    return room


def _fewest(rooms: Ints, pods: int) -> int:
    """The fewest domains that hold so many pods, largest first; all domains if they do not hold them."""
    filled = np.cumsum(np.sort(rooms)[::-1])
    return min(int(np.searchsorted(filled, pods)) + 1, len(rooms))

"""Whether a gang fits some state of a cluster, by trying everything. It shares no code with the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet
from tests.fuzz.judge import Quota
from tests.planner.oracle_fit import ANYWHERE, Flavors, Oracle, SuggestedFix, Task

_MOST_PODS: Final = 8
"""Of a gang of several podsets, or with slices, for which all placements are tried."""


def fits_ever(states: Iterable[Snapshot], entry: Pending) -> bool | None:
    """Whether a gang fits one of these states alone, with the fewest pods that it can start with. None = not known.

    Not known are gangs with more pods than are tried, of levels that no topology has, and those that can use several flavors for one podset.
    """
    known = True
    for state in states:
        answer = _fits(state, entry)
        if answer:
            return True
        known &= answer is not None
    return False if known else None


def _fits(state: Snapshot, entry: Pending) -> bool | None:
    queue = state.queue_of(entry.workload)
    podsets = tuple(map(fewest, entry.workload.podsets))
    least = replace(entry, excluded=frozenset(), workload=replace(entry.workload, podsets=podsets))
    if queue is None or not _known_levels(state, podsets):
        return None
    oracle = Oracle(state)
    ways = [
        way
        for way in _ways(oracle, queue, least)
        if _in_quota(state, queue, way) and all(_has_room(task, state) for task in way.tasks)
    ]
    if not ways:
        return None if queue.split_flavors else False
    if any(len(way.tasks) <= 1 and not any(t.slices for t in way.tasks) for way in ways):
        return True
    if any(_greedy(way.tasks, state) for way in ways):
        return True
    if sum(podset.count for podset in podsets) > _MOST_PODS:
        return None
    uncharged = [replace(way, charges={}) for way in ways]
    return oracle.fits([uncharged], views=(0,)) or (None if queue.split_flavors else False)


def _ways(oracle: Oracle, queue: ClusterQueue, entry: Pending) -> Iterator[SuggestedFix]:
    """Those in which each podset has flavors that it may use."""
    podsets, known = entry.workload.podsets, oracle.snapshot.config.flavors
    mixed = any(not known[q.flavor].topology for group in queue.groups for q in group.flavors)
    choices = []
    for podset in podsets:
        unit = [p for p in podsets if p is podset or (p.group and p.group == podset.group)]
        named = any(p.topology is not None and p.topology.levels for p in unit)
        asking = all(p.topology is not None for p in unit)
        choices.append(
            [
                flavors
                for flavors in oracle.flavor_choices(queue, podset)
                if not flavors
                or (asking or not mixed if oracle.takes_nodes(flavors) else not named)
            ]
        )
    for chosen in product(*choices):
        if _one_flavor_a_group(podsets, chosen):
            yield from oracle.ways(entry, step=ANYWHERE, only=chosen)


def _one_flavor_a_group(podsets: Sequence[PodSet], chosen: Sequence[Flavors]) -> bool:
    taken: dict[tuple[str, str], str] = {}
    return all(
        taken.setdefault((podset.group, resource), flavor) == flavor
        for podset, flavors in zip(podsets, chosen, strict=True)
        if podset.group is not None
        for resource, flavor in flavors.items()
    )


def fewest(podset: PodSet) -> PodSet:
    """The podset with the fewest pods with which it can start."""
    if podset.min_count is None or podset.min_count >= podset.count:
        return podset
    layers = podset.topology.slices if podset.topology is not None else ()
    step = layers[0].size if layers else 1
    return replace(podset, count=-(-max(1, podset.min_count) // step) * step)


def _known_levels(state: Snapshot, podsets: Iterable[PodSet]) -> bool:
    known = {level for t in state.config.topologies.values() for level in t.levels}
    named = {level for p in podsets if p.topology is not None for level in p.topology.levels}
    return named <= known


def _in_quota(state: Snapshot, queue: ClusterQueue, way: SuggestedFix) -> bool:
    """While no other gang uses any quota."""
    quota = Quota(state.config, {})
    member = quota.queues[queue.name]
    return all(
        amount <= quota.available(member, (flavor, resource))
        for (_, flavor, resource), amount in way.charges.items()
        if amount
    )


def _has_room(task: Task, state: Snapshot) -> bool:
    """Whether its pods alone have room, without regard to slices."""
    nodes = state.fleet.by_name
    return sum(room(task.need, nodes[name].allocatable) for name in task.nodes) >= task.count


def _greedy(tasks: Sequence[Task], state: Snapshot) -> bool:
    """Whether one simple placement holds all pods: the largest ones first, on the nodes with the most room. Slices are not tried."""
    if any(task.slices for task in tasks):
        return False
    free = {node.name: Counter(node.allocatable) for node in state.fleet.nodes}
    for task in sorted(tasks, key=lambda t: sorted(t.need.items()), reverse=True):
        left = task.count
        for name in sorted(task.nodes, key=lambda n: -room(task.need, free[n])):
            taken = min(left, room(task.need, free[name]))
            free[name].subtract({r: a * taken for r, a in task.need.items()})
            left -= taken
        if left:
            return False
    return True


def room(need: Mapping[str, int], free: Mapping[str, int]) -> int:
    """The pods that have room on a node."""
    return max(0, min((free.get(r, 0) // a for r, a in need.items() if a), default=10**6))

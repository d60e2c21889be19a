"""Whether gangs fit together, by trying everything: the half of the oracle that places pods.

Every choice of flavor, domain and distribution of pods over nodes is tried, with two prunings that lose nothing: equal
nodes are interchangeable, and a failed state is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from queuectl.domain.fleet import HOSTNAME, Effect, Node, NodeRules
from queuectl.domain.quantity import PODS
from queuectl.domain.queues import (
    ClusterQueue,
    ResourceFlavor,
)
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Placement, PodSet, TopologyMode, Workload

ANYWHERE = 99  # relaxation beyond any topology's depth

Amounts = dict[str, int]
Flavors = dict[str, str]  # resource -> flavor
Quota = dict[tuple[str, str, str], int]  # ClusterQueue, flavor, resource -> left


@dataclass(frozen=True)
class Task:
    """A podset under one choice of flavors and domain: how many pods, what each takes, where they may go.

    ``slices``: every set of nodes holds a multiple of the size alongside it.
    """

    count: int
    need: Amounts
    nodes: frozenset[str]
    slices: tuple[tuple[int, frozenset[str]], ...] = ()

    def whole(self, pods: Mapping[str, int]) -> bool:
        return all(
            sum(n for name, n in pods.items() if name in nodes) % size == 0
            for size, nodes in self.slices
        )


@dataclass(frozen=True)
class SuggestedFix:
    """One way to run a gang, up to the distribution of its pods."""

    tasks: tuple[Task, ...]
    charges: Quota


class Oracle:
    """Both views of one snapshot, *now* and *after*, less the reservations of other gangs."""

    def __init__(
        self,
        snapshot: Snapshot,
        gone: frozenset[str] = frozenset(),
        promised: Sequence[tuple[Workload, Placement]] = (),
    ) -> None:
        self.snapshot = snapshot
        self.nodes = {n.name: n for n in snapshot.fleet.nodes}
        now = [(a.workload, a.placement) for a in snapshot.admitted]
        after = [
            (a.workload, a.placement)
            for a in snapshot.admitted
            if not a.leaving and a.workload.uid not in gone
        ]
        after += promised
        self._holders = (now, after)
        self._views: dict[int, tuple[dict[str, Amounts], Quota]] = {}

    def view(self, number: int) -> tuple[dict[str, Amounts], Quota]:
        """Free capacity of each node and free part of each quota: *now* (0) or *after* (1). Counted at the first use."""
        if number not in self._views:
            gangs = self._holders[number]
            self._views[number] = (self._free(gangs), self._quota(gangs))
        return self._views[number]

    def _free(self, gangs: Sequence[tuple[Workload, Placement]]) -> dict[str, Amounts]:
        free = {n.name: dict(n.allocatable) for n in self.snapshot.fleet.nodes}
        for name, used in self.snapshot.other_pods.items():
            for resource, amount in used.items() if name in free else ():
                free[name][resource] = free[name].get(resource, 0) - amount
        for workload, placement in gangs:
            for name, used in placement.use(workload).items():
                for resource, amount in used.items() if name in free else ():
                    free[name][resource] = free[name].get(resource, 0) - amount
        return free

    def _quota(self, gangs: Sequence[tuple[Workload, Placement]]) -> Quota:
        left: Quota = {}
        for queue in self.snapshot.config.cluster_queues.values():
            for group in queue.groups:
                for quotas in group.flavors:
                    for resource in group.covered:
                        left[queue.name, quotas.flavor, resource] = quotas.nominal.get(resource, 0)
        for workload, placement in gangs:
            queue_of = self.queue_of(workload)
            for placed in placement.podsets:
                podset = next(p for p in workload.podsets if p.name == placed.podset)
                pods = placed.count if self.takes_nodes(placed.flavors) else podset.count
                for resource, flavor in placed.flavors.items():
                    if queue_of is not None:
                        row = (queue_of.name, flavor, resource)
                        left[row] = left.get(row, 0) - podset.shape.requests[resource] * pods
        return left

    def queue_of(self, workload: Workload) -> ClusterQueue | None:
        return self.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)

    def takes_nodes(self, flavors: Mapping[str, str]) -> bool:
        known = self.snapshot.config.flavors
        names = set(flavors.values())
        return bool(self.nodes) and (not names or any(known[f].topology for f in names))

    # -- ways to run a gang

    def ways(
        self,
        entry: Pending,
        banned: frozenset[str] = frozenset(),
        step: int = 0,
        only: Sequence[Mapping[str, str]] | None = None,
    ) -> Iterator[SuggestedFix]:
        """Every choice of flavors (or ``only`` that one) and domains.

        Preferred levels are relaxed by ``step`` levels, to none at the end.
        """
        workload = entry.workload
        queue = self.queue_of(workload)
        choices = [list(self.flavor_choices(queue, p)) for p in workload.podsets]
        if only is not None:
            choices = [[dict(flavors)] for flavors in only]
        for chosen in product(*choices):
            if not _groups_share(workload, chosen):
                continue
            if any(f in banned for flavors in chosen for f in flavors.values()):
                continue
            for tasks in self._domain_choices(entry, chosen, step):
                yield SuggestedFix(tasks, self._charges(queue, workload, chosen))

    def flavor_choices(self, queue: ClusterQueue | None, podset: PodSet) -> Iterator[Flavors]:
        if queue is None:
            yield {}
            return
        asked = [[r for r in g.covered if podset.shape.requests[r]] for g in queue.groups]
        if set(podset.shape.requests) - {r for rs in asked for r in rs} - {PODS}:
            return
        options = [
            [q.flavor for q in g.flavors if self._usable(queue, podset, q.flavor)] if rs else [""]
            for g, rs in zip(queue.groups, asked, strict=True)
        ]
        for names in product(*options):
            yield {r: f for rs, f in zip(asked, names, strict=True) for r in rs}

    def _usable(self, queue: ClusterQueue, podset: PodSet, name: str) -> bool:
        known = self.snapshot.config.flavors
        flavor = known[name]
        siblings = [g for g in queue.groups if name in {q.flavor for q in g.flavors}]
        keys = {k for g in siblings for q in g.flavors for k, _ in known[q.flavor].node_labels}
        labels = dict(flavor.node_labels)
        if any(k in keys and labels.get(k) != v for k, v in podset.shape.rules.selector):
            return False
        tolerations = podset.shape.rules.tolerations + flavor.tolerations
        return all(
            t.effect is Effect.PREFER_NO_SCHEDULE or any(x.tolerates(t) for x in tolerations)
            for t in flavor.node_taints
        )

    def _charges(
        self, queue: ClusterQueue | None, workload: Workload, chosen: Sequence[Flavors]
    ) -> Quota:
        charges: Quota = {}
        for podset, flavors in zip(workload.podsets, chosen, strict=True):
            for resource, flavor in flavors.items() if queue is not None else ():
                row = (queue.name if queue else "", flavor, resource)
                amount = podset.shape.requests[resource] * podset.count
                charges[row] = charges.get(row, 0) + amount
        return charges

    def _domain_choices(
        self, entry: Pending, chosen: Sequence[Flavors], step: int
    ) -> Iterator[tuple[Task, ...]]:
        podsets = entry.workload.podsets
        eligible = [
            self._eligible(entry, p, f) if self.takes_nodes(f) else None
            for p, f in zip(podsets, chosen, strict=True)
        ]
        units: dict[str, list[int]] = {}
        for i, p in enumerate(podsets):
            units.setdefault(f"group {p.group}" if p.group else f"alone {i}", []).append(i)
        options = [
            list(self._domains([podsets[i] for i in unit], [chosen[i] for i in unit], step))
            for unit in units.values()
        ]
        for combination in product(*options):
            inside = {i: d for u, d in zip(units.values(), combination, strict=True) for i in u}
            yield tuple(
                Task(
                    p.count,
                    dict(p.shape.requests),
                    frozenset(nodes & inside[i]),
                    tuple(self._slices(p, chosen[i])),
                )
                for i, p in enumerate(podsets)
                if (nodes := eligible[i]) is not None
            )

    def _domains(
        self, members: Sequence[PodSet], flavors: Sequence[Flavors], step: int
    ) -> Iterator[frozenset[str]]:
        """Node sets that the members must share: one per domain of the narrowest level requested."""
        levels = self._levels(flavors[0])
        wanted = set()
        for p in members:
            if p.topology is None or p.topology.level is None:
                continue
            if p.topology.mode is TopologyMode.REQUIRED:
                wanted.add(p.topology.level)
            elif p.topology.mode is TopologyMode.PREFERRED:
                at = levels.index(p.topology.level) - step
                wanted |= {levels[at]} if at >= 0 else set()
        if not wanted:
            yield frozenset(self.nodes)
            return
        narrowest = max(wanted, key=levels.index)
        yield from self._nodes_by_domain(levels[: levels.index(narrowest) + 1])

    def _slices(self, podset: PodSet, flavors: Flavors) -> Iterator[tuple[int, frozenset[str]]]:
        levels = self._levels(flavors)
        for layer in podset.topology.slices if podset.topology is not None else ():
            for nodes in self._nodes_by_domain(levels[: levels.index(layer.level) + 1]):
                yield layer.size, nodes

    def _nodes_by_domain(self, path: Sequence[str]) -> list[frozenset[str]]:
        domains: dict[tuple[str | None, ...], set[str]] = {}
        for n in self.nodes.values():
            values = tuple(_label(n, key) for key in path)
            if None not in values:
                domains.setdefault(values, set()).add(n.name)
        return [frozenset(names) for names in domains.values()]

    def _levels(self, flavors: Flavors) -> tuple[str, ...]:
        known = self.snapshot.config
        for name in flavors.values():
            topology = known.topologies.get(known.flavors[name].topology or "")
            if topology is not None:
                return topology.levels
        return next((t.levels for t in known.topologies.values()), ())

    def _eligible(self, entry: Pending, podset: PodSet, flavors: Flavors) -> frozenset[str]:
        chosen = [self.snapshot.config.flavors[f] for f in set(flavors.values())]
        return frozenset(
            n.name
            for n in self.nodes.values()
            if n.ready
            and n.name not in entry.excluded
            and _allows(podset, chosen, n)
            and all(self._carries(f, n) for f in chosen)
        )

    def _carries(self, flavor: ResourceFlavor, n: Node) -> bool:
        topology = self.snapshot.config.topologies.get(flavor.topology or "")
        levels = topology.levels if topology is not None else ()
        return all(n.labels.get(k) == v for k, v in flavor.node_labels) and all(
            _label(n, level) is not None for level in levels
        )

    # -- feasibility

    def fits(
        self,
        gangs: Sequence[Sequence[SuggestedFix]],
        views: tuple[int, ...] = (0, 1),
    ) -> bool:
        """Whether all gangs run together, each in one of its ways, in every one of the given views."""
        seen = [self.view(number) for number in views]
        free = {
            name: tuple(tuple(sorted(left[name].items())) for left, _ in seen)
            for name in self.nodes
        }
        quota = [dict(quotas) for _, quotas in seen]
        return _Search(gangs).run(0, free, quota)


def _label(n: Node, key: str) -> str | None:
    return n.hostname if key == HOSTNAME else n.labels.get(key)


def _allows(podset: PodSet, flavors: Sequence[ResourceFlavor], n: Node) -> bool:
    rules = podset.shape.rules
    extra = tuple(t for f in flavors for t in f.tolerations)
    return NodeRules(rules.selector, rules.affinity, rules.tolerations + extra).refusal(n) is None


def _groups_share(workload: Workload, chosen: Sequence[Flavors]) -> bool:
    """Podsets of one group take the same flavor for the same resource."""
    taken: dict[tuple[str, str], str] = {}
    for podset, flavors in zip(workload.podsets, chosen, strict=True):
        for resource, flavor in flavors.items() if podset.group is not None else ():
            if taken.setdefault((podset.group or "", resource), flavor) != flavor:
                return False
    return True


FreeRow = tuple[tuple[tuple[str, int], ...], ...]
Free = dict[str, FreeRow]


class _Search:
    """Depth first over gangs, their ways, their podsets and the nodes; failed states are remembered."""

    def __init__(self, gangs: Sequence[Sequence[SuggestedFix]]) -> None:
        self.gangs = gangs
        self.failed: set[object] = set()
        tasks = [t for ways in gangs for way in ways for t in way.tasks]
        sliced = {nodes for t in tasks for _, nodes in t.slices}
        sets = sorted({t.nodes for t in tasks} | sliced, key=sorted)
        self.kind = cache(lambda name: tuple(name in nodes for nodes in sets))

    def run(self, gang: int, free: Free, quota: list[Quota]) -> bool:
        if gang == len(self.gangs):
            return True
        for way in self.gangs[gang]:
            left = [_charged(q, way.charges) for q in quota]
            if all(q is not None for q in left):
                rest = [q for q in left if q is not None]
                if self._tasks(gang, way, 0, free, rest):
                    return True
        return False

    def _tasks(self, gang: int, way: SuggestedFix, at: int, free: Free, quota: list[Quota]) -> bool:
        if at == len(way.tasks):
            return self.run(gang + 1, free, quota)
        key = (
            gang,
            tuple(id(t) for t in way.tasks[at:]),
            self._state(free),
            tuple(tuple(sorted(q.items())) for q in quota),
        )
        if key in self.failed:
            return False
        task = way.tasks[at]
        found = self._spread(gang, way, at, {}, sorted(task.nodes), task.count, free, quota)
        if not found:
            self.failed.add(key)
        return found

    def _spread(
        self,
        gang: int,
        way: SuggestedFix,
        at: int,
        placed: dict[str, int],
        nodes: list[str],
        count: int,
        free: Free,
        quota: list[Quota],
    ) -> bool:
        task = way.tasks[at]
        if count == 0:
            return task.whole(placed) and self._tasks(gang, way, at + 1, free, quota)
        if sum(_room(free[n], task.need) for n in nodes) < count:
            return False
        name, rest = nodes[0], nodes[1:]
        for k in range(min(count, _room(free[name], task.need)), -1, -1):
            taken = free | {name: _less(free[name], task.need, k)}
            if self._spread(gang, way, at, {**placed, name: k}, rest, count - k, taken, quota):
                return True
        return False

    def _state(self, free: Free) -> object:
        return tuple(sorted((self.kind(n), row) for n, row in free.items()))


def _charged(quota: Quota, charges: Quota) -> Quota | None:
    """The capacity after the charges, None when a charged row would be exceeded."""
    left = dict(quota)
    for row, amount in charges.items():
        left[row] = left.get(row, 0) - amount
        if left[row] < 0:
            return None
    return left


def _room(row: FreeRow, need: Amounts) -> int:
    return max(0, min(dict(view).get(r, 0) // a for view in row for r, a in need.items()))


def _less(row: FreeRow, need: Amounts, count: int) -> FreeRow:
    return tuple(tuple(sorted((r, v - need.get(r, 0) * count) for r, v in view)) for view in row)

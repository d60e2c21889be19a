"""Podsets placed one after the other, greedily and on real amounts: a witness that a gang fits.

A witness proves that a gang fits. None proves nothing, unless all pods of the gang are alike, where
:mod:`queuectl.planner.placement.single` is exact.

Several podsets, of one podset group or of several, are tried in one domain: the tightest of those that have room by sums, the finest
levels first, each podset near those placed before it. PodSet groups that need not share a domain are also placed each for itself, and
the narrower of the placements counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, take
from queuectl.planner.placement.measure import domain_counts, prefers_in_vain
from queuectl.planner.placement.regions import regions
from queuectl.planner.placement.single import Capacity, Filled
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Pods, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask, Tree

CapsOf: TypeAlias = Callable[[Shape], Ints]
Spot: TypeAlias = tuple[Ints, Ints]  # node indexes, pods on each
Order: TypeAlias = Sequence[int]


def exact(request: GangRequest) -> bool:
    """Whether "no witness" is a proof: one podset group whose pods are all alike, or all on one node."""
    podset_groups = request.podset_groups
    return not podset_groups or (
        len(podset_groups) == 1
        and (len(podset_groups[0].pods) == 1 or podset_groups[0].on_one_node)
    )


def find(
    request: GangRequest,
    free: Ints,
    caps_of: CapsOf,
    within: Sequence[Mask | None] | None = None,
) -> NodeCounts | None:
    """Node counts for the whole gang, its podsets close together, or None.

    Args:
        request: the gang under one choice of flavors.
        free: (R, N).
        caps_of: pods of a shape that fit each node of ``free``.
        within: per podset group, the nodes it is confined to; None for no bounds.
    """
    search = _Search(request, free, caps_of, within or [None] * len(request.podset_groups))
    if not search.competing:
        return search.first()
    if any(int(f.sum()) < p.count for f, p in zip(search.fits, request.pods, strict=True)):
        return None
    nodes = search.useful()
    search = search.part(nodes)
    found = search.first()
    return None if found is None else on_fleet(nodes, search.narrowest(found))


def first(
    request: GangRequest, free: Ints, within: Sequence[Mask | None] | None = None
) -> NodeCounts | None:
    """The first placement met: each podset group where it alone is best."""
    bounds = within or [None] * len(request.podset_groups)
    return _Search(request, free, lambda shape: caps(free, shape), bounds).first()


def find_near(
    request: GangRequest,
    free: Ints,
    caps_of: CapsOf,
    within: Sequence[Mask | None],
    near: Mask,
) -> NodeCounts | None:
    """The same on as few nodes outside ``near`` as greedy filling finds, and in the domains of those first."""
    search = _Search(request, free, caps_of, within)
    return search.pack(search.hardest, near.copy())


def narrowed(request: GangRequest, free: Ints, found: NodeCounts) -> NodeCounts:
    """A placement found otherwise, or a narrower one. Podsets that are spread evenly are not drawn together."""
    if not one_tree(request) or any(p.balanced for p in request.pods):
        return found
    other = find(request, free, lambda shape: caps(free, shape))
    if other is None:
        return found
    return min(found, other, key=lambda each: width(request, each))


def one_tree(request: GangRequest) -> bool:
    """Whether all podset groups are of one topology."""
    return all(
        podset_group.tree is request.podset_groups[0].tree for podset_group in request.podset_groups
    )


def width(request: GangRequest, node_counts: NodeCounts) -> tuple[int, ...]:
    """How many domains a gang of one topology uses; of two placements the lesser is narrower.

    Returns:
        PodSet groups that miss the level they prefer; the domains that each podset group uses, summed, level by level from the top and nodes
        last; those that the gang uses, each counted once, likewise.
    """
    rows, vain, at = [], 0, 0
    for podset_group in request.podset_groups:
        rows.append(domain_counts(podset_group, node_counts[at : at + len(podset_group.pods)]))
        vain += prefers_in_vain(podset_group, rows[-1])
        at += len(podset_group.pods)
    return (
        vain,
        *map(sum, zip(*rows, strict=True)),
        *domain_counts(request.podset_groups[0], node_counts),
    )


def levels_to_try(podset_group: PodSetGroup) -> Iterator[int]:
    """The preferred level, then coarser ones up to what is required."""
    yield from range(podset_group.preferred, podset_group.required, -1)
    yield podset_group.required


@dataclass(eq=False)
class _Search:
    """Packings of all podset groups of one gang.

    Attributes:
        free: (R, n); all nodes, or some of them.
        caps_of: pods of a shape that fit each node of ``free``.
        within: per podset group, the nodes it is confined to; None for no bounds.
    """

    request: GangRequest
    free: Ints
    caps_of: CapsOf
    within: Sequence[Mask | None]

    @property
    def competing(self) -> bool:
        """Whether it has several podsets, all of one topology."""
        several = len(self.request.podset_groups) > 1 or not exact(self.request)
        return several and one_tree(self.request)

    @cached_property
    def fits(self) -> list[Ints]:
        """Per podset, pods that fit each node by themselves."""
        return [
            _inside(self.caps_of(p.shape), mask)
            for podset_group, mask in zip(self.request.podset_groups, self.within, strict=True)
            for p in podset_group.pods
        ]

    @cached_property
    def hardest(self) -> Order:
        """The podset groups: finer required level first, then the larger share of what is free; ties as asked."""
        podset_groups = self.request.podset_groups
        if len(podset_groups) == 1:
            return (0,)
        sizes = _sizes(self.free, [podset_group.pods for podset_group in podset_groups])
        return sorted(
            range(len(podset_groups)), key=lambda i: (-podset_groups[i].required, -sizes[i])
        )

    def useful(self) -> Ints:
        """Nodes that hold any of its pods, in topology order."""
        order = self.request.podset_groups[0].tree.order
        fitting: Mask = np.logical_or.reduce([f > 0 for f in self.fits])
        return order[fitting[order]]

    def part(self, nodes: Ints) -> _Search:
        """The same on some nodes alone, in topology order: number i of them is its node i."""
        free = self.free[:, nodes]
        request = on_nodes(self.request, nodes, self.within)
        unbounded = [None] * len(self.within)
        return _Search(request, free, lambda shape: caps(free, shape), unbounded)

    def first(self) -> NodeCounts | None:
        """The first placement met, each podset group for itself, the hardest first or last."""
        ways = (self.pack(order) for order in self._orders())
        return next((found for found in ways if found is not None), None)

    def _orders(self) -> Iterator[Order]:
        yield self.hardest
        if len(self.hardest) > 1:
            yield self.hardest[::-1]

    def narrowest(self, found: NodeCounts) -> NodeCounts:
        """The narrowest placement met, ``found`` included. Podsets that are spread evenly are not drawn together."""
        if len(self.request.podset_groups) == 1 or any(p.balanced for p in self.request.pods):
            return found
        return min((found, *self._close()), key=lambda each: width(self.request, each))

    def _close(self) -> Iterator[NodeCounts]:
        """Placements of all podset groups in one domain, of the finest level where there is any; and one of each for itself."""
        tree, pods = self.request.podset_groups[0].tree, self.request.pods
        near = np.zeros(self.free.shape[1], dtype=np.bool_)
        for mask in regions(tree, ANYWHERE, pods, self.fits, self.free):
            close = [self.pack(order, near.copy(), mask) for order in self._orders()]
            yield from (found for found in close if found is not None)
            if mask is not None and any(found is not None for found in close):
                break
        last = self.pack(self.hardest[::-1])
        if last is not None:
            yield last

    def pack(
        self, order: Order, near: Mask | None = None, inside: Mask | None = None
    ) -> NodeCounts | None:
        """All podset groups in this order.

        Args:
            order: of the podset groups.
            near: nodes near which they are placed, those placed before among them; None: each where it is best alone.
            inside: nodes that all are confined to.
        """
        scratch = _Scratch(self.free, self.caps_of, near)
        placed: dict[int, NodeCounts] = {}
        for number in order:
            podset_group = self.request.podset_groups[number]
            found = scratch.place(podset_group, _both(self.within[number], inside))
            if found is None:
                return None
            placed[number] = found
            if len(placed) < len(order):
                scratch.take(podset_group.pods, found)
        return tuple(spot for number in range(len(order)) for spot in placed[number])


@dataclass(eq=False)
class _Scratch:
    """What is free while podset groups are placed one after the other.

    Attributes:
        free: (R, n), copied before the first change.
        caps_of: pods of a shape that fit each node of ``free``.
        near: nodes near which podset groups are placed; None: each where it is best alone.
    """

    free: Ints
    caps_of: CapsOf
    near: Mask | None = None
    _own: bool = False

    def take(self, pods: Sequence[Pods], node_counts: NodeCounts) -> None:
        """The next podset group finds less by these pods, and is placed near them."""
        if not self._own:
            self.free, self._own = self.free.copy(), True
            self.caps_of = lambda shape: caps(self.free, shape)
        take(self.free, pods, node_counts)
        if self.near is not None:
            for nodes, _ in node_counts:
                self.near[nodes] = True

    def place(self, podset_group: PodSetGroup, within: Mask | None) -> NodeCounts | None:
        """Where the pods of a podset group go, at the finest level it prefers or must share; None when nothing is found."""
        found = (self._at(podset_group, level, within) for level in levels_to_try(podset_group))
        return next((each for each in found if each is not None), None)

    def _at(self, podset_group: PodSetGroup, level: int, within: Mask | None) -> NodeCounts | None:
        if podset_group.bundle is not None and level == podset_group.tree.depth:
            spot = self._podset(podset_group.tree, level, podset_group.bundle, within)
            if spot is None:
                return None
            return tuple((spot[0], np.array([p.count])) for p in podset_group.pods)
        if len(podset_group.pods) == 1:
            spot = self._podset(podset_group.tree, level, podset_group.pods[0], within)
            return None if spot is None else (spot,)
        return self._together(podset_group, level, within)

    def _together(
        self, podset_group: PodSetGroup, level: int, within: Mask | None
    ) -> NodeCounts | None:
        """Several podsets in one domain of a level, the hardest first or last."""
        fits = [_inside(self.caps_of(p.shape), within) for p in podset_group.pods]
        sizes = _sizes(self.free, [(replace(p, count=1),) for p in podset_group.pods])
        hardest = sorted(range(len(podset_group.pods)), key=lambda i: -sizes[i])
        for mask in regions(podset_group.tree, level, podset_group.pods, fits, self.free):
            inside = _both(within, mask)
            ways = (
                self._in_turn(podset_group, level, order, inside)
                for order in (hardest, hardest[::-1])
            )
            narrowest = min(
                (found for found in ways if found is not None),
                key=lambda found: domain_counts(podset_group, found),
                default=None,
            )
            if narrowest is not None:
                return narrowest
        return None

    def _in_turn(
        self, podset_group: PodSetGroup, level: int, order: Order, within: Mask | None
    ) -> NodeCounts | None:
        """The podsets of a podset group in this order, each near those before."""
        near = np.zeros(self.free.shape[1], dtype=np.bool_)
        scratch = _Scratch(self.free, self.caps_of, near if self.near is None else self.near.copy())
        placed: dict[int, Spot] = {}
        for number in order:
            spot = scratch._podset(podset_group.tree, level, podset_group.pods[number], within)
            if spot is None:
                return None
            placed[number] = spot
            scratch.take((podset_group.pods[number],), (spot,))
        return tuple(placed[number] for number in range(len(order)))

    def _podset(self, tree: Tree, level: int, pods: Pods, within: Mask | None) -> Spot | None:
        """Pods alike in one domain of a level: on nodes near first, then in domains near, the finest first."""
        fits = _inside(self.caps_of(pods.shape), within)
        for close in self._widening(tree):
            close_fits = _inside(fits, close)
            if int(close_fits.sum()) >= pods.count:
                found = _filled(Capacity(tree, close_fits, pods.slices), level, pods)
                if found is not None:
                    return self._filled_up(tree, level, pods, fits, _spot(tree, found))
        return None

    def _widening(self, tree: Tree) -> Iterator[Mask | None]:
        """The nodes that are near, those of the domains they are in, level by level upwards, all nodes."""
        if self.near is not None and self.near.any():
            yield self.near
            for row, starts in zip(tree.domain[::-1], tree.starts[::-1], strict=True):
                used = np.zeros(len(starts) + 1, dtype=np.bool_)
                used[row[self.near]] = True
                used[-1] = False  # nodes that are invisible to this topology
                yield used[row]
        yield None

    def _filled_up(self, tree: Tree, level: int, pods: Pods, fits: Ints, alone: Spot) -> Spot:
        """``alone``, or what fills up the nodes near first: whichever takes fewer other nodes."""
        if self.near is None or pods.slices or pods.balanced:
            return alone
        nodes, _ = alone
        if level != ANYWHERE:
            row = np.arange(len(fits)) if level == tree.depth else tree.domain[level]
            fits = np.where(row == row[nodes[0]], fits, 0)
        filled = np.flatnonzero(self.near & (fits > 0))
        rest = pods.count - int(fits[filled].sum())
        if rest <= 0 or not len(filled):
            return alone
        added = Capacity(tree, np.where(self.near, 0, fits)).anywhere(rest)
        if added is None or len(added[1]) >= np.count_nonzero(~self.near[nodes]):
            return alone
        more, counts = _spot(tree, added)
        return np.concatenate([filled, more]), np.concatenate([fits[filled], counts])


def _sizes(free: Ints, podsets: Sequence[Sequence[Pods]]) -> list[float]:
    """What each of these podsets asks together, as a share of all that is free of the scarcest resource."""
    columns = {column for pods in podsets for p in pods for column in p.shape.columns}
    totals = {c: max(1, int(np.maximum(free[c], 0).sum())) for c in columns}
    return [
        max(
            (p.count * int(p.shape.vector[c]) / totals[c] for p in pods for c in p.shape.columns),
            default=0.0,
        )
        for pods in podsets
    ]


def _filled(capacity: Capacity, level: int, pods: Pods) -> Filled | None:
    """Spread evenly where that is asked and possible, else as close together as can be."""
    even = capacity.evenly(level, pods.count) if pods.balanced else None
    if even is not None:
        return even
    count = pods.count
    return capacity.anywhere(count) if level == ANYWHERE else capacity.best_domain(level, count)


def _spot(tree: Tree, found: Filled) -> Spot:
    """Node indexes and pods of what :mod:`queuectl.planner.placement.single` found."""
    positions = np.array([at for at, _ in found[1]], dtype=np.int64)
    return tree.order[positions], np.array([count for _, count in found[1]], dtype=np.int64)


def _inside(counts: Ints, mask: Mask | None) -> Ints:
    """Counts per node, 0 outside the mask."""
    return counts if mask is None else np.where(mask, counts, 0)


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    """Nodes in both masks; None stands for no bounds."""
    if one is None or other is None:
        return other if one is None else one
    shared: Mask = one & other
    return shared


def on_fleet(nodes: Ints, node_counts: NodeCounts) -> NodeCounts:
    """Node counts by the numbers that some nodes have in the fleet."""
    return tuple((nodes[at], counts) for at, counts in node_counts)


def on_nodes(
    request: GangRequest, nodes: Ints, within: Sequence[Mask | None] | None = None
) -> GangRequest:
    """A gang of one topology as if there were no other nodes than these, in topology order: number i is its node i.

    Args:
        request: the gang.
        nodes: node indexes.
        within: per podset group, the nodes of the fleet it is confined to; None for no bounds.
    """
    tree = request.podset_groups[0].tree.within(nodes)
    bounds = within if within is not None else [None] * len(request.podset_groups)
    podset_groups = (
        _on(tree, nodes, podset_group, mask)
        for podset_group, mask in zip(request.podset_groups, bounds, strict=True)
    )
    return replace(request, podset_groups=tuple(podset_groups))


def _on(tree: Tree, nodes: Ints, podset_group: PodSetGroup, within: Mask | None) -> PodSetGroup:
    """A podset group on the tree of some nodes, its shapes confined as it was."""

    def there(pods: Pods) -> Pods:
        eligible = pods.shape.eligible if within is None else pods.shape.eligible & within
        return replace(pods, shape=replace(pods.shape, eligible=eligible[nodes]))

    bundle = there(podset_group.bundle) if podset_group.bundle is not None else None
    return replace(
        podset_group, tree=tree, pods=tuple(map(there, podset_group.pods)), bundle=bundle
    )

"""Podsets placed one after the other, greedily and on real amounts.

A placement proves that a gang fits. None proves nothing, unless all pods of the gang are alike, where
:mod:`queuectl.planner.placement.single` is exact.

Several podsets, of one podset group or of several, are tried in one domain: the tightest of those that have room by sums, the finest
levels first, each podset near those placed before it. PodSet groups that need not share a domain are also placed each for itself, and
the narrower of the placements counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.planner.capacity.node_counts import NodeCounts, take
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.placement.single import (
    Filled,
    ShapeCapacity,
    avoided_nodes,
    domain_counts,
    levels_to_try,
    width,
)
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.problem import Shape, Spared, caps, most_pods
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, ShapePods, on_nodes

# ---- Where several podsets may fit together, by sums

Floats: TypeAlias = NDArray[np.float64]

_DOMAINS: Final = 48  # tried of the level that all must share
_FINER: Final = 3  # tried of each finer level


def regions(
    tree: Tree, level: int, pods: Sequence[ShapePods], fits: Sequence[Ints], free: Ints
) -> Iterator[Mask | None]:
    """Nodes on which all these pods may fit together, the narrowest first.

    Single nodes, and single domains from the finest level up to ``level``; in each domain of ``level``, its few richest domains
    of the finest level before the whole of it.

    Args:
        tree: of all of them.
        level: of the domain that all must share; ANYWHERE = all nodes, as None.
        pods: podsets.
        fits: per podset, pods that fit each node by themselves.
        free: (R, n).
    """
    loads = _Loads(tree, pods, fits, free)
    for finer in range(tree.depth, level, -1):
        for domain in loads.candidate_domains(finer)[:_FINER].tolist():
            yield tree.position == domain if finer == tree.depth else tree.domain[finer] == domain
    for domain in loads.candidate_domains(level)[:_DOMAINS].tolist():
        mask = None if level == ANYWHERE else tree.domain[level] == domain
        if level < tree.depth - 1:
            yield loads.richest(mask)
        yield mask


@dataclass(eq=False)
class _Loads:
    """How many of some podsets the domains of a tree can hold, each alone, and how much of each resource they ask, all together."""

    tree: Tree
    pods: Sequence[ShapePods]
    fits: Sequence[Ints]
    free: Ints

    @cached_property
    def _counts(self) -> list[ShapeCounts]:
        counts = [
            ShapeCounts(self.tree, fits, p.slices)
            for fits, p in zip(self.fits, self.pods, strict=True)
        ]
        usable = np.logical_or.reduce([fits > 0 for fits in self.fits])
        there = np.where(usable, np.maximum(self.free, 0), 0)
        return [*counts, *(ShapeCounts(self.tree, there[c]) for c in self._columns)]

    @cached_property
    def _columns(self) -> list[int]:
        return sorted({column for p in self.pods for column in p.shape.columns})

    @cached_property
    def _asked(self) -> Ints:
        vectors = np.stack([p.shape.vector[self._columns] for p in self.pods], axis=1)
        counts = np.array([p.count for p in self.pods])
        return np.concatenate([counts, vectors @ counts])

    def _held(self, level: int) -> Ints:
        """The loads of each domain of a level, (loads, domains)."""
        return np.stack([each.holding(level) for each in self._counts])

    def candidate_domains(self, level: int) -> Ints:
        """Domains of a level with room by sums: where the podsets need the fewest domains below, the tightest first.

        Domains come later in which pods cannot leave the nodes that they avoid. The remaining capacity is compared from the top level
        down, so that large free domains stay whole.
        """
        held = self._held(level)
        some = np.flatnonzero((held >= self._asked[:, None]).all(axis=0))
        if len(some) < 2:
            return some
        tree = self.tree
        first = tree.order[some if level == tree.depth else tree.starts[level][some]]
        left = [self._share(above).sum(axis=0)[tree.domain[above][first]] for above in range(level)]
        left.append(self._share(level).sum(axis=0)[some])
        left.insert(0, self._spoils(level)[some])
        if level == tree.depth:
            return some[np.lexsort(left[::-1])]
        alone = zip(self._counts, self.pods, strict=False)
        least = np.max([c.least(level, 0, held.shape[1], p.count) for c, p in alone], axis=0)
        return some[np.lexsort((*left[::-1], *least[::-1, some]))]

    def _spoils(self, level: int) -> Floats:
        """Of each domain, the podsets that its nodes without those that they avoid do not hold."""
        spoils = np.zeros(len(self._held(level)[0]))
        for fits, p in zip(self.fits, self.pods, strict=True):
            if p.shape.spared is not None:
                rest = np.where(p.shape.spared.avoided[-1], 0, fits)
                spoils += ShapeCounts(self.tree, rest, p.slices).holding(level) < p.count
        return spoils

    def _share(self, level: int) -> Floats:
        """The same as shares of what is asked."""
        share: Floats = self._held(level) / self._asked[:, None]
        return share

    def richest(self, mask: Mask | None) -> Mask | None:
        """The fewest domains of the finest level inside some nodes that hold all by sums, as far as the richest do."""
        level = self.tree.depth - 1
        held, share = self._held(level), self._share(level)
        if mask is not None:
            inside = mask[self.tree.order[self.tree.starts[level]]]
            held, share = held * inside, share * inside
        richest = np.lexsort((-share.sum(axis=0), -share.min(axis=0)))
        enough = (held[:, richest].cumsum(axis=1) >= self._asked[:, None]).all(axis=0)
        if not enough.any():
            return mask
        few: Mask = np.isin(self.tree.domain[level], richest[: int(enough.argmax()) + 1])
        return few if mask is None else few & mask


# ---- Greedy placement

CapsOf: TypeAlias = Callable[[Shape], Ints]
PodsPerNode: TypeAlias = tuple[Ints, Ints]  # node indexes, pods on each


def exact(request: GangRequest) -> bool:
    """Whether "no placement found" is a proof: one podset group whose pods are all alike, or all on one node."""
    podset_groups = request.podset_groups
    return not podset_groups or (
        len(podset_groups) == 1
        and (len(podset_groups[0].pods) == 1 or podset_groups[0].on_one_node)
    )


def find(request: GangRequest, free: Ints, caps_of: CapsOf) -> NodeCounts | None:
    """Node counts for the whole gang, its podsets close together, or None.

    Args:
        request: the gang under one choice of flavors.
        free: (R, N).
        caps_of: pods of a shape that fit each node of ``free``.
    """
    if exact(request) or not one_tree(request):
        return _each_alone(request, _Scratch(free, caps_of))
    fits = [caps_of(p.shape) for p in request.pods]
    if any(int(f.sum()) < p.count for f, p in zip(fits, request.pods, strict=True)):
        return None
    order = request.podset_groups[0].tree.order
    nodes = order[np.logical_or.reduce([f > 0 for f in fits])[order]]
    known = {p.shape.key: f[nodes] for f, p in zip(fits, request.pods, strict=True)}
    found = _narrowest(on_nodes(request, nodes), free[:, nodes], known)
    return None if found is None else on_fleet(nodes, found)


def first(
    request: GangRequest, free: Ints, within: Sequence[Mask | None] | None = None
) -> NodeCounts | None:
    """The first placement met: each podset group where it alone is best.

    Args:
        request: the gang under one choice of flavors.
        free: (R, N).
        within: per podset group, the nodes it is confined to; None for no bounds.
    """
    return _each_alone(request, _Scratch(free, lambda shape: caps(free, shape)), within)


def find_near(
    request: GangRequest,
    free: Ints,
    caps_of: CapsOf,
    within: Sequence[Mask | None],
    near: Mask,
) -> NodeCounts | None:
    """The same on as few nodes outside ``near`` as greedy filling finds, and in the domains of those first."""
    order = _orders(request.podset_groups, free)[0]
    return _Scratch(free, caps_of, near.copy()).pack(request.podset_groups, order, within)


def narrowed(request: GangRequest, free: Ints, node_counts: NodeCounts) -> NodeCounts:
    """A placement found otherwise, or a narrower one. Podsets that are spread evenly are not drawn together."""
    if not one_tree(request) or any(p.balanced for p in request.pods):
        return node_counts
    other = find(request, free, lambda shape: caps(free, shape))
    if other is None:
        return node_counts
    return min(node_counts, other, key=partial(_rank, request))


def _rank(request: GangRequest, node_counts: NodeCounts) -> tuple[int, ...]:
    """The lesser is the better placement: by its width, then by the nodes that its pods leave to others if they can."""
    return (*width(request, node_counts), avoided_nodes(request.pods, node_counts))


def one_tree(request: GangRequest) -> bool:
    """Whether all podset groups are of one topology."""
    return all(
        podset_group.tree is request.podset_groups[0].tree for podset_group in request.podset_groups
    )


def _each_alone(
    request: GangRequest, scratch: _Scratch, within: Sequence[Mask | None] | None = None
) -> NodeCounts | None:
    """Each podset group where it alone is best, the hardest first or last."""
    for order in _orders(request.podset_groups, scratch.free):
        found = scratch.copy().pack(request.podset_groups, order, within)
        if found is not None:
            return found
    return None


def _narrowest(request: GangRequest, free: Ints, fits: dict[int, Ints]) -> NodeCounts | None:
    """The narrowest of three placements: each podset group where it alone is best, in either order, and all close together.

    Args:
        request: the gang under one choice of flavors.
        free: (R, N).
        fits: key of a shape to the pods of it that fit each node.
    """

    def caps_of(shape: Shape) -> Ints:
        if shape.key not in fits:
            fits[shape.key] = caps(free, shape)
        return fits[shape.key]

    groups, scratch = request.podset_groups, _Scratch(free, caps_of)
    found = _each_alone(request, scratch)
    if found is None or len(groups) == 1 or any(p.balanced for p in request.pods):
        return found
    last = scratch.copy().pack(groups, _orders(groups, free)[-1])
    others = (scratch.together(groups, ANYWHERE, None), last)
    return min((found, *filter(None, others)), key=partial(_rank, request))


def _orders(podset_groups: Sequence[PodSetGroup], free: Ints) -> list[Sequence[int]]:
    """The hardest podset group first, then last: of a finer required level, then with the largest pods as a share of what is free."""
    if len(podset_groups) == 1:
        return [(0,)]
    sizes = _sizes(free, [podset_group.pods for podset_group in podset_groups])
    numbers = range(len(podset_groups))
    hardest = sorted(numbers, key=lambda i: (-podset_groups[i].required, -sizes[i]))
    return [hardest, hardest[::-1]]


def hardest_first(requests: Sequence[GangRequest], free: Ints) -> list[int]:
    """Gangs by number: of a finer required level first, then with the largest pods as a share of what is free, then with more pods."""
    sizes = _sizes(free, [request.pods for request in requests])
    levels = [max((g.required for g in r.podset_groups), default=ANYWHERE) for r in requests]
    counts = [sum(p.count for p in request.pods) for request in requests]
    return sorted(range(len(requests)), key=lambda i: (-levels[i], -sizes[i], -counts[i]))


@dataclass(eq=False, slots=True)
class _Scratch:
    """The free capacity while podset groups are placed one after the other.

    Attributes:
        free: (R, n), copied before the first change.
        caps_of: pods of a shape that fit each node of ``free``.
        near: nodes near which podset groups are placed; None: each where it is best alone.
    """

    free: Ints
    caps_of: CapsOf
    near: Mask | None = None
    _own: bool = False

    def copy(self, *, close: bool = False) -> _Scratch:
        """Another one to place podsets on; ``close``: each near those placed before it."""
        near = None if self.near is None else self.near.copy()
        if near is None and close:
            near = np.zeros(self.free.shape[1], dtype=np.bool_)
        return _Scratch(self.free, self.caps_of, near)

    def pack(
        self,
        podset_groups: Sequence[PodSetGroup],
        order: Sequence[int],
        within: Sequence[Mask | None] | None = None,
    ) -> NodeCounts | None:
        """All podset groups in this order; ``within``: the nodes each is confined to."""
        placed: dict[int, NodeCounts] = {}
        for number in order:
            found = self._place(podset_groups[number], within[number] if within else None)
            if found is None:
                return None
            placed[number] = found
            if len(placed) < len(order):
                self._take(podset_groups[number].pods, found)
        return tuple(counts for number in range(len(order)) for counts in placed[number])

    def together(
        self, podset_groups: Sequence[PodSetGroup], level: int, within: Mask | None
    ) -> NodeCounts | None:
        """All podset groups in the first domain of a level, or part of one, that holds them: the narrower of two placements there."""
        pods = [p for podset_group in podset_groups for p in podset_group.pods]
        fits = [_inside(self.caps_of(p.shape), within) for p in pods]
        orders = _orders(podset_groups, self.free)

        def key(node_counts: NodeCounts) -> tuple[int, ...]:
            return (*domain_counts(podset_groups[0], node_counts), avoided_nodes(pods, node_counts))

        for mask in regions(podset_groups[0].tree, level, pods, fits, self.free):
            inside = [both(within, mask)] * len(podset_groups)
            ways = (self.copy(close=True).pack(podset_groups, order, inside) for order in orders)
            narrowest = min(filter(None, ways), key=key, default=None)
            if narrowest is not None:
                return narrowest
        return None

    def _take(self, pods: Sequence[ShapePods], node_counts: NodeCounts) -> None:
        """The next podset group finds less by these pods, and is placed near them."""
        if not self._own:
            self.free, self._own = self.free.copy(), True
            self.caps_of = lambda shape: caps(self.free, shape)
        take(self.free, pods, node_counts)
        if self.near is not None:
            for nodes, _ in node_counts:
                self.near[nodes] = True

    def _place(self, podset_group: PodSetGroup, within: Mask | None) -> NodeCounts | None:
        """Where the pods of a podset group go, at the finest level it prefers or must share; None when nothing is found."""
        for level in levels_to_try(podset_group):
            found = self._at(podset_group, level, within)
            if found is not None:
                return found
        return None

    def _at(self, podset_group: PodSetGroup, level: int, within: Mask | None) -> NodeCounts | None:
        tree, pods, bundle = podset_group.tree, podset_group.pods, podset_group.bundle
        if bundle is not None and level == tree.depth:
            counts = self._podset(tree, level, bundle, within)
            return None if counts is None else tuple((counts[0], np.array([p.count])) for p in pods)
        if len(pods) == 1:
            counts = self._podset(tree, level, pods[0], within)
            return None if counts is None else (counts,)
        parts = [PodSetGroup(tree, (p,), required=level) for p in pods]
        return self.together(parts, level, within)

    def _podset(
        self, tree: Tree, level: int, pods: ShapePods, within: Mask | None
    ) -> PodsPerNode | None:
        """Pods alike in one domain of a level: on nodes near first, then in domains near, the finest first."""
        fits = _inside(self.caps_of(pods.shape), within)
        for close in self._widening(tree):
            close_fits = _inside(fits, close)
            if int(close_fits.sum()) >= pods.count:
                found = self._filled(tree, level, pods, close_fits)
                if found is not None:
                    return self._filled_up(tree, level, pods, fits, _pods_per_node(tree, found))
        return None

    def _filled(self, tree: Tree, level: int, pods: ShapePods, fits: Ints) -> Filled | None:
        """Where pods go by what fits each node: of placements with as few domains, one that leaves most to other pods."""
        spared = pods.shape.spared
        if spared is None:
            return _filled(ShapeCapacity(tree, fits, pods.slices), level, pods)
        avoided = spared.avoided[-1]
        found = _filled(ShapeCapacity(tree, fits, pods.slices, avoided=avoided), level, pods)
        if found is None:
            return None
        for fewer in self._sparing(spared, pods.shape, fits, _pods_per_node(tree, found)[0]):
            if int(fewer.sum()) >= pods.count:
                other = _filled(
                    ShapeCapacity(tree, fewer, pods.slices, avoided=avoided), level, pods
                )
                if other is not None and ShapeCapacity.widths(other) <= ShapeCapacity.widths(found):
                    return other
        return found

    def _sparing(self, spared: Spared, shape: Shape, fits: Ints, used: Ints) -> Iterator[Ints]:
        """Pods that fit each node if they leave more to others than those on the nodes ``used``: the most first."""
        for avoided in spared.avoided:
            if not avoided[used].any():
                return
            yield np.where(avoided, 0, fits)
        if spared.needs:
            beside = spared.beside_devices(self.free)
            yield np.minimum(fits, most_pods(beside, shape.vector, shape.columns))

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

    def _filled_up(
        self, tree: Tree, level: int, pods: ShapePods, fits: Ints, alone: PodsPerNode
    ) -> PodsPerNode:
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
        added = ShapeCapacity(tree, np.where(self.near, 0, fits)).anywhere(rest)
        if added is None or len(added[1]) >= np.count_nonzero(~self.near[nodes]):
            return alone
        more, counts = _pods_per_node(tree, added)
        return np.concatenate([filled, more]), np.concatenate([fits[filled], counts])


def _sizes(free: Ints, podsets: Sequence[Sequence[ShapePods]]) -> list[float]:
    """The sum of the requests of each podset, as a share of the free amount of the scarcest resource."""
    columns = {column for pods in podsets for p in pods for column in p.shape.columns}
    totals = {c: max(1, int(np.maximum(free[c], 0).sum())) for c in columns}
    return [
        max(
            (int(p.shape.vector[c]) / totals[c] for p in pods for c in p.shape.columns),
            default=0.0,
        )
        for pods in podsets
    ]


def _filled(capacity: ShapeCapacity, level: int, pods: ShapePods) -> Filled | None:
    """Spread evenly where that is asked and possible, otherwise as close together as can be."""
    even = capacity.evenly(level, pods.count) if pods.balanced else None
    if even is not None:
        return even
    count = pods.count
    return capacity.anywhere(count) if level == ANYWHERE else capacity.best_domain(level, count)


def _pods_per_node(tree: Tree, filled: Filled) -> PodsPerNode:
    """Node indexes and pods of what :mod:`queuectl.planner.placement.single` found."""
    positions = np.array([at for at, _ in filled[1]], dtype=np.int64)
    return tree.order[positions], np.array([count for _, count in filled[1]], dtype=np.int64)


def _inside(counts: Ints, mask: Mask | None) -> Ints:
    """Counts per node, 0 outside the mask."""
    return counts if mask is None else np.where(mask, counts, 0)


def both(first: Mask | None, second: Mask | None) -> Mask | None:
    """Nodes in both masks; None = no bounds."""
    if first is None or second is None:
        return second if first is None else first
    shared: Mask = first & second
    return shared


def on_fleet(nodes: Ints, node_counts: NodeCounts) -> NodeCounts:
    """Node counts by the numbers that some nodes have in the fleet."""
    return tuple((nodes[at], counts) for at, counts in node_counts)

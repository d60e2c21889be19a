"""A placement of one demand found greedily and checked on real vectors: a witness that it fits.

A witness proves that a gang fits; none proves nothing, unless the gang is a single podset, where
:mod:`queuectl.planner.placement.fill` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.cells import asked_pods
from queuectl.planner.placement.compact import Order, narrowed, told_in
from queuectl.planner.placement.scratch import Beside, Scratch, inside
from queuectl.planner.placement.site import Spot
from queuectl.planner.placement.together import weight
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Pods, Unit
from queuectl.planner.problem.topology import Ints, Mask, Tree


def exact(request: GangRequest) -> bool:
    """Whether "no witness" is a proof: one unit whose pods are all alike, or all on one node."""
    return not request.units or (
        len(request.units) == 1
        and (len(request.units[0].pods) == 1 or request.units[0].on_one_node)
    )


def find(
    request: GangRequest,
    free: Ints,
    caps_of: Callable[[Shape], Ints],
    within: Sequence[Mask | None] | None = None,
) -> NodeCounts | None:
    """Spots for the whole demand, or None.

    Args:
        request: the gang under one choice of flavors.
        free: (R, N).
        caps_of: pods of a shape that fit each node of ``free``.
        within: per unit, the nodes it is confined to; None for no bounds.
    """
    packer = _packer(request, free, caps_of, within)
    if not packer.competing:
        return packer.first()
    if any(int(f.sum()) < p.count for f, p in zip(packer.fits, request.pods, strict=True)):
        return None
    nodes = packer.useful()
    packer = packer.part(nodes)
    found = packer.first()
    return None if found is None else told_in(nodes, packer.narrowed(found))


def find_any(
    request: GangRequest,
    free: Ints,
    caps_of: Callable[[Shape], Ints],
    within: Sequence[Mask | None],
) -> NodeCounts | None:
    """The first placement met: several units are not drawn together, see :func:`narrow`."""
    return _packer(request, free, caps_of, within).first()


def fits_apart(request: GangRequest, free: Ints) -> bool:
    """Whether it fits a free matrix (R, N) with pods of one sort alone on each node: a quick yes, no says nothing."""
    unused = np.ones(free.shape[1], dtype=np.bool_)
    for unit in request.units:
        if unit.sliced:
            return False
        pods = asked_pods(unit)
        fits = np.stack([caps(free, p.shape) for p in pods])
        nodes: Mask = (fits > 0).all(axis=0) & unused
        if not nodes.any():
            return False
        if not unit.on_one_node and unit.required != ANYWHERE:
            roomiest = np.argmax(unit.tree.sums(unit.required, nodes.astype(np.int64)))
            nodes &= unit.tree.domain[unit.required] == roomiest
        these = nodes.nonzero()[0]
        least = fits[:, these].min(axis=1).tolist()
        needed = sum(-(-p.count // most) for p, most in zip(pods, least, strict=True))
        if needed > len(these):
            return False
        unused[these[:needed]] = False
    return True


def find_beside(
    request: GangRequest,
    free: Ints,
    caps_of: Callable[[Shape], Ints],
    within: Sequence[Mask | None],
    near: Mask,
) -> NodeCounts | None:
    """The same on as few nodes outside ``near`` as greedy filling finds, and in the domains of those first."""
    packer = _packer(request, free, caps_of, within, near)
    return packer.pack(tuple(range(len(request.units))), True)


def narrow(request: GangRequest, free: Ints, found: NodeCounts) -> NodeCounts:
    """A placement found otherwise, or a narrower one."""
    packer = _packer(request, free, lambda shape: caps(free, shape), None)
    if not packer.competing:
        return found
    nodes = packer.useful()
    number = np.zeros(free.shape[1], dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    return told_in(nodes, packer.part(nodes).narrowed(told_in(number, found)))


def _packer(
    request: GangRequest,
    free: Ints,
    caps_of: Callable[[Shape], Ints],
    within: Sequence[Mask | None] | None,
    near: Mask | None = None,
) -> _Packer:
    return _Packer(
        request,
        free,
        caps_of,
        within if within is not None else [None] * len(request.units),
        near if near is not None else np.zeros(free.shape[1], dtype=np.bool_),
        free.shape[1],
        _hardest_first(request.units, free),
    )


@dataclass(eq=False)
class _Packer:
    """All units of one demand on what is free, in any order; see :class:`queuectl.planner.placement.compact.Packer`.

    Attributes:
        free: (R, n); the nodes of the fleet, or some of them.
        caps_of: pods of a shape that fit each node of ``free``.
        within: per unit, the nodes it is confined to; None for no bounds.
        near: nodes that count as used already.
        fleet: nodes of the fleet.
        hardest: the units, the hardest first; an order tells them by their places here.
    """

    request: GangRequest
    free: Ints
    caps_of: Callable[[Shape], Ints]
    within: Sequence[Mask | None]
    near: Mask
    fleet: int
    hardest: Sequence[int]

    @property
    def competing(self) -> bool:
        """Whether it has several units, all of one topology."""
        units = self.request.units
        return len(units) > 1 and all(unit.tree is units[0].tree for unit in units)

    @cached_property
    def fits(self) -> list[Ints]:
        """Of each pods of the demand, how many fit each node by themselves."""
        return [
            inside(self.caps_of(p.shape), mask)
            for unit, mask in zip(self.request.units, self.within, strict=True)
            for p in unit.pods
        ]

    def useful(self) -> Ints:
        """Nodes that hold any of its pods, in topology order."""
        order = self.request.units[0].tree.order
        fitting: Mask = np.logical_or.reduce([f > 0 for f in self.fits])
        return order[fitting[order]]

    def part(self, nodes: Ints) -> _Packer:
        """The same on some nodes alone, in topology order: number i of them is its node i."""
        free = self.free[:, nodes]
        return _Packer(
            on_nodes(self.request, nodes, self.within),
            free,
            lambda shape: caps(free, shape),
            [None] * len(self.within),
            self.near[nodes],
            self.fleet,
            self.hardest,
        )

    def first(self) -> NodeCounts | None:
        """The first placement met, the hardest units first or last."""
        forwards = tuple(range(len(self.request.units)))
        orders = dict.fromkeys((forwards, forwards[::-1]))
        return next((f for order in orders if (f := self.pack(order, False)) is not None), None)

    def pack(self, order: Order, beside: bool) -> NodeCounts | None:
        """See :class:`queuectl.planner.placement.compact.Packer`."""
        scratch = Scratch(self.free, self.caps_of)
        if beside:
            scratch = Beside(self.free, self.caps_of, near=self.near.copy())
        units = self.request.units
        placed: dict[int, tuple[Spot, ...]] = {}
        for number in (self.hardest[i] for i in order):
            scratch.within = self.within[number]
            node_counts = scratch.place(units[number])
            if node_counts is None:
                return None
            placed[number] = node_counts
            if len(placed) < len(units):
                scratch.take(units[number].pods, node_counts)
        return tuple(spot for number in range(len(units)) for spot in placed[number])

    def alone(self, number: int) -> NodeCounts | None:
        """One unit, as if the others were not there."""
        return Scratch(self.free, self.caps_of, self.within[number]).place(
            self.request.units[number]
        )

    def narrowed(self, found: NodeCounts) -> NodeCounts:
        """The narrowest placement met, or the one found. What is spread evenly is not drawn together."""
        return found if any(p.balanced for p in self.request.pods) else narrowed(self, found)


def on_nodes(
    request: GangRequest, nodes: Ints, within: Sequence[Mask | None] | None = None
) -> GangRequest:
    """A demand of one topology as if there were no other nodes than these, in topology order: number i is its node i.

    Args:
        request: the gang.
        nodes: node indexes.
        within: per unit, the nodes of the fleet it is confined to; None for no bounds.
    """
    tree = request.units[0].tree.within(nodes)
    bounds = within if within is not None else [None] * len(request.units)
    units = (_on(tree, nodes, unit, mask) for unit, mask in zip(request.units, bounds, strict=True))
    return replace(request, units=tuple(units))


def _on(tree: Tree, nodes: Ints, unit: Unit, within: Mask | None) -> Unit:
    """A unit on the tree of some nodes, its shapes confined as it was."""

    def there(pods: Pods) -> Pods:
        eligible = pods.shape.eligible if within is None else pods.shape.eligible & within
        return replace(pods, shape=replace(pods.shape, eligible=eligible[nodes]))

    bundle = there(unit.bundle) if unit.bundle is not None else None
    return replace(unit, tree=tree, pods=tuple(map(there, unit.pods)), bundle=bundle)


def _hardest_first(units: tuple[Unit, ...], free: Ints) -> list[int]:
    """Finer required level first, then the larger; ties as asked."""
    if len(units) == 1:
        return [0]
    asked = {column for unit in units for p in unit.pods for column in p.shape.columns}
    totals = {column: int(np.maximum(free[column], 0).sum()) for column in asked}
    return sorted(
        range(len(units)), key=lambda i: (-units[i].required, -weight(units[i].pods, totals))
    )

"""Several units of one gang: fewer domains over the whole of it, where each unit alone could sit in another as well.

Units are placed one after the other, and each finds its own tightest domain; so two podsets that fit one rack may end up in
two. Here sets of domains that could hold all of them are tried, level by level from the top, the smallest sets first and the
tightest among equals; on a small fleet at last sets of nodes. What is better, :func:`width` says.

Finding nothing better is no proof: the sets looked at and the packings tried are limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product
from typing import Final, Protocol, TypeAlias

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.counts import Counts
from queuectl.planner.placement.measure import prefers_in_vain, widths
from queuectl.planner.placement.roomy import Roomy
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Ints, Tree

Width: TypeAlias = tuple[int, ...]
Order: TypeAlias = tuple[int, ...]  # of the units, by their numbers among the hardest first

_SMALL: Final = 64  # nodes of a fleet where packing is so cheap that much is tried
_TRIES: Final = (60, 6)  # packings in all, of a gang on a small fleet and on others
_PERMUTED: Final = 3  # units of which every order is tried on a small fleet


class Packer(Protocol):
    """Places the units of one demand on some nodes, which are numbered in topology order; spots are told in their numbers.

    Attributes:
        request: of several units, all of one tree: that of these nodes.
        free: (R, n).
        fleet: nodes of the fleet, of which these may be a part.
        fits: of each pods of the demand, how many fit each node by themselves.
    """

    request: GangRequest
    free: Ints
    fleet: int

    @property
    def fits(self) -> Sequence[Ints]: ...

    def pack(self, order: Order, beside: bool) -> NodeCounts | None:
        """All of them in this order; ``beside``: each near those before it where it can."""
        ...

    def alone(self, number: int) -> NodeCounts | None:
        """One of them, as if the others were not there."""
        ...

    def part(self, nodes: Ints) -> Packer:
        """On some of its nodes, ascending."""
        ...


def width(request: GangRequest, node_counts: NodeCounts) -> Width:
    """How wide a gang of several units stands, less is better, from the first number that tells two placements apart.

    Units that miss the level they prefer; the domains that each unit uses, summed, level by level from the top and nodes
    last; then those that the gang uses, counted once, likewise.
    """
    parts = list(per_unit(request, node_counts))
    rows = [widths(unit, own) for unit, own in parts]
    vain = sum(prefers_in_vain(unit, row) for (unit, _), row in zip(parts, rows, strict=True))
    return (vain, *map(sum, zip(*rows, strict=True)), *widths(request.units[0], node_counts))


def per_unit(request: GangRequest, node_counts: NodeCounts) -> Iterator[tuple[Unit, NodeCounts]]:
    """Each unit with its share of the spots."""
    at = 0
    for unit in request.units:
        yield unit, node_counts[at : at + len(unit.pods)]
        at += len(unit.pods)


def narrowed(packer: Packer, found: NodeCounts) -> NodeCounts:
    """The narrowest placement met, ``found`` or another."""
    return _Compact(packer, found).narrowest()


@dataclass(eq=False)
class _Compact:
    """One gang on some nodes.

    Attributes:
        best: the narrowest placement so far, of this ``wide``.
        tries: packings so far.
    """

    packer: Packer
    best: NodeCounts
    tries: int = 0
    wide: Width = field(init=False)

    def __post_init__(self) -> None:
        self.wide = width(self.request, self.best)

    def narrowest(self) -> NodeCounts:
        each = self.tree.depth + 2  # numbers of the width that are sums over the units
        if self.small or self.wide[:each] > self._least[:each]:
            self._try(None)
        for level in range(self.tree.depth + self.small):
            self._in_fewer_at(level)
        return self.best

    @property
    def request(self) -> GangRequest:
        return self.packer.request

    @property
    def tree(self) -> Tree:
        return self.request.units[0].tree

    @property
    def small(self) -> bool:
        return self.packer.fleet <= _SMALL

    @cached_property
    def roomy(self) -> Roomy:
        pods = zip(self.packer.fits, self.request.pods, strict=True)
        held = [Counts(self.tree, fits, p.slices) for fits, p in pods]
        return Roomy(self.request, self.packer.free, held)

    def _done(self) -> bool:
        """Whether to look no further: that two units share a node is not worth a search on a large fleet."""
        if self.tries >= _TRIES[not self.small]:
            return True
        return self.wide[: len(self._least)] <= self._least

    @cached_property
    def _least(self) -> Width:
        """No placement is less wide: each unit is at least as wide as it is alone, and the gang as its widest unit.

        Without the last number, the nodes of the gang, on a large fleet.
        """
        vain = sum(map(prefers_in_vain, self.request.units, self._alone))
        levels = list(zip(*self._alone, strict=True))
        of_all = [
            max(*levels[at], self.roomy.filled(at)) for at in range(self.tree.depth + self.small)
        ]
        return (vain, *map(sum, levels), *of_all)

    @cached_property
    def _alone(self) -> list[Width]:
        """Of each unit, how wide it is when the others are not there; of several podsets, a lower bound."""
        at, rows = 0, []
        for number, (unit, node_counts) in enumerate(per_unit(self.request, self.best)):
            rows.append(
                self._unit_alone(number, unit, widths(unit, node_counts), self.roomy.held[at])
            )
            at += len(unit.pods)
        return rows

    def _unit_alone(self, number: int, unit: Unit, found: Width, held: Counts) -> Width:
        """``found``, where it is as wide as a lower bound; else it is placed alone."""
        one_node = (1,) * len(found)
        if found == one_node or len(unit.pods) > 1:
            return one_node
        bound = held.bound(ANYWHERE, 0, unit.pods[0].count)
        if found == bound and not prefers_in_vain(unit, found):
            return found
        node_counts = self.packer.alone(number)
        return one_node if node_counts is None else widths(unit, node_counts)

    def _most(self, unit: int, level: int) -> int | None:
        """Of how many domains of a level a unit may be in a placement narrower than the best; None: of any number.

        Where nothing that counts before can be less, the sum over the units must not grow.
        """
        if self.wide[: level + 1] > self._least[: level + 1]:
            return None
        return self.wide[level + 1] - self._least[level + 1] + self._alone[unit][level]

    def _in_fewer_at(self, level: int) -> None:
        """Fewer domains of a level; on a small fleet also as few of another choice."""
        k = 1 if self._done() else self.roomy.fewest(level)
        while not self._done() and k < self.wide[level - self.tree.depth - 1] + self.small:
            if not any(self._try(nodes) for nodes in self.roomy.sets(level, k, self._most)):
                k += 1

    def _try(self, nodes: Ints | None) -> bool:
        """Pack all units on these nodes, None for all; whether that is narrower than the best so far."""
        better = False
        if self._done():
            return better
        packer = self.packer if nodes is None else self.packer.part(nodes)
        for order, beside in self._ways():
            if self._done():
                break
            self.tries += 1
            node_counts = packer.pack(order, beside)
            if node_counts is None:
                continue
            if nodes is not None:
                node_counts = told_in(nodes, node_counts)
            if (wide := width(self.request, node_counts)) < self.wide:
                self.best, self.wide, better = node_counts, wide, True
        return better

    def _ways(self) -> Iterator[tuple[Order, bool]]:
        """Orders of the units, and whether each is placed near those before it."""
        forwards = tuple(range(len(self.request.units)))
        if self.small and len(forwards) <= _PERMUTED:
            return product(permutations(forwards), (True, False))
        return product((forwards, forwards[::-1]), (True,))


def told_in(nodes: Ints, node_counts: NodeCounts) -> NodeCounts:
    """Spots on some nodes, told in the numbers those nodes have among all."""
    return tuple((nodes[at], counts) for at, counts in node_counts)

"""Which rank sits where once lost pods of a running gang are placed anew.

Healthy pods keep their ranks and nodes. A rank that was lost goes beside what is left of its slice, the finest layer first;
slices that lost every pod take what remains, in topology order, so that they too stay in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Layer = tuple[int, Callable[[str], object]]  # size of a slice, and the domain a node is in


@dataclass(eq=False)
class Seats:
    """The ranks of one podset, in order.

    Attributes:
        nodes: of each rank; None where it was lost.
        free: nodes of the pods placed anew, one entry per pod, in topology order.
    """

    nodes: list[str | None]
    free: list[str]

    def fill(self, layers: Sequence[Layer]) -> tuple[tuple[str, int], ...]:
        """Give every lost rank a node; ``layers`` from fine to coarse."""
        for size, domain_of in layers:
            self._complete(size, domain_of)
        rest = iter(self.free)
        return _runs([node if node is not None else next(rest) for node in self.nodes])

    def _complete(self, size: int, domain_of: Callable[[str], object]) -> None:
        """Seat the lost ranks of slices that are not lost altogether."""
        for start in range(0, len(self.nodes), size):
            ranks = range(start, min(start + size, len(self.nodes)))
            left = [node for rank in ranks if (node := self.nodes[rank]) is not None]
            for rank in ranks if left else ():
                if self.nodes[rank] is None:
                    beside = (n for n in self.free if domain_of(n) == domain_of(left[0]))
                    self._sit(rank, next(beside, None))

    def _sit(self, rank: int, node: str | None) -> None:
        if node is not None:
            self.free.remove(node)
            self.nodes[rank] = node


def seats_of(
    before: Sequence[tuple[str, int]],
    staying: Mapping[str, int],
    after: Mapping[str, int],
    order: Callable[[str], tuple[int, str]],
) -> Seats | None:
    """The seats of a podset before its lost pods are seated; None when the numbers of pods differ.

    Args:
        before: the placement it has, by rank.
        staying: node to its healthy pods.
        after: node to all its pods, once the lost ones are placed anew.
        order: sort key of a node in the topology.
    """
    left = dict(staying)
    nodes: list[str | None] = []
    for node, count in before:
        stays = min(count, left.get(node, 0))
        left[node] = left.get(node, 0) - stays
        nodes += [node] * stays + [None] * (count - stays)
    free = [n for n in sorted(after, key=order) for _ in range(after[n] - staying.get(n, 0))]
    return Seats(nodes, free) if nodes.count(None) == len(free) else None


def _runs(nodes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    runs: list[tuple[str, int]] = []
    for node in nodes:
        if runs and runs[-1][0] == node:
            runs[-1] = node, runs[-1][1] + 1
        else:
            runs.append((node, 1))
    return tuple(runs)

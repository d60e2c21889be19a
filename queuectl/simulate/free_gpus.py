"""The free GPUs of nodes over time, and how many of them the next pod is expected to be unable to use.

The measure is defined in :mod:`queuectl.reports.fragmentation`, for pods that request only GPUs. It is updated with each gang that starts or
stops, so that it costs the same for each number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Placed = Iterable[tuple[str, int]]
"""Names of nodes, and GPUs that a gang holds on each."""


@dataclass(slots=True)
class _Group:
    """Nodes of flavors with the same largest node. Larger pods do not count for them.

    Attributes:
        largest: GPUs of the largest node of the flavors.
        nodes: by free GPUs, the number of nodes.
    """

    largest: int
    nodes: dict[int, int] = field(default_factory=dict)

    def count(self, _: str, free: int, sign: int) -> None:
        """A node has so many free GPUs from now on (1), or no longer (-1)."""
        self.nodes[free] = self.nodes.get(free, 0) + sign

    def fragmented(self, pods: Mapping[int, int]) -> float:
        """``pods``: by their GPUs, the number of pods that wait or run."""
        sizes = [(size, number) for size, number in pods.items() if number and size <= self.largest]
        total = sum(number for _, number in sizes)
        if not total:
            return 0.0
        lost = sum(
            free * nodes * sum(number for size, number in sizes if size > free)
            for free, nodes in self.nodes.items()
            if free > 0 and nodes
        )
        return lost / total


class FreeGpus:
    """The free GPUs of the nodes of one simulation.

    Attributes:
        known: no gang has started without nodes. The nodes of such a gang are chosen by another scheduler.
        total: free GPUs of all nodes that take pods.
    """

    def __init__(self, nodes: Mapping[str, int], largest: Mapping[str, int]) -> None:
        """Start with empty nodes.

        Args:
            nodes: GPUs of each node.
            largest: for each node of a flavor, the GPUs of the largest node of its flavor.
        """
        self.known = True
        self.total = 0
        self._sizes = dict(nodes)
        self._free = dict(nodes)
        self._down: set[str] = set()
        self._pods: dict[int, int] = {}
        self._watchers: dict[str, list[Callable[[str, int, int], None]]] = {}
        self._groups = {most: _Group(most) for most in sorted(set(largest.values()))}
        for most, group in self._groups.items():
            self.watch((node for node in nodes if largest.get(node) == most), group.count)
        self.watch(nodes, self._add)

    def watch(self, nodes: Iterable[str], count: Callable[[str, int, int], None]) -> None:
        """Call ``count`` with a node, its free GPUs and 1 from now on, and with -1 before the node has others or fails."""
        for node in nodes:
            self._watchers.setdefault(node, []).append(count)
            if node not in self._down:
                count(node, self._free[node], 1)

    def hold(self, placed: Placed, sign: int) -> None:
        """A gang holds GPUs from now on (1), or no longer (-1)."""
        for node, gpus in placed:
            self._change(node, self._free[node] - sign * gpus)

    def want(self, pods: int, gpus_per_pod: int, sign: int) -> None:
        """A gang waits or runs from now on (1), or no longer (-1)."""
        if gpus_per_pod:
            self._pods[gpus_per_pod] = self._pods.get(gpus_per_pod, 0) + sign * pods

    def set_up(self, node: str, *, up: bool) -> None:
        """A node fails or recovers. GPUs of a failed node are not free."""
        if up is (node not in self._down):
            return
        if up:
            self._down.remove(node)
            self._count(node, self._free[node], 1)
        else:
            self._count(node, self._free[node], -1)
            self._down.add(node)

    def takes_pods(self, node: str) -> bool:
        """Whether a node is up."""
        return node not in self._down

    def resize(self, node: str, gpus: int) -> None:
        """A node has so many GPUs from now on."""
        self._change(node, self._free[node] + gpus - self._sizes[node])
        self._sizes[node] = gpus

    @property
    def fragmented(self) -> float:
        """The expected number of free GPUs that the next pod cannot use."""
        return sum(group.fragmented(self._pods) for group in self._groups.values())

    def _add(self, _: str, free: int, sign: int) -> None:
        self.total += sign * max(free, 0)

    def _change(self, node: str, free: int) -> None:
        if node not in self._down:
            self._count(node, self._free[node], -1)
            self._count(node, free, 1)
        self._free[node] = free

    def _count(self, node: str, free: int, sign: int) -> None:
        for count in self._watchers.get(node, ()):
            count(node, free, sign)

"""The nodes that an autoscaler can make for a flavor, as its ``nodeTemplate`` describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from queuectl.domain.fleet import HOSTNAME, Node, Taint
from queuectl.domain.quantity import Resources

MOST_NODES = 10_000
"""The most nodes of one template: the planner places gangs on this number of nodes that do not exist."""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """Nodes that are alike.

    Attributes:
        allocatable: of each node, ``pods`` included.
        maximum: nodes of the flavor that can exist at the same time, those that exist included.
        labels: of each node, beside those of the flavor.
        taints: of each node, beside those of the flavor.
        domains: label of a topology level to the nodes in each of its domains. A domain of another level is as large as the
            domain above it.
    """

    allocatable: Resources
    maximum: int
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    domains: tuple[tuple[str, int], ...] = ()

    def nodes(
        self, flavor: str, levels: Sequence[str], labels: Mapping[str, str], taints: Sequence[Taint]
    ) -> Iterator[Node]:
        """All nodes that can be made, the domains full one after the other.

        Args:
            flavor: its name, which begins the names of nodes and domains.
            levels: labels of its Topology, coarse to fine.
            labels: its node labels.
            taints: its node taints.
        """
        sizes = dict(self.domains)
        taints = (*taints, *self.taints)
        for number in range(self.maximum):
            path, offset, above = flavor, number, self.maximum
            found = {HOSTNAME: f"{flavor}-{number}"}
            for level in levels:
                if level != HOSTNAME:
                    above = min(sizes.get(level, above), above)
                    path = f"{path}-{offset // above}"
                    offset %= above
                    found[level] = path
            found |= {**labels, **dict(self.labels)}
            yield Node(f"{flavor}-{number}", found, self.allocatable, taints)

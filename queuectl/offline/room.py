"""Assigns nodes to running pods without a stated node: free capacity of nodes that they can use.

An assignment can end above the host. Its pods still use nodes, so without them too much capacity would look free. The choice of
nodes is a guess. The sum of free capacity in the stated domain is correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from queuectl.domain.fleet import HOSTNAME, Fleet, Node, NodeRules
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.workload import PodSet
from queuectl.objects.files.assignments import Assigned


@dataclass
class FreeCapacity:
    """The free capacity of each ready node, without pods that were assigned so far."""

    fleet: Fleet
    used: Mapping[str, Resources]
    _free: dict[str, Resources] = field(init=False)

    def __post_init__(self) -> None:
        self._free = {
            n.name: n.allocatable - self.used.get(n.name, NOTHING)
            for n in self.fleet.nodes
            if n.ready
        }

    def place(
        self, podset: PodSet, count: int, assigned: Assigned, flavors: Iterable[ResourceFlavor]
    ) -> dict[str, int]:
        """Assign up to ``count`` pods to nodes of their domains, fewer if there is not enough room.

        It uses as few nodes of each domain as possible: those with the most room first, then by name.
        """
        allowed = list(_allowed(self.fleet, podset, list(flavors)))
        placed: dict[str, int] = {}
        for labels, most in assigned.domains:
            inside = [node for node in allowed if _inside(node, labels)]
            for name, pods in self._fill(podset.shape.requests, min(most, count), inside):
                placed[name] = placed.get(name, 0) + pods
                count -= pods
        return placed

    def _fill(
        self, requests: Resources, count: int, nodes: list[Node]
    ) -> Iterator[tuple[str, int]]:
        room = {node.name: self._fits(requests, node.name) for node in nodes}
        for name in sorted(room, key=lambda name: (-room[name], name)):
            pods = min(count, room[name])
            if pods <= 0:
                return
            self._free[name] -= requests * pods
            count -= pods
            yield name, pods

    def _fits(self, requests: Resources, name: str) -> int:
        free = self._free.get(name, NOTHING)
        return max(
            0, min((free[r] // amount for r, amount in requests.items() if amount), default=0)
        )


def _allowed(fleet: Fleet, podset: PodSet, flavors: list[ResourceFlavor]) -> Iterator[Node]:
    rules = podset.shape.rules
    tolerated = rules.tolerations + tuple(t for flavor in flavors for t in flavor.tolerations)
    rules = NodeRules(rules.selector, rules.affinity, tolerated)
    labels = {pair for flavor in flavors for pair in flavor.node_labels}
    for node in fleet.nodes:
        if rules.refusal(node) is None and _inside(node, dict(labels)):
            yield node


def _inside(node: Node, labels: Mapping[str, str]) -> bool:
    return all(
        (node.hostname if key == HOSTNAME else node.labels.get(key)) == value
        for key, value in labels.items()
    )

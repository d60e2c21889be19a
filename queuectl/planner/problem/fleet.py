"""Data that depends on the fleet alone, as numpy: allocatable, label classes, eligibility masks, topology trees.

Built once per Fleet and cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.devices import IMPLICIT_RESOURCE
from queuectl.domain.fleet import Fleet, Node, NodeRules, Toleration
from queuectl.domain.gpus import BY_NAME, is_accelerator
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.topology import Ints, Mask, Tree, grow

_MASKS_KEPT: Final = 4096


_NO_DEVICES: Final = ("ephemeral-storage", "hugepages-", "attachable-volumes-")
_GPU_DRIVERS: Final = "gpu."  # how names of DeviceClasses of GPUs begin

Flavors: TypeAlias = Sequence[Mapping[str, str]]  # per podset, resource to flavor


def is_planner_row(resource: str) -> bool:
    """Whether it is a limit of the planner in the form of a resource, whose name no resource of Kubernetes can have."""
    return " " in resource or "~" in resource


def _is_device(resource: str) -> bool:
    common = resource in (CPU, MEMORY, PODS) or resource.startswith(_NO_DEVICES)
    return not common and not is_planner_row(resource)


def _accelerates(device: str) -> bool:
    name = device.removeprefix(IMPLICIT_RESOURCE)
    return bool(BY_NAME.of(device)) or is_accelerator(name) or name.startswith(_GPU_DRIVERS)


class NodeRoom(Enum):
    """Which nodes have room for a gang if no other pods are on them."""

    NOW = 1
    RECOVERED = 2  # only the nodes as they can be
    NEVER = 3


class FleetIndex:
    """Data that depends on the fleet alone: allocatable matrix, label classes, eligibility masks, topology trees."""

    def __init__(self, fleet: Fleet) -> None:
        recovered = fleet.recovered
        # The index must not keep its own fleet alive: it is cached for as long as that lives.
        self._recovered = recovered if recovered is not fleet else None
        self.nodes: Sequence[Node] = fleet.nodes
        self.size = len(fleet.nodes)
        self.position = fleet.index
        self.resources = tuple(sorted({r for node in recovered.nodes for r in node.allocatable}))
        self.column = {name: i for i, name in enumerate(self.resources)}
        rows = [[node.allocatable[name] for node in fleet.nodes] for name in self.resources]
        self.allocatable: Ints = np.array(rows, dtype=np.int64).reshape(len(rows), self.size)
        self.allocatable.flags.writeable = False
        self.devices = [c for c, name in enumerate(self.resources) if _is_device(name)]
        self.accelerators = [c for c in self.devices if _accelerates(self.resources[c])]
        self.ready: Mask = np.array([n.usable for n in fleet.nodes], dtype=np.bool_)
        self.fewest: dict[object, tuple[int, ...]] = {}  # see queuectl.reports.fragmentation
        self.fits: dict[
            tuple[object, ...], bool
        ] = {}  # by request, whether it fits the empty nodes
        self._room: dict[tuple[object, ...], tuple[tuple[object, ...], NodeRoom]] = {}
        self._taints = _classes([node.effective_taints for node in fleet.nodes])
        self._labels: dict[str, Ints] = {}
        self._masks: dict[NodeRules, Mask] = {}
        self._trees: dict[tuple[str, ...], Tree] = {}

    def room(
        self, asked: tuple[object, ...], flavors: Flavors, excluded: frozenset[str]
    ) -> NodeRoom | None:
        """The nodes that have room for what these objects ask with these flavors; None = not known."""
        known = self._room.get((*_by_identity(asked, flavors), excluded))
        return known[1] if known is not None else None

    def note_room(
        self, asked: tuple[object, ...], flavors: Flavors, excluded: frozenset[str], room: NodeRoom
    ) -> None:
        if len(self._room) >= _MASKS_KEPT:
            self._room.clear()
        # The objects are kept, so that their ids name them.
        self._room[*_by_identity(asked, flavors), excluded] = asked, room

    def tree(self, levels: tuple[str, ...]) -> Tree:
        if levels not in self._trees:
            self._trees[levels] = grow(self.nodes, levels)
        return self._trees[levels]

    def mask(self, rules: NodeRules) -> Mask:
        """Nodes whose labels and taints ``rules`` accept; readiness is not judged."""
        known = self._masks.get(rules)
        if known is None:
            if len(self._masks) >= _MASKS_KEPT:
                self._masks.clear()
            known = self._masks[rules] = self._judge(rules)
        return known

    def lasting_mask(self, rules: NodeRules) -> Mask:
        """The same of the nodes as they can be."""
        return self.recovered.mask(rules)

    @cached_property
    def recovered(self) -> FleetIndex:
        """The index of the nodes as they can be (:attr:`queuectl.domain.fleet.Node.recovered`); itself where nothing passes."""
        return FleetIndex(self._recovered) if self._recovered is not None else self

    def labeled(self, labels: tuple[tuple[str, str], ...]) -> Mask:
        """Nodes that carry all these labels, whatever their taints."""
        return self.mask(NodeRules(labels, None, (Toleration(operator="Exists"),)))

    def vector(self, requests: Resources) -> Ints | None:
        """The request as a column; None when it names a resource no node offers."""
        vector = np.zeros(len(self.resources), dtype=np.int64)
        for name, amount in requests.items():
            at = self.column.get(name)
            if at is None:
                return None
            vector[at] = amount
        return vector

    def _judge(self, rules: NodeRules) -> Mask:
        """Ask the domain's own rule once per class of nodes that are equal to it."""
        keys, by_name = _keys_read(rules)
        columns = [self._taints, *(self._label(key) for key in keys)]
        if by_name:
            columns.append(np.arange(self.size, dtype=np.int64))
        stacked = np.stack(columns)
        _, first, inverse = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
        verdict = np.array([rules.refusal(self.nodes[i]) is None for i in first], dtype=np.bool_)
        mask: Mask = verdict[inverse.reshape(-1)] if self.size else np.zeros(0, dtype=np.bool_)
        mask.flags.writeable = False
        return mask

    def _label(self, key: str) -> Ints:
        if key not in self._labels:
            self._labels[key] = _classes([node.labels.get(key) for node in self.nodes])
        return self._labels[key]


def _keys_read(rules: NodeRules) -> tuple[list[str], bool]:
    """Label keys that the rules read, and whether they read the node's name."""
    keys = {key for key, _ in rules.selector}
    by_name = False
    for term in rules.affinity or ():
        for requirement in term.requirements:
            if requirement.field:
                by_name = True
            else:
                keys.add(requirement.key)
    return sorted(keys), by_name


def _classes(values: Iterable[object]) -> Ints:
    """Number equal values alike."""
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def index_of(fleet: Fleet, cache: PlannerCache) -> FleetIndex:
    """The index of a fleet, built at first use."""
    return cache.get(fleet, FleetIndex) or cache.keep(fleet, FleetIndex(fleet))


def _by_identity(asked: tuple[object, ...], flavors: Flavors) -> tuple[object, ...]:
    """Hashing all that a gang asks takes longer than most answers."""
    return (*map(id, asked), *(tuple(chosen.items()) for chosen in flavors))

"""Data that depends on the fleet alone, as numpy: allocatable, label classes, eligibility masks, topology trees.

Built once per Fleet and cache.

A :class:`Tree` holds the domains that topology labels make of a fleet, as index arrays. It belongs to one tuple of levels
(labels, coarse to fine). ``kubernetes.io/hostname`` as the finest level is not a domain here: every node is its own. Nodes that
miss a level label are invisible to gangs of that topology.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from itertools import chain
from typing import Final, TypeAlias
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.bounded import BoundedCache
from queuectl.domain.devices import IMPLICIT_RESOURCE
from queuectl.domain.fleet import HOSTNAME, Fleet, Node, NodeRules, Toleration
from queuectl.domain.gpus import BY_NAME, is_accelerator
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.queues import QueueConfig, Topology
from queuectl.domain.words import by_numbers
from queuectl.domain.workload import PodSet, TopologyRequest
from queuectl.planner.cache import PlannerCache

# ---- Trees of domains

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tree:
    """Domains of one topology over one fleet; N nodes, D_l domains at level l.

    Attributes:
        levels: labels above the node, coarse to fine.
        node_level: label of single nodes (``kubernetes.io/hostname``), None if the topology has none.
        domain: per level, the domain index of each node, -1 where the node is invisible. Shape (N,).
        names: per level, the label values of the path to each domain.
        order: visible node indexes sorted by path, then by name: neighbors in it are neighbors in the topology.
        position: position of each node in ``order``, or N where invisible. Shape (N,).
        starts: per level, where each domain begins in ``order``. Domains are numbered in that order.
    """

    levels: tuple[str, ...]
    node_level: str | None
    domain: tuple[Ints, ...]
    names: tuple[tuple[tuple[str, ...], ...], ...]
    order: Ints
    position: Ints
    starts: tuple[Ints, ...]

    @cached_property
    def depth(self) -> int:
        """Number of levels above the node."""
        return len(self.levels)

    @cached_property
    def children(self) -> tuple[Ints, ...]:
        """Per level, the first domain one level below of each domain; of the finest level, its first position in ``order``."""
        if not self.depth:
            return ()
        pairs = zip(self.starts[:-1], self.starts[1:], strict=True)
        return (*(fine.searchsorted(coarse) for coarse, fine in pairs), self.starts[-1])

    @cached_property
    def spans(self) -> tuple[list[int], ...]:
        """The same with the end of the last one appended, for looking up one domain."""
        ends = [*(len(starts) for starts in self.starts[1:]), len(self.order)]
        return tuple([*row.tolist(), end] for row, end in zip(self.children, ends, strict=False))

    def level_of(self, label: str) -> int | None:
        """Index of a level label; ``depth`` = the node itself; None when the topology has no such level."""
        if label == self.node_level:
            return self.depth
        return self.levels.index(label) if label in self.levels else None

    def sums(self, level: int, per_node: Ints) -> Ints:
        """Exact sum of a per-node quantity over each domain of a level."""
        if not len(self.starts[level]):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(per_node[self.order], self.starts[level])

    def nodes_in(self, level: int, domain: int) -> Ints:
        """Node indexes of one domain, in topology order."""
        starts = self.starts[level]
        end = starts[domain + 1] if domain + 1 < len(starts) else len(self.order)
        return self.order[starts[domain] : end]

    def within(self, nodes: Ints) -> Tree:
        """The tree of some of its nodes alone, without the domains they leave empty.

        Args:
            nodes: visible node indexes in topology order; number i of them is node i of the new tree.
        """
        domain, names, starts = [], [], []
        for row, known in zip(self.domain, self.names, strict=True):
            of = row[nodes]
            first = np.ones(len(of), dtype=np.bool_)
            first[1:] = of[1:] != of[:-1]
            starts.append(first.nonzero()[0])
            domain.append(first.cumsum() - 1)
            names.append(tuple(map(known.__getitem__, of[starts[-1]].tolist())))
        order = np.arange(len(nodes))
        return Tree(
            self.levels, self.node_level, tuple(domain), tuple(names), order, order, tuple(starts)
        )


def grow(nodes: Sequence[Node], labels: Sequence[str]) -> Tree:
    """Build the tree of one topology."""
    levels = tuple(label for label in labels if label != HOSTNAME)
    members: dict[tuple[str, ...], list[int]] = {}
    for i, node in enumerate(nodes):
        path = tuple([node.labels.get(label, "") for label in levels])
        if all(path) and (HOSTNAME not in labels or HOSTNAME in node.labels):
            members.setdefault(path, []).append(i)
    paths = sorted(members, key=lambda path: [(_by_numbers(value), value) for value in path])
    visible = [sorted(members[path], key=lambda i: _by_numbers(nodes[i].name)) for path in paths]
    order = np.array(list(chain.from_iterable(visible)), dtype=np.int64)
    position = np.full(len(nodes), len(nodes), dtype=np.int64)
    position[order] = np.arange(len(order))
    begins = np.cumsum([0, *map(len, visible)])
    rows = [_level([path[: level + 1] for path in paths], begins) for level in range(len(levels))]
    domain = [np.full(len(nodes), -1, dtype=np.int64) for _ in rows]
    for row, (starts, _) in zip(domain, rows, strict=True):
        row[order] = starts.searchsorted(np.arange(len(order)), side="right") - 1
    return Tree(
        levels=levels,
        node_level=HOSTNAME if HOSTNAME in labels else None,
        domain=tuple(domain),
        names=tuple(names for _, names in rows),
        order=order,
        position=position,
        starts=tuple(starts for starts, _ in rows),
    )


def misfit(request: TopologyRequest, topology: Topology) -> str | None:
    """Why a topology cannot serve a request: a level it has not, or slices not inside each other from coarse to fine."""
    missing = sorted(set(request.levels) - set(topology.levels))
    if missing:
        return f"topology {topology.name} has no level {missing[0]}"
    own = topology.levels.index(request.level) if request.level is not None else 0
    for number, layer in enumerate(request.slices):
        at = topology.levels.index(layer.level)
        if at < own:
            return f"slice level {layer.level} is coarser than the requested level {request.level}"
        if number and at <= topology.levels.index(request.slices[number - 1].level):
            above = request.slices[number - 1].level
            return f"slice level {layer.level} is not finer than the slice level {above} above it"
    return None


# A fleet that changed has most of its names still.
_by_numbers = lru_cache(maxsize=1 << 16)(by_numbers)


def _level(
    prefixes: Sequence[tuple[str, ...]], begins: Ints
) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Where the domains of one level start in the sorted order, and their names.

    Args:
        prefixes: down to the level, of the paths in order.
        begins: where the nodes of each path begin in the sorted order.
    """
    new = [at for at, prefix in enumerate(prefixes) if not at or prefix != prefixes[at - 1]]
    return begins[new], tuple(prefixes[at] for at in new)


# ---- The index of a fleet

_TREES_KEPT: Final = 64


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


@dataclass(frozen=True, eq=False, slots=True)
class MatrixAxes:
    """The nodes and resources of the indexes of matrices (R, N).

    Fleets that follow each other share one object while they have the same nodes and resources, whatever their labels, amounts and
    readiness. Values that refer to nodes by index can then be carried over.
    """

    position: Mapping[str, int]
    resources: tuple[str, ...]


class FleetIndex:
    """Data that depends on the fleet alone: allocatable matrix, label classes, eligibility masks, topology trees."""

    def __init__(self, fleet: Fleet, last: MatrixAxes | None = None) -> None:
        """``last``: of the fleet before."""
        recovered = fleet.recovered
        # The index must not keep its own fleet alive: it is cached for as long as that lives.
        self._recovered = recovered if recovered is not fleet else None
        self.nodes: Sequence[Node] = fleet.nodes
        self.size = len(fleet.nodes)
        self.position = fleet.index
        self.resources = tuple(sorted({r for node in recovered.nodes for r in node.allocatable}))
        self.axes = MatrixAxes(self.position, self.resources)
        if last is not None and last.resources == self.resources and last.position == self.position:
            self.axes = last
        self.column = {name: i for i, name in enumerate(self.resources)}
        rows = [[node.allocatable[name] for node in fleet.nodes] for name in self.resources]
        self.allocatable: Ints = np.array(rows, dtype=np.int64).reshape(len(rows), self.size)
        self.allocatable.flags.writeable = False
        self.devices = [c for c, name in enumerate(self.resources) if _is_device(name)]
        self.accelerators = [c for c in self.devices if _accelerates(self.resources[c])]
        self.ready: Mask = np.array([n.usable for n in fleet.nodes], dtype=np.bool_)
        # See queuectl.reports.fragmentation.
        self.fewest = BoundedCache[object, tuple[int, ...]]()
        # By request, whether it fits the empty nodes.
        self.fits = BoundedCache[tuple[object, ...], bool]()
        self._room = BoundedCache[
            tuple[object, ...], tuple[tuple[PodSet, ...], ref[QueueConfig], NodeRoom]
        ]()
        self._taints = _classes([node.effective_taints for node in fleet.nodes])
        self._labels: dict[str, Ints] = {}
        self._masks = BoundedCache[NodeRules, Mask]()
        # Users name any levels where no topology has them. A tree that is in use stays the same object.
        self._trees: WeakValueDictionary[tuple[str, ...], Tree] = WeakValueDictionary()
        self._last_trees = deque[Tree](maxlen=_TREES_KEPT)

    def room(
        self, podsets: tuple[PodSet, ...], config: QueueConfig, conditions: tuple[object, ...]
    ) -> NodeRoom | None:
        """The nodes that have room for these podsets; None = not known. ``conditions``: on what else it depends."""
        known = self._room.get((id(podsets), id(config), conditions))
        return known[2] if known is not None and known[1]() is config else None

    def note_room(
        self,
        podsets: tuple[PodSet, ...],
        config: QueueConfig,
        conditions: tuple[object, ...],
        room: NodeRoom,
    ) -> None:
        """Keep it."""
        # The podsets are kept, so that their id names them. A configuration, which lives shorter than its nodes, is not.
        self._room.keep((id(podsets), id(config), conditions), (podsets, ref(config), room))

    def tree(self, levels: tuple[str, ...]) -> Tree:
        tree = self._trees.get(levels)
        if tree is None:
            tree = self._trees.setdefault(levels, grow(self.nodes, levels))
            self._last_trees.append(tree)
        return tree

    def mask(self, rules: NodeRules) -> Mask:
        """Nodes whose labels and taints ``rules`` accept; readiness is not judged."""
        known = self._masks.get(rules)
        return known if known is not None else self._masks.keep(rules, self._judge(rules))

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
        # A key that no node has divides no class. Users name any number of them, and a column has the size of the fleet.
        columns = [self._taints, *(self._label(key) for key in sorted(keys & self._label_keys))]
        if by_name:
            columns.append(np.arange(self.size, dtype=np.int64))
        stacked = np.stack(columns)
        _, first, inverse = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
        verdict = np.array([rules.refusal(self.nodes[i]) is None for i in first], dtype=np.bool_)
        mask: Mask = verdict[inverse.reshape(-1)] if self.size else np.zeros(0, dtype=np.bool_)
        mask.flags.writeable = False
        return mask

    @cached_property
    def _label_keys(self) -> set[str]:
        return {key for node in self.nodes for key in node.labels}

    def _label(self, key: str) -> Ints:
        if key not in self._labels:
            self._labels[key] = _classes([node.labels.get(key) for node in self.nodes])
        return self._labels[key]


def _keys_read(rules: NodeRules) -> tuple[set[str], bool]:
    """Label keys that the rules read, and whether they read the node's name."""
    keys = {key for key, _ in rules.selector}
    by_name = False
    for term in rules.affinity or ():
        for requirement in term.requirements:
            if requirement.field:
                by_name = True
            else:
                keys.add(requirement.key)
    return keys, by_name


def _classes(labels: Iterable[object]) -> Ints:
    """Number equal labels alike."""
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in labels], dtype=np.int64)


def index_of(fleet: Fleet, cache: PlannerCache) -> FleetIndex:
    """The index of a fleet, built at first use."""
    known = cache.get(fleet, FleetIndex)
    if known is not None:
        return known
    return cache.keep(fleet, FleetIndex(fleet, cache.latest(MatrixAxes)))

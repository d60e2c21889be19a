"""Nodes and pods with their amounts of device rows and of charged resources.

A node has the largest amount of each row that it has in any mode. In one mode a part of that is in use, as if by another pod, so that the
nodes stay the same objects when they are divided differently.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain, product
from operator import le
from typing import Final, TypeAlias

from queuectl.devices.cluster import FleetDevices, OnNode
from queuectl.devices.modes import Modes
from queuectl.devices.requests import PodRequest, lowered_shape
from queuectl.devices.table import Mode, NodeKind, table_of
from queuectl.domain.devices import DEVICE_ROW, not_sure
from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.workload import PodShape, TopologyMode, Workload

MOST_MODES: Final = 16  # of one kind of node

_OfNode: TypeAlias = tuple[Node, OnNode, tuple[int, ...]]
"""With the amount of each charged resource that devices add to it."""


def modes_of_kind(kind: NodeKind) -> Iterator[Mode]:
    """All modes of a kind of node: each group for all its atoms, or for one that loses by sharing."""
    choices = [(None, *sorted(group.lost)) for group in kind.groups]
    for mode, _ in zip(product(*choices), range(MOST_MODES), strict=False):
        yield mode


class DeviceAmounts:
    """The amounts of a cluster. ``names``: row of the table to its resource."""

    def __init__(self, cluster: FleetDevices) -> None:
        self.cluster = cluster
        modes = {kind: tuple(modes_of_kind(kind)) for kind in cluster.kinds}
        self._table = table_of(modes, cluster.present)
        self._modes = self._table.modes
        self._largest = {
            kind: tuple(
                map(max, zip(*(self._table.amounts[kind, mode] for mode in modes), strict=True))
            )
            for kind, modes in self._modes.items()
        }
        self._columns = [self._column(node) for node in cluster.nodes]
        self._recovered = [self._column(node) for node in cluster.recovered]
        self.names: dict[int, str] = {}
        same = Counter[str]()
        for row in self._useful():
            name = f"{DEVICE_ROW}{self._label(row)}"
            same[name] += 1
            self.names[row] = f"{name} #{same[name]}" if same[name] > 1 else name

    def _label(self, row: int) -> str:
        atoms = (self.cluster.atoms[atom] for atom, _ in self._table.rows[row])
        return " | ".join(dict.fromkeys(atom.label for atom in atoms))

    def _column(self, node: OnNode) -> tuple[int, ...]:
        """The amount of each charged resource that devices add to a node."""
        kind = node.kind
        return tuple(
            devices + max(self._beyond(kind, mode, resource) for mode in self._modes[kind])
            for devices, resource in zip(node.devices, self.cluster.charged, strict=True)
        )

    def _beyond(self, kind: NodeKind, mode: Mode, resource: str) -> int:
        """The charges on a node that its devices do not bound: of shared devices, alternatives and device plugins."""
        cluster, alone = self.cluster, self._table.alone[kind, mode]
        return sum(
            charges[resource] * alone[atom]
            for atom, charges in enumerate(cluster.charges)
            if resource in charges
            and (
                not kind.counted[atom]
                or (kind.served[atom] and cluster.atoms[atom].resource != resource)
            )
        )

    def _useful(self) -> Iterator[int]:
        """Rows that are not the same as a charged resource."""
        for row, weights in enumerate(self._table.rows):
            own = dict(weights)
            if not any(
                all(own.get(a, 0) == c.get(name, 0) for a, c in enumerate(self.cluster.charges))
                and self._same(row, i, name)
                for i, name in enumerate(self.cluster.charged)
            ):
                yield row

    def _same(self, row: int, column: int, resource: str) -> bool:
        """Whether each node has as much of a row, in each mode, as of a charged resource."""
        return all(
            all(
                self._table.amounts[on.kind, mode][row]
                == node.allocatable[resource] + amounts[column]
                for mode in self._modes[on.kind]
            )
            for node, on, amounts in chain(self._present_nodes(), self._recovered_nodes())
        )

    def _present_nodes(self) -> Iterator[_OfNode]:
        return zip(self.cluster.fleet.nodes, self.cluster.nodes, self._columns, strict=True)

    def _recovered_nodes(self) -> Iterator[_OfNode]:
        nodes = self.cluster.fleet.recovered.nodes
        return zip(nodes, self.cluster.recovered, self._recovered, strict=True)

    @cached_property
    def fleet(self) -> Fleet:
        """The nodes with their amounts, and with the amounts that only the recovered nodes have."""
        with_rows = cache(self._with_rows)
        nodes = []
        for (node, on, column), (_, can_be, most) in zip(
            self._present_nodes(), self._recovered_nodes(), strict=True
        ):
            amounts, occupied = with_rows(node.allocatable, on.kind, column), NOTHING
            if (can_be.kind, most) != (on.kind, column):
                now = with_rows(NOTHING, on.kind, column)
                occupied = _positive(with_rows(NOTHING, can_be.kind, most) - now)
            same = amounts is node.allocatable and not occupied
            nodes.append(node if same else replace(node, allocatable=amounts, occupied=occupied))
        return Fleet(tuple(nodes))

    def _with_rows(
        self, allocatable: Resources, kind: NodeKind, column: tuple[int, ...]
    ) -> Resources:
        more = dict(zip(self.cluster.charged, column, strict=True))
        more |= {name: self._largest[kind][row] for row, name in self.names.items()}
        return allocatable + Resources(more) if any(more.values()) else allocatable

    def in_use(self, modes: Modes) -> dict[str, Resources]:
        """Node to the amounts that it does not have in its mode."""
        used: dict[str, Resources] = {}
        for kind, nodes in modes.items():
            for mode, names in nodes.items():
                # More modes than MOST_MODES are possible.
                known = mode if mode in self._modes[kind] else (None,) * len(kind.groups)
                less = self._less(kind, known)
                if less:
                    used |= dict.fromkeys(names, less)
        return used

    def _less(self, kind: NodeKind, mode: Mode) -> Resources:
        amounts = self._table.amounts[kind, mode]
        return Resources(
            {name: self._largest[kind][row] - amounts[row] for row, name in self.names.items()}
        )

    def refusal(self, workload: Workload, requests: Sequence[PodRequest | None]) -> str | None:
        """Why no node can serve a gang, where only the modes show it: the planner knows the largest amounts of all modes."""
        if not self.cluster.divided:
            return None
        on_one_node: dict[str | int, Counter[int]] = defaultdict(Counter)
        for number, (podset, request) in enumerate(zip(workload.podsets, requests, strict=True)):
            topology = podset.topology
            together = (
                topology is not None
                and topology.mode is TopologyMode.REQUIRED
                and topology.level == HOSTNAME
            )
            pods = (podset.min_count or podset.count) if together else 1
            key = podset.group if together and podset.group is not None else number
            for atom, amount in self.cluster.counts(request).items() if request is not None else ():
                on_one_node[key][atom] += amount * pods
        for counts in on_one_node.values():
            if self._never_sure(counts):
                return not_sure(self.cluster.atoms[atom].label for atom in counts)
        return None

    def _never_sure(self, counts: Mapping[int, int]) -> bool:
        """Whether these atoms fit the largest amounts of a kind of node, but no mode of any kind."""
        asked = self._table.of_pod(counts)

        def fit(amounts: Iterable[tuple[int, ...]]) -> bool:
            return any(all(map(le, asked, each)) for each in amounts)

        return not fit(self._table.amounts.values()) and fit(self._largest.values())

    def shape(self, shape: PodShape, request: PodRequest) -> PodShape:
        """A pod with its rows and charges."""
        amounts = self._table.of_pod(self.cluster.counts(request))
        rows = {name: amounts[row] for row, name in self.names.items() if amounts[row]}
        backed = {name: self.cluster.classes.backing[name] for name, _ in request.extended}
        return lowered_shape(shape, self.cluster.classes.requested(request), rows, backed)


def _positive(amounts: Resources) -> Resources:
    return Resources({name: amount for name, amount in amounts.items() if amount > 0})


def together(
    used: Mapping[str, Resources], additions: Iterable[tuple[str, Resources]]
) -> Mapping[str, Resources]:
    """Amounts in use by node, with others added."""
    total = dict(used)
    for name, amounts in additions:
        total[name] = total.get(name, NOTHING) + amounts
    return total

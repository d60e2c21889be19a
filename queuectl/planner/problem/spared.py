"""The choice of pods between nodes: they leave to others devices that they do not request, and the amounts that free devices need.

It is a preference between nodes, after the numbers of domains and nodes (:mod:`queuectl.planner.placement.single`). No pod waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.devices import DeviceInventory
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.planner.problem.fleet import FleetIndex
from queuectl.planner.problem.topology import Ints, Mask

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Spared:
    """The nodes that pods of one kind leave to others if they can. Nodes are those of the fleet, or some of them.

    Attributes:
        avoided: nodes with a device that the pods do not request, where others of their nodes have none; then, of pods without
            devices, nodes with accelerators. Shape (N,) each.
        needs: of pods without devices, for each accelerator and each resource that it needs: both columns, and the amount that one
            device needs on each node, of shape (N,).
    """

    avoided: tuple[Mask, ...]
    needs: tuple[tuple[int, int, Floats], ...] = ()

    def within(self, nodes: Ints) -> Spared:
        """The same for some of the nodes."""
        needs = tuple((device, column, each[nodes]) for device, column, each in self.needs)
        return Spared(tuple(mask[nodes] for mask in self.avoided), needs)

    def beside_devices(self, free: Ints) -> Ints:
        """A free matrix (R, N) less what the free devices of each node need."""
        kept: dict[int, Floats] = {}
        for device, column, each in self.needs:
            need = each * np.maximum(free[device], 0)
            kept[column] = np.maximum(kept[column], need) if column in kept else need
        left = free.copy()
        for column, need in kept.items():
            left[column] -= need.astype(np.int64)
        return left


def published_on(inventory: DeviceInventory, index: FleetIndex) -> Mask:
    """For each driver of ResourceSlices, the nodes for which it has published devices. Shape (drivers, N)."""
    nodes: dict[str, list[int]] = {}
    for name, on_node in inventory.nodes.items():
        for driver in {device.id.driver for device in on_node.devices}:
            if name in index.position:
                nodes.setdefault(driver, []).append(index.position[name])
    found = np.zeros((len(nodes), index.size), dtype=np.bool_)
    for row, at in zip(found, nodes.values(), strict=True):
        row[at] = True
    return found


def spared_by(index: FleetIndex, published: Mask, vector: Ints, eligible: Mask) -> Spared | None:
    """The nodes and amounts that pods with this request (R,) leave to others among their nodes (N,); None = none.

    ``published``: of :func:`published_on`. The index has these devices only while a gang requests them.
    """
    others = [c for c in index.devices if not vector[c]]
    there = index.allocatable[others] > 0
    if len(others) == len(index.devices):
        there = np.vstack([there, published])
    here = there[:, eligible]
    some = np.flatnonzero(here.any(axis=1) & ~here.all(axis=1)).tolist()
    on_some_nodes = [others[i] for i in some if i < len(others)]
    avoided: list[Mask] = [np.any(there[some], axis=0)] if some else []
    if len(others) < len(index.devices):
        return Spared(tuple(avoided)) if avoided else None
    accelerators = [c for c in index.accelerators if here[others.index(c)].any()]
    if accelerators and accelerators != on_some_nodes:
        avoided.append(_with_any(index, accelerators))
    needs = _needs(index, accelerators, vector)
    return Spared(tuple(avoided), tuple(needs)) if avoided else None


def _with_any(index: FleetIndex, devices: Sequence[int]) -> Mask:
    """The nodes that have some of these devices, by column."""
    there: Mask = np.any(index.allocatable[devices] > 0, axis=0)
    return there


def _needs(
    index: FleetIndex, devices: Sequence[int], vector: Ints
) -> Iterator[tuple[int, int, Floats]]:
    """For each device its part of the CPU and the memory of its node, as far as the pods request them."""
    for name in (CPU, MEMORY):
        column = index.column.get(name)
        if column is not None and vector[column]:
            for device in devices:
                count = np.maximum(index.allocatable[device], 1)
                yield device, column, index.allocatable[column] / count

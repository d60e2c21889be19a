"""Pools of several drivers that have the same name and counters.

While kube-scheduler allocates the devices of one pod, it keeps the counters that are left by the name of the pool, without the
driver. One pod cannot use such devices of two drivers. Pods with devices of one driver each are allocated correctly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from queuectl.domain.devices import NodeDevices

MIXED: Final = "pools of {} have counters and the same name, and kube-scheduler mixes them up"
MIXED_IN_POD: Final = MIXED.format("several drivers of the pod's devices")
Touched: TypeAlias = frozenset[tuple[str, str]]  # pool and driver


class Rivals:
    """Those of one node."""

    def __init__(self, node: NodeDevices) -> None:
        pools = {
            at: (device.id.pool, device.id.driver)
            for at, device in enumerate(node.devices)
            if device.consumes
        }
        drivers = Counter(pool for pool, _ in set(pools.values()))
        self._pools = {at: own for at, own in pools.items() if drivers[own[0]] > 1}

    def touched(self, selected: int) -> Touched:
        """Those of some devices (bits)."""
        return frozenset(own for at, own in self._pools.items() if selected >> at & 1)


def drivers_mixed(touched: Touched) -> list[str]:
    """The drivers of pools with the same name."""
    return sorted({d for (p, d) in touched for (q, e) in touched if p == q and d != e})


def mixed_pairs(touched: Sequence[Touched]) -> Iterator[tuple[int, int]]:
    """Two positions whose pools are mixed up."""
    for i, j in combinations(range(len(touched)), 2):
        if touched[i] and touched[j] and drivers_mixed(touched[i] | touched[j]):
            yield i, j

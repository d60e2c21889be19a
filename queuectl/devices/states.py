"""Devices of one node in use, and the counters that are left beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from queuectl.devices.needs import NodeNeeds

Shares: TypeAlias = tuple[tuple[Any, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class State:
    """Devices of a node in use: ``used`` as bits, and per device what is left of a shared one."""

    used: int
    left: Shares


@dataclass(frozen=True, slots=True)
class Partial:
    """A state in the middle of an atom: the devices of the request so far, and the values that constraints have seen."""

    state: State
    picked: int = 0
    seen: tuple[frozenset[int], ...] = ()


@dataclass(eq=False)
class Stock:
    """The counters of a node."""

    node: NodeNeeds
    _known: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._counted = sum(1 << i for i, consumed in enumerate(self.node.consumes) if consumed)

    def enough(self, used: int, device: int) -> bool:
        """Whether a device more can be used beside these."""
        consumed = self.node.consumes[device]
        if not consumed:
            return True
        rest = self.rest(used)
        return all(rest[counter] >= amount for counter, amount in consumed)

    def rest(self, used: int) -> tuple[int, ...]:
        """Counters that are left beside these devices."""
        used &= self._counted
        known = self._known.get(used)
        if known is None:
            rest = list(self.node.counters)
            for device in bits_of(used):
                for counter, amount in self.node.consumes[device]:
                    rest[counter] -= amount
            known = self._known[used] = tuple(rest)
        return known


def bits_of(bits: int) -> Iterator[int]:
    """The devices in a bit mask, in their order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low

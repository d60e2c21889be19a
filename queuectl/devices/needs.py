"""Atoms on one node, as numbers: which devices each can take, and what it consumes of them.

Devices are bits of an integer, in the order of ``NodeDevices.devices``. The rules are those of kube-scheduler's allocator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queuectl.devices.shares import Share

ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a request.

    Attributes:
        devices: bits of the devices that it can take.
        count: number of devices.
        every: it takes all of ``devices`` (``allocationMode: All``).
        shares: device to the amounts that it consumes, for shared devices.
        constraints: numbers of the constraints that cover it.
    """

    devices: int
    count: int
    every: bool = False
    shares: tuple[tuple[int, Share], ...] = ()
    constraints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """``attribute``: a row of ``NodeNeeds.values``. ``loose``: kube-scheduler can accept equal values in spite of ``distinct``."""

    attribute: int
    distinct: bool
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """An atom on the node: of each request one choice."""

    requests: tuple[tuple[Choice, ...], ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def devices(self) -> int:
        """All devices that it can take."""
        bits = 0
        for choices in self.requests:
            for choice in choices:
                bits |= choice.devices
        return bits

    @property
    def plain(self) -> bool:
        """Whether it is one device of a set, whichever."""
        if not self.requests:
            return False
        first = self.requests[0][0]
        return len(self.requests) == len(self.requests[0]) == first.count == 1 and not (
            self.constraints or first.every or first.shares
        )

    @property
    def counted(self) -> bool:
        """Whether the number of its devices is fixed, and no other pod shares them."""
        return all(len(choices) == 1 and not choices[0].shares for choices in self.requests)


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Atoms on one node. Nodes with equal ones have equal rows.

    Attributes:
        needs: per atom; a sentence where the node cannot serve it.
        values: per attribute of a constraint and device, a number for its value; ``ABSENT`` without one.
        counters: amounts that are left.
        consumes: per device, (counter, amount).
        left: per device, the amounts that are left of a shared device; None for others.
        mixed: two atoms that one pod cannot have: kube-scheduler would mix up the counters of their devices.
    """

    needs: tuple[Need | str, ...]
    values: tuple[tuple[int, ...], ...] = ()
    counters: tuple[int, ...] = ()
    consumes: tuple[tuple[tuple[int, int], ...], ...] = ()
    left: tuple[Share | None, ...] = ()
    mixed: frozenset[tuple[int, int]] = frozenset()

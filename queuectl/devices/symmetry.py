"""States of a node that differ only in which of several interchangeable devices are in use have equal keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from queuectl.devices.needs import ABSENT, Need, NodeNeeds, Partial, Stock


@dataclass(eq=False)
class Symmetry:
    """The keys of one node."""

    node: NodeNeeds
    stock: Stock
    _cell_keys: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _interned: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cells = _cells(self.node)
        self._bits = [sum(1 << device for device in cell) for cell in self._cells]
        self._signatures = [self._signature(device) for device in range(len(self.node.left))]

    def key(self, partial: Partial) -> Any:
        """The keys of all cells, and how many values each constraint has seen."""
        state = partial.state
        keys = []
        for number, cell in enumerate(self._cells):
            bits = self._bits[number]
            shares = tuple(state.left[d] for d in cell if self.node.left[d] is not None)
            short = (
                number,
                state.used & bits,
                shares,
                partial.picked & bits,
                self._marks(cell, partial),
            )
            known = self._cell_keys.get(short)
            if known is None:
                content = self._content(cell, partial)
                known = self._interned.setdefault(content, len(self._interned))
                self._cell_keys[short] = known
            keys.append(known)
        return (tuple(sorted(keys)), tuple(map(len, partial.chosen_values)))

    def _marks(self, cell: list[int], partial: Partial) -> tuple[tuple[int, int], ...]:
        """Values of the cell that constraints have seen: (constraint, value)."""
        if not any(partial.chosen_values):
            return ()
        return tuple(
            (number, value)
            for number, seen in enumerate(partial.chosen_values)
            for value in sorted(seen)
            if any(row[d] == value for row in self.node.attribute_values for d in cell)
        )

    def _content(self, cell: list[int], partial: Partial) -> Any:
        """The devices of a cell that can still be taken and how they depend on each other, without their names.

        Devices are ordered by color refinement, so equal contents are isomorphic; isomorphic ones are nearly always equal.
        """
        state = partial.state
        free_devices = self.stock.unused(state.used)
        open_devices, broken = list[int](), set[Any]()
        for device in cell:
            bit = 1 << device
            shared = self.node.left[device] is not None
            if (state.used & bit and not shared) or (
                not state.used & bit and not self.stock.enough(state.used, device)
            ):
                broken.update(self._signatures[device][1])
            else:
                open_devices.append(device)
        counters = self._tight(open_devices, state.used, free_devices)
        color: dict[int, Any] = {
            d: self._rank(
                (
                    self._signatures[d][0],
                    state.left[d] or (),
                    bool(state.used >> d & 1),
                    bool(partial.picked >> d & 1),
                )
            )
            for d in open_devices
        }
        marks = set(self._marks(cell, partial))
        for _ in range(3):
            color = self._refined(open_devices, color, counters, free_devices, marks)
        ordered = sorted(open_devices, key=lambda d: (color[d], d))
        content = (
            tuple(color[d] for d in ordered),
            tuple(
                sorted(
                    (free_devices[c], tuple(users.get(d, 0) for d in ordered))
                    for c, users in counters.items()
                )
            ),
            tuple(self._pattern(row, ordered, marks) for row in self.node.attribute_values),
        )
        return (content, tuple(sorted(broken)))

    def _tight(
        self, devices: list[int], used: int, free_devices: tuple[int, ...]
    ) -> dict[int, dict[int, int]]:
        """Counters that can be too small for the open devices, with what each consumes."""
        counters: dict[int, dict[int, int]] = {}
        for device in devices:
            if not used >> device & 1:
                for counter, amount in self.node.consumes[device]:
                    counters.setdefault(counter, {})[device] = amount
        return {c: users for c, users in counters.items() if sum(users.values()) > free_devices[c]}

    def _refined(
        self,
        devices: list[int],
        color: dict[int, int],
        counters: dict[int, dict[int, int]],
        free_devices: tuple[int, ...],
        marks: set[tuple[int, int]],
    ) -> dict[int, int]:
        of_counter = {
            c: self._rank((free_devices[c], tuple(sorted((color[d], a) for d, a in users.items()))))
            for c, users in counters.items()
        }
        refined = {}
        for d in devices:
            around = tuple(
                sorted((of_counter[c], users[d]) for c, users in counters.items() if d in users)
            )
            values = tuple(
                (
                    row[d] != ABSENT,
                    tuple(sorted(number for number, value in marks if value == row[d])),
                    tuple(sorted(color[e] for e in devices if row[e] == row[d])),
                )
                for row in self.node.attribute_values
            )
            refined[d] = self._rank((color[d], around, values))
        return refined

    def _pattern(
        self, row: tuple[int, ...], ordered: list[int], marks: set[tuple[int, int]]
    ) -> tuple[Any, ...]:
        """Which devices share a value, and which values are marked, without the values."""
        first: dict[int, int] = {}
        return tuple(
            ABSENT
            if row[d] == ABSENT
            else (
                first.setdefault(row[d], len(first)),
                tuple(sorted(number for number, value in marks if value == row[d])),
            )
            for d in ordered
        )

    def _rank(self, content: Any) -> int:
        """A number for a content; equal contents have equal numbers."""
        return self._interned.setdefault(content, len(self._interned))

    def _signature(self, device: int) -> tuple[Any, tuple[Any, ...]]:
        """Which choices can take a device, and which of them need all their devices."""
        takes, all_of = [], []
        for atom, need in enumerate(self.node.needs):
            if isinstance(need, Need):
                for at, choices in enumerate(need.requests):
                    for number, choice in enumerate(choices):
                        if choice.devices >> device & 1:
                            share = dict(choice.shares).get(device)
                            takes.append((atom, at, number, share))
                            if choice.every:
                                all_of.append((atom, at, number))
        return (tuple(takes), tuple(all_of))


def _cells(node: NodeNeeds) -> list[list[int]]:
    """Devices that share counters or values of attributes, together; each other device alone."""
    requested = [number for number in range(len(node.left)) if _asked(node, number)]
    parent = {device: device for device in requested}

    def root(device: int) -> int:
        while parent[device] != device:
            device = parent[device]
        return device

    owner: dict[tuple[str, int, int], int] = {}
    for device in requested:
        links = [("counter", counter, 0) for counter, _ in node.consumes[device]]
        links += [
            ("value", i, row[device])
            for i, row in enumerate(node.attribute_values)
            if row[device] != ABSENT
        ]
        for link in links:
            parent[root(device)] = root(owner.setdefault(link, device))
    cells: dict[int, list[int]] = {}
    for device in requested:
        cells.setdefault(root(device), []).append(device)
    return list(cells.values())


def _asked(node: NodeNeeds, device: int) -> bool:
    return any(isinstance(need, Need) and need.devices >> device & 1 for need in node.needs)

"""All allocations of an atom on one node that kube-scheduler's allocator can choose, up to symmetry.

The allocator is a complete depth-first search over the requests of a pod, their options in order, and the devices. It takes the
first solution, and the order of devices is not known. So each solution is possible, except that a later option of
``firstAvailable`` is chosen only where no solution exists with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from queuectl.devices.needs import ABSENT, Choice, Need, NodeNeeds

Shares: TypeAlias = tuple[tuple[Any, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class State:
    """Devices of a node in use: ``used`` as bits, and per device what is left of a shared one."""

    used: int
    left: Shares


@dataclass(frozen=True, slots=True)
class _Partial:
    """A state in the middle of an atom: the devices of the request so far, and the values that constraints have seen."""

    state: State
    picked: int = 0
    seen: tuple[frozenset[int], ...] = ()


class TooMuchWork(Exception):
    """The search has reached its limit of steps."""


@dataclass(eq=False)
class Allocator:
    """Searches on one node; results are kept.

    ``steps``: how many devices it can still try before it raises :class:`TooMuchWork`.
    """

    node: NodeNeeds
    steps: int
    _cells: list[list[int]] = field(default_factory=list)
    _cell_keys: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _interned: dict[Any, int] = field(default_factory=dict)
    _signatures: list[Any] = field(default_factory=list)
    _possible: dict[tuple[Any, ...], bool] = field(default_factory=dict)
    _results: dict[tuple[Any, int], tuple[State, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cells = _cells(self.node)
        self._bits = [sum(1 << device for device in cell) for cell in self._cells]
        self._signatures = [self._signature(device) for device in range(len(self.node.left))]
        self._counted = sum(1 << i for i, consumed in enumerate(self.node.consumes) if consumed)
        self._counters: dict[int, tuple[int, ...]] = {}

    @property
    def start(self) -> State:
        """No device in use."""
        return State(0, self.node.left)

    def results(self, state: State, atom: int) -> tuple[State, ...]:
        """The states that an allocation of an atom can lead to; empty if none is sure to exist."""
        key = (self.key(state), atom)
        known = self._results.get(key)
        if known is None:
            found: dict[Any, State] = {}
            need = self.node.needs[atom]
            if isinstance(need, Need):
                begin = _Partial(state, 0, (frozenset(),) * len(need.constraints))
                if self._exists(atom, need, 0, begin):
                    self._collect(atom, need, 0, begin, found)
            known = self._results[key] = tuple(found.values())
        return known

    # The search.

    def _collect(
        self, atom: int, need: Need, at: int, partial: _Partial, found: dict[Any, State]
    ) -> None:
        """All results that the allocator can choose."""
        if at == len(need.requests):
            found.setdefault(self.key(partial.state), partial.state)
            return
        choices = need.requests[at]
        for number, choice in enumerate(choices):
            for after in self._picks(need, choice, partial, strict=False):
                self._collect(atom, need, at + 1, after, found)
            later = len(choices) > number + 1
            if later and any(
                self._exists(atom, need, at + 1, after)
                for after in self._picks(need, choice, partial, strict=True)
            ):
                return

    def _exists(self, atom: int, need: Need, at: int, partial: _Partial) -> bool:
        """Whether the allocator is sure to find a solution from here."""
        if at == len(need.requests):
            return True
        key = (atom, at, self._key(partial))
        known = self._possible.get(key)
        if known is None:
            known = self._possible[key] = any(
                self._exists(atom, need, at + 1, after)
                for choice in need.requests[at]
                for after in self._picks(need, choice, partial, strict=True)
            )
        return known

    def _picks(
        self, need: Need, choice: Choice, partial: _Partial, *, strict: bool
    ) -> Iterator[_Partial]:
        """The partial states after a request, one for each kind of result."""
        level = {self._key(partial): partial}
        if choice.every:
            every = self._every(need, choice, partial)
            level = {self._key(every): every} if every is not None else {}
        for _ in range(0 if choice.every else choice.count):
            level = {
                self._key(after): after
                for before in level.values()
                for after in self._one(need, choice, before, strict)
            }
        for after in level.values():
            yield replace(after, picked=0)

    def _every(self, need: Need, choice: Choice, partial: _Partial) -> _Partial | None:
        for device in _devices(choice.devices):
            after = self._take(need, choice, partial, device, None, strict=False)
            if after is None:
                return None
            partial = after
        return partial if choice.devices else None

    def _one(
        self, need: Need, choice: Choice, partial: _Partial, strict: bool
    ) -> Iterator[_Partial]:
        """The partial states after one device more."""
        shares = dict(choice.shares)
        for device in _devices(choice.devices & ~partial.picked):
            after = self._take(need, choice, partial, device, shares.get(device), strict=strict)
            if after is not None:
                yield after

    def _take(
        self,
        need: Need,
        choice: Choice,
        partial: _Partial,
        device: int,
        share: tuple[Any, ...] | None,
        *,
        strict: bool,
    ) -> _Partial | None:
        """The partial state after a device, or None where it cannot be taken."""
        self.steps -= 1
        if self.steps < 0:
            raise TooMuchWork
        state, bit = partial.state, 1 << device
        left = state.left
        if share is None and state.used & bit:
            return None
        if not state.used & bit and not self._counters_left(state.used, device):
            return None
        if share is not None:
            rest = tuple(a - b for a, b in zip(left[device] or (), share, strict=True))
            if any(amount < 0 for amount in rest):
                return None
            left = (*left[:device], rest, *left[device + 1 :])
        seen = self._seen(need, choice, partial.seen, device, strict)
        if seen is None:
            return None
        picked = partial.picked | bit if share is not None else partial.picked
        return _Partial(State(state.used | bit, left), picked, seen)

    def _seen(
        self,
        need: Need,
        choice: Choice,
        seen: tuple[frozenset[int], ...],
        device: int,
        strict: bool,
    ) -> tuple[frozenset[int], ...] | None:
        """The values that constraints have seen with a device more; None where one of them forbids it."""
        after = list(seen)
        for number in choice.constraints:
            constraint = need.constraints[number]
            value = self.node.values[constraint.attribute][device]
            if value == ABSENT:
                return None
            if constraint.distinct:
                if value in seen[number] and (strict or not constraint.loose):
                    return None
            elif seen[number] and value not in seen[number]:
                return None
            after[number] = seen[number] | {value}
        return tuple(after)

    def _counters_left(self, used: int, device: int) -> bool:
        consumed = self.node.consumes[device]
        if not consumed:
            return True
        rest = self._rest(used)
        return all(rest[counter] >= amount for counter, amount in consumed)

    def _rest(self, used: int) -> tuple[int, ...]:
        """Counters that are left beside these devices."""
        used &= self._counted
        known = self._counters.get(used)
        if known is None:
            rest = list(self.node.counters)
            for device in _devices(used):
                for counter, amount in self.node.consumes[device]:
                    rest[counter] -= amount
            known = self._counters[used] = tuple(rest)
        return known

    # Symmetry.

    def key(self, state: State) -> Any:
        """Equal for states that differ only in which of several interchangeable devices are in use."""
        return self._key(_Partial(state))

    def _key(self, partial: _Partial) -> Any:
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
        return (tuple(sorted(keys)), tuple(map(len, partial.seen)))

    def _marks(self, cell: list[int], partial: _Partial) -> tuple[tuple[int, int], ...]:
        """Values of the cell that constraints have seen: (constraint, value)."""
        if not any(partial.seen):
            return ()
        return tuple(
            (number, value)
            for number, seen in enumerate(partial.seen)
            for value in sorted(seen)
            if any(row[d] == value for row in self.node.values for d in cell)
        )

    def _content(self, cell: list[int], partial: _Partial) -> Any:
        """The devices of a cell that can still be taken and how they depend on each other, without their names.

        Devices are ordered by color refinement, so equal contents are isomorphic; isomorphic ones are nearly always equal.
        """
        state = partial.state
        rest = self._rest(state.used)
        open_devices, broken = [], set()
        for device in cell:
            bit = 1 << device
            shared = self.node.left[device] is not None
            if (state.used & bit and not shared) or (
                not state.used & bit and not self._counters_left(state.used, device)
            ):
                broken.update(self._signatures[device][1])
            else:
                open_devices.append(device)
        counters = self._tight(open_devices, state.used, rest)
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
            color = self._refined(open_devices, color, counters, rest, marks)
        ordered = sorted(open_devices, key=lambda d: (color[d], d))
        content = (
            tuple(color[d] for d in ordered),
            tuple(
                sorted(
                    (rest[c], tuple(users.get(d, 0) for d in ordered))
                    for c, users in counters.items()
                )
            ),
            tuple(self._pattern(row, ordered, marks) for row in self.node.values),
        )
        return (content, tuple(sorted(broken)))

    def _tight(
        self, devices: list[int], used: int, rest: tuple[int, ...]
    ) -> dict[int, dict[int, int]]:
        """Counters that can be too small for the open devices, with what each consumes."""
        counters: dict[int, dict[int, int]] = {}
        for device in devices:
            if not used >> device & 1:
                for counter, amount in self.node.consumes[device]:
                    counters.setdefault(counter, {})[device] = amount
        return {c: users for c, users in counters.items() if sum(users.values()) > rest[c]}

    def _refined(
        self,
        devices: list[int],
        color: dict[int, int],
        counters: dict[int, dict[int, int]],
        rest: tuple[int, ...],
        marks: set[tuple[int, int]],
    ) -> dict[int, int]:
        of_counter = {
            c: self._rank((rest[c], tuple(sorted((color[d], a) for d, a in users.items()))))
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
                for row in self.node.values
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


def _devices(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _cells(node: NodeNeeds) -> list[list[int]]:
    """Devices that share counters or values of attributes, together; each other device alone."""
    asked = [number for number in range(len(node.left)) if _asked(node, number)]
    parent = {device: device for device in asked}

    def root(device: int) -> int:
        while parent[device] != device:
            device = parent[device]
        return device

    owner: dict[tuple[str, int, int], int] = {}
    for device in asked:
        links = [("counter", counter, 0) for counter, _ in node.consumes[device]]
        links += [
            ("value", i, row[device]) for i, row in enumerate(node.values) if row[device] != ABSENT
        ]
        for link in links:
            parent[root(device)] = root(owner.setdefault(link, device))
    cells: dict[int, list[int]] = {}
    for device in asked:
        cells.setdefault(root(device), []).append(device)
    return list(cells.values())


def _asked(node: NodeNeeds, device: int) -> bool:
    return any(isinstance(need, Need) and need.devices >> device & 1 for need in node.needs)

"""All allocations of an atom on one node that kube-scheduler's allocator can choose, up to symmetry.

The allocator is a complete depth-first search over the requests of a pod, their options in order, and the devices. It takes the
first solution, and the order of devices is not known. So each solution is possible, except that a later option of
``firstAvailable`` is chosen only where no solution exists with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from queuectl.devices.needs import (
    ABSENT,
    Choice,
    DeviceState,
    Need,
    NodeNeeds,
    Partial,
    Stock,
    bits_of,
)
from queuectl.devices.symmetry import Symmetry


class TooMuchWork(Exception):
    """The search has reached its limit of steps."""


@dataclass(eq=False)
class Allocator:
    """Searches on one node; results are kept.

    ``steps``: how many devices it can still try before it raises :class:`TooMuchWork`.
    """

    node: NodeNeeds
    steps: int
    _possible: dict[tuple[Any, ...], bool] = field(default_factory=dict)
    _results: dict[tuple[Any, int], tuple[DeviceState, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stock = Stock(self.node)
        self._symmetry = Symmetry(self.node, self.stock)
        self._key = self._symmetry.key

    def key(self, state: DeviceState) -> Any:
        """Equal for states that differ only in which of several interchangeable devices are in use."""
        return self._key(Partial(state))

    @property
    def start(self) -> DeviceState:
        """No device in use."""
        return DeviceState(0, self.node.left)

    def outcomes(self, state: DeviceState, atom: int) -> tuple[DeviceState, ...]:
        """The states that an allocation of an atom can lead to; empty if none is sure to exist."""
        key = (self.key(state), atom)
        known = self._results.get(key)
        if known is None:
            found: dict[Any, DeviceState] = {}
            need = self.node.needs[atom]
            if isinstance(need, Need):
                begin = Partial(state, 0, (frozenset(),) * len(need.constraints))
                if self._exists(atom, need, 0, begin):
                    self._collect(atom, need, 0, begin, found)
            known = self._results[key] = tuple(found.values())
        return known

    # The search.

    def _collect(
        self, atom: int, need: Need, at: int, partial: Partial, states: dict[Any, DeviceState]
    ) -> None:
        """All results that the allocator can choose."""
        if at == len(need.requests):
            states.setdefault(self.key(partial.state), partial.state)
            return
        choices = need.requests[at]
        for number, choice in enumerate(choices):
            for after in self._picks(need, choice, partial, strict=False):
                self._collect(atom, need, at + 1, after, states)
            later = len(choices) > number + 1
            if later and any(
                self._exists(atom, need, at + 1, after)
                for after in self._picks(need, choice, partial, strict=True)
            ):
                return

    def _exists(self, atom: int, need: Need, at: int, partial: Partial) -> bool:
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
        self, need: Need, choice: Choice, partial: Partial, *, strict: bool
    ) -> Iterator[Partial]:
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

    def _every(self, need: Need, choice: Choice, partial: Partial) -> Partial | None:
        for device in bits_of(choice.devices):
            after = self._take(need, choice, partial, device, None, strict=False)
            if after is None:
                return None
            partial = after
        return partial if choice.devices else None

    def _one(self, need: Need, choice: Choice, partial: Partial, strict: bool) -> Iterator[Partial]:
        """The partial states after one device more."""
        shares = dict(choice.shares)
        for device in bits_of(choice.devices & ~partial.picked):
            after = self._take(need, choice, partial, device, shares.get(device), strict=strict)
            if after is not None:
                yield after

    def _take(
        self,
        need: Need,
        choice: Choice,
        partial: Partial,
        device: int,
        share: tuple[Any, ...] | None,
        *,
        strict: bool,
    ) -> Partial | None:
        """The partial state after a device, or None where it cannot be taken."""
        self.steps -= 1
        if self.steps < 0:
            raise TooMuchWork
        state, bit = partial.state, 1 << device
        left = state.left
        if share is None and state.used & bit:
            return None
        if not state.used & bit and not self.stock.enough(state.used, device):
            return None
        if share is not None:
            rest = tuple(a - b for a, b in zip(left[device] or (), share, strict=True))
            if any(amount < 0 for amount in rest):
                return None
            left = (*left[:device], rest, *left[device + 1 :])
        seen = self._seen(need, choice, partial.chosen_values, device, strict)
        if seen is None:
            return None
        picked = partial.picked | bit if share is not None else partial.picked
        return Partial(DeviceState(state.used | bit, left), picked, seen)

    def _seen(
        self,
        need: Need,
        choice: Choice,
        attribute_values: tuple[frozenset[int], ...],
        device: int,
        strict: bool,
    ) -> tuple[frozenset[int], ...] | None:
        """The values that constraints have seen with a device more; None where one of them forbids it."""
        after = list(attribute_values)
        for number in choice.constraints:
            constraint = need.constraints[number]
            value = self.node.attribute_values[constraint.attribute][device]
            if value == ABSENT:
                return None
            if constraint.distinct:
                if value in attribute_values[number] and (strict or not constraint.loose):
                    return None
            elif attribute_values[number] and value not in attribute_values[number]:
                return None
            after[number] = attribute_values[number] | {value}
        return tuple(after)

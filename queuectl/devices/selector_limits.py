"""The selectors that a plan evaluates. Namespaces share them, so that those of one tenant refuse no request of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from queuectl.devices.requests import DeviceClasses, PodRequest
from queuectl.devices.selectors import selector
from queuectl.domain.errors import BadInput

Selectors: TypeAlias = tuple[str, ...]
"""Those of one option."""
Owned: TypeAlias = frozenset[tuple[str, PodRequest]]
"""Requests with the namespaces of their gangs."""
_Lists: TypeAlias = Mapping[str, frozenset[Selectors]]  # by namespace
_Cost: TypeAlias = Callable[[str], int]  # of a selector

MOST_BYTES_OF_PLAN: Final = 256 * 1024
"""Of its different selectors."""
MOST_OPERATIONS_OF_PLAN: Final = 500_000
"""To evaluate each of them once. There is one evaluation for each kind of device."""
MOST_SELECTORS_OF_PLAN: Final = MOST_OPERATIONS_OF_PLAN // 60
"""No selector takes fewer operations, so more need not be compiled. All stay compiled from one plan to the next."""
PARTS: Final = 4
"""A namespace has at most one of so many equal parts of a plan."""


@dataclass(frozen=True)
class SnapshotRequests:
    """The distinct requests for devices of a snapshot.

    Attributes:
        holding: those of gangs that run or have a lease.
        waiting: those of pending gangs.
    """

    holding: Owned
    waiting: Owned

    @cached_property
    def distinct(self) -> frozenset[PodRequest]:
        """Without their namespaces."""
        return frozenset(request for _, request in self.holding | self.waiting)

    @property
    def shared(self) -> bool:
        """Whether any is for claims that pods share."""
        return any(request.shared for request in self.distinct)


def refused_selectors(requests: SnapshotRequests, classes: DeviceClasses) -> frozenset[Selectors]:
    """The selectors that a plan does not evaluate: the most expensive ones of namespaces that have more than their part.

    The selectors of gangs that hold capacity come first: without them, nothing shows which devices these have. Selectors
    that are too many or too long are not compiled.
    """
    holding, kept = (
        _lists(requests.holding, classes),
        _lists(requests.holding | requests.waiting, classes),
    )
    every = _NO_LISTS.union(*kept.values())
    for cost, most in _LIMITS:
        kept = _shared(kept, holding, cost, most)
    return every.difference(*kept.values())


def _lists(owned: Owned, classes: DeviceClasses) -> _Lists:
    found: dict[str, set[Selectors]] = {}
    for namespace, request in owned:
        for atom in classes.requested(request).atoms:
            found.setdefault(namespace, set()).update(o.selectors for o in atom.options)
    return {name: frozenset(lists) - {()} for name, lists in found.items() if lists - {()}}


def _shared(lists: _Lists, first: _Lists, cost: _Cost, most: int) -> _Lists:
    """The lists that namespaces keep of a limit."""
    totals = [sum(map(cost, {one for each in own for one in each})) for own in lists.values()]
    part = _part(totals, most)

    def order(own: Selectors) -> tuple[int, int, Selectors]:
        return sum(map(cost, own)), sum(map(_bytes, own)), own

    kept = {}
    for name, own in lists.items():
        before = own & first.get(name, _NO_LISTS)
        steps = (
            (sorted(before, key=order), most // PARTS),
            (sorted(own - before, key=order), part),
        )
        kept[name] = _within(steps, cost)
    return kept


def _part(totals: Iterable[int], most: int) -> int:
    """The part of each namespace, so that all parts fit: the larger, the less the others need (max-min fairness)."""
    largest = most // PARTS
    needs = sorted(min(total, largest) for total in totals)
    left = most
    for at, need in enumerate(needs):
        part = left // (len(needs) - at)
        if need > part:
            return part
        left -= need
    return largest


def _within(steps: Iterable[tuple[Iterable[Selectors], int]], cost: _Cost) -> frozenset[Selectors]:
    """The lists that cost at most so much together with those before. A selector counts once."""
    found: set[Selectors] = set()
    counted: set[str] = set()
    spent = 0
    for lists, most in steps:
        for each in lists:
            more = sum(map(cost, set(each) - counted))
            if not more or spent + more <= most:
                spent += more
                counted.update(each)
                found.add(each)
    return frozenset(found)


def _bytes(source: str) -> int:
    return len(source.encode())


def _operations(source: str) -> int:
    """Of one evaluation; 0 for a selector that is refused."""
    try:
        return selector(source).operations
    except BadInput:
        return 0


_NO_LISTS: Final = frozenset[Selectors]()
_LIMITS: Final[tuple[tuple[_Cost, int], ...]] = (
    (lambda _: 1, MOST_SELECTORS_OF_PLAN),
    (_bytes, MOST_BYTES_OF_PLAN),
    (_operations, MOST_OPERATIONS_OF_PLAN),
)

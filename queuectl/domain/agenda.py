"""A simulated clock. In a draw of expected starts its events are the ends of gangs. In a simulation it has all events."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

AnyEvent = TypeVar("AnyEvent", bound=Hashable)


class Agenda(Generic[AnyEvent]):
    """A simulated clock and the events to come: in the order of time, at one time by phase, then as they were added.

    Attributes:
        now: the time, in seconds. It never decreases.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._to_come: dict[AnyEvent, _Entry[AnyEvent]] = {}
        self._heap: list[_Entry[AnyEvent]] = []  # also entries of events that were moved or removed
        self._added = 0

    def __bool__(self) -> bool:
        """Whether an event is to come."""
        return bool(self._to_come)

    def add(self, at: float, event: AnyEvent, phase: int = 0) -> None:
        """Add an event, or move it if it is to come at another time.

        Args:
            at: its time, in seconds.
            event: compared by equality.
            phase: at one time, events of a smaller phase happen first.
        """
        before = self._to_come.get(event)
        if before is None or before[:2] != (at, phase):
            self._added += 1
            entry = self._to_come[event] = (at, phase, self._added, event)
            heappush(self._heap, entry)

    def remove(self, event: AnyEvent) -> None:
        """An event does not happen, if it is to come."""
        self._to_come.pop(event, None)

    def due(self) -> Iterator[AnyEvent]:
        """Move the clock to the next event. Yields all events until then, with those that are added in the meantime."""
        while self._to_come.get(self._heap[0][3]) is not self._heap[0]:
            heappop(self._heap)
        self.now = max(self.now, self._heap[0][0])
        while self._heap and self._heap[0][0] <= self.now:
            entry = heappop(self._heap)
            if self._to_come.get(entry[3]) is entry:
                del self._to_come[entry[3]]
                yield entry[3]

    def in_order(self) -> list[tuple[float, AnyEvent]]:
        """The events to come, with their times."""
        return [(at, event) for at, _, _, event in sorted(self._to_come.values())]


_Entry: TypeAlias = tuple[float, int, int, AnyEvent]
"""Time, phase, a number that makes the order certain, and the event."""

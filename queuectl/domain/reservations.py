"""Reservations in advance: capacity, or named nodes, that is kept for the gangs of one ClusterQueue between two times.

A Reservation has one occurrence, or repeats by a rule of RFC 5545. Only its current or next occurrence counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.workload import TopologyRequest, Workload

if TYPE_CHECKING:
    from dateutil.rrule import rrule

FREQUENCIES: Final = ("HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY")
"""The values of FREQ that a recurrence can have."""


LARGEST_PART: Final = 10_000
"""The largest COUNT and INTERVAL of a recurrence."""


_STEP: Final = 16  # periods of a rule
_LENGTHS: Final = {
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}
_MONTHS: Final = {"MONTHLY": 1, "YEARLY": 12}
_DAYS: Final = frozenset({"BYDAY", "BYWEEKDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER"})
"""Parts of a rule that state its days."""


REQUESTS: Final = "spec.capacity.requests"
"""The field of a Reservation with the requests of its pods."""


def no_amount(resource: str) -> str:
    """Why a Reservation cannot keep a resource that no node has."""
    devices = "devices of ResourceSlices cannot be kept by amount"
    return f"no node has {resource}; {devices}: name the nodes in spec.nodes"


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """Equal pods for which a Reservation keeps room.

    Attributes:
        requests: of one pod; ``pods`` = 1 is among them.
        flavor: only nodes of this ResourceFlavor; its topology has the levels.
        node_labels: only nodes with these labels.
    """

    pods: int
    requests: Resources = NOTHING
    flavor: str | None = None
    node_labels: tuple[tuple[str, str], ...] = ()
    topology: TopologyRequest | None = None


@dataclass(frozen=True, slots=True)
class AdvanceReservation:
    """A Reservation, as an administrator states it.

    Attributes:
        begins, ends: unix seconds of the first occurrence.
        cluster_queue: its gangs can use the capacity; None = no gang can (maintenance).
        users, namespaces: of the gangs that can use it; empty = all of the ClusterQueue.
        capacity: None if it names nodes.
        nodes: names of whole nodes; empty if it states capacity.
        recurrence: an RRULE whose first occurrence starts at ``begins``; empty = it does not repeat.
        time_zone: of the recurrence, an IANA name. Each occurrence lasts as many seconds as the first.
        evicts: gangs that still run on its nodes when it starts are evicted.
    """

    name: str
    begins: float
    ends: float
    cluster_queue: str | None = None
    users: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    capacity: ReservedCapacity | None = None
    nodes: tuple[str, ...] = ()
    recurrence: str = ""
    time_zone: str = "UTC"
    evicts: bool = False

    def admits(self, workload: Workload, cluster_queue: str | None) -> bool:
        """Whether a gang of this ClusterQueue can use its capacity."""
        if self.cluster_queue is None or cluster_queue != self.cluster_queue:
            return False
        if self.users and workload.user not in self.users:
            return False
        return not self.namespaces or workload.namespace in self.namespaces

    def occurrence(self, now: float) -> tuple[float, float] | None:
        """Start and end, in unix seconds, of the occurrence at ``now`` or of the next one; None after the last."""
        length = self.ends - self.begins
        begins: float | None = self.begins
        if self.recurrence:
            begins = next_start(self.recurrence, self.begins, self.time_zone, now - length)
        return None if begins is None or begins + length <= now else (begins, begins + length)


@lru_cache(maxsize=1024)
def recurrence_rule(text: str, begins: float, time_zone: str = "UTC") -> rrule:
    """The rule of a recurrence. Its times are read from clocks in the time zone. Raises ValueError if it is not a rule.

    By RFC 5545, a time that clocks skip counts with the offset before the change, and of a time that they show twice the first one counts.
    """
    from dateutil.rrule import rrule, rrulestr  # most commands need no rule

    first = datetime.fromtimestamp(begins, ZoneInfo(time_zone))
    rule = rrulestr(text.removeprefix("RRULE:"), dtstart=first)
    if isinstance(rule, rrule):
        return rule
    raise ValueError("more than one rule")


def next_start(text: str, begins: float, time_zone: str, after: float) -> float | None:
    """The start (unix seconds) of the first occurrence of a recurrence that begins after a time; None after the last.

    The search begins a few periods of the rule before that time, however long ago the first occurrence was. As
    :func:`recurrence_rule`, which has the other arguments.
    """
    parts = parts_of(text)
    first = datetime.fromtimestamp(begins, ZoneInfo(time_zone))
    last = _last_start(text, begins, time_zone) if "COUNT" in parts else None
    if last is not None and after >= last:
        return None
    skipped = _skipped(first, parts, datetime.fromtimestamp(after, first.tzinfo))
    if skipped is not None:
        stated = {**_implied(first, parts), **parts}
        stated.pop("COUNT", None)
        text = ";".join(f"{key}={value}" for key, value in stated.items())
        begins = skipped
    found = recurrence_rule(text, begins, time_zone).after(datetime.fromtimestamp(after, UTC))
    return found.timestamp() if found is not None else None


def parts_of(recurrence: str) -> dict[str, str]:
    """The parts of a rule by their names, in upper case."""
    listed = recurrence.removeprefix("RRULE:").upper().split(";")
    return dict(part.partition("=")[::2] for part in listed)


def _skipped(first: datetime, parts: Mapping[str, str], after: datetime) -> float | None:
    """A time (unix seconds) at which the rule can begin instead, with the same occurrences after ``after``; None if it is not long ago.

    It moves in steps of many periods, so that few rules are made.
    """
    interval = int(parts.get("INTERVAL", 1))
    wall, goal = first.replace(tzinfo=None, fold=0), after.replace(tzinfo=None, fold=0)
    months = _MONTHS.get(parts["FREQ"], 0) * interval
    length = _LENGTHS.get(parts["FREQ"], timedelta()) * interval
    passed = (goal.year - wall.year) * 12 + goal.month - wall.month
    steps = (passed // months if months else (goal - wall) // length) // _STEP
    # The period in which a rule begins can be incomplete, so at least one whole step is not left out.
    for periods in range((steps - 1) * _STEP, 0, -_STEP):
        if months:
            at = wall.year * 12 + wall.month - 1 + periods * months
            moved = wall.replace(year=at // 12, month=at % 12 + 1, day=1)
        else:
            moved = wall + periods * length
        begins = moved.replace(tzinfo=first.tzinfo).timestamp()
        if datetime.fromtimestamp(begins, first.tzinfo).replace(tzinfo=None) == moved:
            return begins  # clocks show this time
    return None


def _implied(first: datetime, parts: Mapping[str, str]) -> dict[str, str]:
    """The parts of a rule that follow from the day of its first occurrence, with which the rule no longer begins."""
    if parts["FREQ"] not in _MONTHS or parts.keys() & _DAYS:
        return {}
    month = {"BYMONTH": str(first.month)} if parts["FREQ"] == "YEARLY" else {}
    return {**month, "BYMONTHDAY": str(first.day)}


@lru_cache(maxsize=1024)
def _last_start(text: str, begins: float, time_zone: str) -> float:
    """The start of the last occurrence of a rule with COUNT."""
    last = begins
    for at in recurrence_rule(text, begins, time_zone):
        last = at.timestamp()
    return last


class ReservationPhase(StrEnum):
    """The state of a Reservation, as users see it."""

    PENDING = "Pending"  # no plan has considered it yet
    PLANNED = "Planned"  # it has nodes, and has not begun
    NOT_PLACEABLE = "NotPlaceable"  # it has no nodes, or some of those that it names do not exist; the reason is stated
    ACTIVE = "Active"  # it has begun
    ENDED = "Ended"  # its last occurrence is over


@dataclass(frozen=True, slots=True)
class ReservationState:
    """One occurrence, as the last plan has it. It is stored.

    Attributes:
        begins, ends: of the occurrence, unix seconds.
        nodes: node and pods on each; empty = no placement, or it names its nodes.
        reason: why it has no placement, or which of the nodes that it names do not exist; empty = it has all.
        earliest: unix seconds of the earliest start for which a placement is known; None = none is known.
    """

    name: str
    begins: float
    ends: float
    nodes: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    earliest: float | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a Reservation, as a snapshot has it.

    Attributes:
        begins, ends: unix seconds.
        placed: node and pods on each, by the last plan; empty = it has no placement yet.
    """

    reservation: AdvanceReservation
    begins: float
    ends: float
    placed: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Of the Reservation."""
        return self.reservation.name

    def active(self, now: float) -> bool:
        """Whether it has begun."""
        return self.begins <= now

    def phase(self, state: ReservationState | None, now: float) -> ReservationPhase:
        """Its phase. ``state``: by the last plan of this occurrence."""
        if state is not None and state.reason:
            return ReservationPhase.NOT_PLACEABLE
        if self.reservation.capacity is not None and not self.placed:
            return ReservationPhase.PENDING
        return ReservationPhase.ACTIVE if self.active(now) else ReservationPhase.PLANNED

    def held_amounts(self) -> Iterator[tuple[str, Resources]]:
        """Nodes of its placement, and what is kept for it there."""
        capacity = self.reservation.capacity
        if capacity is not None:
            for node, pods in self.placed:
                yield node, capacity.requests * pods

    def overlaps(self, second: Occurrence) -> bool:
        """Whether both last at one time."""
        return self.begins < second.ends and second.begins < self.ends

    def stands(self, fleet: Fleet) -> bool:
        """Whether it has a placement, on nodes that are all healthy."""
        nodes = fleet.by_name
        return bool(self.placed) and all(
            name in nodes and nodes[name].in_service for name, _ in self.placed
        )


def occurrences(
    reservations: Iterable[AdvanceReservation], states: Iterable[ReservationState], now: float
) -> tuple[Occurrence, ...]:
    """The current or next occurrence of each Reservation, in the order of their starts. ``states``: of the last plan."""
    known = {state.name: state for state in states}
    current = []
    for reservation in reservations:
        times = reservation.occurrence(now)
        if times is None:
            continue
        state = known.get(reservation.name)
        placed = state.nodes if state is not None and _is_same(state, times, now) else ()
        capacity = reservation.capacity
        if capacity is not None and sum(pods for _, pods in placed) != capacity.pods:
            placed = ()  # it was edited
        current.append(Occurrence(reservation, *times, placed))
    return tuple(sorted(current, key=lambda each: (each.begins, each.name)))


def _is_same(state: ReservationState, times: tuple[float, float], now: float) -> bool:
    """Whether this is the occurrence that has been placed. One that has begun keeps its nodes if its end changes."""
    begun = state.begins == times[0] <= now < state.ends
    return begun or (state.begins, state.ends) == times


def next_turn(
    reservations: Iterable[AdvanceReservation], notice: float, now: float
) -> float | None:
    """The next time after ``now`` at which plans can differ: an occurrence starts or ends, or its evictions are due.

    ``notice``: seconds before a start at which gangs are evicted for it.
    """
    turns = [
        at
        for reservation in reservations
        if (times := reservation.occurrence(now)) is not None
        for at in (times[0] - notice * reservation.evicts, *times)
        if at > now
    ]
    return min(turns, default=None)


def states_of(placed: Iterable[Occurrence]) -> list[ReservationState]:
    """The placements of occurrences."""
    return [ReservationState(each.name, each.begins, each.ends, each.placed) for each in placed]

"""Why a gang does not start, in numbers and in a sentence, as the cycle finds it.

What would let it start is worked out on demand, off the admission path: :mod:`queuectl.planner.explain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.words import format_time
from queuectl.planner.capacity.state import State
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import FlavorResource, Pool
from queuectl.planner.reasons.words import asked_by, plain, room_of


def no_flavor(queue: ClusterQueue, options: Options) -> Reason:
    """No choice of flavors is admissible."""
    details: dict[str, Any] = {"clusterQueue": queue.name}
    if options.uncovered:
        names = ", ".join(options.uncovered)
        details["uncovered"] = list(options.uncovered)
        text = f"ClusterQueue {queue.name} covers no {names}"
        return Reason(Code.NO_MATCHING_FLAVOR, text, details)
    details["flavors"] = dict(sorted(options.refused.items()))
    why = "; ".join(f"{name}: {text}" for name, text in sorted(options.refused.items()))
    text = f"no flavor of ClusterQueue {queue.name} admits it ({why})"
    return Reason(Code.NO_MATCHING_FLAVOR, text, details)


def undecided(budget: int, alarm: str = "") -> Reason:
    """The search ended before an answer."""
    if alarm:
        text = "the solver failed on it; it is tried again"
        return Reason(Code.UNDECIDED, text, {"budget": budget, "alarm": alarm})
    text = "the solver's limit ended the search first; it is tried again with a larger one"
    return Reason(Code.UNDECIDED, text, {"budget": budget})


# Placement.


def placement_failed(state: State, request: GangRequest) -> Reason:
    """No placement on what is free beside the gangs that come before it."""
    return _first_tight(request, state.free()) or _together(request)


def never_fits(state: State, request: GangRequest) -> Reason:
    """No placement even if every node were healthy and empty.

    Args:
        state: of the cycle.
        request: built with ``lasting`` nodes.
    """
    empty = state.problem.index.allocatable
    for podset_group in request.podset_groups:
        room = room_of(podset_group, empty)
        if room.short:
            text = f"{asked_by(podset_group)}; even empty, {room.sentence}"
            return Reason(Code.SHAPE_NEVER_FITS, text, room.details)
    text = f"{'; '.join(map(asked_by, request.podset_groups))}: no placement exists even on the empty fleet"
    details = {"units": [plain(podset_group) for podset_group in request.podset_groups]}
    return Reason(Code.SHAPE_NEVER_FITS, text, details)


def _first_tight(request: GangRequest, free: Ints) -> Reason | None:
    """The first podset group whose floor sums alone exclude every domain."""
    for podset_group in request.podset_groups:
        room = room_of(podset_group, free)
        if room.short:
            text = f"{asked_by(podset_group)}; {room.sentence}{room.free_in_all}"
            return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, room.details)
    return None


def _together(request: GangRequest) -> Reason:
    parts = "; ".join(map(asked_by, request.podset_groups))
    text = f"{parts}: each part has room by itself, but not all at once"
    details = {"units": [plain(podset_group) for podset_group in request.podset_groups]}
    return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)


# Quota.


@dataclass(frozen=True, slots=True)
class _Short:
    """One flavor and resource of which a gang needs more than there is.

    Attributes:
        nominal: quota of the ClusterQueue itself.
        used: of the ClusterQueue, leases included.
        most: what it could use if nothing were used.
        left: what it may use now.
        borrows_at: unix seconds before which it must not borrow; None = it may.
    """

    row: FlavorResource
    pool: Pool
    need: int
    nominal: int
    used: int
    most: int
    left: int
    borrows_at: float | None = None

    def say(self, amount: int) -> str:
        return format_quantity(self.row[1], amount)

    @property
    def asks(self) -> str:
        return f"{self.say(self.need)} {self.row[1]} of flavor {self.row[0]}"

    @property
    def limit(self) -> str:
        most = self.pool.borrowing.get(self.row)
        return "" if most is None else f" (borrowing limit {self.say(most)})"

    @property
    def never(self) -> str:
        """Why it is too large for ever."""
        own = f"{self.asks}, nominal quota {self.say(self.nominal)}"
        if self.pool.parent is None:
            return own
        if self.most < self.nominal:
            return f"{own}, of which cohort {self.pool.parent.name} grants {self.say(self.most)}"
        borrowed = self.say(self.most - self.nominal)
        return (
            f"{own} and at most {borrowed} borrowed from cohort {self.pool.parent.name}{self.limit}"
        )

    @property
    def now(self) -> str:
        """Which quota it lacks now."""
        if self.pool.parent is None:
            held, all_ = self.say(self.nominal - self.left), self.say(self.nominal)
            return f"needs {self.asks}, {held} of {all_} in use or leased"
        own, cohort = max(0, self.nominal - self.used), self.pool.parent.name
        quota = f"needs {self.asks}, {self.say(own)} of its own {self.say(self.nominal)} unused"
        if self.left < own:
            lent = self.say(own - self.left)
            return f"{quota}, but others of cohort {cohort} have borrowed {lent} of that"
        if self.borrows_at is not None:
            return f"{quota}, and it was evicted and does not borrow before {format_time(self.borrows_at)}"
        more = self.say(self.left - own) if self.left > own else "nothing"
        return f"{quota} and {more} left to borrow in cohort {cohort}{self.limit}"

    def details(self) -> dict[str, Any]:
        flavor, resource = self.row
        details: dict[str, Any] = {"flavor": flavor, "resource": resource, "needs": self.need}
        details["nominal"] = self.nominal
        if self.pool.parent is not None:
            details |= {"cohort": self.pool.parent.name, "left": max(0, self.left)}
            details |= {"used": self.used, "most": self.most}
            if self.row in self.pool.borrowing:
                details["borrowingLimit"] = self.pool.borrowing[self.row]
            if self.borrows_at is not None:
                details["borrowsAt"] = format_time(self.borrows_at)
        return details


def short_of_quota(state: State, request: GangRequest) -> Reason | None:
    """Why quota holds a gang back, if it does: it asks more than there ever is, or others hold it now."""
    shorts = list(_shorts(state, request))
    if not shorts:
        return None
    queue = request.queue
    never = [short for short in shorts if short.need > short.most]
    if never:
        text = f"needs more than ClusterQueue {queue} ever has: {'; '.join(s.never for s in never)}"
        code, rows = Code.EXCEEDS_MAX_QUOTA, [s.details() for s in never]
    else:
        text = f"waits for quota of ClusterQueue {queue}: {'; '.join(s.now for s in shorts)}"
        code, rows = Code.WAITING_FOR_QUOTA, [{**s.details(), "used": s.used} for s in shorts]
    return Reason(code, text, {"clusterQueue": queue, "quota": rows})


def _shorts(state: State, request: GangRequest) -> Iterator[_Short]:
    """What is short for a gang that holds no lease: the tighter of the two views counts."""
    if request.queue is None:
        return
    pool = state.later.quota.pools[request.queue]
    borrows = state.quota.may_borrow(request)
    for row, left in state.quota.short(request).items():
        need, nominal = request.charges[row], pool.subtree.get(row, 0)
        used = max(
            use.of(request.queue, row) for use in (state.now.quota, state.later.quota)
        )  # what leaves, and what is leased
        until = None if borrows or pool.parent is None else request.pending.borrows_at
        yield _Short(row, pool, need, nominal, used, pool.most(row), left, until)

"""Capacity and quota during one cycle, at each of a list of instants.

Two instants are known today: *now*, when everything that holds capacity counts, leaving gangs included, and *later*, when
all leaving gangs have left. A gang that starts uses both instants, an evicted one uses only the first, a reservation uses only
the last. A gang must fit at each instant to start, and a reservation must fit at the last.

A part of the capacity that is free now is also kept for a reservation (:mod:`queuectl.planner.capacity.reservations`). A gang without a
reservation may use the rest, which is *open*.

A gang without a reservation must find its quota alongside several uses: what is used now and reserved, and what is
used at every later instant. Questions about such a gang are answered for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    Reservation,
    TentativeAdmission,
    add_at,
    give_back,
    use_of_counts,
)
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Problem, Shape, caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource, QuotaRow, QuotaUse, use_of

# ---- Quota


@dataclass(frozen=True, slots=True)
class WithheldQuota:
    """Quota of a StrictFIFO ClusterQueue that is kept from borrowers for a gang of it that waits."""

    gang: Workload
    queue: str
    amounts: Mapping[FlavorResource, int]

    def rows(self) -> Iterator[tuple[QuotaRow, int]]:
        """The amounts as charges."""
        return (((self.queue, *row), amount) for row, amount in self.amounts.items())


@dataclass(eq=False)
class QuotaState:
    """Starts from what running gangs use.

    Attributes:
        instants: the use at each instant, in the order of time: now is the first.
        open: the use now, with the quota that is kept for reservations.
        withheld: by uid of the gang that waits, what is kept from borrowers; it is in the use of the last instant.
        released: ClusterQueues of which quota was given back.
    """

    problem: Problem
    instants: Sequence[QuotaUse]
    withheld: dict[str, WithheldQuota] = field(default_factory=dict)
    open: QuotaUse = field(init=False)
    released: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = self.now

    @property
    def now(self) -> QuotaUse:
        """All that is charged counts."""
        return self.instants[0]

    @property
    def later(self) -> QuotaUse:
        """The gangs that leave have left."""
        return self.instants[-1]

    @property
    def views(self) -> tuple[QuotaUse, ...]:
        """The uses alongside which a gang without a reservation must find its own quota."""
        return self.open, *self.instants[1:]

    # Questions.

    def nominal(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota of a ClusterQueue."""
        return self.now.pools[queue].subtree  # no member lends to a ClusterQueue

    def most(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to what a ClusterQueue could ever use if nothing were used."""
        return {row: self.problem.most(queue, row) for row in self.nominal(queue)}

    def left(self, queue: str, *, borrows: bool = True) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the quota left for a gang without a reservation that may borrow, or may not."""
        return {
            row: min(use.left(queue, row, borrows=borrows) for use in self.views)
            for row in self.nominal(queue)
        }

    def may_borrow(self, request: GangRequest) -> bool:
        """Whether the gang may use more than its ClusterQueue's nominal quota in this plan."""
        return request.pending.may_borrow(self.problem.snapshot.now)

    def ever(self, request: GangRequest) -> bool:
        """Whether a request's charges ever fit its quota if nothing is used."""
        queue, most = request.queue, self.problem.most
        return queue is None or all(
            need <= most(queue, row) for row, need in request.charges.items()
        )

    def allows(self, request: GangRequest, used: QuotaUse) -> bool:
        """Whether a request's charges fit its quota, borrowed quota if it may borrow, alongside ``used``."""
        borrows = self.may_borrow(request)
        return request.queue is None or used.fits(request.queue, request.charges, borrows=borrows)

    def fits(self, request: GangRequest) -> bool:
        """Whether a request without a reservation fits its quota at every instant."""
        return all(self.allows(request, use) for use in self.views)

    def short(self, request: GangRequest) -> dict[FlavorResource, int]:
        """Of what a request without a reservation has too little quota, and how much is left of it."""
        left: dict[FlavorResource, int] = {}
        if request.queue is None:
            return left
        borrows = self.may_borrow(request)
        for use in self.views:
            for row, amount in use.short(request.queue, request.charges, borrows=borrows):
                left[row] = min(amount, left.get(row, amount))
        return {row: left[row] for row in request.charges if row in left}

    def kept_from(
        self, request: GangRequest, row: FlavorResource
    ) -> Sequence[tuple[WithheldQuota, int]]:
        """The quota that is withheld from a request without a reservation, and how much more of ``row`` would be left without each part."""
        queue = request.queue
        if queue is None:
            return ()
        root = self.problem.pools[queue].root
        theirs = [
            kept
            for kept in self.withheld.values()
            if kept.amounts.get(row) and self.problem.pools[kept.queue].root is root
        ]
        if not theirs:
            return ()
        without, borrows = self.later.copy(), self.may_borrow(request)
        views = [without if use is self.later else use for use in self.views]

        def left() -> int:
            return min(use.left(queue, row, borrows=borrows) for use in views)

        found, before = [], left()
        for kept in theirs:
            without.add((kept.queue, *row), -kept.amounts[row])
            before, last = left(), before
            found.append((kept, before - last))
        return [(kept, amount) for kept, amount in found if amount]

    @contextmanager
    def without(self, gangs: Sequence[Admitted], *uses: QuotaUse) -> Iterator[None]:
        """For the time of a ``with`` block, these gangs are charged nothing in some uses of quota."""
        charges = [charge for gang in gangs for charge in self.problem.usage.charges(gang)]
        with ExitStack() as stack:
            for use in _distinct(uses):
                stack.enter_context(use.hypothetically(charges, -1))
            yield

    # Changes.

    def charge(self, request: GangRequest, sign: int, instants: Sequence[QuotaUse]) -> None:
        """Add a request's charges at some instants, or, with ``sign`` -1, take them off; what is used now is not open."""
        if sign < 0 and request.queue is not None:
            self.released.append(request.queue)
        uses = _distinct([*instants, *([self.open] if instants[0] is self.now else ())])
        for row, amount in request.rows():
            for use in uses:
                use.add(row, sign * amount)

    def stay(self, gang: Admitted, sign: int) -> None:
        """Take a gang's charges off all instants but the first, or, with ``sign`` -1, add them again."""
        for row, amount in self.problem.usage.charges(gang):
            for use in self.instants[1:]:
                use.add(row, -sign * amount)

    def forget(self, gang: Admitted) -> None:
        """Take a gang's charges off the first instant."""
        for row, amount in self.problem.usage.charges(gang):
            for use in _distinct((self.now, self.open)):
                use.add(row, -amount)

    def keep(self, reservation: Reservation) -> None:
        """Keep the part of a reservation of the quota that is left now from all others."""
        if self.open is self.now:
            self.open = self.now.copy()
        self.open.keep(self.now, *self._kept_rows(reservation))

    def open_beside(self, reservations: Iterable[Reservation]) -> QuotaUse:
        """The use of quota now, and the part of these reservations that is kept now."""
        use = self.now
        for reservation in reservations:
            use = self.now.copy() if use is self.now else use
            use.keep(self.now, *self._kept_rows(reservation))
        return use

    def _kept_rows(
        self, reservation: Reservation
    ) -> tuple[list[tuple[QuotaRow, int]], list[tuple[QuotaRow, int]]]:
        """The charge of the gang, and that of its victims that are still charged."""
        usage = self.problem.usage
        still = [charge for gang in reservation.victims for charge in usage.charges(gang)]
        return list(reservation.request.rows()), still

    def withhold(self, request: GangRequest) -> None:
        """Keep a ClusterQueue's own unused quota from borrowers for a gang that waits for it."""
        if request.queue is None:
            return
        amounts: dict[FlavorResource, int] = {}
        nominal, use = self.nominal(request.queue), self.later
        for row, need in request.charges.items():
            unused = nominal.get(row, 0) - use.of(request.queue, row)
            amounts[row] = max(0, min(need, unused, use.left(request.queue, row)))
        self.keep_back(WithheldQuota(request.pending.workload, request.queue, amounts))

    def keep_back(self, quota: WithheldQuota) -> None:
        """Keep quota from borrowers for a gang that waits."""
        self.withheld[quota.gang.uid] = quota
        for row, amount in quota.rows():
            self.later.add(row, amount)

    def stop_withholding(self, uid: str) -> None:
        """Let borrowers use the quota again that was kept from them for a gang."""
        kept = self.withheld.pop(uid, None)
        for row, amount in kept.rows() if kept is not None else ():
            self.later.add(row, -amount)


def _distinct(uses: Iterable[QuotaUse]) -> list[QuotaUse]:
    """Each use once: while nothing is kept, two of them are one object."""
    return list({id(use): use for use in uses}.values())


# ---- The state

_MOST_QUESTIONS: Final = 64
"""About running gangs, whose answers are kept."""
Undo: TypeAlias = Callable[[], None]
"""Takes back the change of a state that returned it; changes after it stay."""


@dataclass(eq=False, slots=True)
class Instant:
    """One time: ``free`` capacity of each node, (R, N), and the use of ``quota``."""

    free: Ints
    quota: QuotaUse


@dataclass(frozen=True, eq=False, slots=True)
class HeldCapacity:
    """The capacity that is reserved for a gang that waits. ``until``: unix seconds at which the reservation ends unless the gang has started."""

    request: GangRequest
    node_counts: NodeCounts
    until: float = inf


@dataclass(eq=False)
class CycleState:
    """Starts from a problem; only the cycle changes it.

    Attributes:
        instants: in the order of time. While ``free`` is the same at all of them, it is one matrix.
        admissions: gangs that this plan starts.
        evicted: uids that this plan evicts.
        repairing: uids of running gangs that lost nodes and that this plan repairs, now or once other gangs have left.
        leaving: gangs that leave, by uid; those that this plan evicts are among them.
        held: by uid of the gang that waits, all reservations.
        awaited: by uid of the gang that waits, the uids of the gangs that must leave for its reservation.
        reservations: by uid of the gang that waits; only those for which a part of the free capacity is kept now.
        kept_now: the amounts kept for them on each node, (R, N); None = nothing.
        quota: the use of quota at each instant.
        turns: ClusterQueues with a gang that waits: gangs behind it get no time slice before it.
        departures: how often it changed which running gangs are evicted or repaired.
    """

    problem: Problem
    instants: Sequence[Instant]
    admissions: list[TentativeAdmission] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    repairing: set[str] = field(default_factory=set)
    leaving: dict[str, Admitted] = field(init=False)
    held: dict[str, HeldCapacity] = field(default_factory=dict)
    awaited: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    turns: set[str] = field(default_factory=set)
    departures: int = 0
    kept_now: Ints | None = None
    quota: QuotaState = field(init=False)
    _moved: Ints | None = None  # use of the admitted gangs that can move, once asked for
    _free: Ints | None = None
    _caps: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    _log: list[Ints] = field(default_factory=list)
    _answers: dict[Hashable, tuple[ClusterQueue, dict[object, Mask]]] = field(default_factory=dict)
    _answered_at: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        self.leaving = {gang.workload.uid: gang for gang in self.problem.usage.leaving}
        self.quota = QuotaState(self.problem, [instant.quota for instant in self.instants])

    @property
    def now(self) -> Instant:
        """The first instant: all that holds capacity counts."""
        return self.instants[0]

    @property
    def later(self) -> Instant:
        """The last instant: what leaves has left."""
        return self.instants[-1]

    # Free capacity.

    def free(self) -> Ints:
        """(R, N) free at every instant for a gang without a reservation."""
        if self._free is None:
            if self._one and self.kept_now is None:
                return self.now.free
            self._free = self._least(slice(None))
        return self._free

    def _least(self, nodes: Ints | slice) -> Ints:
        """(R, K) free on these nodes at every instant."""
        least = self.open_now(nodes)
        for instant in self.instants[1:]:
            least = np.minimum(least, instant.free[:, nodes])
        return least

    @property
    def _one(self) -> bool:
        return self.later.free is self.now.free

    def open_now(self, nodes: Ints | slice) -> Ints:
        """(R, K) free now on these nodes and kept for no reservation."""
        now: Ints = self.now.free[:, nodes]
        return now if self.kept_now is None else now - self.kept_now[:, nodes]

    def free_without_admissions(self) -> Ints:
        """(R, N) free if the admitted gangs that can move were nowhere."""
        if self._moved is None:
            self._moved = np.zeros_like(self.now.free)
            for admission in self.admissions:
                if not admission.fixed:
                    give_back(self._moved, admission.request.pods, admission.node_counts)
        return self.free() + self._moved

    def caps(self, shape: Shape) -> Ints:
        """Pods of a shape that fit each node of :meth:`free`; only nodes changed since the last call are counted."""
        free = self.free()
        version = len(self._log)
        known = self._caps.get(shape.key)
        if known is None:
            fits = caps(free, shape)
        else:
            seen, fits = known
            if seen < version:
                changed = np.unique(np.concatenate(self._log[seen:]))
                fits[changed] = caps(free, shape, changed)
        self._caps[shape.key] = (version, fits)
        return fits

    # Gangs that can leave.

    def answers(self, queue: ClusterQueue, question: Hashable) -> dict[object, Mask]:
        """Masks of running gangs that answer a question about a ClusterQueue; empty at first.

        They are kept until the use of quota, the gangs that leave or ``turns`` change. A ClusterQueue with other policies is another object.
        """
        at = (self.later.quota.changes, self.departures, len(self.turns))
        if at != self._answered_at or len(self._answers) > _MOST_QUESTIONS:
            self._answers, self._answered_at = {}, at
        return self._answers.setdefault((id(queue), question), (queue, {}))[1]

    def evictable(self) -> Iterator[Admitted]:
        """Gangs that neither leave nor are repaired by this plan; policy is not judged."""
        for gang in self.problem.snapshot.admitted:
            if not self.leaves(gang) and gang.workload.uid not in self.repairing:
                yield gang

    def leaves(self, gang: Admitted) -> bool:
        """Whether a running gang leaves, also by this plan."""
        return gang.leaving or gang.workload.uid in self.evicted

    # Gangs that start.

    def admit(self, admission: TentativeAdmission) -> Undo:
        """Start a gang: it uses capacity and quota at every instant."""
        self.admissions.append(admission)
        self._place(admission, -1)
        self.quota.charge(admission.request, 1, self.quota.instants)
        return partial(self.withdraw, admission)

    def withdraw(self, admission: TentativeAdmission) -> None:
        """The opposite: it does not start after all."""
        self.admissions.remove(admission)
        self._place(admission, 1)
        self.quota.charge(admission.request, -1, self.quota.instants)

    def move(self, admission: TentativeAdmission, node_counts: NodeCounts) -> None:
        """Place an admitted gang elsewhere; its quota stays as it is."""
        self.lift(admission)
        self.put(admission, node_counts)

    def lift(self, admission: TentativeAdmission) -> None:
        """Take an admitted gang off its nodes until it is placed elsewhere; until then only ``free`` is valid."""
        self._place(admission, 1)

    def put(self, admission: TentativeAdmission, node_counts: NodeCounts) -> None:
        """Place a gang that was lifted."""
        admission.node_counts = node_counts
        self._place(admission, -1)

    def withhold(self, nodes: Ints, amounts: Ints) -> None:
        """Take amounts (R, K) of nodes from all gangs, at every instant; less than nothing can be left."""
        for matrix in {id(instant.free): instant.free for instant in self.instants}.values():
            add_at(matrix, nodes, -amounts)
        self._touch(nodes)

    # Gangs that leave.

    def evict(self, gang: Admitted) -> Undo:
        """Count a gang as leaving."""
        self.departures += 1
        self.evicted.add(gang.workload.uid)
        self.leaving[gang.workload.uid] = gang
        self._stay(gang, 1)
        self.quota.released.extend({row[0] for row, _ in self.problem.usage.charges(gang)})

        def undo() -> None:
            self.departures += 1
            self.evicted.remove(gang.workload.uid)
            del self.leaving[gang.workload.uid]
            self._stay(gang, -1)

        return undo

    def repair(self, gang: Admitted) -> Undo:
        """Count a gang as one that is repaired: it stays, and no gang evicts it."""
        self.departures += 1
        self.repairing.add(gang.workload.uid)

        def undo() -> None:
            self.departures += 1
            self.repairing.remove(gang.workload.uid)

        return undo

    @contextmanager
    def before_repairs(self) -> Iterator[None]:
        """For the time of a ``with`` block, no gang counts as one that is repaired: others may evict it."""
        repairing, self.repairing = self.repairing, set()
        self.departures += 1
        try:
            yield
        finally:
            self.departures += 1
            self.repairing = repairing

    def forget(self, gang: Admitted) -> None:
        """Use nothing for a running gang, at any instant: as if it had ended."""
        nodes, amounts = self.problem.use_of(gang)
        if not self.leaves(gang):
            self._stay(gang, 1)
        self._part_from_now()
        add_at(self.now.free, nodes, amounts)
        self.quota.forget(gang)
        self._touch(nodes)

    # Reservations.

    def hold(self, held: HeldCapacity) -> None:
        """Use capacity and quota later."""
        self.held[held.request.pending.workload.uid] = held
        self._use_later(held.request, held.node_counts, 1)

    def give_up(self, request: GangRequest, node_counts: NodeCounts) -> None:
        """The opposite."""
        self.held.pop(request.pending.workload.uid, None)
        self._use_later(request, node_counts, -1)

    def _use_later(self, request: GangRequest, node_counts: NodeCounts, sign: int) -> None:
        for nodes, amounts in use_of_counts(request.pods, node_counts):
            self._change(self.instants[-1:], nodes, -sign * amounts)
        self.quota.charge(request, sign, self.quota.instants[-1:])

    def keep(self, reservation: Reservation) -> None:
        """Keep the part of a reservation of the free capacity from all others."""
        self.reservations[reservation.uid] = reservation
        if self.kept_now is None:
            self.kept_now = np.zeros_like(self.now.free)
        self.quota.keep(reservation)
        self.kept_now[:, reservation.nodes] += reservation.kept_now
        self._touch(reservation.nodes)

    def disown(self, uid: str) -> None:
        """The opposite, by uid of the gang that waits; nothing where nothing is kept."""
        reservation = self.reservations.pop(uid, None)
        if reservation is None or self.kept_now is None:
            return
        self.kept_now[:, reservation.nodes] -= reservation.kept_now
        self.quota.open = self.quota.open_beside(self.reservations.values())
        self._touch(reservation.nodes)

    @contextmanager
    def without_reservation(self, request: GangRequest, node_counts: NodeCounts) -> Iterator[None]:
        """For the time of a ``with`` block, nothing is reserved for a gang; the order of reservations stays."""
        uid = request.pending.workload.uid
        reservations, opened = dict(self.reservations), self.quota.open
        released, held = len(self.quota.released), self.held[uid]
        self.give_up(request, node_counts)
        self.disown(uid)
        yield
        self.hold(held)
        own = reservations.get(uid)
        if own is not None and self.kept_now is not None:
            self.kept_now[:, own.nodes] += own.kept_now
            self._touch(own.nodes)
        self.reservations, self.quota.open = reservations, opened
        del self.quota.released[released:]

    # Changes of the matrices.

    def _stay(self, gang: Admitted, sign: int) -> None:
        """Free what a gang uses at all instants but the first, or, with ``sign`` -1, use it again."""
        nodes, amounts = self.problem.use_of(gang)
        self._change(self.instants[1:], nodes, sign * amounts)
        self.quota.stay(gang, sign)

    def _place(self, admission: TentativeAdmission, sign: int) -> None:
        matrices = {id(instant.free): instant.free for instant in self.instants}
        for nodes, amounts in use_of_counts(admission.request.pods, admission.node_counts):
            for matrix in matrices.values():
                matrix[:, nodes] += sign * amounts
            if self._moved is not None and not admission.fixed:
                self._moved[:, nodes] -= sign * amounts
            self._touch(nodes)

    def _part_from_now(self) -> None:
        """Give the instants after their own first matrices."""
        if self._one:
            for instant in self.instants[1:]:
                instant.free = self.now.free.copy()

    def _change(self, instants: Sequence[Instant], nodes: Ints, amounts: Ints) -> None:
        """Free amounts (R, K) of nodes at instants after the first."""
        self._part_from_now()
        for instant in instants:
            add_at(instant.free, nodes, amounts)
        self._touch(nodes)

    def _touch(self, nodes: Ints) -> None:
        """The free capacity of these nodes has changed."""
        self._log.append(nodes)
        if self._free is not None:
            self._free[:, nodes] = self._least(nodes)


def open_state(problem: Problem) -> CycleState:
    """The state when a cycle begins."""
    usage, pools = problem.usage, problem.pools
    now = problem.now.copy()
    later = now if problem.later is problem.now else problem.later.copy()
    return CycleState(
        problem,
        (
            Instant(now, use_of(pools, usage.quota_held)),
            Instant(later, use_of(pools, usage.quota_staying)),
        ),
    )

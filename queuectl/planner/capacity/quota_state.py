"""The use of quota during one cycle, at each instant of :mod:`queuectl.planner.capacity.state`, which alone changes it.

A gang without a reservation must find its quota beside several uses: what is used now and reserved, and what is
used at every later instant. Questions about such a gang are answered for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.node_counts import Reservation
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.tree import FlavorResource, QuotaRow, QuotaUse


@dataclass(eq=False)
class QuotaState:
    """Starts from what running gangs use.

    Attributes:
        instants: the use at each instant, in the order of time: now is the first.
        open: the use now, with the quota that is kept for reservations.
        released: ClusterQueues of which quota was given back.
    """

    problem: Problem
    instants: Sequence[QuotaUse]
    open: QuotaUse = field(init=False)
    released: list[str] = field(default_factory=list)
    _nominal: dict[str, dict[FlavorResource, int]] = field(default_factory=dict)

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
        """The uses beside which a gang without a reservation must find its own quota."""
        return self.open, *self.instants[1:]

    # Questions.

    def nominal(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota of a ClusterQueue."""
        if queue not in self._nominal:
            self._nominal[queue] = {
                (quotas.flavor, resource): quotas.nominal.get(resource, 0)
                for group in self.problem.snapshot.config.cluster_queues[queue].groups
                for quotas in group.flavors
                for resource in group.covered
            }
        return self._nominal[queue]

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
        """Whether a request's charges fit its quota, borrowed quota if it may borrow, beside ``used``."""
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

    def withhold(self, request: GangRequest) -> list[tuple[QuotaRow, int]]:
        """Keep a ClusterQueue's own unused quota from borrowers for a gang that waits for it; what is kept."""
        if request.queue is None:
            return []
        kept: list[tuple[QuotaRow, int]] = []
        nominal, use = self.nominal(request.queue), self.later
        for row, need in request.charges.items():
            unused = nominal.get(row, 0) - use.of(request.queue, row)
            amount = min(need, unused, use.left(request.queue, row))
            kept.append(((request.queue, *row), max(0, amount)))
            use.add(*kept[-1])
        return kept


def _distinct(uses: Iterable[QuotaUse]) -> list[QuotaUse]:
    """Each use once: while nothing is kept, two of them are one object."""
    return list({id(use): use for use in uses}.values())

"""Whether some victims may all be evicted: there must be an order in which each exit is one that Kueue's rules allow.

A gang of another ClusterQueue may be taken only while its queue, and every cohort below the one that both sides share, uses
more than its own. Exits make that use smaller, so what counts is the last one below each pool: without all the others the
pool must still be over. Two pools, one in the other, that both have victims agree on it: the gang that is last below the outer one is
last below the inner one that it is in. So the sets that may leave are those for which every pool finds its last victim; a
part of such a set is one as well, and every order that puts the last ones last, innermost pools first, does.

*Deficits* of quota are sums that every answer obeys, and all there is to say of victims of the gang's own ClusterQueue. Across queues
lending limits keep part of what leaves, and an order of exits must exist. That is checked on every set before it counts; a set that
fails is cut off, with what fails for the same reason, and the model solved again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.returning import Returning, Settled
from queuectl.planner.preempt.shortage import Deficits, Meeting, QuotaShortfall
from queuectl.planner.quota.tree import FlavorResource, Pool, QuotaUse

# Of the gangs that leave, the sum of coefficients is at most the bound: what every legal set obeys.
Cut: TypeAlias = tuple[dict[int, int], int]


class Order(Protocol):
    """A rule about which candidates may leave together.

    Attributes:
        certain: it refuses no set that is legal.
        narrowing: a part of a legal set is legal.
    """

    certain: bool
    narrowing: bool
    others: OtherQueues

    def legal(self, victims: Collection[int]) -> bool: ...

    def may_join(self, where: Meeting, theirs: list[int], everyone: Collection[int], /) -> bool:
        """Whether all of ``theirs``, below one member of a common pool, may leave beside the rest of ``everyone``."""
        ...

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Rows that exclude an illegal set, and no legal one."""
        ...

    def constrain(self, building: VictimModel) -> None:
        """Rows that legal sets obey; what they leave open, cuts refuse."""
        ...


@dataclass(eq=False, slots=True)
class Leaving:
    """A growing and shrinking set of victims, and who may join it: only those below the same member have a say in it."""

    order: Order
    _by_top: dict[Pool, list[int]] = field(default_factory=dict)
    _everyone: set[int] = field(default_factory=set)

    def allows(self, gang: int) -> bool:
        if gang not in self.order.others.owner:
            return True
        meeting = self.order.others.meeting(gang)
        theirs = self._by_top.get(meeting.top, [])
        return self.order.may_join(meeting, [*theirs, gang], self._everyone)

    def add(self, gang: int) -> None:
        self._everyone.add(gang)
        if gang in self.order.others.owner:
            self._by_top.setdefault(self.order.others.meeting(gang).top, []).append(gang)

    def drop(self, gang: int) -> None:
        self._everyone.discard(gang)
        if gang in self.order.others.owner:
            self._by_top[self.order.others.meeting(gang).top].remove(gang)


@dataclass(eq=False, slots=True)
class OtherQueues:
    """Candidates of other ClusterQueues in the tree, by where their queues meet the gang's side.

    Attributes:
        owner: others gang to the name of its ClusterQueue.
    """

    shortfall: QuotaShortfall
    table: CandidateTable
    returning: Returning
    owner: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        own = self.shortfall.queue
        owners = ((g, rows[0][0][0]) for g, rows in self.table.charges.items() if rows)
        self.owner = {g: name for g, name in owners if name != own and self.shortfall.meeting(name)}

    def meeting(self, gang: int) -> Meeting:
        meeting = self.shortfall.meeting(self.owner[gang])
        assert meeting is not None, "owners meet the gang's side"
        return meeting

    def by_top(self, gangs: Iterable[int]) -> dict[tuple[int, Pool], list[int]]:
        """Some gangs by the level at which they meet and by the member of the common pool they are in; lowest first."""
        found: dict[tuple[int, Pool], list[int]] = {}
        for gang in sorted(gangs):
            if gang in self.owner:
                meeting = self.meeting(gang)
                found.setdefault((meeting.level, meeting.top), []).append(gang)
        return dict(sorted(found.items(), key=lambda item: item[0][0]))

    def below(self, pool: Pool, gangs: Iterable[int]) -> dict[Pool, list[int]]:
        """Gangs somewhere below a pool, by the member of it that they are in; none for a ClusterQueue."""
        found: dict[Pool, list[int]] = {}
        for gang in gangs:
            chain = self.meeting(gang).below
            at = chain.index(pool)
            if at:
                found.setdefault(chain[at - 1], []).append(gang)
        return found

    def without(
        self, use: QuotaUse, gangs: Iterable[int], sign: int = -1
    ) -> AbstractContextManager[None]:
        """For the time of a ``with`` block some gangs have left, or, with ``sign`` 1, are back."""
        charges = (charge for gang in gangs for charge in self.table.charges[gang])
        return use.hypothetically(charges, sign)

    def with_back(
        self, use: QuotaUse, gone: Collection[int], victim: int, holds: Callable[[], bool]
    ) -> bool:
        """Whether something holds once one who has left is back, and those that yield to it in its own queue have left.

        Args:
            use: a view in which all of ``gone`` have left.
            gone: all who leave that the question is about.
            victim: one of them.
            holds: what is asked of ``use``.
        """
        gangs, charges = self.table.gangs, self.table.charges
        left = ((gangs[g], charges[g]) for g in gone)
        yields = self.returning.yields(gangs[victim], self.owner[victim], left)
        with self.without(use, (victim,), 1), use.hypothetically(yields.items(), -1):
            return holds()

    def stays_out(
        self,
        use: QuotaUse,
        gone: Collection[int],
        victim: int,
        pools: Iterable[Pool],
        *,
        alone: bool = False,
    ) -> bool:
        """Whether a gang that has left would have to borrow if it came back, in each of some pools: see ``with_back``.

        What counts is what the preemptor contends for and the victim is charged: of anything else it asks nothing.
        ``alone``: no gang yields to it.
        """
        charged = (row[1:] for row, amount in self.table.charges[victim] if amount)
        rows = [row for row in charged if row in self.shortfall.rows]

        def borrows() -> bool:
            return all(
                any(use.used_of(pool, row) > pool.subtree.get(row, 0) for row in rows)
                for pool in pools
            )

        if not alone:
            return self.with_back(use, gone, victim, borrows)
        with self.without(use, (victim,), 1):
            return borrows()

    def lasts(
        self,
        use: QuotaUse,
        pool: Pool,
        victims: Sequence[int],
        over: Callable[[Pool], bool],
        late: Collection[int] = (),
    ) -> list[int]:
        """Which of some victims below a pool may leave it last; empty = they may not all leave.

        Args:
            use: a view in which none of them has left.
            pool: where to look.
            victims: all below it who leave.
            over: whether a pool uses more than its own, as ``use`` stands.
            late: of the victims, those who leave after all others.
        """
        inside = self.below(pool, victims)
        able: list[int] = []
        for member, theirs in inside.items():
            found = self.lasts(use, member, theirs, over, late)
            if not found:
                return []
            able += found
        able = able if inside else list(victims)
        final = [v for v in able if v in late]
        if any(v in late for v in victims):
            able = final
        chosen = []
        with self.without(use, victims):
            for victim in able:
                with self.without(use, (victim,), 1):
                    if over(pool):
                        chosen.append(victim)
        return chosen

    def lifted(self, core: Sequence[int], rows: Iterable[FlavorResource]) -> list[int]:
        """Some gangs and, if all are of one queue, those of it charged as much of each row as any of them."""
        owners = {self.owner[g] for g in core}
        if len(owners) > 1:
            return list(core)
        (owner,) = owners
        amounts = [self.table.quota.get((owner, *row)) for row in rows]
        known = [a for a in amounts if a is not None]
        return [
            g
            for g, name in self.owner.items()
            if name == owner and (g in core or all(a[g] >= max(a[c] for c in core) for a in known))
        ]


def smallest(core: list[int], illegal: Callable[[list[int]], bool]) -> list[int]:
    """An illegal set without those it is illegal without; many at once, then ever fewer."""
    chunk = max(1, len(core) // 2)
    while True:
        for at in range(0, len(core), chunk):
            fewer = core[:at] + core[at + chunk :]
            if len(fewer) < len(core) and illegal(fewer):
                core = fewer
                break
        else:
            if chunk == 1:
                return core
            chunk //= 2


@dataclass(eq=False, slots=True)
class Reclaim:
    """Kueue's classic rule: a queue is over while it uses more than its own of a row that the preemptor contends for.

    Attributes:
        unordered: candidates whom another policy lets go whatever their queue uses; they leave after all others.
        must_stay_out: candidates taken by a preemptor that borrows, and those that might take its place. None of them may be one that its
            queue could take back within its own quota, those left out that yield to it there
            (:mod:`queuectl.planner.preempt.returning`): it, or they, would evict the preemptor in turn where quotas promise more
            than there is. (Kueue asks this of the last one only, and counts every gang.)
    """

    others: OtherQueues
    unordered: frozenset[int] = frozenset()
    must_stay_out: frozenset[int] = frozenset()
    certain: bool = True
    narrowing: bool = True
    _settled: dict[Pool, Settled] = field(default_factory=dict)
    _charged: dict[tuple[str, FlavorResource], list[int]] = field(default_factory=dict)

    def legal(self, victims: Collection[int]) -> bool:
        return not any(self._refused(victims))

    def may_join(self, where: Meeting, theirs: list[int], _: Collection[int], /) -> bool:
        bound = [v for v in theirs if v not in self.unordered]
        return not bound or self._may_leave(where.top, bound)

    def _refused(self, victims: Collection[int]) -> Iterator[tuple[Pool, list[int]]]:
        bound = [v for v in victims if v not in self.unordered]
        for (_, top), theirs in self.others.by_top(bound).items():
            if not self._may_leave(top, theirs):
                yield top, theirs

    def _may_leave(self, top: Pool, victims: Sequence[int]) -> bool:
        others, use = self.others, self.others.shortfall.use
        if not self._stay_over(top, victims):
            return False
        if self.must_stay_out.isdisjoint(victims):
            return True
        if not top.members:
            return self._settled_in(top).stay_out(victims)
        with others.without(use, victims):
            return all(self._stays_out(v, victims) for v in victims if v in self.must_stay_out)

    def _settled_in(self, queue: Pool) -> Settled:
        if queue not in self._settled:
            self._settled[queue] = Settled(
                self.others.shortfall,
                self.others.table,
                self.others.returning,
                queue,
                self.must_stay_out,
            )
        return self._settled[queue]

    def _stay_over(self, top: Pool, victims: Sequence[int]) -> bool:
        """Whether a member, and all pools in it, are over until their last victims leave."""
        if not top.members:
            return self._one_row_holds(top, victims)
        return bool(self.others.lasts(self.others.shortfall.use, top, victims, self._over))

    def _one_row_holds(self, queue: Pool, victims: Sequence[int]) -> bool:
        """The same for a ClusterQueue alone: it is over, by some row, without all but the victim that uses most of it."""
        for row in self.others.shortfall.rows:
            beyond = self.others.shortfall.beyond(queue, row)
            if beyond > 0:
                amounts = self._used(queue.name, row)
                leaving = [amounts[v] for v in victims]
                if sum(leaving) - max(leaving) < beyond:
                    return True
        return False

    def _used(self, queue: str, row: FlavorResource) -> list[int]:
        """What each gang of the table is charged of a row in one queue."""
        if (queue, row) not in self._charged:
            amounts = self.others.table.quota.get((queue, *row))
            size = self.others.table.size
            self._charged[queue, row] = amounts.tolist() if amounts is not None else [0] * size
        return self._charged[queue, row]

    def _stays_out(self, victim: int, gone: Collection[int]) -> bool:
        """Whether a gang that has left with others would have to borrow if it came back."""
        below = self.others.meeting(victim).below
        return self.others.stays_out(self.others.shortfall.use, gone, victim, below)

    def _over(self, pool: Pool) -> bool:
        shortfall = self.others.shortfall
        return any(shortfall.beyond(pool, row) > 0 for row in shortfall.rows)

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        for top, theirs in self._refused(victims):

            def illegal(some: list[int], top: Pool = top) -> bool:
                return bool(some) and not self._may_leave(top, some)

            core = smallest(theirs, illegal)
            among = core  # what yields to one victim may not yield to another one like it
            if not self._stay_over(top, core):
                among = self.others.lifted(core, self.others.shortfall.rows)
            yield dict.fromkeys((g for g in among if g not in self.unordered), 1), len(core) - 1

    def constrain(self, building: VictimModel) -> None:
        """What must not be able to return, summed up per ClusterQueue; cuts say the rest."""
        bound = [g for g in building.gangs if g not in self.unordered]
        for (_, top), theirs in self.others.by_top(bound).items():
            if not top.members:
                self._settled_in(top).constrain(building, theirs)


@dataclass(eq=False, slots=True)
class EvictionConstraints:
    """The constraints on the sets of one table.

    Attributes:
        shortfall: None for a gang that has no ClusterQueue.
        order: None where candidates may leave in any order.
        cuts: rows found on the way that every legal set obeys.
    """

    table: CandidateTable
    deficits: Deficits
    shortfall: QuotaShortfall | None = None
    order: Order | None = None
    cuts: list[Cut] = field(default_factory=list)

    @property
    def certain(self) -> bool:
        """Whether nothing legal is refused."""
        return self.order is None or self.order.certain

    def leaving(self) -> Leaving | None:
        """An empty set of victims that says which gangs may join it; None where any may."""
        return Leaving(self.order) if self.order is not None else None

    def together(self, victims: Collection[int]) -> bool:
        """Whether policy lets these leave together, whatever that frees."""
        return self.order is None or self.order.legal(victims)

    def admit(self, victims: Collection[int]) -> bool:
        """Whether these may leave together and free the quota that is missing."""
        if any(sum(int(frees[v]) for v in victims) < amount for amount, frees in self.deficits):
            return False
        return self.frees(victims) and self.together(victims)

    def frees(self, victims: Collection[int]) -> bool:
        """Whether the deficits, which these make good, are all that is missing: lenders may keep part of what they free."""
        if self.shortfall is None or not self.shortfall.kept:
            return True
        return self.shortfall.met_without(victims, self.table.charges)

    def constrain(self, building: VictimModel) -> None:
        """All rows that are known."""
        building.free_quota(self.deficits)
        if self.order is not None:
            self.order.constrain(building)
        for cut in self.cuts:
            apply(cut, building)

    def refuse(self, victims: frozenset[int], building: VictimModel) -> None:
        """Cut an answer of the model off: it, and what is illegal for the same reason."""
        found = [] if self.order is None else list(self.order.cuts(victims))
        if not any(sum(cut[0].get(v, 0) for v in victims) > cut[1] for cut in found):
            others = dict.fromkeys((g for g in range(self.table.size) if g not in victims), -1)
            found.append((dict.fromkeys(victims, 1) | others, len(victims) - 1))
        for cut in found:
            self.cuts.append(cut)
            apply(cut, building)


def apply(cut: Cut, building: VictimModel) -> None:
    """Add a row to a model; gangs it leaves out stay."""
    known = {building.of[g]: c for g, c in cut[0].items() if g in building.of}
    building.model.at_most(list(known), list(known.values()), cut[1])

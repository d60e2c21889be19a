"""Whether some victims may all be evicted: there must be an order in which each exit is one that Kueue's rules allow.

A gang of another ClusterQueue is a legal victim only while its queue, and every cohort below the one that both sides share, uses
more than its own. Exits make that use smaller, so what counts is the last one below each pool: without all the others the
pool must still be over. Two pools, one in the other, that both have victims agree on it: the gang that is last below the outer one is
last below the inner one that it is in. A set of victims is legal if every pool finds its last victim; a
part of such a set is one as well, and every order that puts the last ones last, innermost pools first, does.

*Deficits* of quota are sums that every answer obeys, and all there is to say of victims of the gang's own ClusterQueue. Across queues
lending limits keep part of what leaves, and an order of exits must exist. That is checked on every set before it counts; a set that
fails is cut off, with what fails for the same reason, and the model solved again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeAlias

from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.returning import Returning
from queuectl.planner.preempt.shortage import CommonPool, Deficits, QuotaShortfall
from queuectl.planner.quota.tree import FlavorResource, QuotaNode, QuotaUse

# Of the gangs that leave, the sum of coefficients is at most the bound: what every legal set obeys.
Cut: TypeAlias = tuple[dict[int, int], int]


class CandidateOrder(Protocol):
    """A rule about which candidates can be evicted together.

    Attributes:
        others: the candidates that it is about.
        unordered: those among them that can be evicted whatever the others do.
        certain: it refuses no set that is legal.
        narrowing: a part of a legal set is legal.
    """

    others: OtherQueues
    unordered: frozenset[int]
    certain: bool = True
    narrowing: bool = True

    @abstractmethod
    def allows(
        self, common_pool: CommonPool, theirs: Sequence[int], gone: Collection[int], /
    ) -> bool:
        """Whether all of ``theirs``, below one member of a common pool, can be evicted beside the rest of ``gone``."""

    @abstractmethod
    def constrain(self, building: VictimModel) -> None:
        """Add rows that legal sets obey; what they leave open, cuts refuse."""

    @abstractmethod
    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Rows that exclude an illegal set, and no legal one."""

    def legal(self, victims: Collection[int]) -> bool:
        """Whether these may all be evicted."""
        return all(
            self.allows(common_pool, theirs, victims)
            for common_pool, theirs in self.others.by_top(victims)
        )

    def joining(self, order: Iterable[int], before: Iterable[int]) -> Iterator[int]:
        """Of gangs that would be evicted one after the other, those that are legal with the ones before."""
        gone = set(before)
        below = {common_pool.top: theirs for common_pool, theirs in self.others.by_top(gone)}
        for gang in order:
            if gang in self.others.owner:
                common_pool = self.others.common_pool(gang)
                theirs = below.setdefault(common_pool.top, [])
                if not self.allows(common_pool, [*theirs, gang], gone):
                    continue
                theirs.append(gang)
            gone.add(gang)
            yield gang

    def core(self, common_pool: CommonPool, illegal: list[int], gone: Collection[int]) -> list[int]:
        """A set that is not allowed without those it is not allowed without; many at once, then ever fewer."""
        core, chunk = illegal, max(1, len(illegal) // 2)
        while True:
            for at in range(0, len(core), chunk):
                fewer = core[:at] + core[at + chunk :]
                if len(fewer) < len(core) and not self.allows(common_pool, fewer, gone):
                    core = fewer
                    break
            else:
                if chunk == 1:
                    return core
                chunk //= 2


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
        self.owner = {
            g: name for g, name in owners if name != own and self.shortfall.common_pool(name)
        }

    def common_pool(self, gang: int) -> CommonPool:
        common_pool = self.shortfall.common_pool(self.owner[gang])
        assert common_pool is not None, "owners meet the gang's side"
        return common_pool

    def by_top(self, gangs: Iterable[int]) -> list[tuple[CommonPool, list[int]]]:
        """Some gangs by the member of the common pool they are in, the lowest common pool first."""
        found: dict[QuotaNode, tuple[CommonPool, list[int]]] = {}
        for gang in sorted(gangs):
            if gang in self.owner:
                common_pool = self.common_pool(gang)
                found.setdefault(common_pool.top, (common_pool, []))[1].append(gang)
        return sorted(found.values(), key=lambda pair: pair[0].level)

    def below(self, pool: QuotaNode, gangs: Iterable[int]) -> dict[QuotaNode, list[int]]:
        """Gangs somewhere below a pool, by the member of it that they are in; none for a ClusterQueue."""
        found: dict[QuotaNode, list[int]] = {}
        for gang in gangs:
            chain = self.common_pool(gang).below
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
        """Whether something holds once a victim is back, and the gangs that yield to it in its own ClusterQueue have left.

        Args:
            use: a view in which all of ``gone`` have left.
            gone: the victims that the question is about.
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
        pools: Iterable[QuotaNode],
        *,
        alone: bool = False,
    ) -> bool:
        """Whether a gang that has left would have to borrow to return, in each of some pools: see ``with_back``.

        Only rows count for which the preemptor contends and the victim is charged: the victim requests nothing else.
        ``alone``: no gang yields to it.
        """
        charged = (row[1:] for row, amount in self.table.charges[victim] if amount)
        rows = [row for row in charged if row in self.shortfall.rows]

        def borrows() -> bool:
            return all(any(use.beyond(pool, row) > 0 for row in rows) for pool in pools)

        if not alone:
            return self.with_back(use, gone, victim, borrows)
        with self.without(use, (victim,), 1):
            return borrows()

    def lasts(
        self,
        use: QuotaUse,
        pool: QuotaNode,
        victims: Sequence[int],
        over: Callable[[QuotaNode], bool],
        final: Collection[int] = (),
    ) -> list[int]:
        """Which of some victims below a pool may leave it last; empty = they may not all leave.

        Args:
            use: a view in which none of them has left.
            pool: where to look.
            victims: all victims below it.
            over: whether a pool uses more than its own, by ``use``.
            final: of the victims, those that leave after all others.
        """
        inside = self.below(pool, victims)
        able: list[int] = []
        for member, theirs in inside.items():
            found = self.lasts(use, member, theirs, over, final)
            if not found:
                return []
            able += found
        able = able if inside else list(victims)
        if any(v in final for v in victims):
            able = [v for v in able if v in final]
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


@dataclass(eq=False, slots=True)
class EvictionConstraints:
    """The constraints on the sets of one table.

    Attributes:
        shortfall: None for a gang that has no ClusterQueue.
        order: None where candidates may leave in any order.
        cuts: rows found on the way that every legal set obeys.
        beyond: gang of an elastic job to the one of the next higher rank, which leaves with it.
    """

    table: CandidateTable
    deficits: Deficits
    shortfall: QuotaShortfall | None = None
    order: CandidateOrder | None = None
    cuts: list[Cut] = field(default_factory=list)
    beyond: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.beyond = grown_beyond(self.table)

    def with_beyond(self, gang: int) -> list[int]:
        """A gang, and before it those that leave with it, the highest rank first."""
        chain = [gang]
        while chain[-1] in self.beyond:
            chain.append(self.beyond[chain[-1]])
        return chain[::-1]

    @property
    def certain(self) -> bool:
        """Whether nothing legal is refused."""
        return self.order is None or self.order.certain

    def joining(self, order: Iterable[int], before: Iterable[int] = ()) -> Iterable[int]:
        """Of gangs that would be evicted one after the other, those that are legal with the ones before."""
        if self.beyond:
            known = set(before)
            every = (each for gang in order for each in self.with_beyond(gang))
            order = (g for g in dict.fromkeys(every) if g not in known)
        return order if self.order is None else self.order.joining(order, before)

    def admit(self, victims: Collection[int]) -> bool:
        """Whether these may leave together and free the quota that is missing."""
        if any(sum(int(frees[v]) for v in victims) < amount for amount, frees in self.deficits):
            return False
        if any(self.beyond.get(v, v) not in victims for v in victims):
            return False
        return self.frees(victims) and (self.order is None or self.order.legal(victims))

    def frees(self, victims: Collection[int]) -> bool:
        """Whether the deficits, which these make good, are all that is missing: lenders may keep part of what they free."""
        if self.shortfall is None or not self.shortfall.kept:
            return True
        return self.shortfall.met_without(victims, self.table.charges)

    def constrain(self, building: VictimModel) -> None:
        """All rows that are known."""
        building.free_quota(self.deficits)
        for gang, higher in self.beyond.items():
            if gang in building.exits:
                building.model.at_most([building.exits[gang], building.exits[higher]], [1, -1], 0)
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


def grown_beyond(table: CandidateTable) -> dict[int, int]:
    """Each candidate of an elastic job, but for that of the highest rank, to the candidate of the next higher rank.

    A gang is evicted after all pods that were added to it, the last one first.
    """
    families: dict[str, list[tuple[int, int]]] = {}
    uids = {gang.workload.uid: at for at, gang in enumerate(table.gangs)}
    for at, gang in enumerate(table.gangs):
        growth = gang.workload.growth
        if growth is not None:
            families.setdefault(growth.base, []).append((growth.rank, at))
    found: dict[int, int] = {}
    for base, ranks in families.items():
        chain = [at for _, at in sorted(ranks)]
        chain = [uids[base], *chain] if base in uids else chain
        found.update(pairwise(chain))
    return found


def apply(cut: Cut, building: VictimModel) -> None:
    """Add a row to a model; gangs it leaves out stay."""
    known = {building.exits[g]: c for g, c in cut[0].items() if g in building.exits}
    building.model.at_most(list(known), list(known.values()), cut[1])

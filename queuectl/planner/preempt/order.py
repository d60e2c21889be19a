"""Whether some victims may all leave: there must be an order in which each exit is one that Kueue's rules allow.

A gang of another ClusterQueue may be taken only while its queue, and every cohort below the one that both sides share, uses
more than its own. Exits make that use smaller, so what counts is the last one below each pool: without all the others the
pool must still be over. Two pools, one in the other, that both have victims agree on it: who is last below the outer one is
last below the inner one that he is in. So the sets that may leave are those for which every pool finds its last victim; a
part of such a set is one as well, and every order that puts the last ones last, innermost pools first, does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from queuectl.planner.preempt.comeback import Comeback
from queuectl.planner.preempt.contest import Charges, Contest, Meeting
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.roster import Bench
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
    foreign: Foreign

    def legal(self, victims: Collection[int]) -> bool: ...

    def may_join(self, where: Meeting, theirs: list[int], everyone: Collection[int]) -> bool:
        """Whether all of ``theirs``, below one member of a common pool, may leave beside the rest of ``everyone``."""
        ...

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Rows that exclude an illegal set, and no legal one."""
        ...

    def constrain(self, building: VictimModel) -> None:
        """Rows that legal sets obey; what they leave open, cuts refuse."""
        ...

    def standing(self, gang: int) -> object:
        """Equal for candidates of a queue that stand in for each other if they are charged the same."""
        ...


@dataclass(eq=False, slots=True)
class Leaving:
    """A growing and shrinking set of victims, and who may join it: only those below the same member have a say in it."""

    order: Order
    _by_top: dict[Pool, list[int]] = field(default_factory=dict)
    _everyone: set[int] = field(default_factory=set)

    def allows(self, gang: int) -> bool:
        if gang not in self.order.foreign.owner:
            return True
        meeting = self.order.foreign.meeting(gang)
        theirs = self._by_top.get(meeting.top, [])
        return self.order.may_join(meeting, [*theirs, gang], self._everyone)

    def add(self, gang: int) -> None:
        self._everyone.add(gang)
        if gang in self.order.foreign.owner:
            self._by_top.setdefault(self.order.foreign.meeting(gang).top, []).append(gang)

    def drop(self, gang: int) -> None:
        self._everyone.discard(gang)
        if gang in self.order.foreign.owner:
            self._by_top[self.order.foreign.meeting(gang).top].remove(gang)


@dataclass(eq=False, slots=True)
class Foreign:
    """Candidates of other ClusterQueues in the tree, by where their queues meet the gang's side.

    Attributes:
        owner: foreign gang to the name of its ClusterQueue.
    """

    contest: Contest
    bench: Bench
    charges: Charges
    comeback: Comeback
    owner: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        own = self.contest.queue
        owners = ((g, rows[0][0][0]) for g, rows in self.charges.items() if rows)
        self.owner = {g: name for g, name in owners if name != own and self.contest.meeting(name)}

    def meeting(self, gang: int) -> Meeting:
        meeting = self.contest.meeting(self.owner[gang])
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

    def remove(self, use: QuotaUse, gangs: Iterable[int], sign: int = -1) -> None:
        """Take what gangs are charged off a view, or add it again."""
        for gang in gangs:
            for row, amount in self.charges[gang]:
                use.add(row, sign * amount)

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
        gangs, charges = self.bench.gangs, self.charges
        left = ((gangs[g], charges[g]) for g in gone)
        yields = self.comeback.yields(gangs[victim], self.owner[victim], left)
        self.remove(use, (victim,), 1)
        with use.hypothetically(yields.items(), -1):
            held = holds()
        self.remove(use, (victim,))
        return held

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
        charged = (row[1:] for row, amount in self.charges[victim] if amount)
        rows = [row for row in charged if row in self.contest.rows]

        def borrows() -> bool:
            return all(
                any(use.used.get(pool, {}).get(row, 0) > pool.subtree.get(row, 0) for row in rows)
                for pool in pools
            )

        if not alone:
            return self.with_back(use, gone, victim, borrows)
        self.remove(use, (victim,), 1)
        held = borrows()
        self.remove(use, (victim,))
        return held

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
            use: a view in which nobody of them has left.
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
        self.remove(use, victims)
        chosen = []
        for victim in able:
            self.remove(use, (victim,), 1)
            if over(pool):
                chosen.append(victim)
            self.remove(use, (victim,))
        self.remove(use, victims, 1)
        return chosen

    def standing(self, gang: int) -> object:
        """Equal for gangs of a queue that, should they come back, are the same danger and have the same others yield to them."""
        if gang not in self.owner:
            return None
        who = self.bench.gangs[gang]
        return self.comeback.threatens(who), self.comeback.bound(who)

    def lifted(self, core: Sequence[int], rows: Iterable[FlavorResource]) -> list[int]:
        """Some gangs and, if all are of one queue, those of it charged as much of each row as any of them."""
        owners = {self.owner[g] for g in core}
        if len(owners) > 1:
            return list(core)
        (owner,) = owners
        amounts = [self.bench.quota.get((owner, *row)) for row in rows]
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

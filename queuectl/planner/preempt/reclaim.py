"""Kueue's classic rule of who may leave together: rows of the model where they can be, cuts for the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from queuectl.planner.preempt.contest import Meeting
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.order import Cut, Foreign, smallest
from queuectl.planner.preempt.settled import Settled
from queuectl.planner.quota.tree import FlavorResource, Pool


@dataclass(eq=False, slots=True)
class Reclaim:
    """Kueue's classic rule: a queue is over while it uses more than its own of a row that the preemptor contends for.

    Attributes:
        exempt: candidates whom another policy lets go whatever their queue uses; they leave after all others.
        wary: candidates taken by a preemptor that borrows, and those that might take its place. None of them may be one that its
            queue could take back within its own quota, those left out that yield to it there
            (:mod:`queuectl.planner.preempt.comeback`): it, or they, would evict the preemptor in turn where quotas promise more
            than there is. (Kueue asks this of the last one only, and counts every gang.)
    """

    foreign: Foreign
    exempt: frozenset[int] = frozenset()
    wary: frozenset[int] = frozenset()
    certain: bool = True
    narrowing: bool = True
    _open: dict[Pool, bool] = field(default_factory=dict)
    _settled: dict[Pool, Settled] = field(default_factory=dict)
    _charged: dict[tuple[str, FlavorResource], list[int]] = field(default_factory=dict)

    def legal(self, victims: Collection[int]) -> bool:
        return not any(self._refused(victims))

    def may_join(self, where: Meeting, theirs: list[int], everyone: Collection[int]) -> bool:  # noqa: ARG002
        if self._is_open(where.top):
            return True
        bound = [v for v in theirs if v not in self.exempt]
        return not bound or self._may_leave(where.top, bound)

    def _refused(self, victims: Collection[int]) -> Iterator[tuple[Pool, list[int]]]:
        bound = [v for v in victims if v not in self.exempt]
        for (_, top), theirs in self.foreign.by_top(bound).items():
            if not self._is_open(top) and not self._may_leave(top, theirs):
                yield top, theirs

    def _is_open(self, top: Pool) -> bool:
        """Whether all candidates below may leave together: their queues stay over without all but one of them."""
        if top not in self._open:
            everyone = self.foreign.by_top(g for g in self.foreign.owner if g not in self.exempt)
            for (_, other), theirs in everyone.items():
                self._open[other] = self._may_leave(other, theirs)
        return self._open.setdefault(top, True)

    def _may_leave(self, top: Pool, victims: Sequence[int]) -> bool:
        foreign, use = self.foreign, self.foreign.contest.use
        if not self._stay_over(top, victims):
            return False
        if self.wary.isdisjoint(victims):
            return True
        if not top.members:
            return self._settled_in(top).stay_out(victims)
        foreign.remove(use, victims)
        held = all(self._stays_out(v, victims) for v in victims if v in self.wary)
        foreign.remove(use, victims, 1)
        return held

    def _settled_in(self, queue: Pool) -> Settled:
        if queue not in self._settled:
            self._settled[queue] = Settled(self.foreign, queue, self.wary)
        return self._settled[queue]

    def _stay_over(self, top: Pool, victims: Sequence[int]) -> bool:
        """Whether a member, and all pools in it, are over until their last victims leave."""
        if not top.members:
            return self._one_row_holds(top, victims)
        return bool(self.foreign.lasts(self.foreign.contest.use, top, victims, self._over))

    def _one_row_holds(self, queue: Pool, victims: Sequence[int]) -> bool:
        """The same for a ClusterQueue alone: it is over, by some row, without all but the victim that uses most of it."""
        for row in self.foreign.contest.rows:
            beyond = self.foreign.contest.beyond(queue, row)
            if beyond > 0:
                amounts = self._used(queue.name, row)
                leaving = [amounts[v] for v in victims]
                if sum(leaving) - max(leaving) < beyond:
                    return True
        return False

    def _used(self, queue: str, row: FlavorResource) -> list[int]:
        """What each gang of the bench is charged of a row in one queue."""
        if (queue, row) not in self._charged:
            amounts = self.foreign.bench.quota.get((queue, *row))
            size = self.foreign.bench.size
            self._charged[queue, row] = amounts.tolist() if amounts is not None else [0] * size
        return self._charged[queue, row]

    def _stays_out(self, victim: int, gone: Collection[int]) -> bool:
        """Whether somebody who has left with others would have to be borrowed for if he came back."""
        below = self.foreign.meeting(victim).below
        return self.foreign.stays_out(self.foreign.contest.use, gone, victim, below)

    def _over(self, pool: Pool) -> bool:
        contest = self.foreign.contest
        return any(contest.beyond(pool, row) > 0 for row in contest.rows)

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        for top, theirs in self._refused(victims):

            def illegal(some: list[int], top: Pool = top) -> bool:
                return bool(some) and not self._may_leave(top, some)

            core = smallest(theirs, illegal)
            among = core  # what yields to one victim may not yield to another one like it
            if not self._stay_over(top, core):
                among = self.foreign.lifted(core, self.foreign.contest.rows)
            yield dict.fromkeys((g for g in among if g not in self.exempt), 1), len(core) - 1

    def constrain(self, building: VictimModel) -> None:
        """Per pool: by one of the contested rows it stays over until its last victim leaves.

        Exact where lending limits keep nothing below the pool and no two pools of a branch have different last victims.
        """
        bound = [g for g in building.gangs if g not in self.exempt]
        for (_, top), theirs in self.foreign.by_top(bound).items():
            self._keep_over(building, top, theirs)
            if not top.members:
                self._settled_in(top).constrain(building, theirs)

    def standing(self, gang: int) -> object:
        return self.foreign.standing(gang) if gang in self.wary else None

    def _keep_over(self, building: VictimModel, pool: Pool, gangs: list[int]) -> None:
        for member, theirs in self.foreign.below(pool, gangs).items():
            self._keep_over(building, member, theirs)
        contest = self.foreign.contest
        rows = [
            (contest.beyond(pool, row), self._amounts(gangs, row))
            for row in sorted(contest.rows)
            if contest.beyond(pool, row) > 0 and self._adds_up(gangs, pool, row)
        ]
        total = len([row for row in contest.rows if contest.beyond(pool, row) > 0])
        if len(rows) < total or not rows:
            return  # what lending limits keep is not in the sums: left to cuts
        if any(sum(a.values()) - max(a.values(), default=0) < beyond for beyond, a in rows):
            return
        _LastRows(building, gangs).add(rows)

    def _amounts(self, gangs: list[int], row: FlavorResource) -> dict[int, int]:
        quota, owner = self.foreign.bench.quota, self.foreign.owner
        found = {}
        for gang in gangs:
            amounts = quota.get((owner[gang], *row))
            if amounts is not None and amounts[gang]:
                found[gang] = int(amounts[gang])
        return found

    def _adds_up(self, gangs: list[int], pool: Pool, row: FlavorResource) -> bool:
        """Whether all that leaves a gang's queue leaves the pool too."""
        for gang in gangs:
            chain = self.foreign.meeting(gang).below
            if any(below.local.get(row, 0) for below in chain[: chain.index(pool)]):
                return False
        return True


@dataclass(frozen=True, eq=False, slots=True)
class _LastRows:
    """Rows of one pool: some contested row, with its last victim put back, stays over."""

    building: VictimModel
    gangs: list[int]

    def add(self, rows: list[tuple[int, dict[int, int]]]) -> None:
        """``rows``: how much the pool is over, and what each gang uses of it."""
        building, model = self.building, self.building.model
        chosen = [model.var(0, 1) for _ in rows]
        for variable, (beyond, amounts) in zip(chosen, rows, strict=True):
            self._stays_over(variable, beyond, amounts)
        for gang in self.gangs:
            model.at_most([building.of[gang], *chosen], [1, *[-1] * len(chosen)], 0)

    def _stays_over(self, chosen: int, beyond: int, amounts: dict[int, int]) -> None:
        building, model = self.building, self.building.model
        sizes: dict[int, list[int]] = {}
        for gang, amount in amounts.items():
            sizes.setdefault(amount, []).append(gang)
        back = {}
        for size, alike in sorted(sizes.items()):
            back[size] = model.var(0, 1)
            leaving = [building.of[g] for g in alike]
            model.at_most([back[size], *leaving], [1, *[-1] * len(leaving)], 0)
        model.at_most([*back.values(), chosen], [*[1] * len(back), -1], 0)
        most = sum(amounts.values())
        variables = [*(building.of[g] for g in amounts), *back.values(), chosen]
        coeffs = [*amounts.values(), *(-size for size in back), most]
        model.at_most(variables, coeffs, beyond - 1 + most)

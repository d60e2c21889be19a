"""On what terms candidates may leave for one gang: what must come free of quota, and who may leave together.

*Deficits* are sums that every answer obeys, and all there is to say of victims of the gang's own ClusterQueue. Across queues
more must hold: lending limits keep part of what leaves, and an order of exits must exist. Both are rows of the model where
they can be, and are checked on every set before it counts; a set that fails is cut off and the model solved again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from queuectl.planner.preempt.contest import Charges, Contest, Deficits
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.order import Cut, Leaving, Order
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.quota.tree import QuotaRow


@dataclass(eq=False, slots=True)
class Terms:
    """The terms of one bench.

    Attributes:
        contest: None for a gang that has no ClusterQueue.
        order: None where candidates may leave in any order.
        plain: the deficits say everything.
        cuts: rows found on the way that every legal set obeys.
    """

    bench: Bench
    deficits: Deficits
    contest: Contest | None = None
    order: Order | None = None
    charges: Charges = field(default_factory=dict)
    plain: bool = True
    cuts: list[Cut] = field(default_factory=list)

    @property
    def certain(self) -> bool:
        """Whether nothing legal is refused."""
        return self.order is None or self.order.certain

    def leaving(self) -> Leaving | None:
        """An empty set of victims that says who may join it; None where anybody may."""
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
        if self.plain or self.contest is None or not self.contest.kept:
            return True
        return self.contest.met_without(victims, self.charges)

    def alike(self, gang: int) -> object:
        """Equal for gangs that stand in for each other, as far as quota and policy go."""
        if self.plain:
            return None
        standing = None if self.order is None else self.order.standing(gang)
        return self.charges[gang], standing

    def constrain(self, building: VictimModel) -> None:
        """All rows that are known."""
        building.free_quota(self.deficits)
        if self.plain:
            return
        if self.contest is not None:
            self.contest.exactly(building)
        if self.order is not None:
            self.order.constrain(building)
        for cut in self.cuts:
            apply(cut, building)

    def refuse(self, victims: frozenset[int], building: VictimModel) -> None:
        """Cut an answer of the model off: it, and what is illegal for the same reason."""
        found = [] if self.order is None else list(self.order.cuts(victims))
        if not any(sum(cut[0].get(v, 0) for v in victims) > cut[1] for cut in found):
            others = dict.fromkeys((g for g in range(self.bench.size) if g not in victims), -1)
            found.append((dict.fromkeys(victims, 1) | others, len(victims) - 1))
        for cut in found:
            self.cuts.append(cut)
            apply(cut, building)


def apply(cut: Cut, building: VictimModel) -> None:
    """Add a row to a model; gangs it leaves out stay."""
    known = {building.of[g]: c for g, c in cut[0].items() if g in building.of}
    building.model.at_most(list(known), list(known.values()), cut[1])


def charges_of(bench: Bench) -> Charges:
    """What each gang of a bench is charged."""
    found: list[list[tuple[QuotaRow, int]]] = [[] for _ in range(bench.size)]
    for row, amounts in sorted(bench.quota.items()):
        charged = amounts.nonzero()[0]
        for gang, amount in zip(charged.tolist(), amounts[charged].tolist(), strict=True):
            found[gang].append((row, amount))
    return dict(enumerate(map(tuple, found)))

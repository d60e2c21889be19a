"""Which gangs to move, as one model: the model builder with an exit per gang that may leave, each placed again if it does.

The model is a relaxation, so what it costs bounds the true cost from below and what it refutes is refuted. Nodes that a gang may
leave are node classes of their own; the others are summed. Whether the set it suggests really finds a place is decided by
placing all of it; a set that does not is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.model.exits import STAYS, Exits
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.relocate.candidates import MoveCandidates


class MoveModel:
    """The model for some candidates and one place for the blocked gang.

    Attributes:
        model: to be solved.
        exits: number of a candidate to the variable of its move.
    """

    def __init__(
        self,
        blocked: GangRequest,
        candidates: MoveCandidates,
        among: Sequence[int],
        free: Ints,
        scope: int,
    ) -> None:
        """Build it.

        Args:
            blocked: the gang to be placed.
            candidates: all gangs that can migrate.
            among: numbers of those that this model lets leave; the others stay.
            free: (R, N) before any leaves.
            scope: the one domain of the blocked gang's required level to try; ANYWHERE = all of them.
        """
        chosen = candidates.table.mask(among)
        rows = candidates.table.rows.select(chosen[candidates.table.rows.gang])
        requests = [blocked, *(candidates.request(number) for number in among)]
        owners = [STAYS] * len(blocked.podset_groups)
        owners += [
            n for n, request in zip(among, requests[1:], strict=True) for _ in request.podset_groups
        ]
        marks = np.zeros(free.shape[1], dtype=np.int64)
        marks[rows.node] = rows.node + 1  # a node that a gang may leave is a class of its own
        classes = PlacementClasses(
            [podset_group for request in requests for podset_group in request.podset_groups],
            free,
            emptied=free + candidates.table.freed(free.shape[1], chosen),
            marks=marks,
            only={}
            if scope == ANYWHERE
            else dict.fromkeys(range(len(blocked.podset_groups)), scope),
        )
        exits = Exits(among, rows.gang, rows.node, rows.use, owners)
        self.built = ModelBuilder(classes, exits=exits)
        self.model, self.exits = self.built.model, self.built.exits
        for limit in candidates.limits:
            mine = [g for g in limit.gangs.tolist() if g in self.exits]
            lost = [int(candidates.table.lost[g]) for g in mine]
            self.model.at_most([self.exits[g] for g in mine], lost, limit.left)

    def set_objective(self, weight: Ints, low: int, high: int | None) -> None:
        """Minimize the weight of the gangs that leave, known to be between two bounds."""
        coeffs = [int(weight[g]) for g in self.exits]
        self.model.minimize(list(self.exits.values()), coeffs)
        self.hold(weight, low, sum(coeffs) if high is None else high)

    def hold(self, weight: Ints, low: int, high: int) -> None:
        """Keep the weight of the gangs that leave between two bounds."""
        coeffs = [int(weight[g]) for g in self.exits]
        self.model.row(list(self.exits.values()), coeffs, low, high)

    def forbid(self, moved: frozenset[int], unsettled: Iterable[int]) -> None:
        """Cut off a set that found no place: another must leave, or one whose leaving costs room must stay."""
        if any(g not in self.exits for g in unsettled):
            return  # it stays anyway
        others = [v for g, v in self.exits.items() if g not in moved]
        stay = [self.exits[g] for g in sorted(unsettled)]
        coeffs = [1] * len(others) + [-1] * len(stay)
        self.model.row([*others, *stay], coeffs, 1 - len(stay), len(others))

"""Defragmentation as a part of the cycle: after all gangs were considered, room is made for one gang that topology alone keeps waiting.

At most one gang a cycle, and never while capacity is leased or a gang is leaving: the next search is after these have ended.
Gangs move only where their ClusterQueue has ``Execute``, within its daily budget for the cost of moves. Where one has
``Plan``, the moves are suggested fixes of the pending gang (:mod:`queuectl.planner.explain.others_leave`). The question of an
administrator (``Snapshot.make_room``) ignores the settings of queues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.domain.plan import Move, Proof
from queuectl.domain.queues import Defragment
from queuectl.domain.reasons import WAITS_FOR_NODES, Code, Reason
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.words import counted
from queuectl.planner.capacity.node_counts import placement_of
from queuectl.planner.capacity.reservations import with_lease
from queuectl.planner.capacity.state import HeldCapacity
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.queue_order import Place, inadmissible, place
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.relocate import MoveCandidates, MoveSolution, find_moves, move_candidates

_MAX_SEARCHES: Final = 4  # kinds of gangs for which one cycle of the loop searches for room
# A product with it (Knuth) is in no step with the seconds between two searches.
_SPREADS: Final = 2_654_435_761
_PATIENCE: Final = 2  # by how much an administrator's question raises the solver's budget


@dataclass(frozen=True, slots=True)
class Defragmented:
    """The result: the moves, and for how many gangs room was searched."""

    moves: tuple[Move, ...] = ()
    sought: int = 0


def defragment(cycle: AdmissionCycle, in_order: Sequence[Pending]) -> Defragmented:
    """Make room for the first blocked gang that moving helps; its refusal and the state are updated.

    Args:
        cycle: finished; nothing was confirmed yet.
        in_order: the pending gangs in queue order.
    """
    policy = MigrationPolicy(cycle)
    if cycle.solver.cut or not (policy.on_request or policy.search_due()):
        return Defragmented()
    cycle.solver.finish(fully=policy.on_request)
    if cycle.solver.exhausted:
        return Defragmented()
    sought = 0
    for pending in policy.turns(list(policy.targets(in_order))):
        sought += 1
        found = _best(cycle, pending, policy.candidates(pending))
        if found is not None:
            return Defragmented(_commit(cycle, *found), sought)
    return Defragmented(sought=sought)


def _under_way(cycle: AdmissionCycle) -> bool:
    """Whether a gang leaves, or waits for capacity that is held for it."""
    return (
        any(True for _ in cycle.leases.held())
        or bool(cycle.leased)
        or bool(cycle.problem.usage.leaving)
        or bool(cycle.preempted or cycle.waiting_repairs or cycle.evicted)
    )


@dataclass(slots=True)
class MigrationPolicy:
    """The gangs that can migrate, for which gangs, at what cost."""

    cycle: AdmissionCycle
    _known: dict[tuple[tuple[str, Place], ...], MoveCandidates] = field(default_factory=dict)

    @property
    def on_request(self) -> bool:
        """Whether an administrator asks; then no queue's leave is needed."""
        return self.cycle.problem.snapshot.make_room is not None

    def search_due(self) -> bool:
        """Whether the loop searches for moves in this cycle."""
        queues = self.cycle.problem.snapshot.config.cluster_queues.values()
        willing = any(queue.defragment is Defragment.EXECUTE for queue in queues)
        willing = willing and not self.cycle.planned.gangs
        return willing and self.cycle.problem.snapshot.seek_room and not _under_way(self.cycle)

    def candidates(self, pending: Pending) -> MoveCandidates:
        """The gangs that can migrate for a gang."""
        lines = self._lines(pending)
        key = tuple(sorted(lines.items()))
        if key not in self._known:
            self._known[key] = self._move_candidates(lines)
        return self._known[key]

    def _move_candidates(self, lines: Mapping[str, Place]) -> MoveCandidates:
        allowed = self._allowed(lines, frozenset({Defragment.EXECUTE}))
        return move_candidates(self.cycle.state, allowed, {} if self.on_request else self.budgets())

    def may_move(
        self, pending: Pending, modes: Collection[Defragment]
    ) -> Callable[[Admitted], bool]:
        """Whether a running gang is permitted to migrate for a gang, in ClusterQueues with one of these modes."""
        return self._allowed(self._lines(pending), modes)

    def _allowed(
        self, lines: Mapping[str, Place], modes: Collection[Defragment]
    ) -> Callable[[Admitted], bool]:
        def allowed(gang: Admitted) -> bool:
            queue = self.cycle.problem.snapshot.queue_of(gang.workload)
            if queue is None:
                return self.on_request
            line = lines.get(queue.name)
            first = line is None or place(gang.workload) < line
            return first and (self.on_request or queue.defragment in modes)

        return allowed

    def _lines(self, pending: Pending) -> dict[str, Place]:
        """StrictFIFO ClusterQueue to the first place where another gang waits: behind it no gang could start again."""
        lines: dict[str, Place] = {}
        snapshot, leased = self.cycle.problem.snapshot, self.cycle.leased
        for other in snapshot.pending:
            queue = snapshot.queue_of(other.workload)
            uid = other.workload.uid
            refusal = self.cycle.refused.get(uid)
            if queue is None or not queue.strict or other.workload.grows:
                continue
            waits = refusal is not None and not refusal.reasons[0].never_fits
            if other is pending or not (waits or uid in leased):
                continue
            if inadmissible(snapshot, other) is None:
                at = place(other.workload)
                lines[queue.name] = min(lines.get(queue.name, at), at)
        return lines

    def budgets(self) -> Mapping[str, int]:
        """ClusterQueue to the GPU-seconds that its moves can still cost."""
        snapshot = self.cycle.problem.snapshot
        return {
            q.name: q.defragment_budget - snapshot.moved_work.get(q.name, 0)
            for q in snapshot.config.cluster_queues.values()
        }

    def targets(self, in_order: Sequence[Pending]) -> Iterator[Pending]:
        """Gangs refused by topology, proved, in queue order; of equal ones only the first."""
        question = self.cycle.problem.snapshot.make_room
        searched_classes: set[int] = set()
        for pending in in_order:
            uid = pending.workload.uid
            if question is not None and question.gang not in (None, uid):
                continue
            refusal = self.cycle.refused.get(uid)
            if refusal is None or refusal.lease is not None or refusal.proof is not Proof.OPTIMAL:
                continue
            if refusal.reasons[0].code not in WAITS_FOR_NODES:
                continue
            if question is None and not pending.workload.evicts:
                continue  # it is for room that is there
            if self.cycle.limits.short(pending.workload):
                continue  # since it was refused, its namespace or its user has started others
            kind = id(
                self.cycle.classes.of(
                    pending, self.cycle.problem.snapshot.queue_of(pending.workload)
                )
            )
            if kind not in searched_classes:
                searched_classes.add(kind)
                yield pending

    def turns(self, targets: Sequence[Pending]) -> Sequence[Pending]:
        """The targets of this search: the first one, and some of the others, which differ from search to search.

        Otherwise gangs that no move helps, before the others in queue order, would end all moves.
        """
        snapshot = self.cycle.problem.snapshot
        if snapshot.make_room is not None or len(targets) <= _MAX_SEARCHES:
            return targets
        first, *others = targets
        start = (int(snapshot.now) * _SPREADS >> 16) % len(others)
        return [first, *(others[start:] + others[:start])[: _MAX_SEARCHES - 1]]


def _best(
    cycle: AdmissionCycle, pending: Pending, candidates: MoveCandidates
) -> tuple[GangRequest, MoveSolution] | None:
    """The cheapest room under any choice of flavors that no waiting head bars; the preferred choice among equals."""
    if not candidates.size:
        return None
    snapshot = cycle.problem.snapshot
    queue, on_request = snapshot.queue_of(pending.workload), snapshot.make_room is not None
    if on_request:  # a user waits for the answer, not for the cycle
        pending = replace(pending, budget=pending.budget + _PATIENCE)
    best: tuple[GangRequest, MoveSolution] | None = None
    for asked in cycle.open_requests(pending, queue):
        request = with_lease(cycle.problem, asked)
        solution = find_moves(cycle.state, request, candidates, cycle.solver)
        cycle.undecided |= on_request and solution is not None and solution.proof is Proof.UNDECIDED
        if (
            solution is not None
            and solution.moved
            and (best is None or solution.cost < best[1].cost)
        ):
            best = request, solution
    return best


def _commit(
    cycle: AdmissionCycle, request: GangRequest, solution: MoveSolution
) -> tuple[Move, ...]:
    """All moved gangs leave, and every new place is leased, in one plan."""
    problem, state = cycle.problem, cycle.state
    uid = request.pending.workload.uid
    migrated = [moved.gang for moved in solution.moved]
    lease = cycle.reserve_after(request, solution.node_counts, migrated)
    cycle.planned.starts(uid)
    for moved in solution.moved:
        state.hold(HeldCapacity(moved.request, moved.node_counts))
    cycle.unproved |= solution.proof is not Proof.OPTIMAL
    cycle.refused[uid] = replace(
        cycle.refused[uid], reasons=(_waits_for([g.workload.uid for g in migrated]),), lease=lease
    )
    return tuple(
        Move(
            moved.gang.workload.uid,
            uid,
            placement_of(problem, moved.request, moved.node_counts),
            moved.cost,
            solution.proof,
        )
        for moved in solution.moved
    )


def _waits_for(migrating: Sequence[str]) -> Reason:
    text = f"waits for {counted(len(migrating), 'gang')} to migrate; the freed capacity is reserved for this gang"
    return Reason(Code.WAITING_FOR_PREEMPTED, text, {"victims": sorted(migrating)})

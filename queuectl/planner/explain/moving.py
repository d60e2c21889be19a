"""The way out by moving others: gangs that could start again elsewhere, where their queues have such moves said or done."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.changes import Relocate
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.plan import Proof
from queuectl.domain.queues import Defragment
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted
from queuectl.planner.capacity.placing import placement_of
from queuectl.planner.explain.offer import Idea, finish
from queuectl.planner.explain.trial import books, past_heads, requests
from queuectl.planner.explain.turn import Turn
from queuectl.planner.reasons.words import some
from queuectl.planner.relocate.movers import movers_of
from queuectl.planner.relocate.search import Room, find_room


def others_move(turn: Turn) -> Iterator[Way]:
    """The cheapest set of running gangs to move so that it fits; what moves may cost a day is not asked.

    While others leave anyway, nothing is said: who moves could be among those who then need not.
    """
    config = turn.snapshot.config
    willing = {q.name for q in config.cluster_queues.values() if q.defragment is not Defragment.OFF}
    if not willing or any(gang.leaving for gang in turn.snapshot.admitted):
        return

    def allowed(gang: Admitted) -> bool:
        queue = config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
        return queue is not None and queue.name in willing

    world = past_heads(turn)
    state = books(turn, world)
    movers = movers_of(state, allowed, {})
    for request in requests(turn, world, state.problem):
        room = find_room(state, request, movers, turn.solver)
        if room is not None and room.moved:
            yield from finish(turn, _idea(turn, room), {})
            return


def _idea(turn: Turn, room: Room) -> Idea:
    names = sorted(moved.gang.workload.ref for moved in room.moved)
    message = (
        f"move {counted(len(names), 'gang')} elsewhere, at {room.cost[0]} GPU-seconds of lost work: "
        f"{some(names)}"
    )
    places = {
        moved.gang.workload.uid: placement_of(turn.problem, moved.request, moved.node_counts)
        for moved in room.moved
    }
    details = {
        "gangs": [
            {
                "workload": moved.gang.workload.ref,
                "lostGpuSeconds": moved.cost.lost_work,
                "nodes": sorted({name for p in place.podsets for name, _ in p.nodes}),
            }
            for moved, place in zip(room.moved, places.values(), strict=True)
        ]
    }
    least = room.proof is Proof.OPTIMAL
    return Idea(Remedy.MOVE_OTHERS, message, details, (Relocate(places),), least)

"""What a way out adds is proved, by counting, not to go to those before the gang; then no second walk is made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from queuectl.domain.changes import AddNodes, AddQuota, Change, Leave, queue_changed
from queuectl.domain.diagnosis import Remedy
from queuectl.domain.queues import ClusterQueue, WithinClusterQueue
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose, offer
from queuectl.planner.explain.known import know, of_plan
from queuectl.planner.explain.offer import turn_after
from queuectl.planner.explain.turn import Turn, turn_of
from queuectl.planner.explain.untaken import untaken
from queuectl.planner.plan_cycle import begin, turns
from queuectl.planner.problem.problem import survey
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.generate import snapshots
from tests.support.examples import examples

_SLOW = settings(deadline=None, max_examples=examples(100), suppress_health_check=list(HealthCheck))
RACKS = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in range(4)]


def _turn(snapshot: Snapshot, uid: str) -> Turn:
    prepared = begin(survey(snapshot))
    know(prepared.cycle, of_plan(plan(snapshot)))
    return next(
        turn_of(prepared.cycle, pending)
        for pending in turns(prepared)
        if pending.workload.uid == uid
    )


@st.composite
def _changes(draw: st.DrawFn, snapshot: Snapshot) -> tuple[Change, ...]:
    like = draw(st.sampled_from(snapshot.fleet.nodes)).name
    near = draw(st.sampled_from(snapshot.fleet.nodes)).labels
    labels = {level: near[level] for level in ("block", "rack")}
    made: list[Change] = []
    if draw(st.booleans()):
        made.append(AddNodes(like, draw(st.integers(1, 2)), labels))
    leaves = draw(st.booleans())
    if snapshot.admitted and leaves:
        gone = draw(st.sets(st.sampled_from([g.workload.uid for g in snapshot.admitted])))
        made.append(Leave(tuple(sorted(gone))))
    group = snapshot.config.cluster_queues["main"].groups[0]
    if draw(st.integers(0, 3)) == 0:
        made.append(AddQuota("main", group.flavors[0].flavor, group.covered[0], 4))
    return tuple(made)


def _evicts_nobody(main: ClusterQueue) -> ClusterQueue:
    return replace(main, within_cluster_queue=WithinClusterQueue.NEVER)


@_SLOW
@given(snapshots(gangs=4), st.data())
def test_what_is_proved_untaken_the_walk_done_again_leaves_untaken(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    snapshot = queue_changed(snapshot, "main", _evicts_nobody)
    waiting = [r.uid for r in plan(snapshot).pending]
    assume(len(waiting) > 1)
    turn = _turn(snapshot, waiting[-1])
    changes = data.draw(_changes(snapshot))
    assume(changes and turn.restless)
    if not untaken(turn, changes):
        return
    event("proved")
    later = turn_after(turn, changes)
    assert later is not None
    assert later.before.placed == turn.before.placed
    assert later.cycle.refused.keys() == turn.cycle.refused.keys()


def _behind(first: Workload) -> Snapshot:
    """Two of four nodes of each rack are taken; two gangs wait, the later one for three nodes of one rack."""
    running = [
        holding(gang(f"a{rack}", podset("w", 2, gpu=8)), {f"{rack}-0": 1, f"{rack}-1": 1})
        for rack in ("r1", "r2")
    ]
    later = gang("w1", podset("w", 3, gpu=8, required="rack"), queued_at=9.0)
    return world(RACKS, [first, later], running, queue(within=WithinClusterQueue.NEVER))


@pytest.mark.parametrize(
    ("pods", "walks"),
    [
        (4, False),  # it lacks a node more than the later one is given
        (3, True),  # it takes what is added
    ],
)
def test_the_walk_is_done_again_only_for_those_who_could_take_it(
    monkeypatch: pytest.MonkeyPatch, pods: int, walks: bool
) -> None:
    first = gang("w0", podset("w", pods, gpu=8, required="rack"))
    again: list[Change] = []

    def counted(turn: Turn, changes: tuple[Change, ...]) -> Turn | None:
        again.extend(changes)
        return turn_after(turn, changes)

    snapshot = _behind(first)
    monkeypatch.setattr(offer, "turn_after", counted)
    diagnosis = diagnose(snapshot, "w1", plan=plan(snapshot))
    assert any(isinstance(change, AddNodes) for change in again) == walks
    offered = any(way.remedy is Remedy.ADD_NODES for way in diagnosis.ways)
    assert offered != walks

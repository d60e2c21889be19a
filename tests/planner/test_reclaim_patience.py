"""Properties of the wait before a reclaim: an owner gets its nominal quota within its patience, whatever is known of ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.queues import ReclaimWithinCohort
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, podset, world
from tests.planner.histories import Simulation
from tests.planner.queues import cohort, cq
from tests.planner.story import Arrives, Scene
from tests.planner.test_borrow_backoff import team
from tests.support.examples import examples

NODES: Final = [node(f"n{i}", gpu=8) for i in range(4)]
PATIENCE: Final = 30.0
STEP: Final = 1.0  # seconds between two plans of a gang that waits

ends = st.one_of(st.none(), st.floats(-100.0, 200.0))


@st.composite
def contested(draw: st.DrawFn) -> Snapshot:
    """Gangs of ``b`` hold all GPUs, and a gang within the nominal quota of ``a`` waits."""
    held: list[Admitted] = []
    for number in range(4):
        end = draw(ends)
        of_one = gang(f"h{number}", podset(gpu=8, count=1), queue="b")
        held.append(
            replace(
                holding(of_one, {f"n{number}": 1}),
                started_at=NOW - draw(st.floats(0.0, 10_000.0)),
                ends_at=None if end is None else NOW + end,
                end_enforced=draw(st.booleans()),
            )
        )
    asks = gang("g", podset(gpu=8, count=draw(st.integers(1, 2))), queue="a")
    wants = Pending(asks, reclaim_since=None)
    queues = (team("a", 16, reclaim_patience=PATIENCE), team("b", 16))
    return world(NODES, [wants], held, *queues)


@settings(max_examples=examples(50))
@given(contested())
def test_an_owner_evicts_by_the_end_of_its_patience_although_no_gang_ends_as_expected(
    snapshot: Snapshot,
) -> None:
    now, since = NOW, None
    while True:
        waits = replace(snapshot.pending[0], reclaim_since=since)
        snapshot = replace(snapshot, now=now, pending=(waits,))
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        if made.preempted:
            break
        reason = made.pending[0].reasons[0]
        assert reason.code is Code.WAITING_TO_RECLAIM
        since = reason.details["since"]
        due = next_plan_due(snapshot, made)
        assert due is not None
        assert now < due <= NOW + PATIENCE
        now = due
    assert now <= NOW + PATIENCE


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.0, 60.0)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.floats(0.0, 20.0),
)
def test_later_borrowers_do_not_keep_an_owner_waiting(
    borrowers: list[tuple[int, float]], asks: int, drain: float
) -> None:
    """An owner starts within its patience and the time that its victims take to end, while other queues continue to borrow."""
    reclaims = {"reclaim_within_cohort": ReclaimWithinCohort.ANY, "reclaim_patience": PATIENCE}
    owner, other = cq("a", 8, "all", **reclaims), cq("b", 0, "all", **reclaims)
    simulation = Simulation(Scene((owner, other), (cohort("all"),)))
    simulation.apply(Arrives("b", 8, drain=drain))
    simulation.wait(7.0)
    simulation.apply(Arrives("a", asks, name="owner"))
    came = simulation.now
    for gpus, then in borrowers:
        simulation.apply(Arrives("b", gpus, drain=drain))
        simulation.wait(then)
    simulation.wait(PATIENCE + drain + STEP)
    history = simulation.end()
    started = next(s.at for s in history.started if s.uid == "a-owner")
    assert started <= came + PATIENCE + drain + STEP

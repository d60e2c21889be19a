"""Random histories: two to four ClusterQueues in a cohort tree, up to six nodes or quota alone, and the events there."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from hypothesis import strategies as st

from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    IdleReclaim,
    Protection,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    StopPolicy,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules, UsageFairness
from tests.planner.queues import cohort, cq, quotas
from tests.planner.story import (
    USER,
    Arrives,
    Ends,
    Event,
    Idles,
    IsDeleted,
    NodeFails,
    NodeReturns,
    QuotaIs,
    Resumes,
    Scene,
    Step,
    Stops,
    Story,
    Works,
)

FINAL, INITIAL = (
    FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
    FairStrategy.LESS_THAN_INITIAL_SHARE,
)
TREES: dict[str, tuple[tuple[Cohort, ...], tuple[str, ...]]] = {
    "flat": ((cohort("top"),), ("top",)),
    "lends": ((cohort("top", 2),), ("top",)),
    "two": (
        (cohort("top"), cohort("left", 0, "top"), cohort("right", 0, "top")),
        ("left", "right"),
    ),
    "deep": ((cohort("top"), cohort("left", 1, "top")), ("top", "left")),
}
PAUSES = (0.0, 1.0, 30.0, 700.0, 4000.0)
DRAINS = (0.0, 1.0, 60.0, 900.0)  # the last is later than a lease lasts


@st.composite
def cluster_queues(
    draw: st.DrawFn, name: str, homes: tuple[str, ...], *, fair: bool
) -> ClusterQueue:
    reclaim = draw(st.sampled_from(list(ReclaimWithinCohort)))
    borrows = not fair and reclaim is not ReclaimWithinCohort.NEVER
    nominal = draw(st.sampled_from((4, 2, 3, 0, 6)))
    borrowing = draw(st.sampled_from((None, None, 0, 2)))
    lending = draw(st.sampled_from((None, None, 0, 2)))
    lending = lending if lending is None else min(lending, nominal)
    return replace(
        cq(name, quotas(nominal, borrowing=borrowing, lending=lending), draw(st.sampled_from(homes))),
        strategy=draw(st.sampled_from(list(QueueingStrategy)[::-1])),
        within_cluster_queue=draw(st.sampled_from(list(WithinClusterQueue))),
        reclaim_within_cohort=reclaim,
        preempts_to_borrow=borrows and draw(st.booleans()),
        borrow_threshold=draw(st.sampled_from((None, 0, 1))),
        weight=draw(st.sampled_from((1000, 1000, 2000, 500, 0))) if fair else 1000,
        victim_order=draw(st.sampled_from(
            ((VictimKey.MAX_PRIORITY, VictimKey.LOST_WORK, VictimKey.COUNT),
             (VictimKey.MAX_PRIORITY, VictimKey.COUNT, VictimKey.LOST_WORK),
             (VictimKey.COUNT, VictimKey.LOST_WORK, VictimKey.MAX_PRIORITY)))),
        protection=draw(protections),
        evicts_within_nominal=draw(st.sampled_from((False, False, True))),
        max_per_user=draw(st.sampled_from(((), (), ((GPU, 2),), ((GPU, 4),)))),
        idle_reclaim=draw(idle_reclaims),
    )  # fmt: skip


protections = st.builds(
    Protection,
    min_runtime=st.sampled_from((0.0, 0.0, 600.0)),
    max_evictions_per_day=st.sampled_from((None, None, 1, 2)),
    cooldown=st.sampled_from((0.0, 0.0, 1800.0)),
)


ON_DEMAND = ReclaimMode.ON_DEMAND
idle_reclaims = st.builds(
    IdleReclaim,
    mode=st.sampled_from((ON_DEMAND, ON_DEMAND, ReclaimMode.ALWAYS, ReclaimMode.DRY_RUN, ReclaimMode.OFF)),
    grace=st.sampled_from((60.0, 600.0, 0.0)),
    cooldown=st.sampled_from((3600.0, 600.0, 0.0)),
    to_equal=st.booleans(),
)  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    fair = draw(st.sampled_from(((), (), (FINAL, INITIAL), (FINAL,), (INITIAL,))))
    cohorts, homes = TREES[draw(st.sampled_from(sorted(TREES)))]
    names = ("a", "b", "c", "d")[: draw(st.integers(2, 4))]
    queues = tuple(draw(cluster_queues(name, homes, fair=bool(fair))) for name in names)
    nodes = draw(st.one_of(st.just([]), st.lists(st.integers(2, 4), min_size=2, max_size=6)))
    rules = Rules(fair_sharing=fair, usage_fairness=UsageFairness(user_label=USER))
    return Scene(queues, cohorts, tuple(nodes), rules)


KINDS = (
    ("arrives",) * 10
    + ("ends",) * 3
    + ("idles",) * 3
    + ("works", "deleted", "fails", "returns", "quota", "stops", "goes")
)


@st.composite
def events(draw: st.DrawFn, names: list[str]) -> Event:
    """Arrivals for the most part."""
    which = draw(st.integers(0, 5))
    queue = names[which % len(names)]
    match draw(st.sampled_from(KINDS)):
        case "arrives":
            return Arrives(
                queue,
                gpus=draw(st.sampled_from((1, 2, 3))),
                pods=draw(st.sampled_from((1, 1, 2, 3))),
                priority=draw(st.integers(0, 3)),
                drain=draw(st.sampled_from(DRAINS)),
                rack=draw(st.booleans()),
                user=draw(st.sampled_from((None, "ann", "bob"))),
                least=draw(st.sampled_from((None, None, 1, 2))),
            )
        case "ends":
            return Ends(which)
        case "idles":
            return Idles(which)
        case "works":
            return Works(which)
        case "deleted":
            return IsDeleted(which)
        case "fails":
            return NodeFails(which)
        case "returns":
            return NodeReturns(which)
        case "quota":
            return QuotaIs(queue, draw(st.integers(0, 6)))
        case "stops":
            hold, drain = StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN
            return Stops(queue, draw(st.sampled_from((hold, drain))))
        case _:
            return Resumes(queue)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """About 20 steps, at most 60; drawn as several lists, so that long histories are drawn and still shrink to short ones."""
    scene = draw(scenes())
    step = st.builds(Step, events([q.name for q in scene.queues]), st.sampled_from(PAUSES))
    chapters = [draw(st.lists(step, max_size=15)) for _ in range(4)]
    return Story(scene, tuple(chain.from_iterable(chapters)))

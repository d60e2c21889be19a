"""Invariants of every plan, for any set of idle gangs and any idle policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import PreemptionReason
from queuectl.domain.queues import ReclaimMode
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from tests.planner import generate
from tests.planner.generate_cohorts import contest
from tests.planner.test_idle import DRY_RUN, IDLE, OFF, evicted, yields
from tests.planner.test_idle_oracle import MODES
from tests.support.examples import examples


def marked(snapshot: Snapshot, idle: list[bool], modes: list[ReclaimMode], equal: bool) -> Snapshot:
    """Some gangs are idle, and the idle policy differs from queue to queue."""
    queues = {
        name: replace(q, **yields(modes[i % len(modes)], to_equal=equal))
        for i, (name, q) in enumerate(sorted(snapshot.config.cluster_queues.items()))
    }
    admitted = tuple(
        replace(g, idle_since=IDLE if idle[i % len(idle)] else None)
        for i, g in enumerate(snapshot.admitted)
    )
    config = replace(snapshot.config, cluster_queues=queues)
    return replace(snapshot, config=config, admitted=admitted)


def moded(snapshot: Snapshot, mode: Callable[[ReclaimMode], ReclaimMode]) -> Snapshot:
    """The same with other modes."""
    queues = {
        name: replace(q, idle_reclaim=replace(q.idle_reclaim, mode=mode(q.idle_reclaim.mode)))
        for name, q in snapshot.config.cluster_queues.items()
    }
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def off_for_dry(mode: ReclaimMode) -> ReclaimMode:
    return OFF if mode is DRY_RUN else mode


WORLDS = st.one_of(
    generate.contested(),
    st.builds(contest, st.integers(0, 10**6), fair=st.booleans(), nodes=st.booleans()),
)
SCENES = st.builds(
    marked,
    WORLDS,
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.lists(st.sampled_from(MODES), min_size=1, max_size=4),
    st.booleans(),
)
MANY = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(SCENES)
def test_only_idle_gangs_are_evicted_for_idleness_and_each_for_one_that_then_fits(
    snapshot: Snapshot,
) -> None:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    running_gangs = {g.workload.uid: g for g in snapshot.admitted}
    for victim in [p for p in made.preempted if p.reason == PreemptionReason.IDLE]:
        assert running_gangs[victim.victim].idle_since is not None
    for victim in made.spared:
        assert running_gangs[victim.victim].idle_since is not None
        assert victim.victim not in evicted(made)


@MANY
@given(SCENES)
def test_a_dry_run_changes_only_its_report(snapshot: Snapshot) -> None:
    made, without_it = plan(snapshot), plan(moded(snapshot, off_for_dry))
    assert replace(made, spared=()) == without_it
    assert without_it.spared == ()


@MANY
@given(SCENES)
def test_without_known_idle_gangs_modes_have_no_effect(snapshot: Snapshot) -> None:
    admitted = tuple(replace(g, idle_since=None) for g in snapshot.admitted)
    unknown = replace(snapshot, admitted=admitted)
    assert plan(unknown) == plan(moded(unknown, lambda _: OFF))


@MANY
@given(SCENES)
def test_the_same_snapshot_gives_the_same_plan_whatever_is_cached(
    snapshot: Snapshot,
) -> None:
    cache = PlannerCache()
    first = plan(snapshot, cache=cache)
    assert plan(snapshot, cache=cache) == first
    assert plan(snapshot) == first

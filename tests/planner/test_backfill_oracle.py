"""Planned starts and backfill against all placements: on a few nodes, the same gangs start, and planned starts are at the same times."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.queues import Backfill, BackfillOrder, Cohort
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.backfill_clock import job, line, member
from tests.planner.build import NOW, holding, node, world
from tests.planner.oracle_backfill import Cluster, Gang, Quota
from tests.support.examples import examples

LENGTHS = st.sampled_from([10.0, 20.0, 30.0, None])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[Gang]]:
    """Two to four nodes in one or two racks, what is in use on them, and three to six gangs in queue order."""
    gpus = tuple(draw(st.lists(st.integers(1, 2), min_size=2, max_size=4)))
    racks = tuple(draw(st.integers(0, 1)) for _ in gpus)
    busy = [
        (at, draw(st.integers(1, size)), draw(st.sampled_from([10.0, 20.0, 40.0, inf])))
        for at, size in enumerate(gpus)
        if draw(st.booleans())
    ]
    gangs = [
        Gang(
            f"g{number}",
            draw(st.integers(1, 4)),
            draw(st.integers(1, 2)),
            draw(LENGTHS),
            draw(st.booleans()),
        )
        for number in range(draw(st.integers(3, 6)))
    ]
    delay = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return Cluster(gpus, racks, busy, draw(st.integers(1, 3)), delay), gangs


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Cluster, list[Gang]]:
    """The same in two ClusterQueues of a cohort, each with its own quota and limits for borrowing and lending."""
    cluster, gangs = draw(clusters())
    limits = st.sampled_from([None, 0, 1, 2])
    quotas = {
        name: Quota(draw(st.integers(1, 4)), draw(limits), draw(limits))
        for name in ("main", "other")
    }
    gangs = [replace(gang, queue=draw(st.sampled_from(["main", "other"]))) for gang in gangs]
    used = sum(used for _, used, _ in cluster.busy)
    quotas["main"] = replace(quotas["main"], nominal=max(quotas["main"].nominal, used))
    return replace(cluster, delay=0.0, quotas=quotas), gangs


@st.composite
def trees(draw: st.DrawFn) -> tuple[Cluster, list[Gang]]:
    """The same with a third ClusterQueue; two or three of them are in a Cohort below the root, with its own quota and limits."""
    cluster, gangs = draw(cohorts())
    limits = st.sampled_from([None, 0, 1, 2])
    quotas = {**cluster.quotas, "third": Quota(draw(st.integers(0, 3)), draw(limits), draw(limits))}
    inside = draw(
        st.sampled_from([("main", "other"), ("other", "third"), ("main", "other", "third")])
    )
    quotas = {n: replace(q, parent="team" if n in inside else "") for n, q in quotas.items()}
    team = Quota(draw(st.integers(0, 2)), draw(limits), draw(limits))
    gangs = [replace(gang, queue=draw(st.sampled_from([*quotas]))) for gang in gangs]
    return replace(cluster, quotas=quotas, cohorts={"team": team}), gangs


def snapshot_of(cluster: Cluster, gangs: list[Gang]) -> Snapshot:
    nodes = [
        node(f"n{number}", f"r{rack}", gpu=size)
        for number, (size, rack) in enumerate(zip(cluster.gpus, cluster.racks, strict=True))
    ]
    admitted = [_running(number, *use) for number, use in enumerate(cluster.busy)]
    pending = [
        job(
            gang.uid,
            gang.pods,
            gang.seconds,
            queued_at=number,
            gpu=gang.gpu,
            required="rack" if gang.rack else None,
            of=gang.queue,
        )
        for number, gang in enumerate(gangs)
    ]
    if not cluster.quotas:
        return world(nodes, pending, admitted, line(cluster.planned_starts, delay=cluster.delay))
    queues = [
        replace(
            member(name, quota.nominal, lends=quota.lends, borrows=quota.borrows),
            cohort=quota.parent or "all",
            backfill=Backfill(cluster.planned_starts, BackfillOrder.QUEUE, 0.0),
        )
        for name, quota in cluster.quotas.items()
    ]
    made = world(nodes, pending, admitted, *queues)
    below = {
        name: Cohort(
            name,
            quota.parent or "all",
            member(name, quota.nominal, lends=quota.lends, borrows=quota.borrows).groups,
        )
        for name, quota in cluster.cohorts.items()
    }
    return replace(made, config=replace(made.config, cohorts={"all": Cohort("all"), **below}))


def _running(number: int, on: int, gpus: int, ends: float) -> Admitted:
    held = holding(job(f"busy{number}", 1, None, gpu=gpus), {f"n{on}": 1})
    return replace(held, ends_at=None if ends == inf else NOW + ends)


@settings(max_examples=examples(60))
@given(clusters() | cohorts() | trees())
def test_the_same_gangs_start_and_planned_starts_are_the_earliest(
    drawn: tuple[Cluster, list[Gang]],
) -> None:
    cluster, gangs = drawn
    snapshot = snapshot_of(cluster, gangs)
    made = plan(snapshot)
    assert not verify(snapshot, made)
    assert [admission.uid for admission in made.admitted] == cluster.starts(gangs)
    starts = {planned.uid: planned.start.at - NOW for planned in made.planned}
    assert starts == {gang.uid: at for gang, at in cluster.planned}

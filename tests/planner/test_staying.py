"""The arrays of running gangs that a plan makes from those of the plan before equal those that it makes from the snapshot alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import Fleet
from queuectl.domain.queues import OptOut, Protection
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.running import RunningGangs, running_gangs
from queuectl.planner.preempt.staying import staying_gangs
from queuectl.planner.problem.problem import survey
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.support.examples import examples

_NODES = [node(f"n{i}", f"b{i % 2}", gpu=8, cpu=8) for i in range(4)]
_FLEETS = (
    _NODES,
    [replace(_NODES[0], ready=False), *_NODES[1:]],
    [node(f"n{i}", f"b{i % 2}", gpu=4, cpu=32) for i in range(4)],
    _NODES[1:],
    [*_NODES[:3], node("n4", "b0", gpu=8, cpu=8)],
    [*_NODES[:3], node("n3", "b1", gpu=8, cpu=8, storage=4)],
)
_QUEUES = (
    queue("plain"),
    replace(queue("briefly"), protection=Protection(min_runtime=300.0)),
    replace(queue("evicted"), protection=Protection(cooldown=200.0, max_evictions_per_day=2)),
    replace(queue("optional"), preemption_opt_out=OptOut.WITHIN_NOMINAL),
    replace(queue("never"), preemption_opt_out=OptOut.ALWAYS),
)
_NAMES = tuple(each.name for each in _QUEUES)


@st.composite
def records(draw: st.DrawFn, uid: str) -> Admitted:
    """A gang that runs, or is being evicted, in one of the ClusterQueues or in none that exists."""
    names = [f"n{i}" for i in range(4)] + ["deleted"]
    pods = draw(st.dictionaries(st.sampled_from(names), st.integers(1, 2), min_size=1))
    workload = gang(
        uid,
        podset(count=sum(pods.values()), gpu=draw(st.integers(0, 2)), cpu=4),
        priority=draw(st.integers(0, 2)),
        queue=draw(st.sampled_from((*_NAMES, "missing"))),
        queued_at=draw(st.sampled_from((0.0, 5.0))),
        preemptible=draw(st.booleans()),
    )
    record = holding(
        workload,
        pods,
        leaving=draw(st.integers(0, 4)) == 0,
        started_at=NOW + draw(st.sampled_from((-1000.0, -100.0, 0.0, 50.0))),
        utilization=draw(st.none() | st.just(0.5)),
    )
    times = st.sampled_from((NOW - 86_000, NOW - 150, NOW, NOW + 40))
    return replace(record, evictions=tuple(draw(st.lists(times, max_size=3))))


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Snapshots that follow each other: gangs start, end, get another record or another policy, nodes change, and time passes or runs back."""
    first, known = world(_NODES, (), (), *_QUEUES), dict[str, Admitted]()
    made, now, config, fleet = [], NOW, first.config, first.fleet
    for _ in range(draw(st.integers(3, 6))):
        for uid in draw(st.sets(st.sampled_from([f"g{i}" for i in range(8)]), max_size=3)):
            if uid in known and draw(st.booleans()):
                del known[uid]
            else:
                known[uid] = draw(records(uid))
        now += draw(st.sampled_from((0.0, 310.0, -320.0, 86_000.0)))
        if draw(st.integers(0, 4)) == 0:
            policies = draw(st.permutations(_QUEUES))
            queues = [replace(p, name=name) for p, name in zip(policies, _NAMES, strict=True)]
            config = world((), (), (), *queues).config
        if draw(st.integers(0, 2)) == 0:
            fleet = Fleet(tuple(draw(st.sampled_from(_FLEETS))))
        order = draw(st.permutations(list(known.values())))
        made.append(Snapshot(now, fleet, config, (), tuple(order), {}, first.namespaces))
    return made


def _contents(running: RunningGangs) -> Mapping[str, object]:
    table = running.table(running.priority >= 0, NOW)
    return {
        "gangs": [(g.workload.uid, g.utilization) for g in running.gangs],
        "owners": running.owner.tolist(),
        "priority": running.priority.tolist(),
        "queued_at": running.queued_at.tolist(),
        "reclaim_only": running.reclaim_only.tolist(),
        "quota": {row: amounts.tolist() for row, amounts in running.quota.items()},
        "charged": {row: mask.tolist() for row, mask in running.charged.items()},
        "charges": table.charges,
        "rows": [part.tolist() for part in (table.rows.gang, table.rows.node, table.rows.use)],
        "lost": table.lost.tolist(),
    }


@settings(max_examples=examples(300), deadline=None)
@given(histories(), st.data())
def test_arrays_made_from_those_of_earlier_plans_equal_arrays_made_afresh(
    history: list[Snapshot], data: st.DataObject
) -> None:
    cache = PlannerCache()
    for snapshot in history:
        asked = data.draw(st.lists(st.sampled_from(_NAMES), unique=True, min_size=1))
        carried, fresh = survey(snapshot, cache), survey(snapshot)
        assert carried.now.tolist() == fresh.now.tolist()
        assert carried.later.tolist() == fresh.later.tolist()
        for names in (tuple(asked), _NAMES):
            assert _contents(running_gangs(carried, names)) == _contents(
                running_gangs(fresh, names)
            )


def test_a_plan_reads_the_records_that_changed_and_no_others() -> None:
    running = [holding(gang(f"r{i}", podset(gpu=1)), {f"n{i % 4}": 1}) for i in range(8)]
    snapshot, cache = world(_NODES, (), running), PlannerCache()
    first = staying_gangs(survey(snapshot, cache)).arrays
    down = Fleet((replace(_NODES[0], ready=False), *_NODES[1:]))
    same = replace(snapshot, now=NOW + 1, fleet=down, admitted=tuple(reversed(running)))
    assert staying_gangs(survey(same, cache)).arrays is first
    busy = replace(running[3], utilization=0.9)
    after = replace(snapshot, admitted=(*running[:3], busy, *running[4:7]))
    assert [g.workload.uid for g in staying_gangs(survey(after, cache)).arrays.gangs] == [
        f"r{i}" for i in range(7)
    ]
    assert staying_gangs(survey(after, cache)).arrays.gangs[3] is busy


def test_a_clock_that_runs_back_protects_a_gang_again() -> None:
    running = holding(gang("r", podset(gpu=1), queue="briefly"), {"n0": 1})
    snapshot, cache = world(_NODES, (), [running], *_QUEUES), PlannerCache()
    for now, protected in ((NOW + 310, False), (NOW + 290, True), (NOW + 300, False)):
        gangs = running_gangs(survey(replace(snapshot, now=now), cache), ("briefly",)).gangs
        assert gangs == (() if protected else (running,))

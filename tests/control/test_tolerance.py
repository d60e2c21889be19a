"""A plan that is committed under a later configuration breaks nothing in it. The judge shares no code with planner and verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.control.leader.tolerance import ConfigurationTolerance
from queuectl.demo import scenario as m
from queuectl.domain.fleet import Fleet
from queuectl.domain.ledger import Document
from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import QueueConfig, StopPolicy
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.objects.configuration.catalog import Catalog
from tests.fuzz.judge import complaints
from tests.planner.build import NOW, gang, holding, node, podset

QUEUES = ("a", "b", "c")
RULES = (m.flavor("gpu", topology="gpus"), m.topology("gpus", "block", "rack"))
EDITS = (*["quota"] * 6, "cohort", "cohort", "move", "hold", "delete", "stop")
Documents = dict[DocumentKey, Document]


@st.composite
def queues(draw: st.DrawFn) -> Documents:
    """ClusterQueues and LocalQueues of one flavor, in one Cohort or none."""
    documents = list(RULES)
    for name in QUEUES:
        amounts: dict[str, int | str] = {"nvidia.com/gpu": draw(st.integers(0, 4)), "cpu": 100}
        strategy = draw(st.sampled_from(("StrictFIFO", "BestEffortFIFO")))
        queue = m.cluster_queue(name, "gpu", {**amounts, "pods": 1000}, strategy=strategy)
        queue["spec"]["preemption"]["reclaimWithinCohort"] = draw(st.sampled_from(("Any", "Never")))
        queue["spec"]["cohortName"] = draw(st.sampled_from(("", "all")))
        documents += [queue, m.local_queue("team", name, draw(st.sampled_from((name, name, "a"))))]
    return {DocumentKey.of(one): one for one in documents}


@st.composite
def edited(draw: st.DrawFn, before: Documents) -> Documents:
    """The documents after a change of one queue."""
    documents = dict(before)
    name, edit = draw(st.sampled_from(QUEUES)), draw(st.sampled_from(EDITS))
    places = (DocumentKey("ClusterQueue", "", name), DocumentKey("LocalQueue", "team", name))
    queue, local = (deepcopy(documents.get(place)) for place in places)
    if edit == "delete":
        documents.pop(draw(st.sampled_from(places)), None)
    elif edit == "move":
        documents[places[1]] = m.local_queue("team", name, draw(st.sampled_from(QUEUES)))
    elif edit == "hold" and local is not None:
        local["spec"]["stopPolicy"] = "Hold"
        documents[places[1]] = local
    elif queue is not None:
        if edit == "quota":
            resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
            resources[0]["nominalQuota"] = draw(st.integers(0, 4))
        elif edit == "cohort":
            queue["spec"]["cohortName"] = draw(st.sampled_from(("", "all")))
        else:
            queue["spec"]["stopPolicy"] = "Hold"
        documents[places[0]] = queue
    return documents


@st.composite
def snapshots(draw: st.DrawFn, config: QueueConfig) -> Snapshot:
    """A few nodes, and gangs of the three queues that wait and run."""
    where = [node(f"n{i}", f"b/r{i // 2}", gpu=4, cpu=100) for i in range(3)]
    running, waiting = [], []
    for number in range(draw(st.integers(1, 8))):
        pods, name = draw(st.integers(1, 2)), draw(st.sampled_from(QUEUES))
        asked = gang(
            f"g{number}",
            podset(count=pods, gpu=1, cpu=1),
            priority=draw(st.integers(0, 1)),
            queued_at=float(number),
            queue=name,
        )
        if draw(st.sampled_from((True, True, False))):
            waiting.append(Pending(asked))
        else:
            running.append(holding(asked, {f"n{number % 3}": pods}, flavor="gpu"))
    return Snapshot(NOW, Fleet(tuple(where)), config, tuple(waiting), tuple(running))


async def committed(
    checked: CheckedPlan, catalog: Catalog, changes: ConfigChanges
) -> Collection[tuple[str, str]] | None:
    """The LocalQueues whose decisions are left out of the commit; None if nothing is committed."""
    dropped: frozenset[tuple[str, str]] = frozenset()
    gangs = [p.workload for p in checked.snapshot.pending]
    concerned = {(one.namespace, str(one.queue)) for one in gangs}
    while True:
        news = ConfigurationTolerance(catalog, checked, concerned, dropped, whole=True)
        if await news.spare(changes):
            return dropped
        if not news.faulty:
            return None
        assert news.faulty - dropped, "each try leaves out more"
        dropped |= news.faulty


def cluster_queue(name: str, gpus: int, **spec: object) -> Document:
    queue = m.cluster_queue(name, "gpu", {"nvidia.com/gpu": gpus, "cpu": 100, "pods": 1000})
    return queue | {"spec": {**queue["spec"], **spec}}


def one_start(*more: Document) -> tuple[Catalog, CheckedPlan]:
    """A gang of LocalQueue ``a`` starts with four GPUs, and one of LocalQueue ``b`` runs with four."""
    catalog = Catalog()
    locals_ = [m.local_queue("team", name, name) for name in ("a", "b")]
    catalog.replace([*RULES, cluster_queue("a", 4), cluster_queue("b", 4), *locals_, *more])
    runs = holding(gang("runs", podset(gpu=4), queue="b"), {"n1": 1}, flavor="gpu")
    nodes = (node("n0", gpu=4), node("n1", gpu=4))
    waits = Pending(gang("waits", podset(gpu=4), queue="a"))
    checked = checked_plan(Snapshot(NOW, Fleet(nodes), catalog.config(1), (waits,), (runs,)))
    assert [one.uid for one in checked.decided.admitted] == ["waits"]
    return catalog, checked


A, B = ("team", "a"), ("team", "b")


@pytest.mark.parametrize(
    ("edit", "whole", "right", "faulty"),
    [
        (cluster_queue("b", 0), True, True, set()),
        (cluster_queue("a", 8), True, True, set()),
        (cluster_queue("a", 3), True, False, {A}),
        (m.local_queue("team", "a", "b"), True, False, {A}),
        (m.local_queue("team", "b", "a"), True, False, {A, B}),
        (m.flavor("other"), True, False, set()),
        (cluster_queue("b", 0), False, False, set()),
        (m.local_queue("team", "c", "b"), False, True, set()),
    ],
    ids=[
        *("quota of another queue", "more quota", "less quota", "its queue leads elsewhere"),
        *("a running gang moves to its queue", "a flavor", "quota, and only a part is planned"),
        "a new queue, and only a part is planned",
    ],
)
def test_a_plan_is_right_unless_the_edit_concerns_it(
    edit: Document, whole: bool, right: bool, faulty: set[tuple[str, str]]
) -> None:
    news = ConfigurationTolerance(*one_start(), {A}, (), whole=whole)
    assert asyncio.run(news.spare(ConfigChanges(2, (edit,)))) is right
    assert news.faulty == faulty


def test_a_plan_is_wrong_if_its_verification_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Edits wait for it."""
    monkeypatch.setattr("queuectl.control.leader.tolerance.LONGEST_CHECK", 0.0)
    news = ConfigurationTolerance(*one_start(), {A}, (), whole=True)
    assert not asyncio.run(news.spare(ConfigChanges(2, (cluster_queue("b", 0),))))
    assert not news.faulty


def test_a_plan_is_wrong_if_its_verification_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("queuectl.control.leader.tolerance.verify", fails)
    news = ConfigurationTolerance(*one_start(), {A}, (), whole=True)
    assert not asyncio.run(news.spare(ConfigChanges(2, (cluster_queue("b", 0),))))
    assert isinstance(news.error, ZeroDivisionError)
    assert not news.faulty


@pytest.mark.parametrize(("policy", "right"), [({}, True), ({"maxPriority": 5}, False)])
def test_no_gang_leaves_for_another_one_if_policies_of_its_queue_have_changed(
    policy: Document, right: bool
) -> None:
    """The snapshot has what followed from the earlier ones."""
    reclaim = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Any"}
    owner = cluster_queue("a", 4, cohortName="all", preemption=reclaim)
    lender = cluster_queue("b", 0, cohortName="all")
    edited = cluster_queue("b", 0, cohortName="all", policy=policy)
    catalog = Catalog()
    locals_ = [m.local_queue("team", name, name) for name in ("a", "b")]
    catalog.replace([*RULES, owner, lender, *locals_])
    runs = holding(gang("runs", podset(gpu=4), queue="b"), {"n0": 1}, flavor="gpu")
    waits = Pending(gang("waits", podset(gpu=4), queue="a"))
    fleet = Fleet((node("n0", gpu=4),))
    checked = checked_plan(Snapshot(NOW, fleet, catalog.config(1), (waits,), (runs,)))
    assert [one.victim for one in checked.decided.preempted] == ["runs"]
    news = ConfigurationTolerance(catalog, checked, {A}, (), whole=True)
    quota = cluster_queue("c", 1)
    assert asyncio.run(news.spare(ConfigChanges(2, (edited, quota)))) is right
    assert news.faulty == (set() if right else {A})


def test_a_plan_that_evicts_for_a_gang_with_a_lost_node_is_wrong_if_policies_of_the_victim_have_changed() -> (
    None
):
    """The decision for a running gang is not left out."""
    reclaim = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Any"}
    catalog = Catalog()
    catalog.replace(
        [
            *RULES,
            cluster_queue("a", 8, cohortName="all", preemption=reclaim),
            cluster_queue("b", 0, cohortName="all"),
            *(m.local_queue("team", name, name) for name in ("a", "b")),
        ]
    )
    asked = gang("broken", podset(count=2, gpu=4, required="rack"), queue="a")
    broken = holding(asked, {"n0": 1, "n1": 1}, flavor="gpu", lost=(("w", "n1", 1),))
    runs = holding(gang("runs", podset(gpu=4), queue="b"), {"n2": 1}, flavor="gpu")
    nodes = (node("n0", gpu=4), node("n1", gpu=4, ready=False), node("n2", gpu=4))
    snapshot = Snapshot(NOW, Fleet(nodes), catalog.config(1), (), (broken, runs))
    checked = checked_plan(snapshot)
    assert [(one.victim, one.preemptor) for one in checked.decided.preempted] == [
        ("runs", "broken")
    ]
    for policy, right in (({}, True), ({"maxPriority": 5}, False)):
        edit = cluster_queue("b", 0, cohortName="all", policy=policy)
        news = ConfigurationTolerance(catalog, checked, {A}, (), whole=True)
        assert asyncio.run(news.spare(ConfigChanges(2, (edit, cluster_queue("c", 1))))) is right
        assert news.faulty == set()


@settings(max_examples=100)
@given(st.data())
def test_what_is_committed_breaks_nothing_in_the_later_configuration(data: st.DataObject) -> None:
    before = data.draw(queues())
    after = before
    for _ in range(data.draw(st.integers(1, 4))):
        after = data.draw(edited(after))
    catalog = Catalog()
    catalog.replace(before.values())
    checked = checked_plan(data.draw(snapshots(catalog.config(1))))
    assert checked.usable
    written = tuple(one for key, one in after.items() if before.get(key) != one)
    changes = ConfigChanges(2, written, frozenset(before.keys() - after.keys()))
    dropped = asyncio.run(committed(checked, catalog, changes))
    assert dropped is not None, "only queues differ"
    later = catalog.copy()
    later.follow(changes)
    config = later.config(2)
    snapshot = checked.snapshot
    out = {
        p.workload.uid
        for p in snapshot.pending
        if (p.workload.namespace, p.workload.queue) in dropped
    }
    done = checked.decided.without(out)
    kept = tuple(p for p in snapshot.pending if p.workload.uid not in out)
    assert not list(complaints(replace(snapshot, config=config, pending=kept), done))
    gangs = {p.workload.uid: p.workload for p in kept}
    for uid in [one.uid for one in done.admitted] + [one.preemptor for one in done.preempted]:
        queue = config.cluster_queue_of("team", gangs[uid].queue)
        assert queue is not None
        assert queue.stop_policy is StopPolicy.NONE

"""The short form of the fuzzer, with fixed seeds, and its judge. ``make fuzz`` runs it for an hour with new seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement
from queuectl.planner import plan
from tests.fuzz.answers import Answers
from tests.fuzz.child import STAGES
from tests.fuzz.clusters import Clusters, Database
from tests.fuzz.documents import Documents
from tests.fuzz.figures import Figures, Result
from tests.fuzz.judge import complaints
from tests.fuzz.manifests import Manifests
from tests.fuzz.selectors import Selectors
from tests.fuzz.snapshots import Snapshots
from tests.planner.build import gang, holding, node, podset, queue, world

SEEDS = {
    "clusters": range(20),
    "documents": range(16),
    "selectors": range(20),
    # Two podsets that require one node, one of them without a flavor: the verifier named the node by another topology. And a repair was
    # undone, although a reservation needed the quota that its victim would have freed.
    "snapshots": (*range(3), 858301284, 425412459),
    # Gangs that never fit changed whether later gangs were placed together with the first one, when heads were ranked again, and which of
    # several equal gangs nodes were requested for.
    "answers": (*range(30), 57313, 60100, 88156),
    "manifests": range(30),
}
RUN: dict[str, Callable[[], Callable[[int], Result]]] = {
    "documents": Documents,
    "selectors": Selectors,
    "snapshots": Snapshots,
    "answers": Answers,
    "manifests": Manifests,
}


def _run(stage: str, run: Callable[[int], Result]) -> Figures:
    figures = Figures(stage, STAGES[stage])
    for seed in SEEDS[stage]:
        figures.note(seed, run(seed), 0.0)
    print(figures.text())
    assert figures.defects == {}
    return figures


@pytest.mark.parametrize("stage", RUN)
def test_no_input_of_fixed_seeds_shows_a_defect(stage: str) -> None:
    figures = _run(stage, RUN[stage]())
    # tests.planner.test_fuzz_plans counts the features of snapshots and answers.
    if stage not in ("snapshots", "answers"):
        assert [name for name in STAGES[stage] if not figures.features.single[name]] == []


@pytest.mark.sets_aside  # the objects that the API server would refuse; the stage checks the others
def test_no_object_of_fixed_seeds_shows_a_defect() -> None:
    with Database.running() as database:
        figures = _run("clusters", Clusters(database))
    assert [name for name in STAGES["clusters"] if not figures.features.single[name]] == []
    assert figures.counted["rows"] > 0
    assert figures.counted["writes"] > 0


@pytest.mark.sets_aside
def test_the_same_seed_gives_the_same_result() -> None:
    assert Clusters()(3) == Clusters()(3)


# ---- the judge finds what is wrong


def _scene() -> tuple[Snapshot, Plan]:
    """Two gangs of two whole nodes each in one rack, of which the first one starts."""
    gangs = [
        gang(name, podset(count=2, gpu=8, required="rack"), queued_at=at)
        for name, at in (("a", 1.0), ("b", 2.0))
    ]
    nodes = [node(f"n{i}", "b1/r1" if i < 2 else "b1/r2", gpu=8) for i in range(3)]
    snapshot = world(nodes, gangs, (), queue(gpu=16))
    return snapshot, plan(snapshot)


def _moved(made: Plan, *nodes: tuple[str, int]) -> Plan:
    [admission] = made.admitted
    [placed] = admission.placement.podsets
    changed = replace(admission, placement=Placement((replace(placed, nodes=nodes),)))
    return replace(made, admitted=(changed,))


WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a decision is missing": (lambda made: replace(made, pending=()), "b is 0 times in the plan"),
    "a pod is missing": (lambda made: _moved(made, ("n0", 1)), "for 2 pods"),
    "a node is used twice": (lambda made: _moved(made, ("n0", 2)), "n0: 16"),
    "two racks": (lambda made: _moved(made, ("n1", 1), ("n2", 1)), "is in 2 domains of rack"),
    "an unknown node": (lambda made: _moved(made, ("n0", 1), ("gone", 1)), "on gone"),
}


def test_the_judge_has_no_complaint_about_a_right_plan() -> None:
    assert list(complaints(*_scene())) == []


@pytest.mark.parametrize("what", WRONG)
def test_the_judge_names_what_is_wrong(what: str) -> None:
    snapshot, made = _scene()
    change, sentence = WRONG[what]
    assert any(sentence in found for found in complaints(snapshot, change(made)))


def test_the_judge_counts_quota() -> None:
    snapshot, made = _scene()
    less = queue(gpu=8)
    config = replace(snapshot.config, cluster_queues={less.name: less})
    [found] = complaints(replace(snapshot, config=config), made)
    assert found.startswith("a takes 16 of 8 nvidia.com/gpu")


@pytest.mark.parametrize(("charged", "complains"), [(None, True), ("other", False)])
def test_the_judge_counts_a_running_gang_where_it_started(
    charged: str | None, complains: bool
) -> None:
    """Its LocalQueue can lead to another ClusterQueue since then."""
    snapshot, made = _scene()
    runs = replace(gang("runs", podset(gpu=8)), charged_queue=charged)
    other = replace(queue(gpu=8), name="other")
    config = replace(
        snapshot.config, cluster_queues={**snapshot.config.cluster_queues, other.name: other}
    )
    before = replace(snapshot, config=config, admitted=(holding(runs, {"n2": 1}),))
    found = [text for text in complaints(before, made) if "nvidia.com/gpu of default" in text]
    assert bool(found) is complains

"""An arena to which nodes were added is the one a survey of the larger snapshot makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.changes import AddNodes
from queuectl.domain.fleet import HOSTNAME, Fleet, Node, NodeRules
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain.enlarged import enlarged
from queuectl.planner.problem.fleet import index_of
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.topology import Tree
from tests.planner.build import gang, holding, node, podset, world
from tests.planner.generate import snapshots
from tests.support.examples import examples

_SLOW = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
_LEVELS = (("block", "rack", HOSTNAME), ("block", "rack"), (HOSTNAME,))


def _warm(problem: Problem, snapshot: Snapshot) -> list[NodeRules]:
    """Trees and masks that are known before nodes are added, and so must be carried over."""
    for levels in _LEVELS:
        problem.index.tree(levels)
    rules = [p.shape.rules for g in snapshot.pending for p in g.workload.podsets]
    rules += [NodeRules(), NodeRules((("rack", "r1"),))]
    for each in rules:
        problem.index.mask(each)
    return rules


def _same(got: Tree, wanted: Tree) -> None:
    assert got.names == wanted.names
    for mine, theirs in zip(
        (*got.domain, *got.starts, got.order, got.position),
        (*wanted.domain, *wanted.starts, wanted.order, wanted.position),
        strict=True,
    ):
        assert mine.tolist() == theirs.tolist()


def _check(snapshot: Snapshot, change: AddNodes) -> None:
    before = survey(snapshot)
    rules = _warm(before, snapshot)
    changed = change.apply(snapshot)
    got, wanted = enlarged(before, changed), survey(changed)
    assert got.index.size == wanted.index.size == before.size + change.count
    for mine, theirs in (
        (got.now, wanted.now),
        (got.later, wanted.later),
        (got.index.allocatable, wanted.index.allocatable),
        (got.index.ready, wanted.index.ready),
        (got.usage.free, wanted.usage.free),
        (got.usage.later, wanted.usage.later),
        *((got.index.mask(r), wanted.index.mask(r)) for r in rules),
        *((got.index.lasting_mask(r), wanted.index.lasting_mask(r)) for r in rules),
    ):
        assert np.array_equal(mine, theirs)
    for running in changed.admitted:
        for mine, theirs in zip(got.use_of(running), wanted.use_of(running), strict=True):
            assert np.array_equal(mine, theirs)
    for levels in _LEVELS:
        _same(got.index.tree(levels), wanted.index.tree(levels))


@_SLOW
@given(snapshots(gangs=2), st.data())
def test_it_is_what_a_survey_finds(snapshot: Snapshot, data: st.DataObject) -> None:
    nodes = snapshot.fleet.nodes
    like, near = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(nodes))
    labels = {level: near.labels[level] for level in ("block", "rack")}
    _check(snapshot, AddNodes(like.name, data.draw(st.integers(1, 3)), labels))


def _cluster() -> Snapshot:
    """Two racks, one node of which is half full."""
    nodes: list[Node] = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in "ab"]
    running = [holding(gang("a", podset("w", 1, gpu=4)), {"r2-a": 1})]
    return world(nodes, [gang("w", podset("w", 1, gpu=8))], running)


def test_new_nodes_may_make_a_rack_of_their_own() -> None:
    _check(_cluster(), AddNodes("r1-a", 2, {"rack": "r9"}))


def test_new_nodes_stand_between_the_old_ones_by_name() -> None:
    _check(_cluster(), AddNodes("r1-a", 2, {"rack": "r2"}))


def test_a_plan_in_another_thread_may_add_to_the_index_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between any two steps over the masks and the trees that are known, the plan asks for one more of each."""
    small = Fleet(tuple(node(f"n{i}", gpu=8) for i in range(3)))
    index = index_of(small, PlannerCache())
    for key in range(3):
        index.mask(NodeRules(((f"key-{key}", "value"),)))
        index.tree(_LEVELS[key])
    asked = count()

    def plan_asks() -> None:
        key = f"asked-{next(asked)}"
        index.mask(NodeRules(((key, "value"),)))
        index.tree((key,))

    def meanwhile(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=plan_asks)
                thread.start()
                thread.join()
            return step(*arguments)

        return wrapped

    monkeypatch.setattr(NodeRules, "refusal", meanwhile(NodeRules.refusal))
    monkeypatch.setattr(Tree, "with_more", meanwhile(Tree.with_more))
    larger = index.with_more(Fleet((*small.nodes, node("n3", gpu=8))))
    assert next(asked) > 0
    assert larger.mask(NodeRules((("key-0", "value"),))).tolist() == [False] * 4

"""The next plan starts from the last plan, whatever reports, explanations and problems of other nodes were made since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.snapshot import Snapshot
from queuectl.estimates.scene import scene_of
from queuectl.mig import fixes
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose
from queuectl.planner.problem.fleet import FleetIndex, MatrixAxes
from queuectl.planner.problem.limit_rows import with_limit_rows
from queuectl.planner.problem.usage import AdmittedUsage
from queuectl.reports.cluster_map import cluster_map_of
from queuectl.reports.fragmentation import free_gpus, spreads
from queuectl.reports.quotas import held_by, quotas_of
from tests.planner.build import gang, holding, node, world
from tests.planner.generate import crowded
from tests.planner.generate_features import snapshot_of
from tests.planner.test_advance import cluster, reserved, runs
from tests.planner.test_provisioning import PAIR, described, template
from tests.planner.test_shared_gpus import asks, shared


def latest(cache: PlannerCache) -> list[object]:
    return [cache.latest(AdmittedUsage), cache.latest(MatrixAxes)]


def beside_a_reservation() -> Snapshot:
    waits, running = (gang(name, asks(1, gpu=2)) for name in ("waits", "runs"))
    return cluster(reserved(1), pending=[waits], running=[runs(running, "n0")])


def on_shared_gpus() -> Snapshot:
    running = holding(gang("runs", asks(2)), {"a": 1, "b": 1})
    return world([shared("a"), shared("b")], [gang("waits", asks(2))], [running])


REPORTS: dict[str, Callable[[Snapshot, PlannerCache], object]] = {
    "free GPUs": lambda snapshot, cache: free_gpus(snapshot, snapshot, cache),
    "cluster map": lambda snapshot, cache: cluster_map_of(snapshot, snapshot, {}, cache),
    "quotas": lambda snapshot, cache: quotas_of(snapshot.config, snapshot, cache),
    "LocalQueue": lambda snapshot, cache: held_by(snapshot, cache, "team", "main"),
    "domains": lambda snapshot, cache: spreads(snapshot, plan(snapshot).admitted, cache),
    "estimate": lambda snapshot, cache: scene_of(snapshot, cache, 100),
}


@pytest.mark.parametrize("made", [beside_a_reservation, on_shared_gpus])
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_leaves_the_start_of_the_next_plan(
    report: str, made: Callable[[], Snapshot]
) -> None:
    snapshot, cache = made(), PlannerCache()
    plan(snapshot, cache=cache)
    before = latest(cache)
    fewer = replace(snapshot, admitted=())
    first = REPORTS[report](fewer, cache)
    assert first == first
    assert all(one is other for one, other in zip(latest(cache), before, strict=True))


def test_a_report_starts_from_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that makes no plans."""
    snapshot, cache = on_shared_gpus(), PlannerCache()
    quotas_of(snapshot.config, snapshot, cache)
    counted: list[object] = []
    monkeypatch.setattr("queuectl.planner.problem.usage._count", counted.append)
    quotas_of(snapshot.config, replace(snapshot, now=snapshot.now + 1), cache)
    assert counted == []


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("generate", [crowded, snapshot_of])
def test_an_explanation_leaves_the_start_of_the_next_plan(
    seed: int, generate: Callable[[int], Snapshot]
) -> None:
    snapshot, cache = generate(seed), PlannerCache()
    made = plan(snapshot, cache=cache)
    before = latest(cache)
    for pending in snapshot.pending:
        diagnose(snapshot, pending.workload.uid, plan=made, cache=cache, reconfiguration=fixes)
    older = replace(snapshot, admitted=snapshot.admitted[1:])
    diagnose(older, snapshot.pending[0].workload.uid, cache=cache)
    assert all(one is other for one, other in zip(latest(cache), before, strict=True))


@pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.sharing-strategy": "mps"}])
def test_nodes_that_can_be_made_leave_the_start_of_the_next_plan_and_are_indexed_once(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = replace(template(1), labels=tuple(labels.items()))
    snapshot, cache = described(nodes, PAIR, nodes=[node("n", gpu=1)]), PlannerCache()
    plan(snapshot, cache=cache)
    usage = cache.latest(AdmittedUsage)
    assert usage is not None
    assert usage.axes.position.keys() == {"n"}
    indexed: list[Any] = []
    init = FleetIndex.__init__

    def counted(self: FleetIndex, *args: Any) -> None:
        indexed.append(args)
        init(self, *args)

    monkeypatch.setattr(FleetIndex, "__init__", counted)
    plan(replace(snapshot, now=snapshot.now + 1), cache=cache)
    assert indexed == []
    assert cache.latest(AdmittedUsage) is usage


@pytest.mark.parametrize("made", [beside_a_reservation, on_shared_gpus])
def test_gangs_with_rows_are_the_same_objects_after_a_question(
    made: Callable[[], Snapshot],
) -> None:
    snapshot, cache = made(), PlannerCache()
    before = with_limit_rows(snapshot, cache)
    for number in range(5):
        others = tuple(reserved(1, name=f"{number}-{i}") for i in range(2))
        question = replace(snapshot, admitted=(), pending=(), reservations=others)
        with_limit_rows(question, cache.fork())
    after = with_limit_rows(snapshot, cache)
    assert after.fleet is before.fleet
    gangs = zip((*before.pending, *before.admitted), (*after.pending, *after.admitted), strict=True)
    assert all(one is other for one, other in gangs)

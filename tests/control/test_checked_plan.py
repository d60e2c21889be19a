"""What-ifs, previews, and plans of standbys and of the leader count devices, and answer in the terms of users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.checked_plan import checked_plan, explained, planned_again
from queuectl.control.questions.preview import Previewer
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView, Viewer
from queuectl.control.questions.what_if import WhatIfPlanner
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Remedy
from queuectl.domain.ledger import Document, Entry, State
from queuectl.domain.quantity import GPU
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import ClaimRecord, DeviceClassRecord
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.what_if import WhatIf, WhatIfResult
from queuectl.objects.files.plans import plan_document
from queuectl.objects.files.refused_plans import pack, redact, same_plan, unpack
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose_those
from queuectl.planner.problem.usage import AdmittedUsage
from queuectl.reports.cluster_map import cluster_map_of
from queuectl.state.mirror import Mirror
from tests.devices import build
from tests.devices.test_lower import claiming
from tests.devices.test_rows import ONE
from tests.devices.test_shared import sharing, world
from tests.planner.build import gang, holding

WAITS = gang("waits", sharing(3))
LATER = gang("later", claiming(3, ONE), queued_at=1.0)
RUNS = holding(gang("runs", sharing(3)), {"n0": 3}, flavor=None)
EXTENDED = {"limits": {GPU: "1"}}
CLAIMED = {"claims": [{"name": "c"}]}


class NoDocuments:
    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        return 1, ()


def job(name: str, pods: int, resources: Mapping[str, Any], **pod: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": resources}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"kueue.x-k8s.io/queue-name": "main"},
        },
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"containers": containers, **pod}},
        },
    }


def sharing_job(name: str, pods: int) -> dict[str, Any]:
    return job(name, pods, CLAIMED, resourceClaims=[{"name": "c", "resourceClaimName": "pair"}])


async def what_if(snapshot: Snapshot, asked: WhatIf) -> WhatIfResult:
    async def view() -> ClusterView:
        return ClusterView(snapshot)

    mirror = Mirror({})
    for known in build.CLASSES.values():
        mirror.devices.upsert(DeviceClassRecord(known.name, 1, known))
    for one in snapshot.claims.values():
        mirror.devices.upsert(ClaimRecord(one.namespace, one.uid, 1, one))
    planner = WhatIfPlanner(view, NoDocuments(), mirror, PlannerThrottle(1.0), PlannerCache())
    found = await planner.try_out(asked)
    assert found is not None
    known_to_users(found.without, found.plan, found.diagnoses)
    return found


def known_to_users(*answers: object) -> None:
    """No podset that stands for claims, and no device row."""
    for answer in answers:
        assert "~claims/" not in repr(answer)
        assert "~devices/" not in repr(answer)


def starts(result: WhatIfResult) -> dict[str, list[dict[str, int]]]:
    """Name to the pods of each podset on each node."""
    names = {p.workload.uid: p.workload.name for p in result.after.pending}
    return {
        names[a.uid]: [dict(p.by_node) for p in a.placement.podsets] for a in result.plan.admitted
    }


async def test_a_what_if_counts_the_devices_of_shared_claims() -> None:
    gangs = [replace(one, queue=None) for one in (WAITS, LATER)]
    result = await what_if(world(gangs), WhatIf(add=[("n0", 1)]))
    assert [a.uid for a in result.without.admitted] == ["waits"]
    assert {a.uid for a in result.plan.admitted} == {"waits", "later"}
    drained = await what_if(world(gangs[:1], nodes=1), WhatIf(drain=["n0"]))
    assert drained.plan.admitted == ()


async def test_a_what_if_counts_the_devices_that_extended_resources_stand_for() -> None:
    submit = [job("first", 2, EXTENDED), job("second", 2, EXTENDED)]
    result = await what_if(world([WAITS]), WhatIf(submit=submit))
    assert starts(result) == {"waits": [{"n0": 3}], "first": [{"n1": 2}]}


async def test_a_what_if_plans_a_job_with_a_shared_claim() -> None:
    result = await what_if(world([LATER]), WhatIf(submit=[sharing_job("new", 3)]))
    assert "new" not in starts(result)
    result = await what_if(world([]), WhatIf(submit=[sharing_job("new", 3)]))
    assert starts(result) == {"new": [{"n0": 3}]}


async def test_a_preview_starts_the_gang_that_gets_the_devices_of_a_shared_claim() -> None:
    snapshot = world([gang("next", claiming(4, ONE))], admitted=[RUNS])
    uid = RUNS.workload.uid
    entry = Entry(uid, "Job", "team", "runs", State.RUNNING)

    async def view() -> ClusterView:
        return ClusterView(snapshot)

    previewer = Previewer(view, PlannerThrottle(1.0), PlannerCache())
    for action, starters in ((Action.HOLD, ("next",)), (Action.PREEMPT, ("next",))):
        preview = await previewer.preview(entry, action)
        assert preview is not None
        assert preview.starts == starters


async def test_a_shared_claim_counts_as_devices_and_not_as_a_pod() -> None:
    snapshot = world([], admitted=[RUNS])

    async def view() -> ClusterView:
        return ClusterView(snapshot)

    previewer = Previewer(view, PlannerThrottle(1.0), PlannerCache())
    cost = await previewer.drain_cost(DocumentKey("ClusterQueue", "", "main"))
    assert cost is not None
    assert (cost.gangs, cost.pods, cost.gpus) == (1, 3, 2)
    made = checked_plan(snapshot)
    (shown,) = cluster_map_of(made.snapshot, made.original, {}).gangs
    assert (shown.pods, float(shown.gpus)) == (3, 2.0)


async def test_a_standby_explains_from_a_plan_with_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = world([WAITS, LATER], nodes=1)
    cache = PlannerCache()
    viewer = Viewer(
        None,  # type: ignore[arg-type]
        Mirror({}),
        None,  # type: ignore[arg-type]
        lambda: 0.0,
        leading=lambda: None,
        watching=lambda: True,
        leader_uses=dict,
        throttle=PlannerThrottle(1.0),
        cache=cache,
    )

    async def copied() -> ClusterView:
        return ClusterView(snapshot)

    monkeypatch.setattr(viewer, "_copied", copied)
    diagnosis = await viewer.diagnose("later")
    assert diagnosis is not None
    assert diagnosis.conflict
    known_to_users(diagnosis)
    counted = await viewer.counted()
    assert counted is not None
    assert counted.fleet.nodes[0].allocatable[GPU] == 2
    on_map = await viewer.cluster_map()
    assert on_map is not None
    (shown,) = on_map.occupancies
    assert (float(shown.gpus), float(shown.free_gpus)) == (2.0, 2.0)


def test_no_fix_moves_pods_away_from_the_claim_that_they_share() -> None:
    made = checked_plan(world([gang("wide", sharing(200))]))
    (diagnosis,) = diagnose_those(made.snapshot, frozenset({"wide"}), plan=made.decided)
    known_to_users(plan_document(made.original, made.plan, diagnoses=[diagnosis]))
    fixes = [fix.remedy for fix in diagnosis.suggested_fixes]
    assert fixes[0] is Remedy.FEWER_PODS


def test_a_refused_plan_with_devices_is_repeated_to_the_same_bytes() -> None:
    made = checked_plan(world([WAITS, LATER], admitted=()))
    assert made.usable
    known_to_users(made.plan)
    whole = pack(made.snapshot, made.decided, ())
    for content in (whole, redact(whole)):
        refused = unpack(content, "file")
        again = planned_again(refused.snapshot)
        assert same_plan(refused, again.decided)
        known_to_users(plan_document(again.original, again.plan))


async def test_questions_leave_the_start_of_the_next_plan() -> None:
    snapshot, cache = world([WAITS], admitted=[RUNS]), PlannerCache()
    made = checked_plan(snapshot, cache=cache)
    before = cache.latest(AdmittedUsage)

    async def view() -> ClusterView:
        return ClusterView(snapshot)

    planner = WhatIfPlanner(view, NoDocuments(), Mirror({}), PlannerThrottle(1.0), cache)
    assert await planner.try_out(WhatIf(add=[("n0", 1)])) is not None
    previewer = Previewer(view, PlannerThrottle(1.0), cache)
    entry = Entry(RUNS.workload.uid, "Job", "team", "runs", State.RUNNING)
    assert await previewer.preview(entry, Action.HOLD) is not None
    assert list(explained(made, frozenset({"waits"}), cache=cache))
    assert cache.latest(AdmittedUsage) is before is not None

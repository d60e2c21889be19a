"""The limits of ResourceQuotas in a namespace, and the share of pods that are not created yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from queuectl.domain.devices import (
    ClaimSpec,
    DeviceClass,
    DeviceOption,
    DeviceRequest,
    PodDevices,
)
from queuectl.domain.jobs import PodPhase
from queuectl.domain.ledger import Entry, State
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.records import Deleted, DeviceClassRecord, ResourceQuotaRecord
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.namespace_limits import read_resource_quota
from queuectl.objects.kubernetes.wire import WireResourceQuota
from tests.unit.test_state import ENTRY, JOB, LIVE, RESUMED, RUNNING, World, on, pod

GPUS = "requests.nvidia.com/gpu"


def read(**parts: Any) -> ResourceQuotaRecord:
    meta = {"name": "team", "namespace": "a", "uid": "q1", "resourceVersion": "7"}
    return read_resource_quota(msgspec.convert({"metadata": meta, **parts}, WireResourceQuota))


def quota(used: int, hard: int = 64, version: int = 7, uid: str = "q1") -> ResourceQuotaRecord:
    limits = (QuotaLimit("pods", "pods", 9, 0), QuotaLimit(GPUS, "nvidia.com/gpu", hard, used))
    return ResourceQuotaRecord("a", uid, version, True, Allowance(uid, limits))


def test_what_is_enforced_is_what_counts() -> None:
    record = read(
        spec={"hard": {"requests.cpu": "9"}},
        status={"hard": {"requests.cpu": "2500m"}, "used": {"requests.cpu": "1"}},
    )
    assert record.allowance.limits == (QuotaLimit("requests.cpu", "cpu", 2500, 1000),)
    assert (record.namespace, record.uid, record.version, record.counted) == ("a", "q1", 7, True)


def test_a_new_quota_without_status_is_read_from_its_spec() -> None:
    record = read(spec={"hard": {"pods": "3", "configmaps": "9"}})
    assert (record.allowance.limits, record.counted) == ((QuotaLimit("pods", "pods", 3, 0),), False)


@pytest.mark.parametrize("scope", ["BestEffort", "Terminating"])
def test_contradicting_scopes_match_no_pod(scope: str) -> None:
    spec = {"hard": {"pods": "3"}, "scopes": [scope, f"Not{scope}"]}
    assert read(spec=spec).allowance.limits == ()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"spec": {"hard": {"pods": "many"}}}, "spec.hard: pods: 'many' is not a quantity"),
        (
            {"status": {"hard": {"cpu": "1"}, "used": {"cpu": "-1"}}, "spec": {}},
            "status.used: cpu: '-1' is negative",
        ),
    ],
)
def test_a_malformed_quota_is_refused_with_the_reason(parts: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(**parts)


@pytest.mark.parametrize(
    ("after", "again"),
    [
        (quota(8, version=8), True),  # something ended
        (quota(24, version=8), False),  # pods came
        (quota(16, hard=128, version=8), True),
        (quota(16, hard=32, version=8), False),
        (quota(8, version=6), False),  # older than what is known
        (quota(0, version=8, uid="q2"), True),  # another
    ],
)
def test_a_larger_quota_causes_a_new_plan(after: ResourceQuotaRecord, again: bool) -> None:
    world = World(records=[quota(16)])
    world.mirror.planning_changed = False
    world.see(after)
    assert world.mirror.planning_changed is again


@pytest.mark.parametrize("scope", [{"best_effort": True}, {"terminating": True}])
def test_a_quota_with_another_scope_causes_a_new_plan(scope: Any) -> None:
    before = quota(16)
    world = World(records=[before])
    world.mirror.planning_changed = False
    narrow = replace(before.allowance, **scope)
    world.see(replace(before, version=8, allowance=narrow))
    assert world.mirror.planning_changed


def test_a_deleted_quota_limits_no_pod() -> None:
    world = World(records=[quota(16)])
    world.mirror.planning_changed = False
    world.mirror.apply([Deleted("resourcequotas", "q1", 9)])
    assert world.mirror.planning_changed
    assert world.freeze().allowances == {}


STARTED = replace(RUNNING, unready_since=None)


@pytest.mark.parametrize(
    ("entry", "pods", "promised"),
    [
        pytest.param(ENTRY, [], (), id="nothing is reserved for a pending gang"),
        pytest.param(LIVE, [], (2, 16), id="none of its pods is there"),
        pytest.param(LIVE, [pod("p1")], (1, 8), id="a gated pod is counted by the API server"),
        pytest.param(LIVE, [pod("p1", attempt=7)], (2, 16), id="one of another attempt is another"),
        pytest.param(LIVE, [on("p1", "n1"), on("p2", "n2")], (), id="all are there"),
        pytest.param(STARTED, [], (), id="what is ready is not counted again"),
        pytest.param(
            replace(STARTED, unready_since=12.0), [on("p1", "n1")], (1, 8), id="a lost pod comes again"
        ),
        pytest.param(
            LIVE, [on("p1", "n1"), pod("p2", gated=False, phase=PodPhase.FAILED)], (1, 8),
            id="a failed pod is followed by another",
        ),
        pytest.param(replace(LIVE, state=State.EVICTING), [], (), id="what leaves creates nothing"),
    ],
)  # fmt: skip
def test_pods_that_are_not_created_yet_are_reserved(
    entry: Entry, pods: list[Any], promised: tuple[int, ...]
) -> None:
    world = World(entry, records=[RESUMED if entry.state.live else JOB, quota(0), *pods])
    [allowance] = world.freeze().allowances["a"]
    assert allowance.promised == promised


def test_the_devices_of_claims_that_are_not_created_yet_are_reserved() -> None:
    """By their class, which has the extended resource of the quota; pods request 8 of it."""
    option = DeviceOption("gpu", count=3)
    claims = PodDevices((ClaimSpec((DeviceRequest("r", (option,)),)),))
    [podset] = RESUMED.podsets
    claiming = replace(podset, shape=replace(podset.shape, devices=claims))
    known = DeviceClassRecord("gpu", 1, DeviceClass("gpu", (), "nvidia.com/gpu"))
    records = [known, replace(RESUMED, podsets=(claiming,)), quota(0)]
    [allowance] = World(LIVE, records=records).freeze().allowances["a"]
    assert allowance.promised == (2, 2 * (8 + 3))


def test_nothing_is_reserved_for_a_gang_whose_job_is_deleted() -> None:
    [allowance] = World(LIVE, records=[quota(0)]).freeze().allowances["a"]
    assert allowance.promised == ()


def test_only_pods_that_match_the_scopes_are_reserved() -> None:
    record = quota(0)
    busy = replace(record, allowance=replace(record.allowance, best_effort=False))
    [allowance] = World(LIVE, records=[RESUMED, busy]).freeze().allowances["a"]
    assert allowance.promised == ()

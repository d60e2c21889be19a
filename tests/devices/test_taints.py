"""Taints of DeviceTaintRules on devices, and devices with taints in plans and explanations."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from queuectl.api.cluster_maps import node_view
from queuectl.control.checked_plan import checked_plan, explained
from queuectl.devices.pools import (
    DevicePools,
    TaintedSlices,
    endures,
    node_devices,
    out_of_placement,
)
from queuectl.domain.devices import (
    Device,
    DeviceEffect,
    DeviceInventory,
    DeviceKind,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    NodeAccess,
    NodeDevices,
    PodDevices,
    PoolSlice,
    PublishedDevice,
)
from queuectl.domain.diagnosis import Limit, Remedy, SuggestedFix, apply_all
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.explain import diagnose
from queuectl.web.pages.nodes import MapLayout, columns, node_row
from queuectl.web.site import AccessScope
from tests.devices import build
from tests.devices.test_lower import claiming, cluster, lowered, starts
from tests.devices.test_rows import gpus
from tests.planner.build import gang
from tests.support.counted import map_of

SEES_ALL = AccessScope("admin", None, *[True] * 7)
NONE, NO_SCHEDULE, NO_EXECUTE = DeviceEffect
FLEET = Fleet(tuple(Node(name) for name in ("n0", "n1")))
OWN = DeviceTaint("old", NO_SCHEDULE)
BROKEN = DeviceTaint("xid", NO_EXECUTE, "79", "broken")


def rule(effect: DeviceEffect = NO_SCHEDULE, name: str = "r", **selector: str) -> DeviceTaintRule:
    return DeviceTaintRule(DeviceTaint("bad", effect, "", name), **selector)


def published(driver: str = "a.example", pool: str = "n0") -> PoolSlice:
    plain, tainted = DeviceKind(driver), DeviceKind(driver, taints=(OWN,))
    devices = (PublishedDevice("d0", plain), PublishedDevice("d1", tainted))
    return PoolSlice(f"{driver}-{pool}", driver, pool, access=NodeAccess(pool), devices=devices)


SLICES = [published(driver, pool) for driver, pool in product(("a.example", "b.example"), ("n0", "n1"))]  # fmt: skip


# ---- rules


@pytest.mark.parametrize("device", [None, "d0", "d1", "d9"])
@pytest.mark.parametrize("pool", [None, "n0", "n9"])
@pytest.mark.parametrize("driver", [None, "a.example", "c.example"])
def test_a_rule_puts_its_taint_on_the_devices_that_fulfill_all_its_criteria(
    driver: str | None, pool: str | None, device: str | None
) -> None:
    one = DeviceTaintRule(BROKEN, driver, pool, device)
    found = node_devices(TaintedSlices().of(SLICES, [one]), FLEET)
    for each in (each for node in found.values() for each in node.devices):
        hit = (
            (driver is None or driver == each.id.driver)
            and (pool is None or pool == each.id.pool)
            and (device is None or device == each.id.name)
        )
        own = (OWN,) if each.id.name == "d1" else ()
        assert each.kind.taints == (*own, *([BROKEN] if hit else []))


def test_several_rules_add_their_taints_in_their_order() -> None:
    rules = [rule(name="x", device="d0"), rule(NONE, name="y", driver="a.example")]
    [first, *_] = TaintedSlices().of(SLICES, rules)
    assert [taint.rule for taint in first.devices[0].kind.taints] == ["x", "y"]
    assert [taint.rule for taint in first.devices[1].kind.taints] == ["", "y"]


def test_unchanged_slices_and_nodes_stay_the_same_objects() -> None:
    taints, pools, rules = TaintedSlices(), DevicePools(), [rule(pool="n0")]
    before = list(taints.of(SLICES, rules))
    nodes = pools.nodes(before, FLEET)
    after = list(taints.of(SLICES, [*rules, rule(name="s", pool="n1")]))
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True, False]
    assert before[1] is SLICES[1]
    assert pools.nodes(after, FLEET)["n0"] is nodes["n0"]
    kinds = {id(d.kind) for one in after for d in one.devices}
    assert len(kinds) == 8
    ended = list(taints.of(SLICES, []))
    assert all(a is b for a, b in zip(ended, SLICES, strict=True))


def test_a_taint_that_only_informs_takes_no_device_out_of_placement() -> None:
    slices = TaintedSlices().of(SLICES[:1], [rule(NONE), rule(NO_EXECUTE, device="d0")])
    found = out_of_placement(DeviceInventory(node_devices(slices, FLEET)))
    assert [each.id.name for each in found["n0"]] == ["d0", "d1"]
    slices = TaintedSlices().of([replace(SLICES[0], devices=SLICES[0].devices[:1])], [rule(NONE)])
    assert out_of_placement(DeviceInventory(node_devices(slices, FLEET))) == {}


@pytest.mark.parametrize(
    ("taint", "toleration", "kept"),
    [
        (NO_SCHEDULE, None, False),
        (NO_SCHEDULE, DeviceToleration(operator="Exists"), True),
        (NO_SCHEDULE, DeviceToleration("bad", "Exists", effect=NO_EXECUTE), False),
        (NO_EXECUTE, DeviceToleration("bad", "Exists", effect=NO_EXECUTE), True),
        (NO_EXECUTE, DeviceToleration("bad", "Exists", effect=NO_EXECUTE, seconds=60), False),
        (NO_EXECUTE, DeviceToleration("bad", "Exists"), False),
        (NO_EXECUTE, DeviceToleration("bad", "Equal", "x", effect=NO_EXECUTE), False),
    ],
)
def test_a_pod_keeps_a_device_whose_taint_it_tolerates_permanently(
    taint: DeviceEffect, toleration: DeviceToleration | None, kept: bool
) -> None:
    given = (toleration,) if toleration is not None else ()
    assert endures(given, DeviceTaint("bad", taint)) is kept


def test_the_evidence_names_key_value_effect_and_rule() -> None:
    assert str(BROKEN) == "xid=79:NoExecute (DeviceTaintRule broken)"
    assert str(OWN) == "old:NoSchedule"


# ---- plans


def tainted(*taints: DeviceTaint, of: int = 1, devices: int = 4) -> list[Device]:
    """GPUs, of which some have these taints."""
    made = gpus(devices)
    return [
        replace(one, kind=replace(one.kind, taints=taints)) if i < of else one
        for i, one in enumerate(made)
    ]


def asking(count: int, *tolerations: DeviceToleration) -> PodDevices:
    return build.pod(build.option(count=count, tolerations=tolerations))


FOR_A_MINUTE = DeviceToleration("xid", "Exists", effect=NO_EXECUTE, seconds=60)
FOR_EVER = replace(FOR_A_MINUTE, seconds=None)


@pytest.mark.parametrize(
    ("devices", "pods", "most"),
    [
        pytest.param(tainted(), asking(1), 4, id="no taint"),
        pytest.param(tainted(BROKEN), asking(1), 3, id="a taint"),
        pytest.param(tainted(BROKEN), asking(1, FOR_EVER), 4, id="a taint that is tolerated"),
        pytest.param(tainted(BROKEN), asking(1, FOR_A_MINUTE), 0, id="a taint that is tolerated for some time"),
        pytest.param(tainted(OWN, of=4), asking(1, FOR_EVER), 0, id="another taint"),
    ],
)  # fmt: skip
def test_a_gang_uses_the_devices_whose_taints_it_tolerates_permanently(
    devices: list[Device], pods: PodDevices, most: int
) -> None:
    nodes = {"n": build.node(*devices)}
    for count in (most, most + 1):
        found = starts(cluster(nodes, [gang("g", claiming(count or 1, pods), queue=None)]))
        assert bool(found) is (count == most > 0), count


def test_the_blocking_constraint_names_the_devices_with_taints() -> None:
    nodes = {"n0": build.node(*tainted(BROKEN, OWN)), "n1": build.node(*gpus(2))}
    snapshot = lowered(cluster(nodes, [gang("g", claiming(2, asking(4)), queue=None)]))
    [*_, last] = diagnose(snapshot, "g").conflict
    device = nodes["n0"].devices[0].id
    text = f"1 device is not used because of taints: {device} on n0 (old:NoSchedule, {BROKEN})"
    assert last.message.endswith(f"; {text}")
    assert last.details["taintedDevices"] == [
        {"node": "n0", "device": str(device), "taints": ["old:NoSchedule", str(BROKEN)]}
    ]


@pytest.mark.parametrize(
    "pods", [asking(4, DeviceToleration(operator="Exists", effect=NO_EXECUTE)), build.pod(build.option("nic", 4))]
)  # fmt: skip
def test_devices_that_the_gang_cannot_use_or_tolerates_are_not_evidence(pods: PodDevices) -> None:
    nodes = {"n": build.node(*tainted(BROKEN))}
    snapshot = lowered(cluster(nodes, [gang("g", claiming(2, pods), queue=None)]))
    for obstacle in diagnose(snapshot, "g").conflict:
        assert obstacle.limit in Limit
        assert "taint" not in obstacle.message


def taint_fix(snapshot: Snapshot, uid: str = "g") -> SuggestedFix | None:
    """The fix that removes taints."""
    (found,) = explained(checked_plan(snapshot), frozenset({uid}))
    fixes = (f for f in found.suggested_fixes if f.remedy is Remedy.REMOVE_TAINTS)
    return next(fixes, None)


def test_a_fix_names_the_taints_to_remove_and_where_they_are() -> None:
    nodes = {"n0": build.node(*tainted(BROKEN, OWN)), "n1": build.node(*tainted(OWN, of=2))}
    snapshot = cluster(nodes, [gang("g", claiming(2, asking(4)), queue=None)])
    fix = taint_fix(snapshot)
    assert fix is not None
    device = nodes["n0"].devices[0].id
    where = f"(ResourceSlice of driver {device.driver}, pool {device.pool})"
    assert fix.message.split("; ") == [
        f"remove the taint {BROKEN} of device {device} on n0",
        f"remove the taint old:NoSchedule of device {device} on n0 {where}",
        f"remove the taint old:NoSchedule of 2 devices on n1 {where}",
    ]
    assert [one["node"] for one in fix.details["devices"]] == ["n0", "n1", "n1"]
    assert starts(apply_all(fix.changes, snapshot)) == {"g": {"n0": 1, "n1": 1}}


def test_taints_that_do_not_matter_are_not_in_the_fix() -> None:
    nodes = {
        "n0": build.node(*tainted(OWN, of=3)),
        "n1": build.node(*tainted(BROKEN)),
        "n2": build.node(*tainted(BROKEN)),
    }
    snapshot = cluster(nodes, [gang("g", claiming(1, asking(4)), queue=None)])
    fix = taint_fix(snapshot)
    assert fix is not None
    assert len({one["node"] for one in fix.details["devices"]}) == 1


@pytest.mark.parametrize(
    ("nodes", "pods"),
    [
        ({"n": build.node(*tainted(BROKEN))}, 2),
        ({"n": build.node(*gpus(4))}, 2),
    ],
    ids=["the gang would not start without taints", "no node has a taint"],
)
def test_a_fix_is_suggested_only_if_the_gang_starts_with_it(
    nodes: dict[str, NodeDevices], pods: int
) -> None:
    assert taint_fix(cluster(nodes, [gang("g", claiming(pods, asking(4)), queue=None)])) is None


def test_the_map_of_nodes_shows_the_devices_with_taints() -> None:
    nodes = {"n0": build.node(*tainted(BROKEN, OWN)), "n1": build.node(*gpus(4))}
    cluster_map = map_of(cluster(nodes, []), {})
    device = nodes["n0"].devices[0].id
    first, second = cluster_map.occupancies
    assert first.tainted == ((str(device), str(BROKEN)), (str(device), "old:NoSchedule"))
    assert second.tainted == ()
    (view, _) = (node_view(one, cluster_map, None) for one in cluster_map.occupancies)
    assert [(one.device, one.taint) for one in view.tainted_devices] == list(first.tainted)
    plan_ = MapLayout(cluster_map, None)
    assert columns(plan_, SEES_ALL)["tainted"] == [1, 0]
    assert node_row(plan_, 0, SEES_ALL).tainted == first.tainted

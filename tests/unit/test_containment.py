"""The record of units that are set aside: back-off, early tries, and the budget of a namespace."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from queuectl.cluster.resources import watched
from queuectl.control.leader.set_aside import GangsSetAside
from queuectl.domain.containment import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    MOST_KEPT,
    TOGETHER,
    Boundary,
    Containment,
    SetAside,
    UnitFailed,
    naming,
    never_contained,
    place_of,
)
from queuectl.domain.devices import NodeZones
from queuectl.domain.errors import (
    ClusterUnavailable,
    Fenced,
    LeadershipLost,
    StaleConfiguration,
    StaleSnapshot,
    StoreError,
    StoreUnavailable,
)
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import Resources, parse_quantity
from queuectl.domain.records import Deleted, NodeRecord, NodeTopologyRecord, Upserted
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.groups import PodGroup
from queuectl.objects.kinds.pods import POD, POD_GROUP
from queuectl.state.devices import DeviceMirror
from queuectl.state.mirror import Mirror
from tests.control.test_pod_groups import pod as manifest
from tests.planner.build import gang, world

pytestmark = pytest.mark.sets_aside

GANG = Boundary.GANG


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def raising(error: BaseException) -> None:
    raise error


def fail(
    one: Containment, key: str = "u", namespace: str = "team-a", version: object = 1
) -> SetAside:
    return one.failed(
        GANG, key, ValueError("x"), f"Job/{key}", namespace=namespace, version=version
    )


def test_a_unit_is_tried_again_after_a_back_off_that_doubles(clock: Clock) -> None:
    one = Containment(clock)
    pause = FIRST_SECONDS
    for failures in range(1, 20):
        found = fail(one, namespace="")
        assert (found.failures, found.until - clock.now) == (failures, pause)
        assert one.waits(GANG, "u", 1) is found
        clock.now = found.until
        assert one.waits(GANG, "u", 1) is None
        pause = min(LONGEST_SECONDS, 2 * pause)
    one.passed(GANG, "u")
    assert one.empty


def test_a_change_of_the_object_allows_one_early_try_in_each_back_off(clock: Clock) -> None:
    one = Containment(clock)
    fail(one, version=1)
    assert one.waits(GANG, "u", 2) is None
    clock.now += 1
    again = fail(one, version=2)
    for version in (2, 3, 4):
        assert one.waits(GANG, "u", version) is again
    clock.now = again.until
    assert one.waits(GANG, "u", 4) is None


def test_the_tries_of_a_namespace_are_as_rare_as_those_of_one_unit(clock: Clock) -> None:
    one = Containment(clock)
    for key in ("a", "b"):
        fail(one, key)
    assert one.waits(GANG, "a", 2) is None
    clock.now += 1
    fail(one, "a", version=2)  # the early try fails
    assert one.waits(GANG, "b", 2) is not None, "its early try has to wait as well"
    fail(one, "other", namespace="team-b")
    assert one.waits(GANG, "other", 2) is None


def test_many_units_that_fail_at_one_place_are_held_together(clock: Clock) -> None:
    one = Containment(clock)
    found = [fail(one, str(number)) for number in range(TOGETHER)]
    assert [one.together(each) for each in found] == [True] * TOGETHER
    assert set(one.held(GANG)) == {"team-a"}
    [with_them] = one.set_aside_with(found[-1], [("new", "Job/new", 1)])
    assert (with_them.place, one.get(GANG, "new")) == (found[0].place, with_them)
    clock.now = max(each.until for each in one) + LONGEST_SECONDS
    assert not one.held(GANG)


def test_the_record_is_bounded(clock: Clock) -> None:
    one = Containment(clock)
    for number in range(MOST_KEPT + 5):
        fail(one, str(number), namespace="")
    assert len(list(one)) == MOST_KEPT
    assert one.get(GANG, "0") is None


def test_units_of_different_boundaries_are_apart(clock: Clock) -> None:
    one = Containment(clock)
    fail(one)
    assert one.get(Boundary.SNAPSHOT, "u") is None
    assert one.counts()[GANG] == 1
    one.forget("u")
    assert one.empty


@pytest.mark.parametrize(
    "error",
    [
        LeadershipLost("x"),
        Fenced("x"),
        StaleSnapshot("x"),
        StaleConfiguration("x"),
        StoreUnavailable("x"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(1),
        ExceptionGroup("several", [ValueError("x"), Fenced("x")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_about_the_leadership_or_the_database_is_not_contained(
    error: BaseException, clock: Clock
) -> None:
    one = Containment(clock)
    assert never_contained(error)
    with pytest.raises(type(error)), one.unit(GANG, "u"):
        raising(error)
    assert one.empty


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), RecursionError(), MemoryError(), StoreError("x"), ClusterUnavailable("x")],
)
def test_each_other_error_sets_its_unit_aside(error: Exception, clock: Clock) -> None:
    told: list[tuple[SetAside, BaseException | None]] = []
    one = Containment(clock, lambda found, cause: told.append((found, cause)))
    with one.unit(GANG, "u", "Job/team-a/train", namespace="team-a"):
        raising(error)
    assert [(found.ref, cause) for found, cause in told] == [("Job/team-a/train", error)]


def test_the_place_of_an_error_is_the_innermost_function_of_queuectl(clock: Clock) -> None:
    places = set[str]()
    for text in ("x", "y"):
        with pytest.raises(UnitFailed) as raised, naming("u"):
            parse_quantity("cpu", text, round_up=True)
        assert raised.value.key == "u"
        places.add(place_of(raised.value))
    assert places == {"QuantityError in domain/quantity.py:exact_quantity"}


def test_a_reason_names_the_error_and_nothing_of_its_text(clock: Clock) -> None:
    one = Containment(clock)
    found = one.failed(GANG, "u", ValueError("secret of another team"), "Job/a/b")
    assert found.error in found.reason.message
    assert "secret" not in found.reason.message


def test_new_gangs_of_a_namespace_are_not_tried_while_many_of_its_gangs_fail_alike(
    clock: Clock,
) -> None:
    """A gang that was in a plan that passed is tried, and so are those of other namespaces."""
    containment = Containment(clock)
    for number in range(TOGETHER):
        fail(containment, str(number))
    gangs = [
        replace(gang(uid), namespace=namespace)
        for uid, namespace in (("new", "team-a"), ("proven", "team-a"), ("other", "team-b"))
    ]
    set_aside = GangsSetAside(containment, tuple)
    set_aside.proven = frozenset({"proven"})
    assert set_aside.left_out(world([], gangs)) == {"new"}


READERS = {resource.name: resource.read for resource in watched()}
BAD = "bad"


def seen_pod(name: str, version: int, group: str = "", workload: str = "") -> Upserted:
    """A pod of a group or a single pod. ``workload``: it was released for this workload, and runs."""
    document = manifest(name, group, 1)
    document["metadata"] |= {"namespace": "a", "uid": name, "resourceVersion": str(version)}
    document["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    document["metadata"].setdefault("annotations", {})[keys.SUBMITTED_BY] = "ann"
    if not workload:
        document["spec"]["schedulingGates"] = [{"name": keys.GATE}]
    else:
        document["metadata"]["labels"][keys.WORKLOAD_LABEL] = workload
        document["spec"]["nodeName"] = "n1"
    record = READERS["pods"](msgspec.json.encode(document))
    assert record is not None
    return Upserted(record)


@pytest.fixture(params=["assemble", "seated"])
def poison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of groups, and uids of single pods, whose records cannot be assembled, or whose pods have no podset."""
    names: list[str] = []
    real = getattr(PodGroup, request.param)

    def fails(group: PodGroup, *pods: Any, **given: Any) -> object:
        if group.key.name in names:
            raise RuntimeError(group.key.name)
        return real(group, *pods, **given)

    monkeypatch.setattr(PodGroup, request.param, fails)
    return names


@pytest.mark.parametrize("group", [BAD, ""], ids=["a group", "a single pod"])
def test_a_group_of_pods_that_cannot_be_assembled_is_set_aside_alone(
    group: str, clock: Clock, poison: list[str]
) -> None:
    poison.append(BAD)
    mirror = Mirror.of(KINDS, Containment(clock))
    mirror.apply([seen_pod("a", 1), seen_pod(BAD, 2, group), seen_pod("z", 3, "z")])
    assert set(mirror.jobs) == {"a", "z"}
    assert mirror.generation == 0, "nothing is built again"
    entry = Entry(
        BAD,
        POD_GROUP if group else POD,
        "a",
        BAD,
        State.PENDING,
        queue="main",
        cluster_queue="q",
        gpus=8,
        pods=1,
    )
    mirror.recognize([entry], read=True, all_of_them=True)
    assert mirror.hides(entry), "it is not taken for deleted"
    for version in range(4, 8):
        mirror.apply([seen_pod(BAD, version, group)])
    [unit] = mirror.containment
    assert unit.failures == 2, "a change allows one early try"
    assert unit.ref == f"{entry.kind}/a/{BAD}"
    poison.clear()
    clock.now = unit.until
    mirror.apply([seen_pod("b", 9)])
    assert set(mirror.jobs) == {"a", "b", BAD, "z"}
    assert mirror.containment.empty
    assert not mirror.hides(entry)


def test_a_running_group_that_cannot_be_assembled_keeps_its_record_and_its_pods(
    clock: Clock, poison: list[str]
) -> None:
    mirror = Mirror.of(KINDS, Containment(clock))
    mirror.apply([seen_pod(BAD, 1, BAD)])
    mirror.apply([seen_pod(BAD, 2, BAD, workload=BAD)])
    known = mirror.jobs[BAD]
    assert not known.suspended
    poison.append(BAD)
    mirror.apply([seen_pod(BAD, 3, BAD, workload=BAD)])
    assert mirror.jobs[BAD] is known
    [pod] = mirror.pods_of(known)
    assert pod.version == 3


def test_a_group_that_cannot_be_assembled_is_forgotten_with_its_last_pod(
    clock: Clock, poison: list[str]
) -> None:
    poison.append(BAD)
    mirror = Mirror.of(KINDS, Containment(clock))
    for version in range(1, 4):
        mirror.apply([seen_pod(BAD, version, BAD)])
    mirror.apply([Deleted("pods", BAD, 9)])
    assert mirror.containment.empty
    assert mirror.jobs == {}


def test_an_object_that_cannot_be_kept_concerns_no_object_of_another_resource_with_its_name(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NodeResourceTopology always has the name of its Node."""

    def upsert(_: DeviceMirror, record: object) -> None:
        raise RuntimeError(record)

    monkeypatch.setattr(DeviceMirror, "upsert", upsert)
    mirror = Mirror.of(KINDS, Containment(clock))

    def see_node(version: int) -> None:
        node = Node("n1", {HOSTNAME: "n1"}, Resources({"cpu": 1}))
        mirror.apply([Upserted(NodeRecord(node, version))])

    def see_topology(version: int) -> None:
        zones = NodeZones((), "none", "container")
        mirror.apply([Upserted(NodeTopologyRecord("n1", version, zones))])

    see_node(1)
    for version in (2, 4, 6):
        see_topology(version)
        see_node(version + 1)
    assert not mirror.nodes["n1"].node.unschedulable
    [unit] = mirror.containment
    assert unit.failures == 2, "a change of its Node is none of the topology"
    assert [one.resource for one in mirror.unreadable.values()] == ["noderesourcetopologies"]

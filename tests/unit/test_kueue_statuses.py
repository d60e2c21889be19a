"""The statuses of Kueue's own objects, in Kueue's words."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from queuectl.domain.checks import EXTERNAL, PROVISIONING
from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.objects.configuration.kueue_status import KueueQueueStatus, seen_kueue_status
from queuectl.objects.configuration.owners import Owner
from queuectl.objects.configuration.stops import with_operation
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.statuses import COUNTS_SECONDS
from tests.support import followed as f
from tests.unit.test_object_statuses import HOSTILE, World, gang

FORM = FORMS[Owner.KUEUE]
QUEUE = DocumentKey("ClusterQueue", "", "a")
LOCAL = DocumentKey("LocalQueue", "team", "l")
CHECK = DocumentKey("AdmissionCheck", "", "nodes")
READY = ("True", "Ready", "Can admit new workloads")
OPEN = ("True", "Ready", "Can submit new workloads to localQueue")
CLOSED = ("False", "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")


def check(controller: str, settings: str = "") -> f.Object:
    spec: dict[str, Any] = {"controllerName": controller}
    if settings:
        named = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig"}
        spec["parameters"] = {**named, "name": settings}
    head = {"apiVersion": f.VERSION, "kind": "AdmissionCheck", "metadata": {"name": "nodes"}}
    return {**head, "spec": spec}


def needs(*names: str) -> f.Object:
    return f.queue("a", admissionChecksStrategy={"admissionChecks": [{"name": n} for n in names]})


def a_world(*changes: f.Object) -> World:
    world = World(f.flavor("gpu"), f.queue("a"), f.local_queue("team", "l", "a"), form=FORM)
    for change in changes:
        world.apply(change)
    world.act()
    return world


def refuses(reason: str, text: str) -> tuple[str, str, str]:
    return "False", reason, f"Can't admit new workloads: {text}."


ACTIVE: list[tuple[list[f.Object], Any, Any]] = [
    ([], READY, OPEN),
    ([f.queue("a", stopPolicy="Hold")], refuses("Stopped", "is stopped"), CLOSED),
    ([with_operation(f.queue("a"), StopPolicy.HOLD)], refuses("Stopped", "is stopped"), CLOSED),
    (
        [f.queue("a", flavor="h100", stopPolicy="HoldAndDrain")],
        refuses("Stopped", "is stopped, references missing ResourceFlavor(s): h100"),
        CLOSED,
    ),
    (
        [needs("nodes", "other"), check("someone/else")],
        refuses(
            "AdmissionCheckNotFound",
            "references missing AdmissionCheck(s): other, references inactive AdmissionCheck(s): nodes",
        ),
        CLOSED,
    ),
    ([needs("nodes"), check(EXTERNAL)], READY, OPEN),
    ([f.queue("a", namespaceSelector=None)], READY, OPEN),
    (
        [f.local_queue("team", "l", "absent")],
        READY,
        ("False", "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue"),
    ),
    (
        [{**f.local_queue("team", "l", "a"), "spec": {"clusterQueue": "a", "stopPolicy": "Hold"}}],
        READY,
        ("False", "Stopped", "LocalQueue is stopped"),
    ),
]  # fmt: skip


def test_a_queue_is_active_or_not_in_the_words_of_kueue() -> None:
    for changes, queue, local in ACTIVE:
        world = a_world(*changes)
        assert world.conditions(QUEUE) == {"Active": queue}
        assert world.conditions(LOCAL) == {"Active": local}
        [active] = world.statuses[str(QUEUE)].conditions or []
        assert active.observed_generation == world.objects[QUEUE].generation
        assert world.statuses[str(QUEUE)].observed_generation is None
        assert world.act(1e6) == [], "it has no other status"


def test_kinds_without_a_status_of_kueue_have_none() -> None:
    world = a_world(f.cohort("all"))
    assert set(world.statuses) == {str(QUEUE), str(LOCAL)}


FAIR = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "fairSharing": {},
}
ALL = DocumentKey("Cohort", "", "all")


def share(world: World, key: DocumentKey) -> int | None:
    status = world.statuses[str(key)]
    assert isinstance(status, KueueQueueStatus)
    return status.fair_sharing.weighted_share if status.fair_sharing is not None else None


def test_shares_are_those_of_kueue_while_fair_sharing_is_on_and_0_after_it() -> None:
    weightless = f.queue("b", 8, cohortName="all", fairSharing={"weight": "0"})
    world = World(
        f.flavor("gpu"),
        f.cohort("all", "root"),
        f.cohort("root"),
        f.queue("a", 8, cohortName="all", fairSharing={"weight": "2"}),
        weightless,
        f.queue("c", 14, cohortName="root"),
        f.local_queue("team", "l", "a"),
        form=FORM,
    )
    world.documents[DocumentKey.of(FAIR)] = FAIR
    world.held = {("team", "l", "a", "gpu", "nvidia.com/gpu"): 10}
    world.kept = {("team", "l", "a", "gpu", "nvidia.com/gpu"): 1}
    world.act()
    # a borrows 3 of the 30 GPUs that "all" can lend, and its weight is 2; "all" borrows nothing.
    assert [share(world, key) for key in (QUEUE, LOCAL, ALL)] == [50, None, 0]
    assert "conditions" not in FORM.body("Cohort", "v1beta2", world.statuses[str(ALL)])
    world.held["team", "l", "b", "gpu", "nvidia.com/gpu"] = 9
    assert ALL in world.act(COUNTS_SECONDS)
    # "all" uses 20 of its 16 GPUs: it borrows 4 of the 30 of "root".
    assert share(world, ALL) == 134
    assert share(world, DocumentKey("ClusterQueue", "", "b")) == 2**63 - 1
    del world.documents[DocumentKey.of(FAIR)]
    world.act(COUNTS_SECONDS)
    assert [share(world, key) for key in (QUEUE, LOCAL, ALL)] == [0, None, 0]
    assert world.act(1e6) == []


def test_of_admission_checks_only_the_provisioning_of_nodes_is_kueues() -> None:
    assert str(CHECK) not in a_world(check(EXTERNAL)).statuses
    absent = a_world(check(PROVISIONING, "gone")).conditions(CHECK)["Active"]
    text = "ProvisioningRequestConfig gone does not exist"
    assert absent == ("False", "BadParametersRef", text)


def test_an_edit_without_effect_is_named_and_what_acts_stays() -> None:
    world = a_world()
    world.faults[world.apply(f.queue("a", "much"), acts=False)] = "spec: wrong"
    world.act(1.0)
    text = "Can admit new workloads. The last edit has no effect: spec: wrong"
    assert world.conditions(QUEUE)["Active"] == ("True", "Ready", text)

    new = World(form=FORM)
    key = new.apply(f.queue("a", flavor="h100"), acts=False)
    new.faults[key] = "spec.resourceGroups: ResourceFlavor h100 does not exist"
    new.act()
    text = "references missing ResourceFlavor(s): h100"
    assert new.conditions(key)["Active"] == refuses("FlavorNotFound", text)
    new.faults[new.apply(f.queue("a", "much"), acts=False)] = "spec: wrong"
    new.act(1.0)
    new.objects[key] = new.objects[key].__class__(key, str(key), 9, 9, None, "spec: wrong")
    new.act(1.0)
    assert new.conditions(key)["Active"][:2] == ("False", "Unknown")


def test_while_an_edit_waits_the_condition_is_about_the_generation_that_acts() -> None:
    world = a_world()
    world.waiting.add(world.apply(f.queue("a", 1)))
    assert world.act(1.0) == []
    [active] = world.statuses[str(QUEUE)].conditions or []
    assert active.observed_generation == 1


def test_use_is_by_flavor_and_resource_and_borrowed_over_the_nominal_quota() -> None:
    for cohort, borrowed in (({}, "0"), ({"cohortName": "all"}, "4")):
        world = a_world(f.queue("a", 8, **cohort))
        world.held = {("team", "l", "a", "gpu", "nvidia.com/gpu"): 12}
        world.kept = {("other", "l", "a", "gpu", "nvidia.com/gpu"): 2}
        world.entries = [gang(State.RUNNING)]
        world.act(100.0)
        queue, local = world.statuses[str(QUEUE)], world.statuses[str(LOCAL)]
        assert isinstance(queue, KueueQueueStatus)
        assert isinstance(local, KueueQueueStatus)
        body = FORM.body("ClusterQueue", "v1beta2", queue)
        used = {"name": "nvidia.com/gpu", "total": "12", "borrowed": borrowed}
        assert body["flavorsUsage"] == [{"name": "gpu", "resources": [used]}]
        assert body["flavorsReservation"][0]["resources"][0]["total"] == "14"
        assert (body["admittedWorkloads"], body["pendingWorkloads"]) == (1, 0)
        newer = FORM.body("LocalQueue", "v1beta2", local)
        older = FORM.body("LocalQueue", "v1beta1", local)
        of_local = [{"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "total": "12"}]}]
        assert newer["flavorsUsage"] == older["flavorUsage"] == of_local
        assert "flavorsUsage" not in older
        for version in (newer, older):
            assert seen_kueue_status(msgspec.json.encode(version)) == local
        assert world.act(0.1) == []
        world.held.clear()
        assert world.act(1.0) == [], "use counts as gangs do"
        assert set(world.act(30.0)) == {QUEUE, LOCAL}


def test_a_status_of_another_form_is_replaced() -> None:
    wrong = [b'{"flavorsUsage": 1}', b'{"flavorsUsage": [{"resources": []}]}']
    for content in itertools.chain(HOSTILE, wrong):
        assert seen_kueue_status(content) is None
    seen = seen_kueue_status(
        b'{"flavorsUsage": [{"name": "x", "resources": [{"name": "y", "total": 3}]}]}'
    )
    assert seen is not None
    assert seen.flavors_usage is not None
    assert seen.flavors_usage[0].resources[0].total == "3"

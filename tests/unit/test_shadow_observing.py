"""The observation of a cluster that Kueue manages: what waits, what fits, what Kueue admitted without nodes, and why the rest waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.control import contained_plan
from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.demo import scenario as m
from queuectl.domain.quantity import GPU
from queuectl.domain.shadow import Observation
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.objects.errors import DocumentError
from queuectl.shadow.configuration import on_hosts
from queuectl.shadow.observing import ClusterObserver

Body = dict[str, Any]
KUEUE = "kueue.x-k8s.io/v1beta2"
NOW = 1_800_000_000.0
SPACE = "team"


def queues(quota: int = 64) -> list[Body]:
    """Kueue's objects, as its API server has them."""
    documents = [
        m.flavor("gpu"),
        m.cluster_queue("pool", "gpu", {GPU: quota, "cpu": 1000}),
        m.local_queue(SPACE, "train", "pool"),
    ]
    return [{**one, "apiVersion": KUEUE} for one in documents]


def node(name: str, gpus: int = 8) -> Body:
    capacity = {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "100"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": capacity, "capacity": capacity, "conditions": ready},
    }


def template(gpus: int) -> Body:
    requests = {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
    container = {"name": "c", "image": "none", "resources": requests}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def workload(
    name: str, pods: int, gpus: int, *, admitted: bool = False, reserved: bool = False, at: int = 0
) -> Body:
    """A Workload of Kueue. ``reserved``: it has its quota, and waits for admission checks."""
    body: Body = {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": SPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": f"2026-01-01T00:00:{at:02}Z",
        },
        "spec": {
            "queueName": "train",
            "podSets": [{"name": "main", "count": pods, "template": template(gpus)}],
        },
    }
    if admitted or reserved:
        kinds = ("QuotaReserved", "Admitted") if admitted else ("QuotaReserved",)
        body["status"] = {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}
                for kind in kinds
            ],
            "admission": {
                "clusterQueue": "pool",
                "podSetAssignments": [{"name": "main", "count": pods, "flavors": {GPU: "gpu"}}],
            },
        }
    return body


def pod(of: str, number: int, gpus: int, on: str | None) -> Body:
    meta = {
        "name": f"{of}-{number}",
        "namespace": SPACE,
        "uid": f"pod-{of}-{number}",
        "annotations": {"kueue.x-k8s.io/workload": of},
        "labels": {"kueue.x-k8s.io/podset": "main"},
    }
    spec = template(gpus)["spec"] | ({"nodeName": on} if on is not None else {})
    phase = "Running" if on is not None else "Pending"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": {"phase": phase},
    }


def observed(*bodies: Body, observer: ClusterObserver | None = None) -> Observation:
    return (observer or ClusterObserver(SolverLimits())).observation(on_hosts(bodies), NOW)


def fitting(observation: Observation) -> dict[str, float]:
    return {one.gang.name: one.fits for one in observation.waiting if one.fits is not None}


def test_a_gang_that_waits_and_fits_is_shown_with_its_gpus():
    observation = observed(*queues(), node("a"), node("b"), workload("w", 2, 8))
    assert fitting(observation) == {"w": 16.0}
    assert (observation.gpus, observation.free, observation.decided) == (16.0, 16.0, True)
    [only] = observation.waiting
    assert (only.gang.namespace, only.gang.queue, only.gang.cluster_queue) == (
        SPACE,
        "train",
        "pool",
    )
    assert (only.code, only.message, only.gang.pods) == ("", "", 2)


def test_a_gang_that_does_not_fit_has_the_reason_of_queuectl():
    observation = observed(*queues(), node("a"), workload("w", 2, 8))
    [only] = observation.waiting
    assert fitting(observation) == {}
    assert only.code
    assert only.message


def test_quota_counts_although_nodes_are_free():
    observation = observed(*queues(quota=8), node("a"), node("b"), workload("w", 2, 8))
    [only] = observation.waiting
    assert (only.fits, only.code) == (None, "ExceedsMaxQuota")


def test_an_admitted_gang_holds_its_quota_and_its_nodes():
    running = [workload("r", 1, 8, admitted=True), pod("r", 0, 8, "a")]
    observation = observed(*queues(), node("a"), *running, workload("w", 1, 8))
    assert (observation.free, fitting(observation), observation.unbound) == (0.0, {}, ())
    observation = observed(*queues(quota=8), node("a"), node("b"), *running, workload("w", 1, 8))
    assert (observation.free, fitting(observation)) == (8.0, {})


@pytest.mark.parametrize(
    ("pods", "missing"),
    [
        pytest.param([], 2, id="no pods were created"),
        pytest.param([pod("r", 0, 4, None), pod("r", 1, 4, None)], 2, id="no pod has a node"),
        pytest.param([pod("r", 0, 4, "a"), pod("r", 1, 4, None)], 1, id="one pod has a node"),
        pytest.param([pod("r", 0, 4, "a"), pod("r", 1, 4, "a")], 0, id="all have"),
    ],
)
def test_admitted_gangs_whose_pods_have_no_node(pods: Sequence[Body], missing: int):
    observation = observed(*queues(), node("a"), workload("r", 2, 4, admitted=True), *pods)
    assert (observation.gpus, observation.free) == (8.0, 8.0 - 4.0 * (2 - missing))
    shown = [(one.gang.name, one.pods, one.gpus) for one in observation.unbound]
    assert shown == ([("r", missing, 4.0 * missing)] if missing else [])
    if missing:
        assert observation.unbound[0].admitted_at == 1_767_226_200.0


def test_a_gang_that_waits_for_admission_checks_is_not_one_without_nodes():
    observation = observed(*queues(), node("a"), workload("r", 2, 4, reserved=True))
    assert (observation.waiting, observation.unbound) == ((), ())


def test_pods_outside_the_queues_hold_what_they_hold():
    observation = observed(*queues(), node("a"), pod("other", 0, 6, "a"), workload("w", 1, 4))
    assert (observation.free, fitting(observation)) == (2.0, {})


def test_gangs_that_fit_one_at_a_time_do_not_both_fit():
    both = [workload("first", 1, 8), workload("second", 1, 8, at=1)]
    observation = observed(*queues(), node("a"), *both)
    assert fitting(observation) == {"first": 8.0}


def test_a_finished_gang_is_not_shown():
    ended = workload("w", 1, 8)
    ended["status"] = {"conditions": [{"type": "Finished", "status": "True"}]}
    observation = observed(*queues(), node("a"), ended)
    assert (observation.waiting, observation.unbound, observation.decided) == ((), (), True)


# ---- Objects that cannot be read


BROKEN = {
    "a list": {"podSets": [1, 2]},
    "400 digits": {"podSets": [{"name": "main", "count": int("9" * 400)}]},
    "an unknown field": {"podSets": [{"name": "main", "count": 1, "surprise": True}]},
    "no podsets": {"podSets": []},
    "a text": {"podSets": "main"},
}


@pytest.mark.parametrize("spec", BROKEN.values(), ids=BROKEN)
def test_an_object_that_cannot_be_read_is_left_out_alone(spec: Body):
    broken = workload("broken", 1, 1)
    broken["spec"] = {"queueName": "train", **spec}
    observation = observed(*queues(), node("a"), broken, workload("w", 1, 8))
    assert fitting(observation) == {"w": 8.0}
    refused = {one.gang.name: one.code for one in observation.waiting if one.fits is None}
    named = [text for text in observation.left_out if text.startswith("Workload/team/broken: ")]
    assert len(named) + len(refused) == 1
    assert set(refused.items()) <= {("broken", "Misconfigured")}


def nested(levels: int) -> Body:
    value: Body = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def edited(body: Body, path: str, value: Any) -> Body:
    """The object with another value at a path, whose numbers are places in lists."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(" ")]
    at: Any = body
    for part in parents:
        at = at[part]
    at[last] = value
    return body


def test_hostile_objects_are_left_out_alone():
    of_pod, admission = "spec podSets 0 template", "status admission"
    requests = f"{of_pod} spec containers 0 resources requests {GPU}"
    hostile = [
        *(edited(workload("broken", 1, 1), field, [1]) for field in ("spec", "status")),
        edited(workload("broken", 1, 1), requests, "9" * 400),
        edited(workload("broken", 1, 1), "spec priority", int("9" * 400)),
        edited(workload("broken", 1, 1), f"{of_pod} metadata", {"annotations": nested(2000)}),
        edited(workload("broken", 1, 1, admitted=True), admission, []),
        edited(workload("broken", 1, 1, admitted=True), f"{admission} podSetAssignments", {}),
        edited(pod("broken", 0, 8, "a"), "spec", []),
        edited(node("broken"), "metadata labels", []),
        edited(node("broken"), f"status allocatable {GPU}", "9" * 400),
    ]
    observer = ClusterObserver(SolverLimits())
    for number, broken in enumerate(hostile):
        broken["metadata"]["resourceVersion"] = f"{number}"
        observation = observed(*queues(), node("a"), broken, workload("w", 1, 8), observer=observer)
        assert (fitting(observation), len(observation.left_out)) == ({"w": 8.0}, 1), broken


def test_a_gang_whose_label_no_node_has_fits_nowhere_and_holds_nothing_up():
    nowhere = edited(
        workload("nowhere", 1, 8),
        "spec podSets 0 template spec nodeSelector",
        {"rack": "none"},
    )
    observation = observed(*queues(), node("a"), nowhere, workload("w", 1, 8, at=1))
    assert fitting(observation) == {"w": 8.0}
    assert {one.gang.name: one.code for one in observation.waiting if one.fits is None} == {
        "nowhere": "ShapeNeverFits"
    }


def test_an_object_that_was_left_out_is_read_again_after_an_edit():
    observer = ClusterObserver(SolverLimits())
    broken = workload("w", 1, 8)
    broken["spec"]["podSets"] = []
    assert observed(*queues(), node("a"), broken, observer=observer).left_out
    fixed = workload("w", 1, 8)
    fixed["metadata"]["resourceVersion"] = "2"
    observation = observed(*queues(), node("a"), fixed, observer=observer)
    assert (observation.left_out, fitting(observation)) == ((), {"w": 8.0})


def test_many_objects_that_cannot_be_read_are_left_out_in_several_observations():
    observer = ClusterObserver(SolverLimits())
    broken = [workload(f"broken-{n}", 1, 1) for n in range(30)]
    for one in broken:
        one["spec"]["podSets"] = []
    bodies = [*queues(), node("a"), *broken, workload("w", 1, 8)]
    with pytest.raises(DocumentError):
        observed(*bodies, observer=observer)
    observation = observed(*bodies, observer=observer)
    assert (len(observation.left_out), fitting(observation)) == (30, {"w": 8.0})


def test_objects_that_stay_unreadable_and_change_all_the_time_end_no_observation():
    """A newer Kueue has a field that queuectl does not read, and writes the status of each Workload all the time."""
    observer = ClusterObserver(SolverLimits())
    lost, observations = 0, []
    for number in range(8):
        broken = [workload(f"broken-{n}", 1, 1) for n in range(30)]
        for one in broken:
            one["spec"]["podSets"] = []
            one["metadata"]["resourceVersion"] = str(number)
        bodies = [*queues(), node("a"), *broken, workload("w", 1, 8)]
        try:
            observations.append(observed(*bodies, observer=observer))
        except DocumentError:
            lost += 1
    assert lost == 1
    assert {(len(each.left_out), *fitting(each).items()) for each in observations} == {
        (30, ("w", 8.0))
    }
    readable = [workload(f"broken-{n}", 1, 0) for n in range(30)]
    for one in readable:
        one["metadata"]["resourceVersion"] = "99"
    for _ in range(3):
        last = observed(*queues(), node("a"), *readable, workload("w", 1, 8), observer=observer)
    assert last.left_out == ()


def test_a_gang_with_which_planning_fails_is_left_out_of_the_plan_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    ordinary = checked_plan

    def fails(snapshot: Snapshot, *more: Any) -> CheckedPlan:
        if any(one.workload.name == "poison" for one in snapshot.pending):
            raise RuntimeError("a defect")
        return ordinary(snapshot, *more)

    monkeypatch.setattr(contained_plan, "checked_plan", fails)
    observation = observed(
        *queues(), node("a"), workload("poison", 1, 1), workload("w", 1, 8, at=1)
    )
    assert fitting(observation) == {"w": 8.0}


def test_a_plan_that_was_stopped_decides_nothing():
    observer = ClusterObserver(SolverLimits())
    observer.stop.stop()
    observation = observed(*queues(), node("a"), workload("w", 1, 8), observer=observer)
    assert observation.decided is False


def test_a_document_of_the_catalog_that_was_left_out_is_read_again_after_an_edit():
    """It has no resourceVersion."""
    observer = ClusterObserver(SolverLimits())
    queue = m.cluster_queue("pool", "gpu", {GPU: 8, "cpu": 1000})
    broken = {**queue, "spec": {**queue["spec"], "queueingStrategy": 5}}
    flavor, _, local = queues()
    others = [flavor, local, node("a"), workload("w", 1, 8)]
    observation = observed(dict(broken), *others, observer=observer)
    assert (fitting(observation), len(observation.left_out)) == ({}, 1)
    observation = observed(dict(queue), *others, observer=observer)
    assert (fitting(observation), observation.left_out) == ({"w": 8.0}, ())


# ---- Room


def test_a_topology_of_the_flavor_stays():
    flavors = [
        m.flavor("gpu"),
        m.flavor("racks", topology="racks"),
        {"kind": "ResourceFlavor", "spec": 3},
    ]
    hosts, *others = on_hosts(flavors)
    assert [one["spec"]["topologyName"] for one in others[:2]] == [
        hosts["metadata"]["name"],
        "racks",
    ]
    assert others[2] == flavors[2]


# ---- Against all placements


def placeable(free: tuple[int, ...], pods: tuple[int, ...]) -> bool:
    """Whether these pods fit these nodes together: all placements are tried."""
    if not pods:
        return True
    first, *rest = pods
    return any(
        placeable((*free[:at], free[at] - first, *free[at + 1 :]), tuple(rest))
        for at in range(len(free))
        if free[at] >= first
    )


def starts(free: tuple[int, ...], gangs: Iterable[tuple[int, int]]) -> list[bool]:
    """Of each gang (pods, GPUs of a pod), in queue order: whether it fits together with those before it that fit."""
    placed: tuple[int, ...] = ()
    answers = []
    for count, each in gangs:
        more = tuple(sorted((*placed, *[each] * count), reverse=True))
        fits = placeable(free, more)
        placed = more if fits else placed
        answers.append(fits)
    return answers


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=1, max_size=4),
)
def test_exactly_the_gangs_fit_for_which_a_placement_exists(
    free: list[int], gangs: list[tuple[int, int]]
):
    nodes = [node(f"n{at}") for at in range(len(free))]
    others = [pod(f"other{at}", 0, 8 - left, f"n{at}") for at, left in enumerate(free) if left < 8]
    waiting = [workload(f"w{at}", *gang, at=at) for at, gang in enumerate(gangs)]
    observation = observed(*queues(), *nodes, *others, *waiting)
    expected = starts(tuple(free), gangs)
    assert fitting(observation) == {
        f"w{at}": float(count * each) for at, (count, each) in enumerate(gangs) if expected[at]
    }
    assert observation.free == sum(free)
    assert len(observation.waiting) == len(gangs)

"""Nodes and pods to records, effective requests, and the patch that pins a pod."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Effect, Taint, Toleration
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.quantity import Resources
from queuectl.domain.words import format_time
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.pods import pod_reader
from queuectl.objects.kubernetes.node_affinity import REQUIRED, pinned, write_required
from queuectl.objects.kubernetes.nodes import (
    read_namespace,
    read_node,
    read_priority_class,
    version_of,
)
from queuectl.objects.kubernetes.pods import pin_patch, read_pod
from queuectl.objects.kubernetes.requests import read_amount, read_pod_needs
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import (
    PodSpec,
    Template,
    TemplateSpec,
    WireNamespace,
    WireNode,
    WirePod,
    WirePriorityClass,
)
from queuectl.objects.times import parse_time


def pod(**parts: Any) -> PodRecord:
    body: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "42"},
        "spec": {"containers": [{"name": "a"}]},
    }
    for part, fields in parts.items():
        body[part] = {**body.get(part, {}), **fields}
    return read_pod(msgspec.json.decode(json.dumps(body).encode(), type=WirePod))


@pytest.mark.parametrize(
    ("annotations", "saved"),
    [
        ({"queuectl.dev/last-checkpoint-time": "2026-11-20T00:00:00Z"}, 1795132800.0),
        ({"queuectl.dev/last-checkpoint-time": "yesterday", "other": "x"}, None),
        ({"other": "x"}, None),
        (None, None),
    ],
)
def test_a_pod_may_say_when_it_saved_its_work(
    annotations: dict[str, str] | None, saved: float | None
) -> None:
    assert pod(metadata={"annotations": annotations}).checkpoint_at == saved


# ---- workloads


@pytest.mark.parametrize(
    ("controller", "more", "is_workload"),
    [
        (None, {}, True),
        ("StatefulSet", {}, True),
        ("Job", {}, False),
        ("GangRun", {}, False),
        ("RayCluster", {keys.PREFIX + keys.POD_GROUP: "of-another-user"}, False),
        ("StatefulSet", {keys.KIND_LABEL: "SparkApplication"}, False),
        ("Pod", {keys.KIND_LABEL: "SparkApplication"}, False),
    ],
)
def test_a_pod_of_a_job_is_not_a_workload_whatever_its_template_has(
    controller: str | None, more: dict[str, str], is_workload: bool
) -> None:
    kinds = frozenset({*KINDS, "GangRun"})
    owners = [
        {"kind": "ConfigMap", "uid": "c"},
        {"kind": controller, "uid": "o", "controller": True},
    ]
    body = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "labels": {keys.QUEUE_LABEL: "main", **more},
            "annotations": {keys.SUBMITTED_BY: "bob"},
            "ownerReferences": owners if controller else owners[:1],
        },
        "spec": {"containers": [{"name": "a"}]},
    }
    record = pod_reader((), kinds)(msgspec.json.encode(body))
    assert (record.member is not None) is is_workload


# ---- requests

REQUESTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "containers add up": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}]},
        {"cpu": 1500},
    ),
    "a limit replaces a missing request": (
        {"containers": [{"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "8"}, "requests": {"cpu": "1"}}}]},
        {"cpu": 1000, "nvidia.com/gpu": 8},
    ),
    "the largest init container counts, not their sum": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}],
         "initContainers": [{"resources": {"requests": {"cpu": "3"}}}, {"resources": {"requests": {"cpu": "2"}}}]},
        {"cpu": 3000},
    ),
    "a sidecar runs alongside the containers": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}],
         "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}]},
        {"cpu": 3000},
    ),
    "an init container runs alongside the sidecars started before it, not after": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}],
         "initContainers": [
             {"resources": {"requests": {"cpu": "4"}}},
             {"restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
             {"resources": {"requests": {"cpu": "3"}}}]},
        {"cpu": 5000},
    ),
    "overhead is added": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "overhead": {"cpu": "250m", "memory": "1Ki"}},
        {"cpu": 1250, "memory": 1024},
    ),
    "pod-level requests replace the sum": (
        {"containers": [{"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}}],
         "resources": {"requests": {"cpu": "6"}}},
        {"cpu": 6000, "nvidia.com/gpu": 1},
    ),
    "a pod-level limit replaces only requests that no container has": (
        {"containers": [{"resources": {"requests": {"cpu": "1"}}}],
         "resources": {"limits": {"cpu": "6", "memory": "1Ki"}}},
        {"cpu": 1000, "memory": 1024},
    ),
    "nothing asked is one pod": ({"containers": [{}]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("wire", [PodSpec, TemplateSpec])
def test_requests_are_counted_as_kube_scheduler_does(
    name: str, wire: type[PodSpec | TemplateSpec]
) -> None:
    spec, expected = REQUESTS[name]
    assert read_pod_needs(msgspec.convert(spec, wire))[1] == Resources({**expected, "pods": 1})


def sized(cpu: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu}}


INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
RESIZED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "a resize to less is not yet in effect": ({}, {"allocatedResources": {"cpu": "4"}, "resources": sized("4")}, 4000),
    "its node has accepted less, and the container still has more": (
        {}, {"allocatedResources": {"cpu": "1"}, "resources": sized("3")}, 3000,
    ),
    "the requests in effect are not known": ({}, {"allocatedResources": {"cpu": "4"}}, 1000),
    "a resize to more counts before its node accepts it": (
        {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]},
        {"allocatedResources": {"cpu": "500m"}, "resources": sized("500m")}, 1000,
    ),
    "a resize that cannot fit its node does not count": (
        {"conditions": INFEASIBLE}, {"allocatedResources": {"cpu": "500m"}, "resources": sized("500m")}, 500,
    ),
    "no resize": ({}, {"allocatedResources": {"cpu": "1000m"}, "resources": sized("1")}, 1000),
    "a status of another container": ({}, {"name": "b", "allocatedResources": {"cpu": "4"}}, 1000),
    "a status without requests": ({}, {"restartCount": 1, "resources": {}}, 1000),
}  # fmt: skip


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("name", RESIZED)
def test_a_pod_that_is_resized_in_place_holds_what_kube_scheduler_counts(
    name: str, field: str
) -> None:
    status, container, cpu = RESIZED[name]
    statuses = {"containers": "containerStatuses", "initContainers": "initContainerStatuses"}
    resized = {"name": "a", "resources": sized("1"), "restartPolicy": "Always"}
    read = pod(
        spec={"containers": [{"name": "z"}], field: [resized]},
        status={**status, statuses[field]: [{"name": "a", **container}]},
    )
    assert read.requests == Resources({"cpu": cpu, "pods": 1})


@pytest.mark.parametrize(("conditions", "cpu"), [([], 8), (INFEASIBLE, 7)])
def test_each_resized_container_counts_with_its_own_largest_requests(
    conditions: list[dict[str, str]], cpu: int
) -> None:
    """As ``AggregateContainerRequests`` of Kubernetes, which adds the containers after that."""
    spec = [{"name": "x", "resources": sized("4")}, {"name": "y", "resources": sized("1")}]
    status = [
        {"name": "x", "allocatedResources": {"cpu": "1"}, "resources": sized("3")},
        {"name": "y", "allocatedResources": {"cpu": "4"}, "resources": sized("2")},
    ]
    read = pod(
        spec={"containers": spec}, status={"conditions": conditions, "containerStatuses": status}
    )
    assert read.requests["cpu"] == cpu * 1000


def test_kube_scheduler_ignores_the_status_of_an_init_container_that_ends() -> None:
    status = {"name": "i", "allocatedResources": {"cpu": "4"}, "resources": sized("4")}
    initial = [{"name": "i", "resources": sized("1")}]
    read = pod(spec={"initContainers": initial}, status={"initContainerStatuses": [status]})
    assert read.requests["cpu"] == 1000


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"containerStatuses": [{"name": "a", "resources": sized("?")}]},
         "status of container a: resources.requests: cpu: '?' is not a quantity"),
        ({"allocatedResources": {"cpu": "?"}, "resources": {}},
         "status: allocatedResources: cpu: '?' is not a quantity"),
    ],
)  # fmt: skip
def test_an_error_in_a_status_names_its_field(status: dict[str, Any], error: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(error)}$"):
        pod(spec={"resources": sized("1")}, status=status)


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({"allocatedResources": {"cpu": "6250m"}, "resources": sized("6")}, 6500),
        ({"allocatedResources": {"cpu": "9"}, "resources": sized("8")}, 9250),
        ({"allocatedResources": {"cpu": "3"}, "resources": sized("3")}, 6250),
        ({"conditions": INFEASIBLE, "allocatedResources": {"cpu": "3"}, "resources": sized("3")}, 3250),
        ({"allocatedResources": {"cpu": "3"}, "resources": {}}, 6250),
    ],
)  # fmt: skip
def test_a_pod_with_pod_level_requests_is_resized_as_a_whole(
    status: dict[str, Any], cpu: int
) -> None:
    """The kubelet accepts the requests with the overhead, and kube-scheduler adds the overhead to the largest amount."""
    container = {"name": "a", "resources": {"requests": {"memory": "1Ki"}}}
    spec = {"containers": [container], "resources": sized("6"), "overhead": {"cpu": "250m"}}
    accepted = status.get("allocatedResources", {})
    status = {**status, "allocatedResources": {"memory": "2Ki", **accepted}}
    read = pod(spec=spec, status=status)
    assert read.requests == Resources({"cpu": cpu, "memory": 1024, "pods": 1})
    assert read.overhead == Resources({"cpu": 250})


def test_the_overhead_of_other_pods_counts_once() -> None:
    overhead, status = {"cpu": "250m", "memory": "1Ki"}, {"resources": sized("6")}
    others: list[dict[str, Any]] = [{}, {"resources": {}}, {"resources": {"requests": {"x": "1"}}}]
    for spec in others:
        assert pod(spec={**spec, "overhead": overhead}, status=status).overhead == Resources()
    assert pod(spec={"resources": sized("6"), "overhead": overhead}).overhead == Resources()


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "x/y"]), st.integers(0, 9), max_size=3)
containers = st.builds(
    lambda a, always: {
        "resources": {"requests": {k: str(v) for k, v in a.items()}},
        "restartPolicy": "Always" if always else None,
    },
    amounts,
    st.booleans(),
)


@given(running=st.lists(amounts, min_size=1, max_size=3), init=st.lists(containers, max_size=4))
def test_requests_are_the_peak_over_the_life_of_the_pod(
    running: list[dict[str, int]], init: list[dict[str, Any]]
) -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {k: str(v) for k, v in a.items()}}} for a in running
        ],
        "initContainers": init,
    }
    read = read_pod_needs(msgspec.convert(spec, PodSpec))[1]
    for resource, unit in (("cpu", 1000), ("memory", 1), ("x/y", 1)):
        # Replay the pod's life: what runs at each moment.
        beside, peak = 0, 0
        for container in init:
            asked = int(container["resources"]["requests"].get(resource, 0))
            peak = max(peak, beside + asked)
            beside += asked if container["restartPolicy"] == "Always" else 0
        peak = max(peak, beside + sum(a.get(resource, 0) for a in running))
        assert read[resource] == peak * unit


@given(st.text(max_size=12) | st.from_regex(r"[0-9]{1,3}(\.[0-9])?[a-zA-Z]{0,3}", fullmatch=True))
def test_any_text_is_a_quantity_or_a_sentence(text: str) -> None:
    try:
        amount = read_amount("cpu", text, round_up=True)
    except RequestError as error:
        assert repr(text) in str(error)  # noqa: PT017 - raising is one of two right answers
    else:
        assert 0 <= amount < 2**63


# ---- pods


def test_a_managed_pod_names_the_slot_that_it_fills() -> None:
    record = pod(
        metadata={
            "labels": {
                "queuectl.dev/attempt": "3",
                "queuectl.dev/podset": "worker",
                "training.kubeflow.org/replica-index": "5",
            },
            "ownerReferences": [
                {"uid": "not-me", "kind": "X"},
                {"uid": "job-uid", "kind": "PyTorchJob", "controller": True},
            ],
        },
        spec={"affinity": write_required(pinned(None, "node-7")), "nodeName": "node-7"},
        status={"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    )
    assert (record.attempt, record.podset, record.rank) == (3, "worker", 5)
    assert (record.owner, record.pin, record.node) == ("job-uid", "node-7", "node-7")
    assert record.ready
    assert record.phase is PodPhase.RUNNING
    assert record.version == 42


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({"batch.kubernetes.io/job-completion-index": "0"}, 0),
        ({"training.kubeflow.org/replica-index": "3", "queuectl.dev/first-rank": "1"}, 2),
        ({"training.kubeflow.org/replica-index": "0", "queuectl.dev/first-rank": "1"}, None),
        ({"batch.kubernetes.io/job-completion-index": "first"}, None),
        ({"app": "x"}, None),
        (None, None),
    ],
)
def test_rank_is_the_kinds_index_label(labels: dict[str, str] | None, rank: int | None) -> None:
    assert pod(metadata={"labels": labels}).rank == rank


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "9" * 40])
def test_a_broken_attempt_label_is_not_an_attempt(text: str) -> None:
    assert pod(metadata={"labels": {"queuectl.dev/attempt": text}}).attempt == 0


def test_only_our_gate_makes_a_pod_gated() -> None:
    assert not pod(spec={"schedulingGates": [{"name": "example.com/other"}]}).gated
    ours = pod(spec={"schedulingGates": [{"name": keys.GATE}, {"name": "example.com/other"}]})
    assert ours.gated
    assert ours.gates == ("example.com/other",)


def unschedulable(**condition: str) -> bool:
    usual = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "1970-01-01T00:01:40Z",
    }
    return pod(status={"conditions": [{**usual, **condition}]}).unschedulable


def test_kube_schedulers_refusal_is_read() -> None:
    assert unschedulable()
    assert not unschedulable(reason="SchedulingGated")
    assert not unschedulable(type="Ready")


@pytest.mark.parametrize(
    ("status", "status_reason"),
    [
        ({"phase": "Pending"}, ""),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "ImagePullBackOff",
        ),
        (
            {"initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "Init:CrashLoopBackOff",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
            "OOMKilled (exit code 137)",
        ),
        ({"containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}, ""),
        ({"conditions": [{"type": "Ready", "status": "True"}], "reason": "Old"}, ""),
        ({"reason": "x" * 1000}, "x" * 80),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_run_names_the_reason(
    status: dict[str, Any], status_reason: str
) -> None:
    assert pod(status=status).status_reason == status_reason


def test_a_gated_pod_names_its_gate_as_the_reason() -> None:
    assert pod(spec={"schedulingGates": [{"name": keys.GATE}]}).status_reason == "SchedulingGated"


def test_restarts_are_those_of_all_containers() -> None:
    statuses = [{"restartCount": 2}, {"restartCount": 1}]
    assert pod(status={"containerStatuses": statuses}).restarts == 3


def test_a_deleted_pod_is_terminating_until_it_is_removed() -> None:
    assert pod(metadata={"deletionTimestamp": "2026-08-22T10:00:00Z"}).terminating


def test_a_phase_we_do_not_know_still_uses_its_node() -> None:
    record = pod(status={"phase": "Dreaming"})
    assert record.phase is PodPhase.UNKNOWN
    assert not record.terminal


# ---- pinning

GATED = {
    "schedulingGates": [{"name": keys.GATE}, {"name": "example.com/other"}],
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    ],
}  # fmt: skip


def test_a_gated_pod_with_an_affinity_that_is_too_large_for_a_pin_is_refused_like_its_template() -> (
    None
):
    """The write that starts each pod of a gang repeats the affinity."""

    def spec(characters: int) -> dict[str, Any]:
        names = [f"n{number:07}" for number in range(characters // 8)]
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": names}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        return {"affinity": {"nodeAffinity": {REQUIRED: terms}}}

    gates = {"schedulingGates": [{"name": keys.GATE}]}
    fits, larger = spec(65_000), spec(900_000)
    assert pod(spec=fits | gates).affinity is not None
    read_podset("main", 4096, msgspec.convert({"spec": fits}, Template), "spec.template")
    assert pod(spec=larger).affinity is None  # it is released already
    with pytest.raises(RequestError, match="has about 900,"):
        pod(spec=larger | gates)
    with pytest.raises(RequestError, match=r"^spec\.template\.spec\.affinity.* 65,536"):
        read_podset("main", 4096, msgspec.convert({"spec": larger}, Template), "spec.template")


def test_a_pin_names_the_node_drops_our_gate_and_keeps_all_else() -> None:
    flavor = Toleration("spot", "Exists", effect=Effect.NO_SCHEDULE)
    patch = pin_patch(pod(spec=GATED), "n1", {"gpu": "h100", "tier": "a"}, [flavor])
    assert patch == {
        "metadata": {"uid": "u", "resourceVersion": "42", "managedFields": [{}]},
        "spec": {
            "nodeSelector": {"gpu": "h100", "tier": "a"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": ["n1"]}
                                ]
                            }
                        ]
                    }
                }
            },
            "schedulingGates": [{"name": "example.com/other"}],
            "tolerations": [
                *GATED["tolerations"],
                {"operator": "Exists", "key": "spot", "effect": "NoSchedule"},
            ],
        },
    }


def test_without_a_flavors_tolerations_the_pods_own_are_left_alone() -> None:
    assert "tolerations" not in pin_patch(pod(spec=GATED), "host-1")["spec"]


def test_a_toleration_the_pod_has_is_not_added_again() -> None:
    own = Toleration("node.kubernetes.io/not-ready", "Exists", "", Effect.NO_EXECUTE, 300)
    assert "tolerations" not in pin_patch(pod(spec=GATED), "host-1", (), [own])["spec"]


def test_a_quota_only_pod_is_released_without_a_host() -> None:
    assert pin_patch(pod(spec=GATED), None)["spec"] == {
        "schedulingGates": [{"name": "example.com/other"}]
    }


def test_a_pod_without_our_gate_cannot_be_steered() -> None:
    with pytest.raises(RequestError, match=r"pod n/p has no gate queuectl\.dev/placement"):
        pin_patch(pod(), "host-1")


# ---- nodes, namespaces, classes


def node(**body: Any) -> WireNode:
    return msgspec.convert({"metadata": {"name": "n1"}, **body}, WireNode, strict=False)


def test_a_node_offers_its_allocatable_rounded_down() -> None:
    wire = node(
        metadata={"name": "n1", "resourceVersion": "9", "labels": {"rack": "r1"}},
        spec={
            "unschedulable": True,
            "taints": [
                {"key": "spot", "value": "yes", "effect": "NoSchedule"},
                {"key": "slow", "effect": "PreferNoSchedule"},
            ],
        },
        status={
            "capacity": {"cpu": "100"},
            "allocatable": {"cpu": "95.0005", "memory": "1Ki", "nvidia.com/gpu": 8, "pods": "110"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        },
    )  # fmt: skip
    record = read_node(wire)
    assert record.version == 9
    assert record.node.allocatable == Resources(
        {"cpu": 95000, "memory": 1024, "nvidia.com/gpu": 8, "pods": 110}
    )
    assert record.node.taints == (
        Taint("spot", Effect.NO_SCHEDULE, "yes"),
        Taint("slow", Effect.PREFER_NO_SCHEDULE),
    )
    assert record.node.ready
    assert record.node.unschedulable


@pytest.mark.parametrize(
    ("status", "ready"), [("True", True), ("False", False), ("Unknown", False)]
)
def test_only_ready_true_is_ready(status: str, ready: bool) -> None:
    wire = node(status={"conditions": [{"type": "Ready", "status": status}]})
    assert read_node(wire).node.ready is ready


def test_capacity_replaces_a_missing_allocatable() -> None:
    assert read_node(node(status={"capacity": {"cpu": 4}})).node.allocatable["cpu"] == 4000


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"status": {"allocatable": {"cpu": "lots"}}}, "status.allocatable: cpu: 'lots' is not a quantity"),
        ({"spec": {"taints": [{"key": "a", "effect": "Never"}]}}, "spec.taints[0].effect: 'Never' is not one of"),
    ],
)  # fmt: skip
def test_a_malformed_node_names_the_field(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_node(node(**body))
    assert sentence in str(caught.value)


def test_namespaces_and_priority_classes() -> None:
    meta = {"name": "a", "resourceVersion": "3", "labels": {"z": "1", "b": "2"}}
    namespace = read_namespace(msgspec.convert({"metadata": meta}, WireNamespace))
    assert (namespace.name, namespace.version) == ("a", 3)
    assert namespace.labels == (("b", "2"), ("z", "1"))
    priority = read_priority_class(
        msgspec.convert({"metadata": meta, "value": -5}, WirePriorityClass)
    )
    assert priority.value == -5


@pytest.mark.parametrize(("text", "version"), [("", 0), ("17", 17), ("x", 0), ("²", 0)])
def test_a_resource_version_is_a_number_or_zero(text: str, version: int) -> None:
    assert version_of(text) == version


@given(st.integers(0, 4_000_000_000))
def test_times_survive_writing_and_reading(at: int) -> None:
    assert parse_time(format_time(at)) == at


@given(st.text(max_size=30))
def test_any_other_text_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not an RFC 3339 time"):
        parse_time(f"{text}!")

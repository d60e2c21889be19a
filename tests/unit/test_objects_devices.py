"""Objects of dynamic resource allocation in files: what is read, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import yaml

from queuectl.domain.devices import (
    AllocatedDevice,
    CapacityPolicy,
    ClaimSpec,
    DeviceConstraint,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
    PodDevices,
    Version,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.what_if import WhatIf
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import DocumentError
from queuectl.objects.files.records import read_record
from queuectl.objects.kubernetes.templates import check_names
from queuectl.offline.inputs import SnapshotInput, read_snapshot
from queuectl.offline.what_if import ReadingContext, changed
from tests.support.work import lines_run

DRIVER = "gpu.example"
Body = dict[str, Any]


def slice_(**spec: Any) -> Body:
    given = {
        "driver": DRIVER,
        "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n0",
        "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
    }
    merged = {key: value for key, value in {**given, **spec}.items() if value is not None}
    return resource("ResourceSlice", {"name": "slice"}, merged)


def resource(kind: str, metadata: Body, spec: Body, **more: Any) -> Body:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        **more,
    }


def device(**fields: Any) -> Body:
    return slice_(devices=[{"name": "gpu-0", **fields}])


CLASS = resource(
    "DeviceClass",
    {"name": "gpu", "creationTimestamp": "2026-01-02T03:04:05Z"},
    {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "example.com/gpu"},
)


def template(spec: Body | None = None, name: str = "one") -> Body:
    return resource(
        "ResourceClaimTemplate", {"name": name}, {"spec": {"devices": spec or request()}}
    )


def request(**option: Any) -> Body:
    exactly = {"deviceClassName": "gpu", **option}
    return {"requests": [{"name": "r", "exactly": exactly}]}


def claim(name: str, *, owner: str | None = None, devices: list[str] | None = None) -> Body:
    meta: Body = {"name": name, "uid": f"uid-{name}"}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": "Pod", "uid": owner, "name": "p", "controller": True}]
    results = [
        {"request": "r", "driver": DRIVER, "pool": "n0", "device": one} for one in devices or ()
    ]
    status = {"allocation": {"devices": {"results": results}}} if devices is not None else {}
    return resource("ResourceClaim", meta, {"devices": request()}, status=status)


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n0"},
    "status": {
        "allocatable": {"cpu": "8", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def job(*claims: Body, uses: tuple[str, ...] = (), **spec: Any) -> Body:
    container = {"name": "c", "resources": {"claims": [{"name": name} for name in uses]}}
    pod = {"containers": [container], "resourceClaims": list(claims)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "uid": "uid-job"},
        "spec": {"suspend": True, "template": {"spec": pod}, **spec},
    }


ONE = {"name": "gpu", "resourceClaimTemplateName": "one"}
NAMED = {"name": "gpu", "resourceClaimName": "shared"}


def read(*bodies: Body) -> SnapshotInput:
    return read_snapshot(read_documents(yaml.safe_dump_all(deepcopy(bodies)), "in.yaml"))


def snapshot(*bodies: Body) -> Snapshot:
    return read(NODE, *bodies).snapshot


# ---- what is read


def test_a_device_has_the_values_of_its_resource_slice():
    fields = {
        "attributes": {
            "model": {"string": "H100"},
            "index": {"int": 3},
            "ok": {"bool": True},
            "driver": {"version": "1.2.3"},
            "other.example/numa": {"ints": [0, 1]},
        },
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "512Mi"}},
            },
            "cores": {
                "value": "1500m",
                "requestPolicy": {"default": "1", "validValues": ["1", "2"]},
            },
        },
        "taints": [
            {"key": "a", "value": "b", "effect": "NoExecute"},
            {"key": "new", "effect": "FromTheFuture"},
        ],
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1500m"}}}],
    }
    slices = [
        slice_(
            devices=[{"name": "gpu-0", **fields}],
            pool={"name": "n0", "generation": 1, "resourceSliceCount": 2},
        ),
        slice_(
            devices=None,
            pool={"name": "n0", "generation": 1, "resourceSliceCount": 2},
            sharedCounters=[{"name": "c", "counters": {"m": {"value": "7500m"}}}],
        ),
    ]
    slices[1]["metadata"]["name"] = "counters"
    found = snapshot(*slices).devices.nodes["n0"]
    (only,) = found.devices
    kind = only.kind
    assert only.id == DeviceId(DRIVER, "n0", "gpu-0")
    assert dict(kind.attributes) == {
        f"{DRIVER}/model": "H100",
        f"{DRIVER}/index": 3,
        f"{DRIVER}/ok": True,
        f"{DRIVER}/driver": Version("1.2.3"),
        "other.example/numa": (0, 1),
    }
    assert dict(kind.capacity) == {"memory": Fraction(80 << 30), "cores": Fraction(3, 2)}
    assert dict(kind.policies) == {
        "memory": CapacityPolicy(
            Fraction(1 << 30), least=Fraction(1 << 30), step=Fraction(512 << 20)
        ),
        "cores": CapacityPolicy(Fraction(1), valid_values=(Fraction(1), Fraction(2))),
    }
    assert kind.shared
    assert kind.taints == (
        DeviceTaint("a", DeviceEffect.NO_EXECUTE, "b"),
        DeviceTaint("new", DeviceEffect.NONE),
    )
    # The consumption of a device is rounded up, and the amount of a counter down.
    assert only.consumes == ((("c", "m"), 2),)
    assert found.counters == (((DRIVER, "n0", "c", "m"), 7),)


def taint_rule(selector: Body | None, version: str = "v1", **taint: Any) -> Body:
    taint = {"key": "xid", "value": "79", "effect": "NoExecute", **taint}
    spec = {"taint": taint} | ({} if selector is None else {"deviceSelector": selector})
    made = resource("DeviceTaintRule", {"name": "broken"}, spec)
    return made | {"apiVersion": f"resource.k8s.io/{version}"}


@pytest.mark.parametrize(
    ("rule", "devices"),
    [
        (taint_rule({"driver": DRIVER, "pool": "n0", "device": "gpu-1"}), ["gpu-1"]),
        (taint_rule({"device": "gpu-0"}, "v1beta2"), ["gpu-0"]),
        (taint_rule({"driver": "other.example"}), []),
        (taint_rule({}), ["gpu-0", "gpu-1"]),
        (taint_rule(None), []),
        (taint_rule(None, "v1beta2"), ["gpu-0", "gpu-1"]),
        (taint_rule({}, effect="Unknown"), []),
        (taint_rule({}, effect="None"), []),
    ],
    ids=["all criteria", "one", "another driver", "empty", "none", "none in 1.36", "unknown effect", "no effect"],
)  # fmt: skip
def test_a_device_has_the_taints_of_the_rules_that_select_it(rule, devices):
    """Without a selector, kube-scheduler 1.36 selects all devices, and 1.37 none."""
    found = snapshot(CLASS, slice_(), rule).devices
    taint = DeviceTaint("xid", DeviceEffect.NO_EXECUTE, "79", "broken")
    tainted = [d for d in found.nodes["n0"].devices if taint in d.kind.taints]
    assert [d.id.name for d in tainted] == devices


def test_an_allocation_has_the_tolerations_of_its_request():
    tolerations: list[Body] = [{"key": "xid", "operator": "Exists", "effect": "NoExecute"}]
    tolerations.append({**tolerations[0], "tolerationSeconds": 60})
    held = claim("c", owner="uid-x", devices=["gpu-0"])
    held["status"]["allocation"]["devices"]["results"][0]["tolerations"] = tolerations
    [found] = snapshot(CLASS, slice_(), held).other_devices["n0"]
    of_effect = DeviceToleration("xid", "Exists", effect=DeviceEffect.NO_EXECUTE)
    assert found.tolerations == (of_effect, replace(of_effect, seconds=60))


def test_a_device_class_has_its_selectors_and_its_extended_resource():
    found = snapshot(CLASS).devices.classes["gpu"]
    assert (found.name, found.selectors) == ("gpu", ("true",))
    assert (found.extended_resource, found.created_at) == ("example.com/gpu", 1767323045.0)


def test_a_claim_has_requests_options_and_constraints():
    spec = {
        "requests": [
            {"name": "all", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
            {
                "name": "either",
                "firstAvailable": [
                    {
                        "name": "big",
                        "deviceClassName": "gpu",
                        "count": 2,
                        "selectors": [{"cel": {"expression": "true"}}],
                        "capacity": {"requests": {"memory": "1Gi"}},
                    },
                    {
                        "name": "small",
                        "deviceClassName": "gpu",
                        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                    },
                ],
            },
            {"name": "look", "exactly": {"deviceClassName": "gpu", "adminAccess": True}},
        ],
        "constraints": [
            {"requests": ["all", "either/big"], "matchAttribute": f"{DRIVER}/root"},
            {"distinctAttribute": f"{DRIVER}/index"},
        ],
    }
    (pending,) = snapshot(CLASS, template(spec), job(ONE)).pending
    devices = pending.workload.podsets[0].shape.devices
    tolerates = DeviceToleration(operator="Exists", effect=DeviceEffect.NO_SCHEDULE)
    assert devices == PodDevices(
        (
            ClaimSpec(
                (
                    DeviceRequest("all", (DeviceOption("gpu", count=None),)),
                    DeviceRequest(
                        "either",
                        (
                            DeviceOption(
                                "gpu", ("true",), 2, capacity=(("memory", Fraction(1 << 30)),)
                            ),
                            DeviceOption("gpu", tolerations=(tolerates,)),
                        ),
                        ("big", "small"),
                    ),
                    DeviceRequest("look", (DeviceOption("gpu", admin=True),)),
                ),
                (
                    DeviceConstraint(("all", "either/big"), f"{DRIVER}/root"),
                    DeviceConstraint((), f"{DRIVER}/index", distinct=True),
                ),
            ),
        )
    )
    assert pending.blocked is None


def test_a_pod_can_have_its_own_claims_and_share_others():
    own = {"name": "own", "resourceClaimTemplateName": "one"}
    found = snapshot(CLASS, template(), claim("shared"), job(NAMED, own, uses=("gpu", "own")))
    (pending,) = found.pending
    devices = pending.workload.podsets[0].shape.devices
    assert devices is not None
    assert (len(devices.claims), devices.shared) == (1, ("shared",))
    assert set(found.claims) == {("default", "shared")}


# ---- requests that cannot be planned

SEVENTEEN: Body = {"name": "s", "exactly": {"deviceClassName": "gpu", "count": 17}}
COUNTLESS: Body = {
    "name": "r",
    "firstAvailable": [
        {"name": "few", "deviceClassName": "gpu", "count": 1},
        {"name": "many", "deviceClassName": "gpu", "count": 2**63 - 1},
    ],
}


@pytest.mark.parametrize(
    ("bodies", "code", "message"),
    [
        pytest.param(
            [CLASS, job(ONE)],
            Code.MISCONFIGURED,
            "ResourceClaimTemplate default/one does not exist",
            id="no template",
        ),
        pytest.param(
            [CLASS, job(NAMED)],
            Code.MISCONFIGURED,
            "ResourceClaim default/shared does not exist",
            id="no claim",
        ),
        pytest.param(
            [template(), job(ONE)],
            Code.MISCONFIGURED,
            "ResourceClaimTemplate default/one: DeviceClass gpu does not exist",
            id="no class",
        ),
        pytest.param(
            [CLASS, template(request(allocationMode="Some")), job(ONE)],
            Code.UNSUPPORTED,
            "ResourceClaimTemplate default/one: spec.spec.devices.requests[0].exactly.allocationMode:"
            " 'Some' is not supported",
            id="an unknown mode",
        ),
        pytest.param(
            [CLASS, template(request(count=33)), job(ONE)],
            Code.UNSUPPORTED,
            "ResourceClaimTemplate default/one: spec.spec.devices.requests[0].exactly.count: 33"
            " devices: a claim can have at most 32",
            id="too many devices",
        ),
        pytest.param(
            [CLASS, template({"requests": [*request(count=17)["requests"], SEVENTEEN]}), job(ONE)],
            Code.UNSUPPORTED,
            "ResourceClaimTemplate default/one: spec.spec.devices.requests: 34 devices: a claim can"
            " have at most 32",
            id="too many devices together",
        ),
        pytest.param(
            [CLASS, template({"requests": [COUNTLESS]}), job(ONE)],
            Code.UNSUPPORTED,
            "ResourceClaimTemplate default/one: spec.spec.devices.requests[0].firstAvailable[1]"
            ".count: 9223372036854775807 devices: a claim can have at most 32",
            id="too many devices in an option",
        ),
        pytest.param(
            [CLASS, claim("shared", owner="p"), job(NAMED)],
            Code.MISCONFIGURED,
            "ResourceClaim default/shared does not exist",
            id="a claim of another pod",
        ),
    ],
)
def test_a_gang_whose_claims_cannot_be_planned_is_blocked_with_the_reason(bodies, code, message):
    (pending,) = snapshot(*bodies).pending
    assert pending.blocked is not None
    assert (pending.blocked.code, pending.blocked.message) == (code, message)
    assert pending.blocked.details == {"namespace": "default", "podSet": "main"}


def test_a_question_about_a_job_finds_the_devices_of_its_claims():
    documents = read_documents(yaml.safe_dump_all([CLASS, template()]), "in.yaml")
    known = tuple(map(read_record, documents))
    labeled = {"name": "job", "labels": {"queuectl.dev/queue-name": "q"}}
    asked = WhatIf(submit=[{**job(ONE), "metadata": labeled}])
    (found,) = changed(snapshot(CLASS), (), asked, ReadingContext(known)).snapshot.pending
    devices = found.workload.podsets[0].shape.devices
    assert devices is not None
    assert len(devices.claims) == 1
    (blocked,) = changed(snapshot(CLASS), (), asked, ReadingContext()).snapshot.pending
    assert blocked.blocked is not None
    assert blocked.blocked.code is Code.MISCONFIGURED
    assert "does not exist" in blocked.blocked.message


# ---- devices that claims hold


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "uid": "uid-p",
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "job",
                "uid": "uid-job",
                "controller": True,
            }
        ],
    },
    "spec": {"nodeName": "n0", "containers": [{"name": "c"}]},
    "status": {"phase": "Running"},
}
RUNNING = {**job(ONE, suspend=False), "status": {"startTime": "2026-01-01T00:00:00Z"}}
QUEUED = {
    **RUNNING,
    "metadata": {**RUNNING["metadata"], "labels": {"queuectl.dev/queue-name": "q"}},
}
GPU_0 = AllocatedDevice(DeviceId(DRIVER, "n0", "gpu-0"), "r")


def test_devices_of_a_gang_count_with_the_gang():
    held = claim("c", owner="uid-p", devices=["gpu-0"])
    found = snapshot(CLASS, template(), slice_(), QUEUED, POD, held)
    assert [gang.workload.name for gang in found.admitted] == ["job"]
    assert found.other_devices == {}


@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param([POD, claim("c", owner="uid-p", devices=["gpu-0"])], id="of an unmanaged pod"),
        pytest.param(
            [claim("c", owner="uid-x", devices=["gpu-0"])], id="of a pod that is not given"
        ),
        pytest.param([claim("shared", devices=["gpu-0"])], id="of a claim that no gang names"),
        pytest.param(
            [QUEUED, POD, claim("c", owner="uid-p", devices=["gpu-0"])],
            id="of a gang whose template is missing",
        ),
    ],
)
def test_all_other_devices_of_claims_are_held(bodies):
    assert snapshot(CLASS, slice_(), *bodies).other_devices == {"n0": (GPU_0,)}


def test_an_allocated_device_that_no_node_has_gives_a_warning():
    found = read(NODE, slice_(), claim("c", owner="uid-p", devices=["gpu-7"]))
    assert found.warnings == (
        "ResourceClaim default/c: device gpu.example/n0/gpu-7 is on no node of the input",
    )


def test_devices_that_are_left_out_give_one_warning_for_all_nodes():
    two = {**NODE, "metadata": {"name": "n1"}}
    found = read(NODE, two, slice_(nodeName=None, allNodes=True))
    text = "pool gpu.example/n0: device gpu-0 and 1 other device left out: several nodes can use it"
    assert found.warnings == (f"Node n0 and 1 other Node: {text}",)


# ---- objects that the API server refuses

NEEDS_ACCESS = "spec: needs exactly one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection"
NEEDS_VALUE = "needs exactly one of int, bool, string, version, ints, bools, strings, versions"
ATTRIBUTE = "spec.devices[0].attributes.a"
OPTION = "spec.spec.devices.requests[0].exactly"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (slice_(driver=""), "spec.driver: is required"),
        (slice_(pool={"generation": 1, "resourceSliceCount": 1}), "spec.pool.name: is required"),
        (
            slice_(pool={"name": "n0"}),
            "spec.pool.resourceSliceCount: 0 is not a positive number",
        ),
        (slice_(nodeName=None), f"{NEEDS_ACCESS}: has none"),
        (slice_(allNodes=True), f"{NEEDS_ACCESS}: has nodeName and allNodes"),
        (
            slice_(nodeName=None, nodeSelector={"nodeSelectorTerms": []}),
            "spec.nodeSelector.nodeSelectorTerms: needs exactly one term: has 0",
        ),
        (
            slice_(
                nodeName=None,
                nodeSelector={
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]
                },
            ),
            (
                "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator: 'Is' is not one of"
                " DoesNotExist, Exists, Gt, In, Lt, NotIn"
            ),
        ),
        (slice_(devices=[{}]), "spec.devices[0].name: is required"),
        (slice_(devices=3), "spec.devices: expected `array | null`, got `int`"),
        (device(attributes={"a": {}}), f"{ATTRIBUTE}: {NEEDS_VALUE}: has none"),
        (
            device(attributes={"a": {"int": 1, "bool": True}}),
            f"{ATTRIBUTE}: {NEEDS_VALUE}: has int and bool",
        ),
        (
            device(attributes={"a": {"version": "1.2"}}),
            f"{ATTRIBUTE}: '1.2' is not a semantic version",
        ),
        (device(capacity={"m": {}}), "spec.devices[0].capacity.m.value: is required"),
        (
            device(capacity={"m": {"value": "80 GiB"}}),
            "spec.devices[0].capacity.m.value: '80 GiB' is not a quantity",
        ),
        (
            device(capacity={"m": {"value": "1", "requestPolicy": {"validValues": ["x"]}}}),
            "spec.devices[0].capacity.m.requestPolicy.validValues[0]: 'x' is not a quantity",
        ),
        (
            device(
                capacity={
                    "m": {
                        "value": "1",
                        "requestPolicy": {"validRange": {"min": "0", "step": "0"}},
                    }
                }
            ),
            "spec.devices[0].capacity.m.requestPolicy.validRange.step: '0' is not positive",
        ),
        (
            device(consumesCounters=[{"counterSet": "c", "counters": {"m": {"value": "x"}}}]),
            "spec.devices[0].consumesCounters[0].counters.m.value: 'x' is not a quantity",
        ),
        (
            slice_(devices=None, sharedCounters=[{"name": "c", "counters": {"m": {}}}]),
            "spec.sharedCounters[0].counters.m.value: is required",
        ),
        (
            resource("DeviceClass", {"name": "gpu"}, {"selectors": [{}]}),
            "spec.selectors[0].cel.expression: is required",
        ),
        (
            template({"requests": [{"name": "r"}]}),
            "spec.spec.devices.requests[0]: needs exactly one of exactly, firstAvailable",
        ),
        (
            template({"requests": [{"exactly": {"deviceClassName": "gpu"}}]}),
            "spec.spec.devices.requests[0].name: is required",
        ),
        (
            template({"requests": request()["requests"] * 2}),
            "spec.spec.devices.requests[1].name: 'r' occurs twice",
        ),
        (template(request(deviceClassName="")), f"{OPTION}.deviceClassName: is required"),
        (template(request(count=-1)), f"{OPTION}.count: -1 is not a positive number"),
        (
            template(request(allocationMode="All", count=2)),
            f"{OPTION}.count: is not allowed with allocationMode All",
        ),
        (
            template(request(selectors=[{"cel": {"expression": ""}}])),
            f"{OPTION}.selectors[0].cel.expression: is required",
        ),
        (
            template(request(tolerations=[{"operator": "Like"}])),
            f"{OPTION}.tolerations[0].operator: 'Like' is neither Equal nor Exists",
        ),
        (
            template(request(tolerations=[{"value": "x"}])),
            f"{OPTION}.tolerations[0].operator: must be Exists if no key is set",
        ),
        (
            template(request(tolerations=[{"operator": "Exists", "effect": "Never"}])),
            f"{OPTION}.tolerations[0].effect: 'Never' is not one of None, NoSchedule, NoExecute",
        ),
        (
            template(request(capacity={"requests": {"memory": "much"}})),
            f"{OPTION}.capacity.requests.memory: 'much' is not a quantity",
        ),
        (
            template({**request(), "constraints": [{"requests": ["r"]}]}),
            "spec.spec.devices.constraints[0]: needs exactly one of matchAttribute, distinctAttribute",
        ),
        (
            template({**request(), "constraints": [{"matchAttribute": "root"}]}),
            "spec.spec.devices.constraints[0].matchAttribute: 'root' has no domain",
        ),
        (
            template(
                {**request(), "constraints": [{"requests": ["x"], "distinctAttribute": "a/b"}]}
            ),
            "spec.spec.devices.constraints[0].requests[0]: 'x' is not a request of the claim",
        ),
        (job({"name": ""}), "spec.template.spec.resourceClaims[0].name: is required"),
        (job(ONE, ONE), "spec.template.spec.resourceClaims[1].name: 'gpu' occurs twice"),
        (
            job({"name": "gpu"}),
            (
                "spec.template.spec.resourceClaims[0]: needs exactly one of resourceClaimName,"
                " resourceClaimTemplateName"
            ),
        ),
        (
            taint_rule({}, key=""),
            "spec.taint.key: is required",
        ),
        (
            job({**ONE, **NAMED}),
            (
                "spec.template.spec.resourceClaims[0]: needs exactly one of resourceClaimName,"
                " resourceClaimTemplateName"
            ),
        ),
        (
            job(ONE, uses=("other",)),
            (
                "spec.template.spec.containers[0].resources.claims[0].name: 'other' is not in"
                " resourceClaims"
            ),
        ),
    ],
)
def test_an_object_that_the_api_server_refuses_is_an_error_with_object_and_field(body, message):
    with pytest.raises(DocumentError) as error:
        read(body)
    name = f"{body['kind']}/{body['metadata']['name']}"
    assert str(error.value) == f"in.yaml: document 1 ({name}): {message}"


def test_a_name_that_is_given_twice_is_refused():
    with pytest.raises(DocumentError, match="is given twice"):
        read(CLASS, CLASS)


def test_older_versions_of_the_api_are_listed_as_ignored():
    (ignored,) = read({**CLASS, "apiVersion": "resource.k8s.io/v1beta1"}).account.ignored
    assert ignored.object == "resource.k8s.io/v1beta1 in.yaml: document 1 (DeviceClass/gpu)"
    assert ignored.reason == (
        "apiVersion resource.k8s.io/v1beta1 of DeviceClass is not read; use resource.k8s.io/v1"
    )


def test_a_claim_is_read_in_a_time_that_is_linear_in_its_requests_and_constraints() -> None:
    def read(number: int) -> int:
        one = {"deviceClassName": "gpu"}
        spec = {
            "requests": [{"name": f"r{i}", "exactly": one} for i in range(number)],
            "constraints": [{"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/root"} for i in range(number)],
        }  # fmt: skip
        [document] = read_documents(yaml.safe_dump(template(spec)), "in.yaml")
        return lines_run(lambda: read_record(document))

    few, many = read(100), read(200)
    assert many < 2.4 * few


def test_names_are_compared_only_if_their_hashes_are_equal() -> None:
    class Name(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str(self) == other

        __hash__ = str.__hash__

    check_names([Name(f"claim-{i}") for i in range(2_000)], "resourceClaims")
    assert Name.compared < 2_000

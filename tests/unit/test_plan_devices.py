"""``queuectl plan -f`` with devices of dynamic resource allocation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from queuectl.cli.main import app

DRIVER = "gpu.example.com"
H100 = f'device.attributes["{DRIVER}"].model == "H100"'
MANY = f"[{', '.join('0' * 100)}]"
CLASS = "deviceclass.resource.kubernetes.io/gpu"
RESOURCE_API = "resource.k8s.io/v1"


def node(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name}
    ready = [{"type": "Ready", "status": "True"}]
    allocatable = {"cpu": "64", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": allocatable, "conditions": ready},
    }


def devices(name: str, *models: str, generation: int = 1, count: int = 1) -> dict[str, Any]:
    spec = {
        "driver": DRIVER,
        "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
        "nodeName": name,
        "devices": [
            {"name": f"gpu-{i}", "attributes": {"model": {"string": model}}}
            for i, model in enumerate(models)
        ],
    }
    meta = {"name": f"{name}-{generation}"}
    return {"apiVersion": RESOURCE_API, "kind": "ResourceSlice", "metadata": meta, "spec": spec}


def template(name: str, selector: str, **fields: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": selector}}]
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": selectors, **fields}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    meta = {"name": name}
    return {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": spec,
    }


def job(name: str, claim: dict[str, str], pods: int = 1) -> dict[str, Any]:
    pod = {
        "resourceClaims": [{"name": "gpu", **claim}],
        "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": pod},
        },
    }


def of(template: str) -> dict[str, str]:
    return {"resourceClaimTemplateName": template}


def held(device: str, pool: str = "n1") -> dict[str, Any]:
    result = {"request": "r", "driver": DRIVER, "pool": pool, "device": device}
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"held-{device}", "uid": f"uid-{device}"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


QUEUES = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: gpu}}
spec: {{selectors: [{{cel: {{expression: device.driver == "{DRIVER}"}}}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {{name: hosts}}
spec: {{levels: [{{nodeLabel: kubernetes.io/hostname}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: any}}
spec: {{topologyName: hosts}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: all}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu, {CLASS}]
    flavors:
    - name: any
      resources: [{{name: cpu, nominalQuota: 100}}, {{name: {CLASS}, nominalQuota: 8}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: main}}
spec: {{clusterQueue: all}}
"""


@pytest.fixture
def planned(tmp_path: Path):
    """The plan of these objects, as JSON. They replace those of QUEUES with their names."""

    def run(*bodies: dict[str, Any]) -> dict[str, Any]:
        file = tmp_path / "in.yaml"
        given = {(body["kind"], body.get("metadata", {}).get("name")) for body in bodies}
        defaults = yaml.safe_load_all(QUEUES)
        others = [one for one in defaults if (one["kind"], one["metadata"]["name"]) not in given]
        file.write_text(yaml.safe_dump_all([*others, *bodies]))
        result = CliRunner().invoke(app, ["plan", "-f", str(file), "-o", "json"])
        assert result.exit_code == 0, result.output
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    return run


def placements(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Job to node to pods."""
    return {g["workload"].split("/")[1]: g["podSets"][0]["nodes"] for g in plan["admitted"]}


def reasons(plan: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Job to the code and the sentence of its first reason."""
    firsts = {g["workload"].split("/")[1]: g["reasons"][0] for g in plan["pending"]}
    return {job: (first["code"], first["message"]) for job, first in firsts.items()}


def test_a_gang_starts_where_the_devices_of_all_its_claims_are(planned):
    plan = planned(
        *map(node, ("n1", "n2")),
        devices("n1", "A100", "A100", "H100"),
        devices("n2", "H100", "H100", "A100"),
        template("h100", H100),
        job("pair", of("h100"), 2),
        job("three", of("h100"), 3),
    )
    (pair,) = plan["admitted"]
    assert pair["podSets"][0]["flavors"] == {"cpu": "any", CLASS: "any"}
    assert sum(placements(plan)["pair"].values()) == 2
    assert placements(plan)["pair"].get("n1", 0) <= 1
    assert reasons(plan)["three"][0] == "TopologyPlacementFailed"


def test_a_claim_without_requests_needs_no_device(planned):
    """Of each pod, or shared by the pods of several jobs."""
    meta = {"name": "nothing"}
    of_each = {"apiVersion": RESOURCE_API, "kind": "ResourceClaimTemplate", "metadata": meta}
    shared = {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceClaim",
        "metadata": {"name": "shared", "uid": "uid-shared"},
        "spec": {"devices": {}},
    }
    plan = planned(
        *map(node, ("n1", "n2")),
        of_each,
        shared,
        job("alone", of("nothing"), 2),
        job("one", {"resourceClaimName": "shared"}, 2),
        job("other", {"resourceClaimName": "shared"}, 2),
    )
    assert placements(plan).keys() == {"alone", "one", "other"}


def test_devices_that_other_pods_hold_are_not_used(planned):
    given = [
        node("n1"),
        devices("n1", "H100", "H100"),
        template("h100", H100),
        job("a", of("h100"), 2),
    ]
    assert placements(planned(*given)) == {"a": {"n1": 2}}
    assert placements(planned(*given, held("gpu-0"))) == {}


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_devices_with_the_taint_of_a_rule_are_not_used(planned, version):
    given = [node("n1"), devices("n1", "H100", "H100"), template("h100", H100)]
    rule = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken"},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": "n1", "device": "gpu-0"},
            "taint": {"key": "xid", "value": "79", "effect": "NoSchedule"},
        },
    }
    assert placements(planned(*given, job("a", of("h100"), 2))) == {"a": {"n1": 2}}
    assert placements(planned(*given, rule, job("a", of("h100"), 2))) == {}
    assert placements(planned(*given, rule, job("a", of("h100"), 1))) == {"a": {"n1": 1}}


def test_only_the_newest_complete_generation_of_a_pool_counts(planned):
    given = [node("n1"), template("h100", H100), job("a", of("h100"))]
    old, new = devices("n1", "H100"), devices("n1", "H100", generation=2, count=2)
    assert placements(planned(*given, old)) == {"a": {"n1": 1}}
    plan = planned(*given, old, new)
    assert placements(plan) == {}
    text = "pool gpu.example.com/n1: 1 of 2 ResourceSlices of generation 2 exist"
    assert plan["warnings"] == [f"Node n1: {text}"]


@pytest.mark.parametrize(
    ("claim", "code", "message"),
    [
        pytest.param(
            of("missing"),
            "Misconfigured",
            "ResourceClaimTemplate default/missing does not exist",
            id="a missing template",
        ),
        pytest.param(
            {"resourceClaimName": "missing"},
            "Misconfigured",
            "ResourceClaim default/missing does not exist",
            id="a missing claim",
        ),
        pytest.param(
            of("sorted"),
            "UnsupportedConstraint",
            "CEL: undeclared reference to 'sort'",
            id="a function that is not supported",
        ),
        pytest.param(
            of("broken"),
            "UnsupportedConstraint",
            "request: selectors[0]: error for a device of driver gpu.example.com",
            id="a selector that fails on the devices",
        ),
        pytest.param(
            of("costly"),
            "UnsupportedConstraint",
            "request: selectors[0]: CEL: an evaluation can take 171564 operations, and at most 100000 are supported",
            id="a selector that takes too many operations",
        ),
        pytest.param(
            of("long"),
            "UnsupportedConstraint",
            "selectors of 10269 bytes in the claims of a pod, at most 10240 are possible",
            id="selectors of too many bytes",
        ),
    ],
)
def test_a_request_that_cannot_be_planned_has_its_reason(planned, claim, code, message):
    plan = planned(
        node("n1"),
        devices("n1", "H100"),
        template("sorted", "[2, 1].sort() == [1, 2]"),
        template("broken", f'device.attributes["{DRIVER}"].missing == 1'),
        template("costly", f"{MANY}.all(a, {MANY}.all(b, a <= b))"),
        template("long", f"device.driver != '{'x' * 10_250}'"),
        template("one", H100),
        job("a", claim),
        job("b", of("one")),
    )
    assert placements(plan) == {"b": {"n1": 1}}
    found = reasons(plan)["a"]
    assert found[0] == code
    assert message in found[1]


def reserved(resource: str) -> dict[str, Any]:
    """A Reservation of two of a resource."""
    times = {"from": "2027-03-01T08:00:00Z", "until": "2027-03-01T20:00:00Z"}
    capacity = {"pods": 1, "requests": {resource: 2}}
    meta = {"name": "talk"}
    spec = {"clusterQueue": "main", "capacity": capacity, **times}
    return {"apiVersion": "queuectl.dev/v1", "kind": "Reservation", "metadata": meta, "spec": spec}


def device_class(extended: str) -> dict[str, Any]:
    spec = {"extendedResourceName": extended}
    return {"apiVersion": RESOURCE_API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec}  # fmt: skip


def mapping(resource: str) -> dict[str, Any]:
    """A Configuration that charges this resource for the devices."""
    mappings = [{"name": resource, "deviceClassNames": ["gpu"]}]
    return {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "resources": {"deviceClassMappings": mappings}}  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "others", "refused"),
    [
        pytest.param(CLASS, [], True, id="the resource of a DeviceClass"),
        pytest.param("example.com/gpu", [device_class("example.com/gpu")], True, id="an extended resource of a DeviceClass"),
        pytest.param("example.com/gpu", [mapping("example.com/gpu")], True, id="a resource that is charged for devices"),
        pytest.param("cpu", [device_class("cpu")], False, id="nodes have it as well"),
        pytest.param("example.com/gpu", [], False, id="no DeviceClass has it"),
    ],
)  # fmt: skip
def test_a_reservation_of_an_amount_of_devices_is_refused_by_file_object_and_field(
    resource: str, others: list[dict[str, Any]], refused: bool, tmp_path: Path
) -> None:
    file = tmp_path / "reserved.yaml"
    file.write_text(yaml.safe_dump_all([node("n0"), *others, reserved(resource)]))
    result = CliRunner().invoke(app, ["plan", "-f", str(file)])
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert bool(errors) is refused
    if refused:
        head = f"error: {file}: document {len(others) + 2} (Reservation/talk): spec.capacity.requests: "
        assert errors[0].startswith(f"{head}no node has {resource};")


GPUS_OF_QUOTA = "gpu.deviceclass.resource.k8s.io/devices"
CLAIMS_OF_QUOTA = "count/resourceclaims.resource.k8s.io"


@pytest.mark.parametrize(
    ("request_", "hard", "starts"),
    [
        ({"count": 2}, {GPUS_OF_QUOTA: "5"}, True),
        ({"count": 2}, {GPUS_OF_QUOTA: "4"}, False),
        ({"count": 2, "adminAccess": True}, {GPUS_OF_QUOTA: "4"}, False),
        ({"allocationMode": "All"}, {GPUS_OF_QUOTA: "65"}, True),
        ({"allocationMode": "All"}, {GPUS_OF_QUOTA: "64"}, False),
        ({"count": 2}, {f"other{GPUS_OF_QUOTA}": "1"}, True),
        ({"count": 2}, {CLAIMS_OF_QUOTA: "3"}, True),
        ({"count": 2}, {CLAIMS_OF_QUOTA: "2"}, False),
    ],
)
def test_a_resource_quota_counts_claims_and_their_devices_as_kubernetes_does(
    planned: Any, request_: dict[str, Any], hard: dict[str, str], starts: bool
) -> None:
    """Two pods, and one device and one claim are in use."""
    asked = template("own", "true", **request_)
    assert starts is _starts(planned(*TWO_NODES, asked, job("train", of("own"), 2), quota(hard)))


TWO_NODES = [each for n in ("n1", "n2") for each in (node(n), devices(n, "H100", "H100"))]


def quota(hard: dict[str, str], **spec: Any) -> dict[str, Any]:
    """One of each resource is in use."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "claims", "namespace": "default"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": dict.fromkeys(hard, "1")},
    }


def _starts(plan: dict[str, Any]) -> bool:
    """Whether the only gang starts, or only a ResourceQuota holds it back."""
    codes = [one["reasons"][0]["code"] for one in plan["pending"]]
    assert codes == ([] if plan["admitted"] else ["ResourceQuotaExceeded"])
    return bool(plan["admitted"])


OF_GPU = "requests.example.com/gpu"
IMPLICIT = "requests.deviceclass.resource.kubernetes.io/gpu"
EXTENDED = device_class("example.com/gpu")


@pytest.mark.parametrize(
    ("others", "request_", "hard", "starts"),
    [
        pytest.param([mapping("example.com/gpu")], {"count": 2}, {OF_GPU: "1"}, True, id="a charge does not count"),
        pytest.param([EXTENDED], {"count": 2}, {OF_GPU: "5"}, True, id="the extended resource of the class fits"),
        pytest.param([EXTENDED], {"count": 2}, {OF_GPU: "4"}, False, id="the extended resource of the class"),
        pytest.param([EXTENDED, mapping("cpu-less")], {"count": 2}, {OF_GPU: "4"}, False, id="another resource is charged"),
        pytest.param([EXTENDED, mapping("cpu-less")], {"count": 2}, {"requests.cpu-less": "1"}, True, id="the charged resource"),
        pytest.param([EXTENDED], {"allocationMode": "All"}, {OF_GPU: "65"}, True, id="all devices count 32"),
        pytest.param([EXTENDED], {"allocationMode": "All"}, {OF_GPU: "64"}, False, id="all devices count no less than 32"),
        pytest.param([EXTENDED], {"count": 2, "adminAccess": True}, {OF_GPU: "4"}, False, id="devices for administration count"),
        pytest.param([], {"count": 2}, {IMPLICIT: "5"}, True, id="the implicit resource fits"),
        pytest.param([], {"count": 2}, {IMPLICIT: "4"}, False, id="the implicit resource"),
        pytest.param([EXTENDED], {"count": 2}, {IMPLICIT: "4"}, False, id="both resources of a class"),
    ],
)  # fmt: skip
def test_a_resource_quota_of_a_resource_counts_the_devices_of_its_classes_and_no_charges(
    planned: Any,
    others: list[dict[str, Any]],
    request_: dict[str, Any],
    hard: dict[str, str],
    starts: bool,
) -> None:
    asked = template("own", "true", **request_)
    queue = [covering("example.com/gpu", "cpu-less")]
    job_ = job("train", of("own"), 2)
    assert starts is _starts(planned(*TWO_NODES, *queue, *others, asked, job_, quota(hard)))


def covering(*resources: str) -> dict[str, Any]:
    """The ClusterQueue with quota of more resources."""
    names = ["cpu", CLASS, *resources]
    own = [{"name": name, "nominalQuota": 100} for name in names]
    group = {"coveredResources": names, "flavors": [{"name": "any", "resources": own}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    meta = {"name": "all"}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": meta, "spec": spec}  # fmt: skip


def test_a_resource_quota_with_scopes_counts_no_claims(planned: Any) -> None:
    scoped = quota(
        {CLAIMS_OF_QUOTA: "1", OF_GPU: "1", GPUS_OF_QUOTA: "1"}, scopes=["NotTerminating"]
    )
    asked = template("own", "true", count=2)
    assert _starts(
        planned(
            *TWO_NODES,
            covering("example.com/gpu"),
            EXTENDED,
            asked,
            job("train", of("own"), 2),
            scoped,
        )
    )

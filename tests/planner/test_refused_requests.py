"""Pods that the API server refuses are refused when their job is planned, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuectl.objects.documents import as_document
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import read_snapshot
from tests.planner.documents import Doc, workload
from tests.support.jobs import batch_job, pytorch_job

GPU = "nvidia.com/gpu"


def both(**amounts: str) -> Doc:
    found = {name.replace("gpu", GPU): amount for name, amount in amounts.items()}
    return {"requests": found, "limits": found}


def pods(container: Doc, **spec: Any) -> Doc:
    """A pod spec of one container with these resources."""
    return {"containers": [{"name": "main", "resources": container}], **spec}


WRONG = [
    pytest.param(pods(both(gpu="0.5")), f"containers[0].resources.requests.{GPU}: must be a whole number", id="half a GPU"),
    pytest.param(pods({"limits": {GPU: "1500m"}}), f"containers[0].resources.requests.{GPU}: must be a whole number", id="a limit of one and a half"),
    pytest.param(
        pods({"requests": {GPU: "1"}}), f"containers[0].resources.limits.{GPU}: is required, and must be equal to the request 1", id="no limit",
    ),
    pytest.param(
        pods({"requests": {GPU: "1"}, "limits": {GPU: "2"}}),
        f"containers[0].resources.requests.{GPU}: 1 must be equal to its limit 2", id="a larger limit",
    ),
    pytest.param(
        pods({"requests": {"hugepages-2Mi": "2Mi", "cpu": "1"}}), "containers[0].resources.limits.hugepages-2Mi: is required", id="hugepages",
    ),
    pytest.param(
        pods({}, initContainers=[{"name": "i", "resources": {"requests": {"example.com/nic": "1"}}}]),
        "initContainers[0].resources.limits.example.com/nic: is required", id="an init container",
    ),
    pytest.param(
        pods({}, resources={"limits": {GPU: "8"}}), f"resources.limits.{GPU}: a pod as a whole can request cpu, memory and hugepages only", id="GPUs of a pod",
    ),
    pytest.param(
        pods({}, resources={"requests": {"ephemeral-storage": "1Gi"}}), "resources.requests.ephemeral-storage: a pod as a whole", id="storage of a pod",
    ),
    pytest.param(
        pods({"limits": {"gpu": "8"}}), "containers[0].resources.limits.gpu: is not a container resource; use cpu, ", id="a name without a domain",
    ),
    pytest.param(
        pods({"requests": {"pods": "1"}}), "containers[0].resources.requests.pods: is not a container resource", id="pods",
    ),
    pytest.param(
        pods({"limits": {"nvidia.com/gpu/0": "1"}}), "containers[0].resources.limits.nvidia.com/gpu/0: is not a resource name of the form DOMAIN/NAME", id="two slashes",
    ),
    pytest.param(
        pods({"limits": {"requests.nvidia.com/gpu": "1"}}), "containers[0].resources.limits.requests.nvidia.com/gpu: is not a resource name", id="a name of quotas",
    ),
    pytest.param(
        pods({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), "containers[0].resources.requests.cpu: 2 is above its limit 1", id="CPUs above their limit",
    ),
    pytest.param(
        pods({"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}}),
        "containers[0].resources.requests.ephemeral-storage: 2Gi is above its limit 1Gi", id="storage above its limit",
    ),
    pytest.param(
        pods({"limits": {"hugepages-2Mi": "4Mi"}}), "containers[0].resources.requests.hugepages-2Mi: hugepages require a request of cpu or memory", id="hugepages alone",
    ),
    pytest.param(
        pods({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}),
        "containers[0].resources.requests.hugepages-2Mi: 3Mi is not a multiple of the page size", id="half a page",
    ),
    pytest.param(
        pods({"requests": {"cpu": "2"}}, resources={"requests": {"cpu": "1"}}),
        "resources.requests.cpu: 1 is less than its containers request together, 2", id="a pod below its containers",
    ),
    pytest.param(
        pods({}, resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), "resources.requests.cpu: 2 is above its limit 1", id="a pod above its limit",
    ),
    pytest.param(
        pods({"limits": {"cpu": "4"}}, resources={"requests": {"cpu": "4"}, "limits": {"cpu": "3"}}), "resources.requests.cpu: 4 is above", id="a container above its pod",
    ),
]  # fmt: skip


def node_affinity(**term: Doc) -> Doc:
    terms = [{field: [one] for field, one in term.items()}]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pods({}, affinity={"nodeAffinity": rule})


NO_TERMS: Doc = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
FIELD = "matchFields[0]"
WRONG_PODS = [
    pytest.param({"containers": [{"name": "a"}, {"name": "a"}]}, "containers[1].name: 'a' is also the name of containers[0]", id="containers of one name"),
    pytest.param(
        pods({}, initContainers=[{"name": "main"}]), "initContainers[0].name: 'main' is also the name of containers[0]", id="an init container with the name of another",
    ),
    pytest.param({"containers": [{"name": "My_Trainer"}]}, "containers[0].name: 'My_Trainer' is not a name", id="name of a container"),
    pytest.param(pods({}, initContainers=[{"name": "i", "restartPolicy": "always"}]), "initContainers[0].restartPolicy: 'always' is not one of Always,", id="restart policy of a container"),
    pytest.param(pods({}, restartPolicy="never"), "restartPolicy: 'never' is not one of Always, OnFailure, Never", id="restart policy"),
    pytest.param(pods({}, nodeSelector={"a zone": "x"}), "nodeSelector.a zone: is not the key of a label", id="key of a node selector"),
    pytest.param(pods({}, nodeSelector={"zone": "eu west"}), "nodeSelector.zone: 'eu west' is not the value of a label", id="value of a node selector"),
    pytest.param(pods({}, tolerations=[{"key": "a", "operator": "Exist"}]), "tolerations[0].operator: 'Exist' is not one of Equal, Exists, Lt, Gt", id="operator"),
    pytest.param(pods({}, tolerations=[{"key": "a", "effect": "NoRun"}]), "tolerations[0].effect: 'NoRun' is not one of NoSchedule, PreferNoSchedule, NoExecute", id="effect"),
    pytest.param(pods({}, tolerations=[{"key": "a b"}]), "tolerations[0].key: 'a b' is not the key of a taint", id="key of a toleration"),
    pytest.param(pods({}, tolerations=[{"key": "a", "value": "b c"}]), "tolerations[0].value: 'b c' is not the value of a taint", id="value of a toleration"),
    pytest.param(pods({}, tolerations=[{"value": "b"}]), "tolerations[0].operator: must be Exists without a key", id="toleration without a key"),
    pytest.param(pods({}, tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), "tolerations[0].value: 'b': Exists takes none", id="Exists with a value"),
    pytest.param(pods({}, tolerations=[{"key": "a", "operator": "Gt", "value": "b"}]), "tolerations[0].value: Gt needs a whole number", id="Gt without a number"),
    pytest.param(
        pods({}, tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}]), "tolerations[0].effect: must be NoExecute with tolerationSeconds", id="seconds of another effect",
    ),
    pytest.param(
        pods({}, topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "Schedule"}]),
        "topologySpreadConstraints[0].whenUnsatisfiable: 'Schedule' is not one of DoNotSchedule, ScheduleAnyway", id="spread",
    ),
    pytest.param(pods({}, affinity=NO_TERMS), "nodeSelectorTerms: needs at least one", id="affinity without terms"),
    pytest.param(node_affinity(matchExpressions={"key": "", "operator": "Exists"}), "matchExpressions[0].key: '' is not the key of a label", id="key of an affinity"),
    *(
        pytest.param(
            node_affinity(matchExpressions={"key": "gpu", "operator": operator, "values": values}), f"matchExpressions[0].values[{len(values) - 1}]: {values[-1]!r} is not the value of a label", id=f"{operator} a value that no label can have",
        )
        for operator, values in {"In": ["a", "NVIDIA A100"], "NotIn": ["x" * 64], "Gt": ["-1"], "Lt": ["+9"]}.items()
    ),
    pytest.param(node_affinity(matchFields={"key": "spec.a", "operator": "In", "values": ["b"]}), f"{FIELD}.key: 'spec.a' is not metadata.name", id="unknown field"),
    pytest.param(node_affinity(matchFields={"key": "metadata.name", "operator": "Exists"}), f"{FIELD}: a field needs the operator In or NotIn, and one value", id="operator of a field"),
    pytest.param(node_affinity(matchFields={"key": "metadata.name", "operator": "In", "values": ["a", "b"]}), f"{FIELD}: a field needs", id="two values of a field"),
]  # fmt: skip


def job_of(kind: str, spec: Doc) -> Doc:
    if kind in PODS_OF:
        return {**PODS_OF[kind](spec), "metadata": batch_job("train")["metadata"]}
    if kind == "Job":
        job = batch_job("train")
        job["spec"]["template"]["spec"] |= spec
        return job
    job = pytorch_job("train")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] |= spec
    return job


PODS_OF: dict[str, Callable[[Doc], Doc]] = {
    "Pod": lambda spec: {"apiVersion": "v1", "kind": "Pod", "spec": spec},
    "Deployment": lambda spec: {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {"spec": spec}},
    },
    "StatefulSet": lambda spec: {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "spec": {"template": {"spec": spec}},
    },
    "LeaderWorkerSet": lambda spec: {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": spec}}},
    },
}
PATHS = {
    "Pod": ": spec.",
    "Deployment": ": spec.template.spec.",
    "StatefulSet": ": spec.template.spec.",
    "LeaderWorkerSet": ": spec.leaderWorkerTemplate.",
    "Job": ": spec.template.spec.",
    "PyTorchJob": ": spec.pytorchReplicaSpecs.Master.template.spec.",
}


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(("spec", "said"), [*WRONG, *WRONG_PODS])
def test_a_new_job_is_an_error_that_names_file_object_and_field(
    kind: str, spec: Doc, said: str
) -> None:
    with pytest.raises(DocumentError) as refused:
        read_snapshot([as_document(job_of(kind, spec))])
    assert f"{kind}/train" in str(refused.value)
    assert said in str(refused.value)
    assert PATHS[kind] in str(refused.value)


@pytest.mark.parametrize(("spec", "said"), [*WRONG, *WRONG_PODS])
def test_a_job_whose_kind_has_no_such_check_stays_pending_with_the_reason(
    spec: Doc, said: str
) -> None:
    job = job_of("PyTorchJob", spec)
    job["metadata"] |= {"uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job["spec"]["runPolicy"] = {"suspend": True}
    (pending,) = read_snapshot([as_document(job)]).snapshot.pending
    assert pending.blocked is not None
    assert pending.blocked.code == "Misconfigured"
    assert said in pending.blocked.message


@pytest.mark.parametrize(
    "spec",
    [
        pods(both(gpu="1")),
        pods({"limits": {GPU: "1k"}}),
        pods({"requests": {"cpu": "500m", "memory": "1.5Gi"}}),
        pods({"requests": {"cpu": "2"}}, resources={"limits": {"cpu": "2"}}),
        pods({}, resources=both(cpu="2", memory="1Gi")),
        {"containers": [{}, {}]},
        pods(
            {}, tolerations=[{"operator": "Exists"}, {"key": "a", "operator": "Lt", "value": "5"}]
        ),
        pods({}, tolerations=[{"key": "a", "effect": "NoExecute", "tolerationSeconds": 0}]),
        pods({}, nodeSelector={"example.com/pool": ""}),
        node_affinity(matchFields={"key": "metadata.name", "operator": "NotIn", "values": ["n"]}),
    ],
)
def test_requests_that_the_api_server_takes_are_planned(spec: Doc) -> None:
    (pending,) = read_snapshot([as_document(job_of("Job", spec))]).snapshot.pending
    assert "LocalQueue main does not exist" in str(pending.blocked)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"team": "a b"}, "labels.team: 'a b' is not the value of a label"),
        ({"team": "x" * 64}, "is not the value of a label"),
        ({"a/b/c": "x"}, "labels.a/b/c: is not the key of a label"),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_labels_of_a_template_that_the_api_server_refuses_are_an_error(
    kind: str, labels: Doc, said: str
) -> None:
    job = job_of(kind, {})
    template = job["spec"]
    for part in ("template",) if kind == "Job" else ("pytorchReplicaSpecs", "Worker", "template"):
        template = template[part]
    template.setdefault("metadata", {})["labels"] = labels
    with pytest.raises(DocumentError) as refused:
        read_snapshot([as_document(job)])
    assert said in str(refused.value)


def test_pods_of_a_job_do_not_restart_always() -> None:
    with pytest.raises(DocumentError, match="restartPolicy: must be OnFailure or Never in a Job"):
        read_snapshot([as_document(job_of("Job", {"restartPolicy": "Always"}))])


def test_a_limit_range_can_supply_the_limit() -> None:
    item = {"type": "Container", "default": {GPU: "1"}}
    ranges: Doc = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "usual", "namespace": "default"},
        "spec": {"limits": [item]},
    }
    job = job_of("Job", pods({"requests": {GPU: "1"}}))
    (pending,) = read_snapshot([as_document(ranges), as_document(job)]).snapshot.pending
    assert "LocalQueue main does not exist" in str(pending.blocked)


def test_a_workload_states_requests_alone() -> None:
    (pending,) = read_snapshot([as_document(workload("train", "main"))]).snapshot.pending
    assert "LocalQueue main does not exist" in str(pending.blocked)

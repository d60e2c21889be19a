"""The reader of each job kind, with realistic manifests, and the patches that it writes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from queuectl.domain.gates import INVALID
from queuectl.domain.jobs import JobRecord
from queuectl.objects.documents import Document, read_documents
from queuectl.objects.errors import Address
from queuectl.objects.kinds import KINDS, path
from queuectl.objects.kinds.described import JSON_PATCH, encoded
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod
from tests.doubles.apiserver import merge as merged_documents
from tests.doubles.apiserver import operated

FIXTURES = Path(__file__).parent.parent / "fixtures" / "kinds"
CASES = sorted(FIXTURES.glob("*/*.yaml"))


def load(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    manifest, expect = file.read_text().split("\n---\n")
    (document,) = read_documents(manifest)
    described = json.loads(json.dumps(read_yaml(expect)))
    return document.body, described["expect"]


def read_yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def read(body: dict[str, Any], **options: bool) -> JobRecord:
    kind = KINDS[body["kind"]]
    return kind.read(Document(Address(), body).convert(kind.wire), **options)


def described(record: JobRecord, expect: dict[str, Any]) -> dict[str, Any]:
    """The record in the words of a fixture, as far as the fixture speaks."""
    words: dict[str, Any] = {
        field: getattr(record, field) for field in expect if field not in ("podsets", "expected")
    }
    if "expected" in expect:
        words["expected"] = dict(record.expected)
    for field in (
        "late",
        "unborn",
        "list_indexes",
        "ranks",
        "first_ranks",
        "kept_podsets",
        "missing",
    ):
        if field in expect:
            words[field] = json.loads(json.dumps(getattr(record, field)))
    words["podsets"] = [
        {
            "name": p.name,
            "count": p.count,
            "requests": dict(p.shape.requests),
            "topology": [str(p.topology.mode), p.topology.level] if p.topology else None,
            "selector": dict(p.shape.rules.selector),
            **({"group": p.group} if p.group else {}),
        }
        for p in record.podsets
    ]
    return words


def test_every_kind_has_fixtures() -> None:
    assert {kind.lower() for kind in KINDS} == {case.parent.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_a_manifest_is_read_as_its_fixture_states(case: Path) -> None:
    body, expect = load(case)
    record = read(body)
    assert described(record, expect) == expect
    assert record.error is None


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_bytes_of_the_watch_and_a_dict_of_a_file_give_the_same_record(case: Path) -> None:
    body, _ = load(case)
    kind = KINDS[body["kind"]]
    decoded = msgspec.json.decode(as_served(body), type=kind.wire)
    assert kind.read(decoded) == read(body)


def as_served(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


# ---- mistakes


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "a"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "n", "uid": "u", "labels": {"queuectl.dev/queue-name": "q"}},
        "spec": {"suspend": True, "template": template, **spec},
    }  # fmt: skip


def job_with(pod: dict[str, Any] | None = None, **suffixes: str) -> dict[str, Any]:
    """``podset_required_topology=...`` stands for the annotation queuectl.dev/podset-required-topology."""
    spec = {"containers": [{"name": "a"}], **(pod or {})}
    marked = {f"queuectl.dev/{key.replace('_', '-')}": value for key, value in suffixes.items()}
    return job(template={"metadata": {"annotations": marked}, "spec": spec})


def pytorch(replicas: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p", "labels": {"queuectl.dev/queue-name": "q"}},
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": replicas, **spec},
    }


def replicated(kind: str, field: str, types: dict[str, Any], **spec: Any) -> dict[str, Any]:
    body = pytorch({})
    return body | {"kind": kind, "spec": {"runPolicy": {"suspend": True}, field: types, **spec}}


def topology(level: str, mode: str = "required", group: str | None = None) -> dict[str, Any]:
    annotations = {f"queuectl.dev/podset-{mode}-topology": level}
    if group:
        annotations["queuectl.dev/podset-group-name"] = group
    return {"template": {"metadata": {"annotations": annotations}}}


AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


def ray(*groups: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A RayCluster with these groups of workers."""
    container = {"spec": {"containers": [{"name": "a"}]}}
    body = pytorch({})
    spec = {"suspend": True, "headGroupSpec": {"template": container}, **spec}
    workers = [{"groupName": "w", "replicas": 1, "template": container, **one} for one in groups]
    return body | {"kind": "RayCluster", "spec": spec | {"workerGroupSpecs": workers}}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "two modes": (
        job_with(podset_required_topology="rack", podset_preferred_topology="block"),
        "spec.template.metadata.annotations: podset-required-topology='rack' and podset-preferred-topology='block' contradict each other: keep one of them",
    ),
    "level is not a label key": (
        job_with(podset_required_topology="no label!"),
        "spec.template.metadata.annotations: podset-required-topology: 'no label!' is not a node label key",
    ),
    "unconstrained is not a boolean": (
        job_with(podset_unconstrained_topology="maybe"),
        "spec.template.metadata.annotations: podset-unconstrained-topology: 'maybe' is not \"true\"",
    ),
    "group without a level": (
        job_with(podset_group_name="g"),
        "spec.template.metadata.annotations: podset-group-name='g' also needs podset-required-topology or podset-preferred-topology",
    ),
    "no pods": (job(parallelism=0), "spec.parallelism: 0 is not a positive number of pods"),
    "negative completions": (job(completions=-1), "spec.completions: -1 is not a positive number of pods"),
    "indexed without completions": (
        job(completionMode="Indexed", parallelism=2),
        "spec.completions: is required when completionMode is Indexed",
    ),
    "unknown completion mode": (
        job(completionMode="Ordered"),
        "spec.completionMode: 'Ordered' is neither NonIndexed nor Indexed",
    ),
    "more than can be counted": (
        job(parallelism=2**31 - 1, template={"spec": {"containers": [{"resources": {"requests": {"memory": "512Ti"}}}]}}),
        f"all pods together ask for {(2**31 - 1) * 2**9}Ti memory; the largest amount is 1048576Ti",
    ),
    "more podsets than a gang can have": (
        ray(*[{"groupName": f"group-{number}", "replicas": 1} for number in range(128)]),
        "podsets: 129 have pods; at most 128 are allowed",
    ),
    "bad quantity": (
        job_with({"containers": [{"resources": {"requests": {"cpu": "12 cores"}}}]}),
        "spec.template.spec.containers[0].resources.requests: cpu: '12 cores' is not a quantity",
    ),
    "negative quantity": (
        job_with({"containers": [{"resources": {"requests": {"memory": "-1Gi"}}}]}),
        "spec.template.spec.containers[0].resources.requests: memory: '-1Gi' is negative",
    ),
    "bad quantity of an init container": (
        job_with({"initContainers": [{"resources": {"limits": {"cpu": "1e999"}}}]}),
        "spec.template.spec.initContainers[0].resources.limits: cpu: '1e999' is not a quantity",
    ),
    "unknown operator": (
        job_with({"affinity": {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Like"}]}]}}}}),
        "operator: 'Like' is not one of DoesNotExist, Exists, Gt, In, Lt, NotIn",
    ),
    "TFJob with another type": (
        replicated("TFJob", "tfReplicaSpecs", {"Ps": {}}),
        "spec.tfReplicaSpecs: 'Ps' is neither Chief, Master, PS, Worker nor Evaluator",
    ),
    "JAXJob with a master": (
        replicated("JAXJob", "jaxReplicaSpecs", {"Master": {}}),
        "spec.jaxReplicaSpecs: 'Master' is not Worker",
    ),
    "MPIJob without a launcher": (
        replicated("MPIJob", "mpiReplicaSpecs", {"Worker": {"replicas": 2}}),
        "spec.mpiReplicaSpecs: has no Launcher",
    ),
    "MPIJob with two launchers": (
        replicated("MPIJob", "mpiReplicaSpecs", {"Launcher": {"replicas": 2}}),
        "spec.mpiReplicaSpecs.Launcher.replicas: 2 is not 1",
    ),
    "MPIJob without a number of workers": (
        replicated("MPIJob", "mpiReplicaSpecs", {"Launcher": {}, "Worker": {}}),
        "spec.mpiReplicaSpecs.Worker.replicas: is missing: a number of workers from 1",
    ),
    "PyTorchJob without replicas": (pytorch({}), "spec.pytorchReplicaSpecs: has neither Master nor Worker"),
    "unknown replica type": (
        pytorch({"master": {}}),
        "spec.pytorchReplicaSpecs: 'master' is neither Master nor Worker",
    ),
    "no workers": (
        pytorch({"Master": {}, "Worker": {"replicas": 0}}),
        "spec.pytorchReplicaSpecs.Worker.replicas: 0 is not a positive number of pods",
    ),
    "RayCluster without a head": (
        ray() | {"spec": {"suspend": True}},
        "spec.headGroupSpec: is empty",
    ),
    "group of workers without its own name": (
        ray({"groupName": "Head"}),
        "spec.workerGroupSpecs[0]: 'head' is not unique",
    ),
    "group of workers with a name that no label can have": (
        ray({"groupName": "My Group"}),
        "spec.workerGroupSpecs[0]: 'my group' is not the value of a label",
    ),
    "one group, two levels": (
        pytorch({"Master": topology("rack", group="g"), "Worker": topology("block", group="g")}),
        "podset-group-name='g': podset master asks for required rack but podset worker for required block",
    ),
    "one group, two modes": (
        pytorch({"Master": topology("rack", group="g"), "Worker": topology("rack", "preferred", "g")}),
        "podset-group-name='g': podset master asks for required rack but podset worker for preferred rack",
    ),
}  # fmt: skip

UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "required pod affinity": (
        job_with({"affinity": {"podAffinity": {AFFINITY: [{"topologyKey": "rack"}]}}}),
        "required pod affinity is not supported",
    ),
    "required pod anti-affinity": (
        job_with({"affinity": {"podAntiAffinity": {AFFINITY: [{"topologyKey": "rack"}]}}}),
        "required pod anti-affinity is not supported",
    ),
    "hard spread": (
        job_with({"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}),
        "topologySpreadConstraints[0]: DoNotSchedule over 'zone' is not supported",
    ),
    "host port": (
        job_with({"containers": [{"ports": [{"containerPort": 80, "hostPort": 8080}]}]}),
        "containers[0].ports: host port 8080 is not supported",
    ),
    "port on the host network": (
        job_with({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]}),
        "containers[0].ports: host port 80 is not supported",
    ),
    "preset node": (job_with({"nodeName": "n1"}), "nodeName: 'n1' bypasses placement"),
    "PodGroup of the user": (
        job_with({"schedulingGroup": {"podGroupName": "mine"}}),
        "schedulingGroup: a PodGroup of Kubernetes for pods in a queue is not supported",
    ),
    "another controller": (
        job(managedBy="example.com/other"),
        "spec.managedBy: 'example.com/other' runs this job elsewhere",
    ),
    "workers of a TFJob that can fail": (
        replicated("TFJob", "tfReplicaSpecs", {"Worker": {}}, enableDynamicWorker=True),
        "spec.enableDynamicWorker: a number of workers that changes while the job runs is not supported",
    ),
    "autoscaled workers of a PaddleJob": (
        replicated("PaddleJob", "paddleReplicaSpecs", {"Worker": {}}, elasticPolicy={"metrics": [{}]}),
        "spec.elasticPolicy.metrics: a number of workers that changes while the job runs is not supported",
    ),
    "RayCluster with the autoscaler": (
        ray({}, enableInTreeAutoscaling=True),
        "spec.enableInTreeAutoscaling: a number of workers that changes while the cluster runs is not supported",
    ),
    "RayCluster with fault tolerance": (
        ray({}, gcsFaultToleranceOptions={"redisAddress": "redis:6379"}),
        "spec.gcsFaultToleranceOptions: fault tolerance of the GCS is not supported: the pod that clears its storage is created after the end of the cluster",
    ),
    "RayCluster of a RayService with a time limit": (
        ray({}) | {"metadata": {"name": "n", "annotations": {"ray.io/initializing-timeout": "5m"}}},
        "metadata.annotations: ray.io/initializing-timeout: KubeRay counts the time in the queue, and a RayService that waits longer fails for good: remove it",
    ),
    "suspended group of workers": (
        ray({"suspend": True}),
        "spec.workerGroupSpecs[0].suspend: a group of workers is not suspended alone: set its replicas and minReplicas to 0",
    ),
    "RayCluster of another controller": (
        ray({}, managedBy="kueue.x-k8s.io/multikueue"),
        "spec.managedBy: 'kueue.x-k8s.io/multikueue' runs this job elsewhere",
    ),
    "autoscaled workers": (
        pytorch({"Worker": {}}, elasticPolicy={"metrics": [{"type": "Resource"}]}),
        "a number of workers that changes while the job runs is not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_becomes_a_sentence_that_names_field_and_value(name: str) -> None:
    body, sentence = MISTAKES[name]
    record = read(body)
    assert record.error is not None
    assert record.error.endswith(sentence)
    assert not record.unsupported
    assert record.queue == "q"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_pin_cannot_honor_is_refused_as_unsupported(name: str) -> None:
    body, sentence = UNSUPPORTED[name]
    record = read(body)
    assert record.error is not None
    assert record.error.endswith(sentence)
    assert record.unsupported


@pytest.mark.parametrize(
    "pod",
    [
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"containers": [{"ports": [{"containerPort": 80}]}]},
    ],
)  # fmt: skip
def test_wishes_and_volumes_are_not_obstacles(pod: dict[str, Any]) -> None:
    assert read(job_with(pod)).error is None


def test_both_prefixes_with_one_value_are_one_wish() -> None:
    body = job()
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "q"
    assert read(body).error is None
    assert read(body).queue == "q"


def test_both_prefixes_with_two_values_are_refused_and_ours_names_the_queue() -> None:
    body = job()
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "other"
    record = read(body)
    assert (
        record.error
        == "queuectl.dev/queue-name is 'q' but kueue.x-k8s.io/queue-name is 'other': keep one of them"
    )
    assert record.queue == "q"


def test_kueues_keys_mean_nothing_where_kueue_runs() -> None:
    body = job()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert read(body).queue == "q"
    assert read(body, kueue=False).queue is None


@pytest.mark.parametrize("text", ["", "idle", "nan", "-0.1", "1.01", "inf"])
def test_an_unreadable_utilization_is_unknown_not_idle(text: str) -> None:
    body = job()
    body["metadata"]["annotations"] = {"queuectl.dev/gpu-utilization": text}
    assert read(body).utilization is None


@pytest.mark.parametrize("prefix", ["kueue.x-k8s.io", "queuectl.dev"])
def test_admission_gates_are_a_list_of_names(prefix: str) -> None:
    body = job()
    assert read(body).gates == ()
    body["metadata"]["annotations"] = {f"{prefix}/admission-gated-by": "a.com/x, b.com/y,,a.com/x"}
    assert read(body).gates == ("a.com/x", "b.com/y")
    assert read(body).error is None
    if prefix.startswith("kueue"):
        assert read(body, kueue=False).gates == ()


@pytest.mark.parametrize("gate", ["example.com/data", "data", "example.com/a/b:c", "a.b-c_d"])
def test_a_gate_has_a_name_that_kueue_accepts_or_one_without_a_domain(gate: str) -> None:
    body = job()
    body["metadata"]["annotations"] = {"queuectl.dev/admission-gated-by": gate}
    assert (read(body).gates, read(body).error) == ((gate,), None)


@pytest.mark.parametrize(
    ("key", "listed", "gates"),
    [
        ("admission-gated-by", "a.com/x,no name", (INVALID,)),
        ("admission-gated-by", ",".join(f"gate-{number}" for number in range(101)), (INVALID,)),
        ("after", "Job/prep:done", (INVALID,)),
        ("after", "Job/a,Job/prep:done", ("after Job/a:ok", INVALID)),
        ("after", "Job/prep" + ",Job/prep" * 100, (INVALID,)),
    ],
    ids=["name", "101 names", "end", "one of two", "101 jobs"],
)
def test_an_invalid_list_of_gates_holds_the_job(
    key: str, listed: str, gates: tuple[str, ...]
) -> None:
    body = job()
    body["metadata"]["annotations"] = {f"queuectl.dev/{key}": listed}
    record = read(body)
    assert record.gates == gates
    assert record.error is not None


def test_gates_under_both_keys_that_differ_are_a_mistake_and_hold_it_all() -> None:
    body = job()
    body["metadata"]["annotations"] = {
        "queuectl.dev/admission-gated-by": "a.com/x",
        "kueue.x-k8s.io/admission-gated-by": "b.com/y",
    }
    record = read(body)
    assert record.gates == ("a.com/x", "b.com/y")
    assert "admission-gated-by" in (record.error or "")


@pytest.mark.parametrize(
    "key", ["kueue.x-k8s.io/max-exec-time-seconds", "queuectl.dev/max-exec-time-seconds"]
)
@pytest.mark.parametrize(
    ("text", "seconds"), [("3600", 3600.0), ("0", None), ("1h", None), ("-1", None), ("", None)]
)
def test_a_maximum_execution_time_is_a_number_of_seconds(
    key: str, text: str, seconds: float | None
) -> None:
    body = job()
    body["metadata"]["labels"] = {"queuectl.dev/queue-name": "q", key: text}
    record = read(body)
    assert record.max_execution == seconds
    assert (record.error is None) == (seconds is not None)


@pytest.mark.parametrize("place", ["annotations", "labels"])
@pytest.mark.parametrize(
    ("text", "seconds"), [("3600", 3600.0), ("0", None), ("1h", None), ("-1", None), ("", None)]
)
def test_an_expected_duration_is_a_number_of_seconds_in_an_annotation_or_a_label(
    place: str, text: str, seconds: float | None
) -> None:
    body, key = job(), "queuectl.dev/expected-duration-seconds"
    body["metadata"].setdefault(place, {})[key] = text
    record = read(body)
    assert record.expected_duration == seconds
    wrong = f"metadata.{place}: {key}: {text!r} is not a number of seconds from 1"
    assert record.error == (None if seconds is not None else wrong)


def test_an_expected_duration_that_differs_as_annotation_and_label_is_an_error() -> None:
    body, key = job(), "queuectl.dev/expected-duration-seconds"
    body["metadata"].setdefault("annotations", {})[key] = "60"
    body["metadata"].setdefault("labels", {})[key] = "90"
    record = read(body)
    assert record.expected_duration == 60.0
    assert record.error == f"{key} is '60' as an annotation but '90' as a label: keep one of them"


@pytest.mark.parametrize(
    "body", [job(), pytorch({"Worker": {"template": {"spec": {"containers": []}}}})]
)
@pytest.mark.parametrize(
    ("annotation", "text", "record", "error"),
    [
        ("idle-reclaim", "false", {"idle_reclaim": False}, None),
        ("idle-reclaim", "true", {"idle_reclaim": True}, None),
        ("idle-reclaim", "no", {"idle_reclaim": True}, "'no' is neither \"true\" nor \"false\""),
        ("idle-reclaim", "", {"idle_reclaim": True}, "'' is neither \"true\" nor \"false\""),
        ("preemptible", "false", {"preemptible": False}, None),
        ("preemptible", "no", {"preemptible": True}, "'no' is neither \"true\" nor \"false\""),
        ("warmup-seconds", "0", {"warmup": 0.0}, None),
        ("warmup-seconds", "86400", {"warmup": 86400.0}, None),
        ("warmup-seconds", "86401", {"warmup": None}, "'86401' is not a number of seconds up to 86400"),
        ("warmup-seconds", "1h", {"warmup": None}, "'1h' is not a number of seconds up to 86400"),
        ("warmup-seconds", "-1", {"warmup": None}, "'-1' is not a number of seconds up to 86400"),
        ("warmup-seconds", "", {"warmup": None}, "'' is not a number of seconds up to 86400"),
    ],
)  # fmt: skip
def test_the_idle_annotation_is_read_into_the_record(
    body: dict[str, Any], annotation: str, text: str, record: dict[str, Any], error: str | None
) -> None:
    annotated = {**body["metadata"], "annotations": {f"queuectl.dev/{annotation}": text}}
    found = read({**body, "metadata": annotated})
    assert {name: getattr(found, name) for name in record} == record
    expected = f"metadata.annotations: queuectl.dev/{annotation}: {error}" if error else None
    assert found.error == expected


@pytest.mark.parametrize(("operation", "forgotten"), [("Update", True), ("Apply", False)])
@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_start_clears_field_managers_unless_the_job_was_applied(
    kind: str, operation: str, forgotten: bool
) -> None:
    body = job() if kind == "Job" else pytorch({})
    body["metadata"]["managedFields"] = [{"manager": "kubectl", "operation": operation}]
    record = read(body)
    start = KINDS[kind].start_patch(record, 1, "")["metadata"]
    assert start.get("managedFields") == ([{}] if forgotten else None)
    for later in (KINDS[kind].stop_patch(record, 1, ""), KINDS[kind].status_patch(record, "")):
        assert "managedFields" not in later["metadata"]


class Counted(tuple[Any, ...]):
    """Counts how many times it is read."""

    __slots__ = ()
    reads: ClassVar = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("podsets", [2, 200])
@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_a_start_reads_what_the_podsets_have_once_for_all_of_them(kind: str, podsets: int) -> None:
    """Otherwise, the event loop would stop for seconds when a job with thousands of podsets starts."""
    names = [f"podset-{number}" for number in range(podsets)]
    fields = [Counted((name, value) for name in names) for value in ((), 2, 1)]
    body, _ = load(next(file for file in CASES if file.parent.name == kind.lower()))
    [podset, *_] = read(load(FIXTURES / "jobset" / "driver-and-workers.yaml")[0]).podsets
    record = replace(
        read(body),
        podsets=tuple(replace(podset, name=name) for name in names),
        list_indexes=tuple(zip(names, range(podsets), strict=True)) if kind == "JobSet" else (),
        ungated=fields[0],
        ranks=fields[1],
        first_ranks=fields[2],
    )
    Counted.reads = 0
    patch = KINDS[kind].start_patch(record, 1, "")
    assert Counted.reads == (3 if kind == "JobSet" else 2)  # each pod of a TrainJob gets a gate
    assert json.dumps(patch).count('"queuectl.dev/ranks-per-group"') == podsets


def test_a_notice_and_its_answer_are_read_and_taken_back_with_the_attempt() -> None:
    body = job()
    asked = {
        "queuectl.dev/preempt-requested": "2026-01-31T12:00:00Z",
        "queuectl.dev/preempt-ready": "true",
    }
    body["metadata"]["annotations"] = asked
    record = read(body)
    assert (record.preempt_requested, record.preempt_ready) == ("2026-01-31T12:00:00Z", True)
    kind = KINDS["Job"]
    for patch in (kind.stop_patch(record, 1, "s"), kind.start_patch(record, 2, "s")):
        annotations = patch["metadata"]["annotations"]
        assert {key: annotations.get(key, "left") for key in asked} == dict.fromkeys(asked)
    plain = read(job())
    assert set(kind.stop_patch(plain, 1, "s")["metadata"]["annotations"]) == {"queuectl.dev/status"}
    patch = kind.notice_patch(plain, "s", "2026-01-31T12:00:00Z")
    assert (
        patch["metadata"]["annotations"]["queuectl.dev/preempt-requested"] == "2026-01-31T12:00:00Z"
    )
    assert "spec" not in patch


@pytest.mark.parametrize(
    ("kind", "elastic", "followed"),
    [("Job", False, True), ("PyTorchJob", False, False), ("PyTorchJob", True, True)],
)
def test_a_pod_that_succeeded_can_be_replaced_by_another(
    kind: str, elastic: bool, followed: bool
) -> None:
    body = job() if kind == "Job" else pytorch({"Master": {"template": job()["spec"]["template"]}})
    if elastic:
        body["spec"]["elasticPolicy"] = {"minReplicas": 1}
    assert read(body).followed == followed


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({"parallelism": 4, "completions": 10}, {}, 4),
        ({"parallelism": 4, "completions": 3}, {}, 3),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 8}, 2),
        ({"parallelism": 4, "completions": 10, "completionMode": "Indexed"}, {"succeeded": 5, "failedIndexes": "1,3-4"}, 2),
        ({"parallelism": 4}, {}, 4),
        ({"parallelism": 4}, {"succeeded": 1, "active": 3}, 3),
        ({"parallelism": 4}, {"succeeded": 1}, 0),
        ({}, {}, 1),
    ],
)  # fmt: skip
def test_a_job_is_expected_to_have_as_many_pods_as_its_completions_leave(
    spec: dict[str, Any], status: dict[str, Any], expected: int
) -> None:
    body = job(**spec)
    body["spec"]["suspend"] = False
    body["status"] = status
    record = read(body)
    assert [record.pods_at_once[podset.name] for podset in record.podsets] == [expected]


# ---- numbers of pods


@pytest.mark.parametrize(
    ("group", "pods"),
    [
        ({"replicas": 3}, 3),
        ({"replicas": 3, "numOfHosts": 4}, 12),
        ({"replicas": 3, "minReplicas": 5, "maxReplicas": 9}, 5),
        ({"replicas": 3, "minReplicas": 1, "maxReplicas": 2, "numOfHosts": 4}, 8),
        ({"replicas": None, "minReplicas": 2}, 2),
        ({"replicas": None}, None),
        ({"replicas": -1}, None),
        ({"replicas": 0, "minReplicas": 0}, None),
        ({"replicas": 2, "numOfHosts": 0}, None),
    ],
)
def test_a_group_of_workers_has_as_many_pods_as_its_limits_leave(
    group: dict[str, Any], pods: int | None
) -> None:
    record = read(ray(group))
    assert record.error is None
    assert [one.count for one in record.podsets[1:]] == ([] if pods is None else [pods])


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({}, None),
        ({"ray.io/worker-group-replica-index": "3"}, 3),
        ({"ray.io/worker-group-replica-index": "3", "queuectl.dev/ranks-per-group": "1"}, 3),
        (
            {
                "ray.io/worker-group-replica-index": "3",
                "ray.io/replica-host-index": "1",
                "queuectl.dev/ranks-per-group": "4",
            },
            13,
        ),
        (
            {
                "jobset.sigs.k8s.io/job-index": "2",
                "batch.kubernetes.io/job-completion-index": "1",
                "queuectl.dev/ranks-per-group": "4",
            },
            9,
        ),
    ],
)
def test_the_rank_of_a_pod_follows_from_its_group_and_its_index_inside_it(
    labels: dict[str, str], rank: int | None
) -> None:
    pod = {"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {"containers": []}}
    assert read_pod(msgspec.convert(pod, WirePod)).rank == rank


# ---- patches


def merge(target: Any, patch: Any) -> Any:
    """The object after the patch, as it is sent."""
    body, kind = encoded(patch)
    return operated(target, body) if kind == JSON_PATCH else merged_documents(target, body)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_a_started_job_reads_back_as_resumed_with_the_attempt(case: Path) -> None:
    body, _ = load(case)
    record = read(body)
    patch = KINDS[record.kind].start_patch(record, 7, "Starting")
    after = read(merge(body, patch))
    started = replace(
        record,
        suspended=False,
        attempt=7,
        status="Starting",
        ungated=(),
        missing=(),
        list_indexes=record.list_indexes
        or after.list_indexes,  # a TrainJob from before the policies gets its entry
    )
    assert after == started, "gated as well, whether it was before or not"
    assert patch["metadata"]["uid"] == record.uid
    assert patch["metadata"]["resourceVersion"] == str(record.version)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_every_pod_template_of_a_started_job_names_its_workload(case: Path) -> None:
    body, _ = load(case)
    record = read(body)
    started = merge(body, KINDS[record.kind].start_patch(record, 7, ""))
    labels_of = [
        template["metadata"]["labels"]
        for template in KINDS[record.kind].templates(started)
        if "queuectl.dev/workload" in template.get("metadata", {}).get("labels", {})
    ]
    podsets = {labels["queuectl.dev/podset"] for labels in labels_of}
    assert podsets == {podset.name for podset in record.podsets}
    for labels in labels_of:
        assert labels["queuectl.dev/attempt"] == "7"
        assert labels["queuectl.dev/workload"] == record.uid


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_a_running_job_is_stopped_without_touching_its_immutable_template(case: Path) -> None:
    body, _ = load(case)
    kind = KINDS[body["kind"]]
    running = replace(read(body), suspended=False)
    patch = kind.stop_patch(running, running.attempt + 1, "Evicting")
    assert list(patch["spec"]) == (["runPolicy"] if kind.group == "kubeflow.org" else ["suspend"])
    assert read(merge(body, patch)).suspended


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_a_start_that_never_landed_is_withdrawn_by_using_up_its_attempt(case: Path) -> None:
    body, _ = load(case)
    kind = KINDS[body["kind"]]
    waiting = replace(read(body), suspended=True)
    after = read(merge(body, kind.stop_patch(waiting, waiting.attempt + 1, "Evicting")))
    assert after.suspended
    assert after.attempt == waiting.attempt + 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_a_status_update_changes_nothing_else(case: Path) -> None:
    body, _ = load(case)
    record = read(body)
    after = read(merge(body, KINDS[record.kind].status_patch(record, "Running")))
    assert after == replace(record, status="Running", missing=after.missing)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}/{c.stem}")
def test_naming_another_queue_changes_nothing_else(case: Path) -> None:
    body, _ = load(case)
    record = read(body)
    after = read(merge(body, KINDS[record.kind].queue_patch(record, record.status, "other")))
    keys = record.queue_keys or ("queuectl.dev/queue-name",)
    assert after == replace(record, queue="other", queue_keys=keys, missing=after.missing)


@pytest.mark.parametrize(
    ("labels", "kueue", "patched"),
    [
        ({"queuectl.dev/queue-name": "a"}, True, {"queuectl.dev/queue-name"}),
        ({"kueue.x-k8s.io/queue-name": "a"}, True, {"kueue.x-k8s.io/queue-name"}),
        (
            {"queuectl.dev/queue-name": "a", "kueue.x-k8s.io/queue-name": "a"},
            True,
            {"queuectl.dev/queue-name", "kueue.x-k8s.io/queue-name"},
        ),
        (
            {"queuectl.dev/queue-name": "a", "kueue.x-k8s.io/queue-name": "a"},
            False,
            {"queuectl.dev/queue-name"},
        ),
        ({}, True, {"queuectl.dev/queue-name"}),
    ],
)
def test_a_queue_is_renamed_under_the_keys_that_name_it_and_never_under_those_of_a_running_kueue(
    labels: dict[str, str], kueue: bool, patched: set[str]
) -> None:
    body, _ = load(next(c for c in CASES if c.parent.name == "job"))
    body["metadata"]["labels"] = labels
    record = read(body, kueue=kueue)
    patch = KINDS["Job"].queue_patch(record, "", "b")
    assert patch["metadata"]["labels"] == dict.fromkeys(patched, "b")


def test_paths_are_those_of_the_api() -> None:
    assert path(KINDS["Job"]) == "/apis/batch/v1/jobs"
    assert path(KINDS["Job"], "a", "b") == "/apis/batch/v1/namespaces/a/jobs/b"
    assert path(KINDS["PyTorchJob"], "a") == "/apis/kubeflow.org/v1/namespaces/a/pytorchjobs"


# ---- starting with fewer pods


def shrinkable(**annotations: str) -> dict[str, Any]:
    """An Indexed job of 8 pods that may start with 3."""
    body, _ = load(FIXTURES / "job" / "indexed-suspended.yaml")
    least = {"kueue.x-k8s.io/job-min-parallelism": "3"}
    body["metadata"]["annotations"] = {**least, **annotations}
    body["spec"] |= {"parallelism": 8, "completions": 8}
    return body


@pytest.mark.parametrize("prefix", ["kueue.x-k8s.io/", "queuectl.dev/"])
@pytest.mark.parametrize(("text", "least"), [("3", 3), ("1", 1), ("7", 7), ("8", None)])
def test_a_job_states_the_minimum_number_of_pods_for_its_start(
    prefix: str, text: str, least: int | None
) -> None:
    body = shrinkable()
    body["metadata"]["annotations"] = {f"{prefix}job-min-parallelism": text}
    (podset,) = read(body).podsets
    assert (podset.count, podset.min_count) == (8, least)


@pytest.mark.parametrize("text", ["0", "9", "-1", "few", ""])
def test_a_minimum_number_out_of_range_is_the_jobs_mistake(text: str) -> None:
    body = shrinkable(**{"kueue.x-k8s.io/job-min-parallelism": text})
    assert read(body).error == (
        f"metadata.annotations: job-min-parallelism: {text!r} is not a number from 1 to 8"
    )


SLICES = {
    "kueue.x-k8s.io/podset-required-topology": "block",
    "kueue.x-k8s.io/podset-slice-required-topology": "rack",
    "kueue.x-k8s.io/podset-slice-size": "2",
}
FOLLOWS = {"kueue.x-k8s.io/job-completions-equal-parallelism": "true"}
ENDED = {"succeeded": 4, "completedIndexes": "0-2,4"}


@pytest.mark.parametrize(
    ("spec", "status", "annotations", "of_pods", "asked"),
    [
        ({}, {}, {}, {}, (8, 3)),
        ({}, ENDED, {}, {}, (4, 3)),
        ({}, ENDED, FOLLOWS, {}, (4, None)),
        ({}, {"succeeded": 6, "completedIndexes": "0-5"}, {}, {}, (2, None)),
        ({}, {"succeeded": 5, "completedIndexes": "0-4", "failedIndexes": "5"}, {}, {}, (2, None)),
        ({}, {"succeeded": 8, "completedIndexes": "0-7"}, {}, {}, (1, None)),
        ({}, {"succeeded": -9, "completedIndexes": "5-1,x,9-99"}, {}, {}, (8, 3)),
        ({"completions": 12}, {"succeeded": 4}, {}, {}, (8, 3)),
        ({"completions": 12}, {"succeeded": 8}, {}, {}, (4, 3)),
        ({"completionMode": "NonIndexed"}, {"succeeded": 4}, {}, {}, (4, 3)),
        ({"completionMode": "NonIndexed"}, {"succeeded": 3}, {}, SLICES, (6, 3)),
        ({}, ENDED, {}, SLICES, (6, 3)),
        ({}, {"succeeded": 4, "completedIndexes": "0,1,4,5"}, {}, SLICES, (4, 3)),
        ({"suspend": False}, ENDED, {}, {}, (8, 3)),
    ],
)  # fmt: skip
def test_a_job_that_starts_again_asks_for_the_pods_that_have_not_ended(
    spec: dict[str, Any],
    status: dict[str, Any],
    annotations: dict[str, str],
    of_pods: dict[str, str],
    asked: tuple[int, int | None],
) -> None:
    body = shrinkable(**annotations)
    body["spec"] |= spec
    body["spec"]["template"].setdefault("metadata", {})["annotations"] = of_pods
    body["status"] = status
    record = read(body)
    [podset] = record.podsets
    assert (record.error, (podset.count, podset.min_count)) == (None, asked)


@pytest.mark.parametrize(
    ("completions", "succeeded", "final"), [(None, 0, False), (None, 1, True), (8, 1, False)]
)
def test_the_suspension_of_a_work_queue_with_a_success_is_its_end(
    completions: int | None, succeeded: int, final: bool
) -> None:
    body = shrinkable()
    body["spec"] |= {"completionMode": "NonIndexed", "completions": completions}
    body["status"] = {"succeeded": succeeded}
    assert (read(body).error, read(body).final) == (None, final)


@pytest.mark.parametrize(("follow", "left"), [({}, 5), (FOLLOWS, 4)])
def test_a_job_that_started_with_fewer_pods_expects_those_that_have_not_ended(
    follow: dict[str, str], left: int
) -> None:
    body = shrinkable(**follow)
    started = merge(body, KINDS["Job"].start_patch(read(body), 7, "", {"main": 5}))
    record = read({**started, "status": {"succeeded": 1, "completedIndexes": "0"}})
    assert record.pods_at_once[record.podsets[0].name] == left


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"completions": 12}, "spec.completions is 12 and spec.parallelism is 8"),
        ({"parallelism": 12}, "spec.completions is 8 and spec.parallelism is 12"),
        ({"completionMode": "NonIndexed"}, "spec.completionMode must be Indexed"),
        ({"completionMode": None}, "spec.completionMode must be Indexed"),
    ],
)
def test_only_completions_that_equal_the_parallelism_of_an_indexed_job_can_follow_it(
    spec: dict[str, Any], text: str
) -> None:
    body = shrinkable(**FOLLOWS)
    body["spec"] |= spec
    record = read(body)
    assert record.error is not None
    assert text in record.error
    body["metadata"]["annotations"] |= dict.fromkeys(FOLLOWS, "false")
    assert read(body).error is None


def test_whether_completions_follow_the_parallelism_is_true_or_false() -> None:
    error = read(shrinkable(**dict.fromkeys(FOLLOWS, "yes"))).error
    assert error is not None
    assert "'yes' is neither" in error


def test_a_job_started_with_fewer_pods_still_asks_for_all_and_expects_these() -> None:
    body = shrinkable()
    record = read(body)
    after = merge(body, KINDS["Job"].start_patch(record, 7, "Starting", {"main": 5}))
    assert (after["spec"]["parallelism"], after["spec"]["completions"]) == (5, 8)
    running = read(after)
    (podset,) = running.podsets
    assert (podset.count, podset.min_count, running.pods_at_once[podset.name]) == (8, 3, 5)
    assert running.error is None


@pytest.mark.parametrize("follow", [False, True])
def test_what_a_smaller_start_changed_is_put_back_when_it_stops(follow: bool) -> None:
    body = shrinkable(
        **({"kueue.x-k8s.io/job-completions-equal-parallelism": "true"} if follow else {})
    )
    started = merge(body, KINDS["Job"].start_patch(read(body), 7, "", {"main": 5}))
    assert started["spec"]["completions"] == (5 if follow else 8)
    assert read(started).podsets[0].count == 8
    stopped = merge(started, KINDS["Job"].stop_patch(read(started), 7, "Evicting"))
    assert (stopped["spec"]["parallelism"], stopped["spec"]["completions"]) == (8, 8)
    assert read(stopped) == replace(read(body), attempt=7, status="Evicting")


def test_a_job_suspended_by_another_client_starts_with_the_parallelism_that_its_user_set() -> None:
    body = shrinkable()
    started = merge(body, KINDS["Job"].start_patch(read(body), 7, "", {"main": 5}))
    halted = merge(started, {"spec": {"suspend": True}})
    whole = merge(halted, KINDS["Job"].start_patch(read(halted), 8, ""))
    assert whole["spec"]["parallelism"] == 8
    smaller = merge(halted, KINDS["Job"].start_patch(read(halted), 8, "", {"main": 4}))
    assert smaller["spec"]["parallelism"] == 4
    assert read(smaller).podsets[0].count == 8


def test_parallelism_beyond_completions_is_put_back_as_it_was() -> None:
    body = shrinkable()
    body["spec"]["parallelism"] = 12
    started = merge(body, KINDS["Job"].start_patch(read(body), 7, "", {"main": 5}))
    stopped = merge(started, KINDS["Job"].stop_patch(read(started), 7, ""))
    assert stopped["spec"]["parallelism"] == 12

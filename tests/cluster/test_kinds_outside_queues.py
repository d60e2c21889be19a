"""Objects of all kinds with pod templates that have no queue, and the default queue, on a real API server with the policies of deploy/base.

The schemas of the custom resources accept each field. ``tests/kinds`` has the schemas and the operators of some kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from queuectl.cluster.apply import apply, manifests, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.jobs import JobRecord
from queuectl.localcluster import ApiServerError, ClusterSpec, LocalCluster
from queuectl.localcluster.client import Client
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.testing import wait_until
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS, KINDS, unqueued
from queuectl.objects.kinds.described import encoded
from queuectl.objects.kinds.description import Description, PodSets, merged, nested
from queuectl.objects.kinds.makers import MAKERS, Maker
from queuectl.objects.kinds.places import field
from tests.support.controlplane import client_of_account
from tests.support.shared_resource import SharedResource

pytestmark = pytest.mark.system

Document = dict[str, Any]
One = Description | Maker
OUR_LABELS = (
    keys.ATTEMPT_LABEL,
    keys.PODSET_LABEL,
    keys.WORKLOAD_LABEL,
    keys.KIND_LABEL,
    keys.RANKS_LABEL,
    keys.FIRST_RANK_LABEL,
)
LATER = (keys.WORKLOAD_LABEL, keys.RANKS_LABEL, keys.FIRST_RANK_LABEL)
"""Labels that queuectl writes at a start."""
JOB = Description(
    kind="Job",
    group="batch",
    version="v1",
    plural="jobs",
    suspend="spec.suspend",
    podsets=(PodSets(path="spec", name="main"),),
)
ALL: tuple[One, ...] = (JOB, *DESCRIPTIONS, *(one for one in MAKERS if one.unchecked))
LEADER_WORKER_SET = Maker(
    kind="LeaderWorkerSet",
    group="leaderworkerset.x-k8s.io",
    version="v1",
    plural="leaderworkersets",
)
OPERATOR = "system:serviceaccount:kubeflow:training-operator"
GARBAGE_COLLECTORS = (
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
)
CONTROLLER = "system:serviceaccount:queuectl-system:queuectl"
SPARK = "sparkoperator.k8s.io"


@dataclass(frozen=True)
class Plane:
    """An API server alone. ``user``: alice, with all rights; ``operator``: a controller of jobs."""

    cluster: LocalCluster
    user: Client
    operator: Client


def crd(one: One) -> Document:
    """A CustomResourceDefinition that accepts each field."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": one.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": one.kind, "plural": one.plural, "singular": one.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{one.plural}.{one.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": one.group,
            "names": names,
            "scope": "Cluster" if one.kind.startswith("Cluster") else "Namespaced",
            "versions": [version],
        },
    }


ANYTHING: list[Document] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-anything"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
            for name in ("engineers", "system:serviceaccounts:appwrapper-system")
        ],
    }
]


async def _set_up(cluster: LocalCluster) -> None:
    api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
    try:
        await apply(api, [*manifests(controller=False), *ANYTHING])
        await wait_until_in_force(api)
    finally:
        await api.close()


@contextmanager
def _running() -> Iterator[Plane]:
    spec = ClusterSpec(nodes=(), operators=(), controllers=False, fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        there = cluster.client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        known = {one["metadata"]["name"] for one in there["items"]}
        for one in (*ALL, LEADER_WORKER_SET):
            if "." in one.group and f"{one.plural}.{one.group}" not in known:
                cluster.client.apply(crd(one))
                path = f"/apis/{one.group}/{one.version}/{one.plural}"
                wait_until(lambda: cluster.client.exists(path), path, 30)  # noqa: B023
        asyncio.run(_set_up(cluster))
        clients = [cluster.client_for_user(name, ["engineers"]) for name in ("alice", OPERATOR)]
        yield Plane(cluster, *clients)
        for client in clients:
            client.close()


@pytest.fixture(scope="module")
def plane(shared_resource: SharedResource) -> Plane:
    return shared_resource.get(_running)


def collection(one: One, namespace: str = "default") -> str:
    base = f"/apis/{one.group}/{one.version}"
    return (
        f"{base}/{one.plural}"
        if one.kind.startswith("Cluster")
        else (f"{base}/namespaces/{namespace}/{one.plural}")
    )


# ---- objects with a mark in each of their places


def pod_template(mark: Document | None = None) -> Document:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    return merged([{"metadata": {"labels": {"app": "x"}}, "spec": spec}, mark or {}])


def replicated(mark: Document | None = None) -> Document:
    job = {"name": "a", "template": {"spec": {"template": pod_template(mark)}}}
    return {"spec": {"replicatedJobs": [job]}}


def entry(where: PodSets, mark: Document | None = None, *, template: bool = False) -> Document:
    """An entry of a place. ``template``: of Spark, put the mark into the template."""
    if where.labels is not None:
        labels = {} if template else (mark or {}).get("metadata", {}).get("labels", {})
        inner = {"template": pod_template(mark)} if template else {}
        return {"labels": dict(labels), "instances": 1, **inner}
    made = pod_template(mark)
    return {**(nested(where.template, made) if where.template else made)}


def placed(where: PodSets, content: Document) -> Document:
    value: Any = content
    if where.types:
        value = {where.types[0]: content}
    elif where.key:
        value = [{where.key: "a", **content}]
    return nested(where.path, value)


def bodies(one: One, mark: Document | None) -> Iterator[Document]:
    """One document for each place, with the mark there."""
    places = one.podsets
    for marked in range(len(places)):
        yield merged(
            placed(where, entry(where, mark if n == marked else None))
            for n, where in enumerate(places)
        )
    if any(where.labels is not None for where in places):
        for marked in range(len(places)):
            yield merged(
                placed(where, entry(where, mark if n == marked else None, template=True))
                for n, where in enumerate(places)
            )
    labels = (mark or {}).get("metadata", {}).get("labels")
    for marked in (n for n, where in enumerate(places) if where.added_labels and labels):
        yield merged(
            placed(
                where, entry(where) | (nested(where.added_labels, labels) if n == marked else {})
            )
            for n, where in enumerate(places)
        )
    if isinstance(one, Maker):
        if one.job_set:
            yield nested(one.job_set, replicated(mark))
    elif one.patches is not None:
        changes = nested(one.patches.changes, replicated(mark))
        yield nested(one.patches.path, [{one.patches.owner: "me", **changes}])
    elif one.kind == "AppWrapper":
        info = {
            "labels": (mark or {}).get("metadata", {}).get("labels", {}),
            "schedulingGates": (mark or {}).get("spec", {}).get("schedulingGates", []),
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **pod_template()}
        infos = {"podSetInfos": [info]} if mark else {}
        yield nested("spec.components", [{"template": pod, **infos}])


def documents(one: One, mark: Document | None = None, queue: str | None = None) -> list[Document]:
    labels = {keys.QUEUE_LABEL: queue} if queue is not None else {}
    head = {"apiVersion": f"{one.group}/{one.version}", "kind": one.kind}
    meta = {"metadata": {"generateName": "made-", "labels": labels}}
    needed: list[Document] = []
    if isinstance(one, Description):
        needed = [dict(one.probe), *(nested(each.path, True) for each in one.required)]
    return [merged([head, meta, *deepcopy(needed), body]) for body in bodies(one, mark)]  # type: ignore[list-item]


def has_label(key: str) -> Document:
    return {"metadata": {"labels": {key: "x"}}}


GATED: Document = {"spec": {"schedulingGates": [{"name": keys.GATE}]}}
MARKS = {"the gate": GATED, **{key: has_label(key) for key in OUR_LABELS}}
BY_KIND = pytest.mark.parametrize("one", ALL, ids=lambda one: one.kind)


def marked(one: One) -> Iterator[tuple[str, Document]]:
    """Each object with a mark of queuectl in one place."""
    for what, mark in MARKS.items():
        of_labels = [where for where in one.podsets if where.labels is not None]
        made = documents(one, mark)
        # The pods of these are gated by their labels; a gate is in a template alone.
        skipped = len(of_labels) if mark is GATED else 0
        for n, document in enumerate(made):
            if n >= skipped:
                yield f"{what} in place {n}", document
    if one.group == SPARK:
        for part in ("driver", "executor"):
            document = documents(one)[0]
            conf = {f"spark.kubernetes.{part}.label.{keys.WORKLOAD_LABEL}": "x"}
            at = one.podsets[0].path.rpartition(".")[0]
            yield f"a property of the {part}", merged([document, nested(at, {"sparkConf": conf})])


@BY_KIND
def test_an_object_outside_the_queues_has_no_mark_of_queuectl(plane: Plane, one: One) -> None:
    accepted = []
    for what, document in marked(one):
        try:
            plane.user.create(collection(one), document, dryRun="All")
        except ApiServerError as error:
            assert f"queuectl-unqueued-{one.plural}" in str(error), what  # noqa: PT017
        else:
            accepted.append(what)
    assert accepted == []
    for document in documents(one):
        plane.user.create(collection(one), document, dryRun="All")


async def test_the_wait_after_a_set_up_ends_when_each_policy_acts(plane: Plane) -> None:
    """No probe is denied by this policy."""
    _, job = next(marked(JOB))
    binding = "validatingadmissionpolicybindings/queuectl-unqueued-jobs"
    plane.cluster.client.delete(f"/apis/admissionregistration.k8s.io/v1/{binding}")

    def accepted() -> bool:
        try:
            return bool(plane.user.create(collection(JOB), job, dryRun="All"))
        except ApiServerError:
            return False

    await asyncio.to_thread(wait_until, accepted, "the binding is deleted", 20)
    await _set_up(plane.cluster)
    assert not accepted()


@BY_KIND
def test_no_update_marks_an_object_outside_the_queues(plane: Plane, one: One) -> None:
    [first, *_] = documents(one)
    made = plane.user.create(collection(one), first)
    path = f"{collection(one)}/{made['metadata']['name']}"
    for what, document in marked(one):
        if one.kind == "Job" and "in place" in what:
            continue  # a Job that runs keeps its template
        changed = {**document, "metadata": made["metadata"]}
        with pytest.raises(ApiServerError, match=f"queuectl-unqueued-{one.plural}"):
            plane.user._request("PUT", path, changed)
    plane.user.patch(path, {"metadata": {"annotations": {"mine": "x"}}})
    plane.user.delete(path, propagationPolicy="Background")


WITHOUT_OPERATORS = pytest.mark.parametrize(
    "one",
    [one for one in ALL if isinstance(one, Description) and one.patches is None],
    ids=lambda one: one.kind,
)


@WITHOUT_OPERATORS
def test_an_object_of_a_queued_job_is_changed_by_its_controller_alone(
    plane: Plane, one: Description
) -> None:
    _, document = next(iter(marked(one)))
    made = plane.operator.create(collection(one), document)
    path = f"{collection(one)}/{made['metadata']['name']}"
    refusals: list[tuple[str, Document, str]] = [
        (
            "PATCH",
            {"spec": {"mine": 1}} if one.kind != "Job" else {"spec": {"parallelism": 2}},
            "only the controller of a job",
        ),
        ("PATCH", {"metadata": {"ownerReferences": [OWNER]}}, "only the controller of a job"),
        ("PATCH", {"metadata": {"labels": {"mine": "x"}}}, ""),
        ("PATCH", {"metadata": {"labels": {KUEUE: "x"}}}, "only the controller of a job"),
        ("PATCH", {"metadata": {"finalizers": ["orphan"]}}, "only the controller of a job"),
        ("DELETE", {"propagationPolicy": "Orphan"}, "together with its pods"),
    ]
    for method, body, message in refusals:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        if not message:
            plane.user._request(method, path, body, kind)
            continue
        with pytest.raises(ApiServerError, match=message):
            plane.user._request(method, path, body, kind)
    plane.operator.patch(path, {"metadata": {"finalizers": ["orphan"]}})
    with pytest.raises(ApiServerError, match="together with its pods"):
        plane.user.delete(path)
    plane.user.delete(path, propagationPolicy="Background")


KUEUE = keys.KUEUE_PREFIX + keys.QUEUE_NAME
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "no-such", "controller": True}
_CREATED = {child.kind for one in DESCRIPTIONS for child in one.children}
CHILDREN = pytest.mark.parametrize(
    "one", [one for one in ALL if one.kind in _CREATED], ids=lambda one: one.kind
)


def child_of_queued(one: One, queue: str | None) -> Document:
    """An object that the controller of a queued job of another kind creates. ``queue``: the key of a queue label, which it can copy."""
    document = documents(one, has_label(keys.KIND_LABEL))[0]
    labels = {"of": "its-job", **({queue: "main"} if queue is not None else {})}
    document["metadata"] |= {"labels": labels, "ownerReferences": [OWNER]}
    return document


@CHILDREN
@pytest.mark.parametrize("queue", [keys.QUEUE_LABEL, KUEUE])
def test_no_queue_label_lets_a_user_change_an_object_of_a_queued_job(
    plane: Plane, one: Description, queue: str
) -> None:
    made = plane.operator.create(collection(one), child_of_queued(one, queue))
    path = f"{collection(one)}/{made['metadata']['name']}"
    changes: list[Document] = [
        {"spec": {"mine": 1} if one.kind != "Job" else {"activeDeadlineSeconds": 9}},
        {"metadata": {"ownerReferences": []}},
        {"metadata": {"labels": {"of": "another"}}},
        {"metadata": {"finalizers": ["example.com/keep"]}},
    ]
    for change in changes:
        with pytest.raises(ApiServerError, match="only the controller of a job"):
            plane.user.patch(path, change)
    for labels in ({queue: None}, {keys.QUEUE_LABEL: "", KUEUE: "", queue: "main"}):
        with pytest.raises(ApiServerError, match="denied request"):
            plane.user.patch(path, {"metadata": {"labels": labels, "ownerReferences": []}})
    with pytest.raises(ApiServerError, match="together with its pods"):
        plane.user.delete(path, propagationPolicy="Orphan")
    plane.user.patch(path, {"metadata": {"labels": {"mine": "x"}}})
    plane.operator.patch(path, {"metadata": {"labels": {"of": "the-next-run"}}})
    plane.user.delete(path, propagationPolicy="Background")


@CHILDREN
@pytest.mark.parametrize("queue", [None, keys.QUEUE_LABEL, KUEUE])
def test_the_garbage_collector_removes_an_owner_that_no_longer_exists(
    plane: Plane, one: Description, queue: str | None
) -> None:
    """After the deletion of a job that has ended, with --cascade=orphan."""
    for name in GARBAGE_COLLECTORS:
        made = plane.operator.create(collection(one), child_of_queued(one, queue))
        path = f"{collection(one)}/{made['metadata']['name']}"
        collector = plane.cluster.client_for_user(name, ["engineers"])
        with pytest.raises(ApiServerError, match="only the controller of a job"):
            collector.patch(path, {"metadata": {"labels": {"of": "another"}}})
        collector.patch(path, {"metadata": {"ownerReferences": []}})
        plane.user.delete(path, propagationPolicy="Background")
        collector.close()


# ---- labels of queuectl in new jobs of a queue

QUEUED = pytest.mark.parametrize(
    "one", [one for one in ALL if one.kind in KINDS], ids=lambda one: one.kind
)


def labels_of(one: One, stored: Document) -> list[Document]:
    """The labels of the pods of each place."""
    found = []
    for where in one.podsets:
        value = field(stored, where.path)
        if where.types:
            value = value[where.types[0]]
        elif where.key:
            value = value[0]
        in_template = f"{where.template}.metadata.labels".removeprefix(".")
        path = where.labels.path if where.labels else in_template
        found.append(field(value, path))
    return found


@QUEUED
def test_a_new_job_of_a_queue_has_no_label_of_a_start(plane: Plane, one: One) -> None:
    """The manifest can be that of a running job, so admission removes them."""
    for key in LATER:
        for document in documents(one, has_label(key), queue="main")[: len(one.podsets)]:
            stored = plane.user.create(collection(one), document, dryRun="All")
            for labels in labels_of(one, stored):
                assert labels[keys.ATTEMPT_LABEL] == "0"
                assert not set(labels) & set(LATER)


@QUEUED
def test_a_new_job_of_a_queue_belongs_to_no_other_job(plane: Plane, one: One) -> None:
    if not isinstance(one, Description) or one.children or one.group == SPARK or not one.podsets:
        pytest.skip("admission writes the label, or the object has no templates")
    for document in documents(one, has_label(keys.KIND_LABEL), queue="main"):
        with pytest.raises(ApiServerError, match="only queuectl writes"):
            plane.user.create(collection(one), document, dryRun="All")


def test_a_queued_sparkapplication_marks_its_pods_in_no_other_way(plane: Plane) -> None:
    [one] = [each for each in DESCRIPTIONS if each.kind == "SparkApplication"]
    for key in OUR_LABELS:
        for document in documents(one, has_label(key), queue="main")[len(one.podsets) :]:
            with pytest.raises(ApiServerError, match="labels of queuectl are not in a template"):
                plane.user.create(collection(one), document, dryRun="All")
    document = documents(one, queue="main")[0]
    document["spec"]["sparkConf"] = {f"spark.kubernetes.driver.label.{keys.WORKLOAD_LABEL}": "x"}
    with pytest.raises(ApiServerError, match="labels of queuectl are not in a template"):
        plane.user.create(collection(one), document, dryRun="All")


ADDED = [one for one in DESCRIPTIONS if any(where.added_labels for where in one.podsets)]


def marked_in_added(one: One, queue: str | None = None) -> Iterator[Document]:
    """Each object with a label of queuectl among those that its controller adds to its pods."""
    places = len(one.podsets)
    for key in OUR_LABELS:
        yield from documents(one, has_label(key), queue)[places:]


@pytest.mark.parametrize("one", ADDED, ids=lambda one: one.kind)
def test_a_job_of_a_queue_adds_no_label_of_queuectl_to_its_pods(
    plane: Plane, one: Description
) -> None:
    made = plane.user.create(collection(one), documents(one, queue="main")[0])
    path = f"{collection(one)}/{made['metadata']['name']}"
    count = 0
    for document in marked_in_added(one, queue="main"):
        with pytest.raises(ApiServerError, match="remove them from the labels next to"):
            plane.user.create(collection(one), document, dryRun="All")
        changed = merged([made, {"spec": document["spec"]}])
        with pytest.raises(ApiServerError, match="remove them from the labels next to"):
            plane.user._request("PUT", path, changed)
        count += 1
    assert count == 2 * len(OUR_LABELS)
    plane.user.delete(path, propagationPolicy="Background")


@contextmanager
def operator_of_appwrappers(cluster: LocalCluster) -> Iterator[Client]:
    """A client with the account of the operator of AppWrappers, whose name is too long for a certificate."""
    space, name = "appwrapper-system", "appwrapper-controller-manager"
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    cluster.client.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        {**account, "metadata": {"name": name, "namespace": space}},
    )
    with client_of_account(cluster, space, name) as client:
        yield client


@pytest.mark.parametrize("one", ADDED, ids=lambda one: one.kind)
def test_a_component_of_an_appwrapper_adds_no_label_of_queuectl_to_its_pods(
    plane: Plane, one: Description
) -> None:
    """The operator labels each object that it creates."""
    component: dict[str, object] = {
        "metadata": {"labels": {"workload.codeflare.dev/appwrapper": "any"}}
    }
    with operator_of_appwrappers(plane.cluster) as client:
        for document in marked_in_added(one):
            with pytest.raises(ApiServerError, match="from the labels next to a template"):
                client.create(collection(one), merged([document, component]), dryRun="All")
        client.create(collection(one), merged([documents(one)[0], component]), dryRun="All")


def as_controller(plane: Plane, one: One, path: str, *, starts: bool) -> None:
    """Start or stop a job, as queuectl does."""
    kind = KINDS[one.kind]
    record = kind.read(msgspec.convert(plane.user.get(path), kind.wire, strict=False))
    patch = kind.start_patch(record, 1, "x") if starts else kind.stop_patch(record, 1, "x")
    controller = plane.cluster.client_for_user(CONTROLLER, ["engineers"])
    controller._request("PATCH", path, *encoded(patch))
    controller.close()


def confirmed(plane: Plane, one: Description, path: str) -> None:
    """Write the status that the controller of the kind writes when a suspended job has no pods."""
    if one.phase is not None:
        status = nested(one.phase.path, one.phase.suspended[-1])
    else:
        condition = {"type": one.conditions.suspended, "status": "True"}
        status = {"status": {"conditions": [condition], "active": 0}}
    plane.cluster.client.patch(f"{path}/status" if one.kind == "Job" else path, status)


def tells_starts(one: Description) -> bool:
    """Whether the pod templates of a job state that it never had pods. Those of an array Job never change."""
    return bool(one.podsets) and one.kind != "Job"


@QUEUED
def test_a_job_with_a_finalizer_is_not_deleted_before_its_pods_have_stopped(
    plane: Plane, one: Description
) -> None:
    """Its controller does nothing for a job that is being deleted, and the job stays until its finalizer is removed."""
    kept: Document = {"metadata": {"finalizers": ["example.com/keep"]}}
    new = plane.user.create(collection(one), merged([documents(one, queue="main")[0], kept]))
    made = plane.user.create(collection(one), merged([documents(one, queue="main")[0], kept]))
    path = f"{collection(one)}/{made['metadata']['name']}"
    as_controller(plane, one, path, starts=True)
    if one.kind == "Job":
        plane.cluster.client.patch(f"{path}/status", {"status": {"active": 1}})
    plane.user.patch(path, nested(one.suspend, True))
    with pytest.raises(ApiServerError, match=r"example.com/keep, or hold"):
        plane.user.delete(path, propagationPolicy="Background")
    confirmed(plane, one, path)
    waits = f"{collection(one)}/{new['metadata']['name']}"
    if not tells_starts(one):
        confirmed(plane, one, waits)
    for each in (path, waits):
        plane.user.delete(each, propagationPolicy="Background")
        plane.user.patch(each, {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    "one",
    [
        one
        for one in DESCRIPTIONS
        if one.fixed or one.fixed_labels or one.manager or one.required or one.zero
    ],
    ids=lambda one: one.kind,
)
def test_a_job_that_runs_keeps_the_fields_without_which_its_controller_does_not_stop_it(
    plane: Plane, one: Description
) -> None:
    made = plane.user.create(collection(one), documents(one, queue="main")[0])
    path = f"{collection(one)}/{made['metadata']['name']}"
    for number in one.zero:
        for value in (-1, 60):
            changed = nested(number.path, value)
            with pytest.raises(ApiServerError, match="is not 0"):
                plane.user.patch(path, changed)
            new = merged([documents(one, queue="main")[0], changed])
            with pytest.raises(ApiServerError, match="is not 0"):
                plane.user.create(collection(one), new, dryRun="All")
        plane.user.patch(path, nested(number.path, 0))
    for needed in one.required:
        with pytest.raises(ApiServerError, match="is not true"):
            plane.user.patch(path, nested(needed.path, False))
    managers = [] if one.manager is None else [one.manager.path]
    fixed = [nested(name, {"mine": "x"}) for name in (*one.fixed, *managers)]
    fixed += [{"metadata": {"labels": {key: "x"}}} for key in one.fixed_labels]
    if not tells_starts(one):
        confirmed(plane, one, path)
    for change in fixed:
        plane.user.patch(path, change)
    plane.user.delete(path, propagationPolicy="Background")
    made = plane.user.create(collection(one), documents(one, queue="main")[0])
    path = f"{collection(one)}/{made['metadata']['name']}"
    as_controller(plane, one, path, starts=True)
    for change in fixed:
        with pytest.raises(ApiServerError, match="cannot change while it runs"):
            plane.user.patch(path, change)
    plane.user.patch(path, nested(one.suspend, True))
    for change in fixed:
        with pytest.raises(ApiServerError, match="until its controller has stopped its pods"):
            plane.user.patch(path, change)
    confirmed(plane, one, path)
    for change in fixed:
        plane.user.patch(path, change)
    plane.user.delete(path, propagationPolicy="Background")


@QUEUED
def test_a_job_of_a_queue_keeps_the_label_by_which_it_is_protected(plane: Plane, one: One) -> None:
    """A label of Kueue can name the same queue, so that the job would not change its queue."""
    document = documents(one, queue="main")[0]
    document["metadata"]["labels"][KUEUE] = "main"
    made = plane.user.create(collection(one), document)
    path = f"{collection(one)}/{made['metadata']['name']}"
    with pytest.raises(ApiServerError, match="cannot be removed"):
        plane.user.patch(path, {"metadata": {"labels": {keys.QUEUE_LABEL: None}}})
    plane.user.patch(path, {"metadata": {"labels": {KUEUE: None}}})


def test_no_jobset_of_a_queue_becomes_a_part_of_a_trainjob(plane: Plane) -> None:
    """Its pods would run on, and count in no quota."""
    [one] = [each for each in DESCRIPTIONS if each.kind == "JobSet"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    document = documents(one, queue="main")[0]
    made = plane.user.create(collection(one), document)
    path = f"{collection(one)}/{made['metadata']['name']}"
    plane.user.patch(path, {"metadata": {"ownerReferences": [owner]}})
    controller = {
        "apiVersion": "v1",
        "kind": "TrainJob",
        "name": "y",
        "uid": "y",
        "controller": True,
    }
    for one_more in ([controller], [owner, controller], [owner | {"controller": True}]):
        with pytest.raises(ApiServerError, match="gets no other controller"):
            plane.user.patch(path, {"metadata": {"ownerReferences": one_more}})
    plane.user.patch(path, {"metadata": {"ownerReferences": []}})


@QUEUED
def test_no_finalizer_leaves_the_pods_of_a_deleted_job_behind(plane: Plane, one: One) -> None:
    """If a request names no policy, the API server follows the finalizer."""
    made = plane.user.create(collection(one), documents(one, queue="main")[0])
    path = f"{collection(one)}/{made['metadata']['name']}"
    plane.user.patch(path, {"metadata": {"finalizers": ["orphan"]}})
    with pytest.raises(ApiServerError, match="together with its pods"):
        plane.user.delete(path)
    plane.user.delete(path, propagationPolicy="Background")


def test_a_statefulset_of_a_queue_states_its_name(plane: Plane) -> None:
    """Admission names the group of its pods after it, before the API server generates a name."""
    labels = {"app": "x"}
    container = {"name": "main", "image": "x"}
    document = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"generateName": "serves-", "labels": {keys.QUEUE_LABEL: "main"}},
        "spec": {
            "serviceName": "x",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    path = "/apis/apps/v1/namespaces/default/statefulsets"
    with pytest.raises(ApiServerError, match=r"set metadata\.name"):
        plane.user.create(path, document, dryRun="All")
    document["metadata"] = {"name": "serves", "labels": {keys.QUEUE_LABEL: "main"}}
    made = plane.user.create(path, document, dryRun="All")
    assert made["spec"]["template"]["metadata"]["labels"][keys.PREFIX + keys.POD_GROUP] == "serves"


def test_a_leaderworkerset_of_a_queue_is_replaced_by_its_manifest(plane: Plane) -> None:
    """It does not have what admission writes, such as the name of the user who created the set."""
    one = LEADER_WORKER_SET
    groups = {"size": 2, "workerTemplate": pod_template()}
    manifest: Document = {
        "apiVersion": f"{one.group}/{one.version}",
        "kind": one.kind,
        "metadata": {"name": "serves", "labels": {keys.QUEUE_LABEL: "main"}},
        "spec": {"replicas": 1, "leaderWorkerTemplate": groups},
    }
    plane.user.create(collection(one), manifest)
    path = f"{collection(one)}/serves"
    another = plane.cluster.client_for_user("bob", ["engineers"])
    for client in (plane.user, another):
        version = plane.user.get(path)["metadata"]["resourceVersion"]
        sent = merged([manifest, {"metadata": {"resourceVersion": version}}])
        replaced = client._request("PUT", path, sent)
        assert replaced["metadata"]["annotations"][keys.SUBMITTED_BY] == "alice"
        labels = replaced["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
        assert labels[keys.QUEUE_LABEL] == "main"
    another.close()
    plane.user.delete(path, propagationPolicy="Background")


# ---- as many podsets as a gang can have

MOST: Final = 128
"""docs/reference/object-limits.md"""


def lists(one: One) -> list[tuple[str, str]]:
    """The lists of podsets of an object: their paths, and the field with the name of an entry."""
    found = [(where.path, where.key) for where in one.podsets if where.key]
    if isinstance(one, Maker) and one.job_set:
        found.append((f"{one.job_set}.spec.replicatedJobs", "name"))
    return found


def many(one: One, mark: Document | None = None, queue: str | None = None) -> Document:
    """The object with as many podsets as a gang can have, with long names and 10 labels of the user for the pods of each."""
    labels: Document = {"metadata": {"labels": {f"example.com/label-{n}": "x" for n in range(10)}}}
    [(path, key)] = lists(one)
    place = next((n for n, where in enumerate(one.podsets) if where.key), 0)
    document = documents(one, merged([labels, mark or {}]), queue)[place]
    entries = field(document, path)
    left = MOST - sum(where.name != "" for where in one.podsets)
    counts = [nested(name, 1) for where in one.podsets if where.key for [name, *_] in where.count]
    entry_of = merged([*counts, entries[0]])
    entries[:] = [{**deepcopy(entry_of), key: f"{n:03}-{'x' * 56}"} for n in range(left)]
    return document


@pytest.mark.parametrize(
    "one",
    [one for one in DESCRIPTIONS if lists(one)],
    ids=lambda one: one.kind,
)
def test_a_job_of_a_queue_can_have_as_many_podsets_as_a_gang(
    plane: Plane, one: Description
) -> None:
    """The API server limits the cost of each expression of a policy."""
    kind = KINDS[one.kind]
    stored = plane.user.create(collection(one), many(one, queue="main"))
    path = f"{collection(one)}/{stored['metadata']['name']}"
    controller = plane.cluster.client_for_user(CONTROLLER, ["engineers"])

    def record() -> JobRecord:
        found = kind.read(msgspec.convert(plane.user.get(path), kind.wire, strict=False))
        assert found.error is None
        assert len(found.podsets) == MOST
        return found

    def write(patch: Document) -> None:
        body, media_type = encoded(patch)
        controller._request("PATCH", path, body, media_type)
        plane.user.patch(path, {"metadata": {"annotations": {"mine": patch["metadata"]["uid"]}}})

    write(kind.status_patch(record(), "Pending: Queued"))
    write(kind.start_patch(record(), 1, "Starting"))
    write(kind.stop_patch(record(), 1, "Evicting"))
    plane.user.delete(path, propagationPolicy="Background")
    controller.close()


@pytest.mark.parametrize("one", [one for one in ALL if lists(one)], ids=lambda one: one.kind)
def test_an_object_outside_the_queues_can_have_as_many_podsets_as_a_gang(
    plane: Plane, one: One
) -> None:
    for client, mark in ((plane.user, None), (plane.operator, has_label(keys.ATTEMPT_LABEL))):
        if mark is not None and isinstance(one, Maker):
            continue  # no controller of a job creates it
        made = client.create(collection(one), many(one, mark))
        path = f"{collection(one)}/{made['metadata']['name']}"
        plane.user.patch(path, {"metadata": {"annotations": {"mine": "x"}}})
        plane.user.delete(path, propagationPolicy="Background")


# ---- the default queue


@pytest.fixture(scope="module")
def with_default(plane: Plane) -> str:
    """A namespace with a LocalQueue "default", in force for each policy."""
    name = "with-default"
    labels = {keys.DEFAULT_QUEUE_LABEL: "true"}
    plane.cluster.client.create(
        "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}
    )

    def acts() -> bool:
        made = plane.user.create(collection(JOB, name), documents(JOB)[0], dryRun="All")
        return bool(made["metadata"].get("labels", {}).get(keys.QUEUE_LABEL))

    wait_until(acts, "the API server knows the namespace", 20)
    return name


@QUEUED
@pytest.mark.parametrize("label", [None, "theirs", "", "default"])
def test_a_label_of_kueue_is_not_a_way_around_the_default_queue(
    plane: Plane, with_default: str, one: One, label: str | None
) -> None:
    document = documents(one)[0]
    document["metadata"]["labels"] |= {KUEUE: label} if label is not None else {}
    stored = plane.user.create(collection(one, with_default), document, dryRun="All")
    assert stored["metadata"]["labels"][keys.QUEUE_LABEL] == "default"
    assert stored["metadata"]["annotations"][keys.SUBMITTED_BY] == "alice"
    assert isinstance(one, Description)
    assert field(stored, one.suspend) is True
    assert all(labels[keys.ATTEMPT_LABEL] == "0" for labels in labels_of(one, stored))


@CHILDREN
def test_an_object_of_a_queued_job_gets_no_default_queue(
    plane: Plane, with_default: str, one: Description
) -> None:
    """It counts in the queue of that job."""
    document = child_of_queued(one, None)
    stored = plane.operator.create(collection(one, with_default), document, dryRun="All")
    assert keys.QUEUE_LABEL not in stored["metadata"]["labels"]
    assert not field(stored, one.suspend)


@QUEUED
def test_a_job_with_a_label_of_kueue_that_has_no_effect_can_be_changed(
    plane: Plane, with_default: str, one: One
) -> None:
    document = documents(one)[0]
    document["metadata"]["labels"][KUEUE] = "theirs"
    made = plane.user.create(collection(one, with_default), document)
    path = f"{collection(one, with_default)}/{made['metadata']['name']}"
    plane.user.patch(path, {"metadata": {"labels": {"mine": "x"}}})
    with pytest.raises(ApiServerError, match="name different queues"):
        plane.user.patch(path, {"metadata": {"labels": {KUEUE: "others"}}})


def test_a_job_that_names_two_queues_is_refused_elsewhere(plane: Plane) -> None:
    document = documents(JOB, queue="default")[0]
    document["metadata"]["labels"][KUEUE] = "theirs"
    with pytest.raises(ApiServerError, match="name different queues"):
        plane.user.create(collection(JOB), document, dryRun="All")


# ---- the list of kinds


def test_each_kind_has_a_policy_for_objects_outside_the_queues() -> None:
    found = {
        one["metadata"]["name"] for one in manifests() if one["kind"] == "ValidatingAdmissionPolicy"
    }
    assert {f"queuectl-unqueued-{one.plural}" for one in ALL} <= found
    assert {one.plural for one in ALL} == set(unqueued(KINDS))

"""One table of new jobs, on each version: what the API server stores is what the webhook computes.

On Kubernetes 1.36 and newer the MutatingAdmissionPolicies change the jobs, and before the webhook does. The expected fields come from the
code of the webhook in this process, so both are equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from queuectl.cluster.apply import manifests, optional
from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client
from queuectl.objects import keys
from queuectl.webhook.mutations import mutations
from tests.support.jobs import job_of
from tests.system.installation import Installation
from tests.system.test_default_queue import default_queue

pytestmark = pytest.mark.system

Document = dict[str, Any]
Change = Callable[[Document], object]
USER: Final = "alice"
KNOWN: Final = mutations([*manifests(), *optional("kueue-keys")])
OTHER_GATE: Final = [{"name": "example.com/other"}]
QUEUECTL_GATE: Final = [{"name": keys.GATE}]


def templates(document: Document) -> list[Document]:
    spec = document["spec"]
    if document["kind"] == "Job":
        return [spec["template"]]
    return [one["template"] for one in spec["pytorchReplicaSpecs"].values()]


def each(change: Change) -> Change:
    return lambda document: [change(template) for template in templates(document)]


def metadata(**fields: Any) -> Change:
    return lambda document: document["metadata"].update(fields)


def pod(**fields: Any) -> Change:
    return each(lambda template: template["spec"].update(fields))


def template_metadata(value: Document | None) -> Change:
    return each(lambda template: template.update(metadata=value))


def policy(**fields: Any) -> Change:
    """Of a PyTorchJob."""
    return lambda document: document["spec"].update(runPolicy=fields)


def replicas(**fields: Any) -> Change:
    """Of a PyTorchJob: further replica types."""
    return lambda document: document["spec"]["pytorchReplicaSpecs"].update(fields)


FORGED: Final = {
    keys.ATTEMPT_LABEL: "7",
    keys.PODSET_LABEL: "other",
    keys.WORKLOAD_LABEL: "another",
    keys.RANKS_LABEL: "2",
    "app": "mine",
}
BOTH: Final[dict[str, Change]] = {
    "as it is": lambda _: None,
    "with Kueue's label": metadata(labels={"kueue.x-k8s.io/queue-name": "main"}),
    "with both labels": metadata(
        labels={keys.QUEUE_LABEL: "main", "kueue.x-k8s.io/queue-name": "main"}
    ),
    "without a queue": metadata(labels={"app": "mine"}),
    "without labels": lambda document: document["metadata"].pop("labels"),
    "with annotations": metadata(annotations={"example.com/a": "b", keys.SUBMITTED_BY: "bob"}),
    "with a PriorityClass": pod(priorityClassName="system-cluster-critical"),
    "with the PriorityClass of queuectl": pod(priorityClassName="queuectl-managed"),
    "with another gate": pod(schedulingGates=OTHER_GATE),
    "with the gate": pod(schedulingGates=[*OTHER_GATE, *QUEUECTL_GATE]),
    "with no gates": pod(schedulingGates=[]),
    "with labels of the template": template_metadata({"labels": FORGED}),
    "with annotations of the template": template_metadata({"annotations": {"a": "b"}}),
    "with an empty template": template_metadata({}),
    "with no metadata of the template": each(lambda template: template.pop("metadata", None)),
    "with null as metadata of the template": template_metadata(None),
    "with null as labels of the template": template_metadata({"labels": None}),
    "with null as gates": pod(schedulingGates=None),
    "with an annotation that is not ASCII": metadata(
        labels={keys.QUEUE_LABEL: "main"}, annotations={"note": "größer ✓"}
    ),
}
JOB: Final[dict[str, Change]] = {
    "not suspended": lambda document: document["spec"].update(suspend=False),
    "suspended": lambda document: document["spec"].update(suspend=True),
}
PYTORCH: Final[dict[str, Change]] = {
    "with a run policy": policy(ttlSecondsAfterFinished=100, suspend=False),
    "with an empty run policy": policy(),
    "with null as run policy": lambda document: document["spec"].update(runPolicy=None),
    "with the PriorityClass of a scheduling policy": policy(
        schedulingPolicy={"priorityClass": "system-node-critical"}
    ),
}
REFUSED: Final[dict[str, Change]] = {
    "with an unknown replica type": replicas(Other={"template": {"spec": {"containers": []}}}),
    "with a replica type without a template": replicas(Worker={"replicas": 1}),
    "without replica types": lambda document: document["spec"].pop("pytorchReplicaSpecs"),
}
"""PyTorchJobs that a policy or the training operator refuses after the mutation."""
CASES: Final = [
    *(("Job", name, change) for name, change in (BOTH | JOB).items()),
    *(("PyTorchJob", name, change) for name, change in (BOTH | PYTORCH).items()),
]
PATHS: Final = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
}
POLICIES: Final = {"Job": "queuectl-jobs", "PyTorchJob": "queuectl-pytorchjobs"}


def written(document: Document) -> Document:
    """The fields that admission writes."""
    spec, meta = document["spec"], document["metadata"]
    kinds = spec.get("pytorchReplicaSpecs") or {"": spec}
    policy = spec.get("runPolicy") if "pytorchReplicaSpecs" in spec else spec
    return {
        "suspend": (policy or {}).get("suspend"),
        "run policy": spec.get("runPolicy"),
        "labels": _labels(meta),
        "annotations": meta.get("annotations") or {},
        "templates": {name: _pod(one.get("template") or {}) for name, one in kinds.items()},
    }


def _labels(meta: Document) -> Document:
    """Without those that the API server adds to a Job and its template."""
    added = ("batch.kubernetes.io/", "controller-uid", "job-name")
    return {k: v for k, v in (meta.get("labels") or {}).items() if not k.startswith(added)}


def _pod(template: Document) -> Document:
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    return {
        "labels": _labels(meta),
        "annotations": meta.get("annotations") or {},
        "gates": spec.get("schedulingGates") or [],
        "class": spec.get("priorityClassName"),
    }


def patched(document: Document, patch: list[Document]) -> Document:
    """The document after a JSON patch that adds and removes."""
    changed = copy.deepcopy(document)
    for one in patch:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]
        ]
        place = changed
        for parent in parents:
            place = place[parent]
        if one["op"] == "remove":
            del place[last]
        else:
            assert one["op"] == "add"
            place[last] = one["value"]
    return changed


def without_null(value: Any) -> Any:
    """The API server drops null before admission."""
    if isinstance(value, dict):
        return {key: without_null(one) for key, one in value.items() if one is not None}
    return [without_null(one) for one in value] if isinstance(value, list) else value


def expected(document: Document) -> Document:
    plain = without_null(document)
    if document["kind"] == "Job":
        plain["spec"]["template"].setdefault("metadata", {})  # the API server adds it
    labels = plain["metadata"].get("labels", {})
    of_kueue = "kueue.x-k8s.io/queue-name" in labels
    queue = "queuectl-kueue-queue-labels" if of_kueue else "queuectl-queue-labels"
    for name in (POLICIES[document["kind"]], queue):
        plain = patched(plain, KNOWN[name].patch(plain, {"userInfo": {"username": USER}}))
    return written(plain)


def stored(user: Client, document: Document, namespace: str) -> Document | str:
    """The fields that the API server would store."""
    try:
        return written(
            user.create(PATHS[document["kind"]].format(namespace), document, dryRun="All")
        )
    except ApiServerError as error:
        return str(error)


@pytest.fixture(scope="module")
def user(installation: Installation) -> Iterator[Client]:
    client = installation.cluster.client_for_user(USER, ["engineers"])
    yield client
    client.close()


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    """A namespace that accepts jobs without a queue."""
    with installation.workspace(0) as workspace:
        default_queue(workspace)
        yield workspace.namespace


@pytest.mark.parametrize(
    ("kind", "change"),
    [(kind, change) for kind, _, change in CASES],
    ids=[f"{kind} {name}" for kind, name, _ in CASES],
)
def test_a_new_job_is_changed_equally_by_the_policies_and_by_the_webhook(
    user: Client, namespace: str, kind: str, change: Change
) -> None:
    document = job_of(kind, "new", pods=1, namespace=namespace)
    change(document)
    assert stored(user, document, namespace) == expected(document)


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_pytorchjob_that_cannot_be_mutated_is_refused(
    user: Client, namespace: str, change: Change
) -> None:
    document = job_of("PyTorchJob", "new", pods=1, namespace=namespace)
    change(document)
    assert isinstance(stored(user, document, namespace), str)


def test_jobs_elsewhere_are_left_alone(installation: Installation, user: Client) -> None:
    with installation.cluster.namespace("plain") as name:
        for kind in PATHS:
            document = job_of(kind, "new", pods=1, namespace=name, queue=None)
            found = stored(user, document, name)
            assert isinstance(found, dict)
            assert found["suspend"] in (False, None)
            assert found["annotations"] == {}

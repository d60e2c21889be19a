"""Checks before queuectl acts: the version of the server, and admission policies in force that name the controller.

A policy takes effect some time after it is written, so its existence is not enough. Dry runs in the namespace of queuectl show whether it
is in force: creations that must be mutated, and creations that must be denied for each user. Each denial belongs to a policy whose
other rules the controller cannot try (only the controller can resume a job), and all rules of a policy take effect together. An API
server answers for itself only: behind a load balancer, others can lag by the same delay.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cluster.client import METADATA_ONLY, Api, NotServed, document_in
from queuectl.cluster.server import MINIMUM, Server, discover
from queuectl.cluster.writes import CONFIGURATION
from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS, JobKind, JobKinds, path, unqueued
from queuectl.objects.times import time_or_none

FOR_ALL: Final = (
    "queuectl-deletions",
    "queuectl-statefulsets",
    "queuectl-statefulsets-scale",
    "queuectl-scheduling-groups",
    "queuectl-leaderworkersets",
    "queuectl-components",
    "queuectl-submitters",
    "queuectl-resizes",
    "queuectl-preemption",
    "queuectl-preemption-daemonsets",
)
"""The policies with rules for each identity: a running job is deleted together with its pods, a StatefulSet in a queue and a group of a
LeaderWorkerSet keep their number of pods, the PodGroups of Kubernetes of a job are its controller's, the components of an AppWrapper
name no other gang, an object of which a controller makes pods names its own user, the pods of a gang keep their requests, and pods outside
the queues preempt none of them."""

KUEUE_WEBHOOKS: Final = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kueue-mutating-webhook-configuration",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/kueue-validating-webhook-configuration",
)
KUEUE_MANAGER: Final = "kueue-controller-manager"
"""The name of Kueue's Deployment. A Helm release of another name puts that name before it."""
KUEUE_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/kueue-system/deployments/{KUEUE_MANAGER}"
KUEUE_LEASE: Final = (
    "/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/c1f6bfd2.kueue.x-k8s.io"
)
_LEASE_SECONDS: Final = 60.0
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_MUTATING_POLICY: Final = (
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/queuectl-jobs"
)
_MUTATING_WEBHOOK: Final = (
    f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
)
_USER: Final = re.compile(r"request\.userInfo\.username != '([^']*)'")
_Document = Mapping[str, Any]


def protecting(kinds: JobKinds = KINDS) -> tuple[str, ...]:
    """The ValidatingAdmissionPolicies of the chart with a match condition that exempts updates by the controller."""
    return (
        *(f"queuectl-{kind.plural}" for kind in kinds.values()),
        *(f"queuectl-unqueued-{plural}" for plural in unqueued(kinds)),
        "queuectl-pods",
    )


async def kueue_runs(api: Api) -> bool:
    """Whether a Kueue is installed. It manages jobs by its webhooks.

    Raises:
        ClusterError: the API server gives no answer. A 404 from a proxy does not count.
    """
    for webhook in KUEUE_WEBHOOKS:
        try:
            await api.request("GET", webhook, accept=METADATA_ONLY)
        except NotServed:
            raise
        except ObjectGone:
            continue
        return True
    return False


async def active_kueue(api: Api) -> str:
    """The sign of a Kueue that runs, or is about to; empty without one.

    These are its webhooks, its Deployment with a replica, and its lease, which a manager outside the cluster holds too.

    Raises:
        ClusterError: the API server gives no answer. A 404 from a proxy does not count.
    """
    if await kueue_runs(api):
        return "the webhooks of Kueue exist"
    deployment = await _present(api, KUEUE_DEPLOYMENT, "spec")
    if deployment is not None and deployment["spec"].get("replicas", 1) != 0:
        return f"{KUEUE_DEPLOYMENT.rpartition('/')[2]} has replicas"
    lease = await _present(api, KUEUE_LEASE, "spec")
    if lease is not None and _held(lease["spec"]):
        return f"{lease['spec']['holderIdentity']} holds the lease of Kueue"
    return ""


async def _present(api: Api, target: str, field: str) -> _Document | None:
    """An object with this field; None if it does not exist."""
    try:
        return document_in(target, await api.request("GET", target), field)
    except NotServed:
        raise
    except ObjectGone:
        return None


def _held(spec: _Document) -> bool:
    """Whether a lease was renewed lately, by a clock that can differ from ours."""
    renewed = time_or_none(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed is None:
        return False
    return abs(time.time() - renewed) < _LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Mutators:
    """The installed objects that change new jobs.

    Attributes:
        policies: the MutatingAdmissionPolicies.
        webhook: the MutatingWebhookConfiguration of queuectl.
    """

    policies: bool
    webhook: bool


async def installed_mutators(api: Api) -> Mutators:
    """The installed objects that change new jobs. Raises ClusterError."""
    return Mutators(
        policies=await _exists(api, _MUTATING_POLICY),
        webhook=await _exists(api, _MUTATING_WEBHOOK),
    )


async def _exists(api: Api, target: str) -> bool:
    try:
        await api.request("GET", target, accept=METADATA_ONLY)
    except ObjectGone:  # also of a version without the kind
        return False
    return True


async def kueue_keys_act(api: Api, namespace: str) -> bool | None:
    """Whether the policies gate a Job with Kueue's label, so that deploy/optional/kueue-keys.yaml is applied, at least in part.

    None = not known: the API server refuses the dry run, for example because of a ResourceQuota. The probe of the policies reports why.
    """
    label = keys.KUEUE_PREFIX + keys.QUEUE_NAME
    kind = KINDS["Job"]
    try:
        made = await _dry_run(api, path(kind, namespace), _job(kind, {label: "probe"}))
    except WriteRefused:
        return None
    return keys.GATE in str(made["spec"])


async def allowed(api: Api, verb: str, group: str, resource: str, subresource: str = "") -> bool:
    """Whether the identity has a right in all namespaces. ``group``: "" = the core group."""
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    body = await api.request("POST", _REVIEWS, body={"spec": {"resourceAttributes": attributes}})
    return bool(document_in(_REVIEWS, body, "status")["status"].get("allowed"))


async def probe_policies(
    api: Api,
    namespace: str,
    *,
    controller: bool = True,
    kueue: bool = True,
    kinds: JobKinds = KINDS,
) -> list[str]:
    """The missing parts, one sentence each; empty if all policies are in force.

    Args:
        api: the API server and the identity.
        namespace: in which the identity can create jobs and pods by dry run.
        controller: whether the identity belongs to the controller, so that the policies must name it.
        kueue: Kueue's labels also count.
        kinds: of jobs.
    """
    server = await discover(api)
    if not server.supported:
        return [f"the API server is Kubernetes {server}; queuectl needs {Server(MINIMUM)} or newer"]
    missing = [text async for text in _policies(api, controller, kinds)]
    if controller and not server.keeps_templates_mutable:
        missing += [text async for text in _probe_status(api, server)]
    for kind in kinds.values():
        missing += [text async for text in _probe_kind(api, namespace, kind)]
        missing += [text async for text in _probe_kueue_key(api, namespace, kind, kueue)]
    missing += [text async for text in _probe_pods(api, namespace)]
    return missing


async def _policies(api: Api, controller: bool, kinds: JobKinds) -> AsyncIterator[str]:
    user, ours = await _username(api), protecting(kinds)
    for name in (*ours, *FOR_ALL):
        try:
            target = f"{_POLICIES}/{name}"
            policy = document_in(target, await api.request("GET", target), "spec")
        except ObjectGone:
            yield f"ValidatingAdmissionPolicy {name} is not installed (docs/how-to/install.md)"
            continue
        named = _named_controller(policy)
        if controller and name in ours and named != user:
            yield f"ValidatingAdmissionPolicy {name} lets {named} act, but we are {user}"
        for warning in _warnings(policy):
            yield f"ValidatingAdmissionPolicy {name}: {warning}"


async def _username(api: Api) -> str:
    target = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = await api.request("POST", target, body={"spec": {}})
    review = document_in(target, body, "status.userInfo")
    return str(review["status"]["userInfo"].get("username", ""))


def _named_controller(policy: _Document) -> str:
    for condition in policy["spec"].get("matchConditions", ()):
        if condition["name"] == "not-an-update-by-queuectl":
            found = _USER.search(condition["expression"])
            return found[1] if found else "nobody"
    return "nobody"


def _warnings(policy: _Document) -> list[str]:
    checked = policy.get("status", {}).get("typeChecking", {})
    return [f"{w['fieldRef']}: {w['warning']}" for w in checked.get("expressionWarnings", ())]


async def _probe_status(api: Api, server: Server) -> AsyncIterator[str]:
    """A sentence if queuectl cannot start a Job a second time."""
    if not await allowed(api, "patch", "batch", "jobs", "status"):
        yield (
            f"queuectl must patch the status of Jobs on Kubernetes {server}, and has no right to: "
            "set the value mutation of the chart to webhook, or apply deploy/older-servers"
        )


async def _probe_kind(api: Api, namespace: str, kind: JobKind) -> AsyncIterator[str]:
    collection = path(kind, namespace)
    labels = {keys.QUEUE_LABEL: "probe"}
    policy = f"queuectl-{kind.plural}"
    mutation = f"the MutatingAdmissionPolicy or the webhook {policy}"
    try:
        created = await _dry_run(api, collection, _job(kind, labels))
    except ObjectGone:
        if "." not in kind.group:
            raise
        return  # not installed
    except WriteRefused as error:
        if not _passed(kind, error):
            yield f"{mutation} is not in force: {error}"
            return
    else:
        if text := _not_mutated(kind, created):
            yield f"{mutation} is not in force: a new {kind.kind} {text}"
    labels[keys.QUEUE_LABEL] = ""
    if text := await _accepted(api, collection, _job(kind, labels), policy):
        yield text


async def _probe_kueue_key(
    api: Api, namespace: str, kind: JobKind, counts: bool
) -> AsyncIterator[str]:
    """Sentences if jobs with Kueue's label are managed and must not be, or the reverse."""
    label = keys.KUEUE_PREFIX + keys.QUEUE_NAME
    try:
        created = await _dry_run(api, path(kind, namespace), _job(kind, {label: "probe"}))
    except ObjectGone:
        if "." not in kind.group:
            raise
        return  # not installed
    except WriteRefused as error:
        if not _passed(kind, error):
            yield f"cannot check whether the policies act on label {label}: {error}"
        return
    if counts and (text := _not_mutated(kind, created)):
        yield f"a new {kind.kind} with label {label} {text}: apply deploy/optional/kueue-keys.yaml"
    elif not counts and keys.GATE in str(created["spec"]):
        text = f"a new {kind.kind} with label {label} is gated, but Kueue's labels do not count"
        yield f"{text} (kueueKeys, or a Kueue runs here): delete deploy/optional/kueue-keys.yaml"


def _passed(kind: JobKind, refused: WriteRefused) -> bool:
    """Whether an object has passed all policies, and only lacks the object to which its kind refers. Webhooks check it after the policies."""
    return kind.refers and "admission webhook" in str(refused)


async def _probe_pods(api: Api, namespace: str) -> AsyncIterator[str]:
    target = f"/api/v1/namespaces/{namespace}/pods"
    metadata: dict[str, Any] = {"generateName": "queuectl-probe-"}
    gated = {"metadata": metadata, "spec": {**_POD, "schedulingGates": [{"name": keys.GATE}]}}
    if text := await _accepted(api, target, gated, "queuectl-pods"):
        yield text
    metadata = {**metadata, "labels": {keys.QUEUE_LABEL: "probe"}}
    try:
        made = await _dry_run(api, target, {"metadata": metadata, "spec": dict(_POD)})
    except WriteRefused as error:
        yield f"the MutatingAdmissionPolicy or the webhook queuectl-pods is not in force: {error}"
        return
    if keys.SUBMITTED_BY not in made["metadata"].get("annotations", {}):
        yield "the MutatingAdmissionPolicy or the webhook queuectl-pods is not in force: a new Pod is not gated"


async def _dry_run(api: Api, collection: str, document: _Document) -> _Document:
    body = await api.request("POST", collection, query=(("dryRun", "All"),), body=document)
    return document_in(collection, body, "metadata", "spec")


async def _accepted(api: Api, collection: str, document: _Document, policy: str) -> str | None:
    """A sentence unless ``policy`` denies the document."""
    try:
        await _dry_run(api, collection, document)
    except WriteRefused as error:
        if f"'{policy}'" in str(error):
            return None
        return f"cannot check whether ValidatingAdmissionPolicy {policy} is in force: {error}"
    return f"ValidatingAdmissionPolicy {policy} is not in force"


def _not_mutated(kind: JobKind, job: _Document) -> str | None:
    """The fields of a managed job that admission did not set."""
    if keys.SUBMITTED_BY not in job["metadata"].get("annotations", {}):
        return f"lacks the annotation {keys.SUBMITTED_BY}"
    if not kind.is_suspended(job):
        return "is not suspended"
    for template in kind.templates(job):
        gates = [gate["name"] for gate in template["spec"].get("schedulingGates", ())]
        if keys.GATE not in gates:
            return f"lacks the gate {keys.GATE}"
        if keys.PODSET_LABEL not in template.get("metadata", {}).get("labels", {}):
            return f"lacks the label {keys.PODSET_LABEL}"
        if template["spec"].get("priorityClassName") != keys.POD_PRIORITY_CLASS:
            return f"lacks the PriorityClass {keys.POD_PRIORITY_CLASS}"
    return None


# Valid for the strictest Pod Security level, so that only the policies of queuectl can deny it.
_POD: Final[_Document] = {
    "restartPolicy": "Never",
    "serviceAccountName": "queuectl",
    "automountServiceAccountToken": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "queuectl.dev/probe",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}


def _job(kind: JobKind, labels: Mapping[str, str]) -> _Document:
    [container] = _POD["containers"]
    pod = {**_POD, "containers": [{**container, "name": kind.container}]}
    return {
        "apiVersion": f"{kind.group}/{kind.version}",
        "kind": kind.kind,
        "metadata": {"generateName": "queuectl-probe-", "labels": dict(labels)},
        "spec": kind.minimal_spec({"spec": pod}),
    }

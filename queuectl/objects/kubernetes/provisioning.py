"""ProvisioningRequests (``autoscaling.x-k8s.io``): the objects that queuectl makes, and their state as the autoscaler reports it.

A request names PodTemplates. queuectl writes into a template only what decides which nodes the pods need: requests, node selectors, node
affinity and tolerations, with those of the flavors that are charged. A template has no environment, volumes or commands of users.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Document, Entry
from queuectl.domain.provisioning import (
    CLASS,
    CONSUMES,
    ProvisioningConfig,
    ProvisioningRecord,
    RequestState,
)
from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.workload import PodSet
from queuectl.objects.keys import PREFIX
from queuectl.objects.kubernetes.node_affinity import write_required
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.pods import write_toleration
from queuectl.objects.kubernetes.wire import Wire

API_VERSION: Final = "autoscaling.x-k8s.io/v1"
REQUESTS: Final = "provisioningrequests"
TEMPLATES: Final = "podtemplates"
WORKLOAD: Final = PREFIX + "workload-uid"
"""Annotation of a request: the uid of its gang. Requests without it are of others, and queuectl ignores them."""

_LONGEST_NAME: Final = 253
_LONGEST_MESSAGE: Final = 500
_DIGEST: Final = 5
_DECIDES: Final = tuple(
    (RequestState(name).value, RequestState(name))
    for name in ("Failed", "CapacityRevoked", "BookingExpired", "Provisioned")
)
"""Conditions in the order in which the first that is true decides, as in Kueue."""
_OVERCOMMITTED: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources whose requests the API server accepts without an equal limit."""


class _Meta(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Condition(Wire):
    type: str = ""
    status: str = ""
    message: str = ""


class _Status(Wire):
    conditions: list[_Condition] | None = None
    provisioning_class_details: dict[str, str] | None = None


class _Reference(Wire):
    name: str = ""


class _PodSet(Wire):
    pod_template_ref: _Reference = msgspec.field(default_factory=_Reference)


class _Spec(Wire):
    pod_sets: list[_PodSet] | None = None


class WireProvisioningRequest(Wire):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def read_provisioning_request(wire: WireProvisioningRequest) -> ProvisioningRecord | None:
    """Its state; None for a request that queuectl did not make."""
    meta, status = wire.metadata, wire.status
    gang = (meta.annotations or {}).get(WORKLOAD)
    if gang is None:
        return None
    conditions = {c.type: c for c in status.conditions or ()}
    state, deciding = RequestState.PENDING, conditions.get(RequestState.PROVISIONED.value)
    for name, meaning in _DECIDES:
        if name in conditions and conditions[name].status == "True":
            state, deciding = meaning, conditions[name]
            break
    if deciding is None:  # until the autoscaler states an expected time
        deciding = conditions.get("Accepted")
    message = " ".join(deciding.message.split()) if deciding is not None else ""
    return ProvisioningRecord(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        gang=gang,
        state=state,
        message=message[:_LONGEST_MESSAGE],
        details=dict(status.provisioning_class_details or {}),
        templates=tuple(
            name
            for p in wire.spec.pod_sets or ()
            if _is_template_of(meta.name, name := p.pod_template_ref.name)
        ),
        deleting=meta.deletion_timestamp is not None,
    )


def request_name(entry: Entry, check: str) -> str:
    """The name of the request of a gang for a check. Each time that the gang is held for checks, it is another one."""
    gang = f"{_dashed(f'{entry.kind}-{entry.name}')}-{_digest(entry.uid)}"
    return _limited(f"{gang}-{_distinct(check)}", f"-{entry.checks.round}")


def template_name(request: str, podset: str) -> str:
    """The name of the PodTemplate of a podset, another one for each podset."""
    return _limited(f"ppt-{request}-{_distinct(podset)}")


def _dashed(name: str) -> str:
    """As a part of the name of an object that can be cut anywhere: no dot can be before a dash."""
    return re.sub("[^a-z0-9-]+", "-", name.lower()).strip("-")


def _distinct(name: str) -> str:
    """The same, with a digest if another name gives the same part."""
    part = _dashed(name)
    return part if part == name else f"{part}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _is_template_of(request: str, template: str) -> bool:
    """Whether its name is one that :func:`template_name` gives: a user can write a request that names other objects."""
    return template.startswith(f"ppt-{request}-"[: _LONGEST_NAME - _DIGEST - 1])


def _limited(name: str, end: str = "") -> str:
    if len(name) + len(end) <= _LONGEST_NAME:
        return name + end
    return f"{name[: _LONGEST_NAME - len(end) - _DIGEST - 1]}-{_digest(name)}{end}"


def pod_annotations(request: str, config: ProvisioningConfig) -> tuple[tuple[str, str], ...]:
    """The annotations of pods that run on the nodes of a request."""
    return ((CONSUMES, request), (CLASS, config.class_name))


def documents(
    name: str,
    entry: Entry,
    job: JobRecord,
    config: ProvisioningConfig,
    flavors: Mapping[str, ResourceFlavor],
    owners: list[Document],
) -> Iterator[tuple[str, Document]]:
    """(resource, object) of all objects of a request, in the order of their creation: the request is the last.

    ``flavors``: by name, those of the configuration. ``owners``: references to the objects with which they are deleted.
    """
    assert entry.lease is not None
    listed = []
    placement = entry.lease.placement
    for podset, count in config.requested(job.podsets, placement):
        placed = placement.of(podset.name)
        charged = sorted(placed.charged) if placed is not None else []
        template = template_name(name, podset.name)
        listed.append({"podTemplateRef": {"name": template}, "count": count})
        yield (
            TEMPLATES,
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": _metadata(template, entry, owners),
                "template": _template(podset, [flavors[f] for f in charged if f in flavors]),
            },
        )
    yield (
        REQUESTS,
        {
            "apiVersion": API_VERSION,
            "kind": "ProvisioningRequest",
            "metadata": _metadata(name, entry, owners),
            "spec": {
                "provisioningClassName": config.class_name,
                "parameters": dict(config.parameters),
                "podSets": listed,
            },
        },
    )


def _metadata(name: str, entry: Entry, owners: list[Document]) -> Document:
    return {
        "name": name,
        "namespace": entry.namespace,
        "labels": {"app.kubernetes.io/managed-by": "queuectl"},
        "annotations": {WORKLOAD: entry.uid},
        "ownerReferences": owners,
    }


def _template(podset: PodSet, flavors: list[ResourceFlavor]) -> Document:
    rules = podset.shape.rules
    selector = dict(rules.selector)
    tolerations = list(rules.tolerations)
    for flavor in flavors:
        selector.update(flavor.node_labels)
        tolerations += flavor.tolerations
    spec: dict[str, Any] = {
        "containers": [{"name": "pod", "image": "pause", "resources": _resources(podset)}],
        "restartPolicy": "Never",
    }
    if selector:
        spec["nodeSelector"] = selector
    if tolerations:
        spec["tolerations"] = list(map(write_toleration, dict.fromkeys(tolerations)))
    if rules.affinity is not None:
        spec["affinity"] = write_required(rules.affinity)
    return {"spec": spec}


def _resources(podset: PodSet) -> Document:
    asked: Resources = podset.shape.requests
    requests = {
        name: format_quantity(name, amount)
        for name, amount in asked.items()
        if amount and name != PODS
    }
    limits = {name: value for name, value in requests.items() if name not in _OVERCOMMITTED}
    return {"requests": requests} | ({"limits": limits} if limits else {})

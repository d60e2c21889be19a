"""Pod templates as they would be without queuectl, for the podsets of Kueue's Workloads and for the jobs that Kueue starts next."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import msgspec

from queuectl.objects import keys
from queuectl.objects.kubernetes.node_affinity import REQUIRED, pin_in, unpinned, write_required
from queuectl.objects.kubernetes.templates import read_node_affinity
from queuectl.objects.kubernetes.wire import OwnAffinity

_OWN_LABELS: Final = (
    keys.WORKLOAD_LABEL,
    keys.ATTEMPT_LABEL,
    keys.PODSET_LABEL,
    keys.KIND_LABEL,
    keys.RANKS_LABEL,
    keys.FIRST_RANK_LABEL,
)
_JOB_CONTROLLER_LABELS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name")
"""Kueue removes these from the template of a Job too."""
TOPOLOGY_KEYS: Final = (
    keys.REQUIRED_TOPOLOGY,
    keys.PREFERRED_TOPOLOGY,
    keys.UNCONSTRAINED_TOPOLOGY,
    keys.GROUP_NAME,
    keys.SLICE_TOPOLOGY,
    keys.SLICE_SIZE,
    keys.SLICE_CONSTRAINTS,
)
_GROUP_LABELS: Final = (keys.POD_GROUP, keys.POD_GROUP_INDEX)
_GROUP_ANNOTATIONS: Final = (keys.POD_GROUP_TOTAL, keys.POD_GROUP_FAST, keys.RETRIABLE)
_ROLE: Final = "kueue.x-k8s.io/role-hash"
_QUEUE_KEYS: Final = (keys.QUEUE_NAME, keys.PRIORITY_CLASS, keys.MAX_EXECUTION)


def queue_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """The labels of Kueue that a job lacks and whose twin of queuectl it has."""
    present = labels or {}
    return _missing(present, _QUEUE_KEYS)


def without_queuectl(
    template: Mapping[str, Any], priority_class: str | None, *, keep_class: bool = False
) -> dict[str, Any]:
    """A pod template without the gate, the labels and the PriorityClass of queuectl, and with Kueue's topology annotations.

    Args:
        template: as the API server returns it. Its containers stay as they are: Kueue compares them.
        priority_class: that of the user, before admission replaced it; None = the user named none.
        keep_class: the PriorityClass stays, because the API server refuses to change it.
    """
    cleaned = deepcopy(dict(template))
    meta, spec = cleaned.setdefault("metadata", {}), cleaned.setdefault("spec", {})
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k not in _OWN_LABELS}
    annotations = dict(meta.get("annotations") or {})
    annotations |= _missing(annotations, TOPOLOGY_KEYS)
    _set(meta, "labels", labels)
    gates = [gate for gate in spec.get("schedulingGates") or () if gate.get("name") != keys.GATE]
    _set(spec, "schedulingGates", gates)
    if not keep_class and spec.get("priorityClassName") == keys.POD_PRIORITY_CLASS:
        # The number and the policy come from the class, which admission wrote into a pod.
        for name in ("priorityClassName", "priority", "preemptionPolicy"):
            spec.pop(name, None)
        if priority_class:
            spec["priorityClassName"] = priority_class
    _set(meta, "annotations", annotations)
    return cleaned


def of_job(template: Mapping[str, Any], priority_class: str | None) -> dict[str, Any]:
    """The template of a ``batch/v1`` Job for a podset; see :func:`without_queuectl`."""
    cleaned = without_queuectl(template, priority_class)
    meta = cleaned["metadata"]
    labels = meta.get("labels") or {}
    _set(meta, "labels", {k: v for k, v in labels.items() if k not in _JOB_CONTROLLER_LABELS})
    meta.pop("creationTimestamp", None)
    return cleaned


def of_pod(pod: Mapping[str, Any], priority_class: str | None) -> dict[str, Any]:
    """The template of a pod for a podset: its spec before it had a node. See :func:`without_queuectl`."""
    meta = pod["metadata"]
    kept = {name: meta[name] for name in ("labels", "annotations") if meta.get(name)}
    template = {"metadata": kept, "spec": pod.get("spec") or {}}
    cleaned = without_queuectl(template, priority_class)
    spec = cleaned["spec"]
    spec.pop("nodeName", None)
    if (meta.get("labels") or {}).get(keys.ATTEMPT_LABEL):
        _unpin(spec)
    return cleaned


def _unpin(spec: dict[str, Any]) -> None:
    """Remove the pin from the spec of a pod."""
    read = msgspec.convert(spec.get("affinity") or {}, OwnAffinity).node_affinity
    terms, pin = read_node_affinity(read), pin_in(read)
    if pin is None or terms is None:
        return
    affinity, left = dict(spec["affinity"]), unpinned(terms, pin)
    node = dict(affinity["nodeAffinity"])
    node.pop(REQUIRED)
    if left is not None:
        node |= write_required(left)["nodeAffinity"]
    _set(affinity, "nodeAffinity", node)
    _set(spec, "affinity", affinity)


def group_marks(pod: Mapping[str, Any], role: str) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations with which Kueue finds the pods of a group. ``role``: the podset of the pod."""
    meta = pod["metadata"]
    labels = _missing(meta.get("labels") or {}, _GROUP_LABELS)
    annotations = _missing(meta.get("annotations") or {}, _GROUP_ANNOTATIONS)
    return labels, annotations | {_ROLE: role}


def topology_request(meta: Mapping[str, Any], index_label: str | None) -> dict[str, Any] | None:
    """Kueue's ``topologyRequest`` of a podset; None without a request.

    Args:
        meta: the metadata of a cleaned template.
        index_label: the label with the rank of a pod, which Kueue states in each request.
    """
    annotations = meta.get("annotations") or {}
    stated = {suffix: annotations.get(keys.KUEUE_PREFIX + suffix) for suffix in TOPOLOGY_KEYS}
    request: dict[str, Any] = {}
    if stated[keys.REQUIRED_TOPOLOGY] is not None:
        request["required"] = stated[keys.REQUIRED_TOPOLOGY]
    elif stated[keys.PREFERRED_TOPOLOGY] is not None:
        request["preferred"] = stated[keys.PREFERRED_TOPOLOGY]
    elif stated[keys.UNCONSTRAINED_TOPOLOGY] is not None:
        request["unconstrained"] = stated[keys.UNCONSTRAINED_TOPOLOGY] == "true"
    size = stated[keys.SLICE_SIZE] or ""
    if stated[keys.SLICE_TOPOLOGY] and size.isdecimal() and len(size) < 10:
        request["podSetSliceRequiredTopology"] = stated[keys.SLICE_TOPOLOGY]
        request["podSetSliceSize"] = int(size)
    if stated[keys.GROUP_NAME] and ("required" in request or "preferred" in request):
        request["podSetGroupName"] = stated[keys.GROUP_NAME]
    if index_label is not None:
        request["podIndexLabel"] = index_label
    return request or None


def _missing(present: Mapping[str, str], suffixes: tuple[str, ...]) -> dict[str, str]:
    return {
        keys.KUEUE_PREFIX + suffix: present[keys.PREFIX + suffix]
        for suffix in suffixes
        if keys.PREFIX + suffix in present and keys.KUEUE_PREFIX + suffix not in present
    }


def _set(parent: dict[str, Any], name: str, entries: Any) -> None:
    """Set a field, or remove it if it is empty."""
    if entries:
        parent[name] = entries
    else:
        parent.pop(name, None)

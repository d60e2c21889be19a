"""Configuration objects on the pages: the address of each, its summary in one line, and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import yaml

from queuectl.api.params import NAME
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.budgets import holder_of
from queuectl.domain.queries import DocumentKey
from queuectl.domain.words import counted
from queuectl.objects.configuration.config_kinds import BY_KIND, CONFIG_KINDS, ConfigKind
from queuectl.objects.configuration.queue_config import validate
from queuectl.web.site import PREFIX

HOME: Final = f"{PREFIX}/config"
BY_PLURAL: Final = {kind.plural: kind for kind in CONFIG_KINDS}
_NAME: Final = re.compile(NAME)
_HEAD: Final = ("apiVersion", "kind", "metadata")


def kind_of(key: DocumentKey) -> ConfigKind:
    """Of an object whose kind is one of ours."""
    return BY_KIND[key.kind]


def part_of(key: DocumentKey) -> str:
    """The part of an address that identifies an object: ``clusterqueues/vision``, ``localqueues/team-a/default``."""
    parts = (kind_of(key).plural, key.namespace, key.name)
    return "/".join(quote(part, safe="") for part in parts if part)


def address_of(key: DocumentKey) -> str:
    """Of its page."""
    return f"{HOME}/{part_of(key)}"


def key_of(part: str) -> DocumentKey:
    """The object that :func:`part_of` stands for.

    Raises:
        Problem: not-found: the text identifies no object.
    """
    plural, *names = part.split("/")
    kind = BY_PLURAL.get(plural)
    whole = kind is not None and len(names) == 1 + kind.namespaced
    if kind is None or not whole or not all(_NAME.fullmatch(name) for name in names):
        raise ApiProblem(
            ProblemType.NOT_FOUND, f"{part} is not the address of a configuration object"
        )
    namespace, name = names if kind.namespaced else ("", names[0])
    return DocumentKey(kind.kind, namespace, name)


def named_in(body: Mapping[str, Any]) -> DocumentKey:
    """The object that a document is about.

    Raises:
        DocumentError: the document is wrong.
        Problem: invalid-document: its name fits no path.
    """
    document, _ = validate(body)
    key = DocumentKey.of(document)
    for field, text in (("metadata.name", key.name), ("metadata.namespace", key.namespace)):
        if text and not _NAME.fullmatch(text):
            reason = f"{text!r} is not a name of lower-case letters, digits, - and ."
            errors = [{"field": field, "reason": reason}]
            raise ApiProblem(ProblemType.INVALID_DOCUMENT, f"{field}: {reason}", errors=errors)
    return key


def text_of(document: Mapping[str, Any]) -> str:
    """The YAML that users read and edit."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)


def value_text(side: Any) -> str:
    """One side of a difference; empty = the field is not set."""
    match side:
        case None:
            return ""
        case str():
            return side or '""'
        case dict() | list():
            return yaml.safe_dump(side, sort_keys=False, allow_unicode=True).rstrip()
        case _:
            return yaml.safe_dump(side).partition("\n")[0]


_CHECKS: Final = {
    "AdmissionCheck": ("controllerName", "answered by"),
    "ProvisioningRequestConfig": ("provisioningClassName", "requests nodes of class"),
}


def line_of(document: Mapping[str, Any]) -> str:
    """The summary of a valid object, in one line."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    match document["kind"]:
        case "ClusterQueue":
            return _joined([*_quotas(spec), _labeled("cohort", spec.get("cohortName"))])
        case "LocalQueue":
            return f"ClusterQueue {spec['clusterQueue']}"
        case "Cohort":
            return _joined([_labeled("parent cohort", spec.get("parentName")), *_quotas(spec)])
        case "ResourceFlavor":
            labels = (spec.get("nodeLabels") or {}).items()
            nodes = ", ".join(f"{key}={value}" for key, value in labels)
            return _joined(
                [_labeled("nodes with", nodes), _labeled("Topology", spec.get("topologyName"))]
            )
        case "Topology":
            return " / ".join(level["nodeLabel"] for level in spec["levels"])
        case "AdmissionCheck" | "ProvisioningRequestConfig" as kind:
            field, text = _CHECKS[kind]
            return f"{text} {spec[field]}"
        case "QuotaOverride":
            added = "add" in spec
            amount = f"{spec['add']} additional" if added else spec.get("nominalQuota", "")
            what = f"{amount} {spec['resource']} of {spec['flavor']} for {spec['clusterQueue']}"
            return f"{what}, {spec['from']} to {spec['until']}"
        case "Budget":
            return f"{spec['gpuHoursPerMonth']} GPU-hours a month for {holder_of(spec)}"
        case "BudgetTopUp":
            return f"{spec['gpuHours']} GPU-hours for {spec['budget']} in {spec['month']}: {spec['reason']}"
        case "Reservation":
            what = _joined([capacity_of(spec), _labeled("for", spec.get("clusterQueue"))])
            return f"{what}, {spec['from']} to {spec['until']}"
        case "WorkloadPriorityClass":
            return _joined([str(document["value"]), document.get("description") or ""])
        case _:
            return ", ".join(key for key in document if key not in _HEAD)


def capacity_of(spec: Mapping[str, Any]) -> str:
    """The capacity or the nodes of a Reservation: ``4 pods with 8 nvidia.com/gpu each``, or the names of nodes."""
    capacity = spec.get("capacity")
    if not capacity:
        return ", ".join(spec.get("nodes") or ())
    asked = ", ".join(f"{amount} {name}" for name, amount in capacity["requests"].items())
    return f"{counted(capacity['pods'], 'pod')} with {asked} each"


def _quotas(spec: Mapping[str, Any]) -> Iterable[str]:
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            amounts = (f"{one['nominalQuota']} {one['name']}" for one in flavor["resources"])
            yield f"{flavor['name']}: {', '.join(amounts)}"


def _labeled(what: str, name: str | None) -> str:
    return f"{what} {name}" if name else ""


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)

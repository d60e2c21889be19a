"""Configuration objects on the pages: address, summary in one line, text, latest changes, and editor.

The audit log has the changes, made through the REST API or through the pages. The editor sends its text together with the object that it
replaces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote

import orjson
import yaml
from starlette.requests import Request

from queuectl.api.body import MAX_FORM_BYTES, Bodies, read_bytes
from queuectl.api.params import NAME, etag
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import AuditStore
from queuectl.domain.audit import AuditFilter, AuditLine
from queuectl.domain.budgets import holder_of
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND, CONFIG_KINDS, ConfigKind
from queuectl.objects.configuration.queue_config import validate
from queuectl.web.site import PREFIX
from queuectl.web.words import calendar, counted, number, seconds_of

# ---- Addresses and texts

HOME: Final = f"{PREFIX}/config"
BY_PLURAL: Final = {kind.plural: kind for kind in CONFIG_KINDS}
_NAME: Final = re.compile(NAME)
_HEAD: Final = ("apiVersion", "kind", "metadata")
_SMALL: Final = 1 << 11
"""Bytes of a value in JSON that becomes YAML on the event loop, in a few milliseconds. Most objects are smaller."""

_Source = TypeVar("_Source")
_Text = TypeVar("_Text")


def kind_of(key: DocumentKey) -> ConfigKind:
    """Of an object whose kind is one of ours."""
    return BY_KIND[key.kind]


def _part_of(key: DocumentKey) -> str:
    """The part of an address that identifies an object: ``clusterqueues/vision``, ``localqueues/team-a/default``."""
    parts = (kind_of(key).plural, key.namespace, key.name)
    return "/".join(quote(part, safe="") for part in parts if part)


def address_of(key: DocumentKey) -> str:
    """Of its page."""
    return f"{HOME}/{_part_of(key)}"


def key_of(part: str) -> DocumentKey:
    """The object that :func:`_part_of` stands for.

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


async def yaml_of(bodies: Bodies, document: Mapping[str, Any]) -> str:
    """:func:`text_of`, of a large document in a thread. Raises ApiProblem when too many requests wait."""
    return await _written(bodies, dict(document), text_of)


async def changes_as_yaml(
    bodies: Bodies, changes: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Changes in the form of the API, with both sides as YAML; an empty side = the field is not set. Raises as :func:`yaml_of`."""
    return await _written(bodies, changes, _texts)


async def _written(bodies: Bodies, source: _Source, write: Callable[[_Source], _Text]) -> _Text:
    if len(orjson.dumps(source)) <= _SMALL:
        return write(source)
    return await bodies.work(partial(write, source))


def _texts(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "field": change["field"],
            "before": _value_text(change["before"]),
            "after": _value_text(change["after"]),
        }
        for change in changes
    ]


def _value_text(side: Any) -> str:
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


_LONGEST_AMOUNT: Final = 15  # digits: of more, a floating-point number has not all


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
            amount = (
                f"{_amount(spec['add'])} additional"
                if added
                else _amount(spec.get("nominalQuota", ""))
            )
            what = f"{amount} {spec['resource']} of {spec['flavor']} for {spec['clusterQueue']}"
            return f"{what}, {_time(spec['from'])} to {_time(spec['until'])}"
        case "Budget":
            return f"{_amount(spec['gpuHoursPerMonth'])} GPU-hours a month for {holder_of(spec)}"
        case "BudgetTopUp":
            return f"{_amount(spec['gpuHours'])} GPU-hours for {spec['budget']} in {spec['month']}: {spec['reason']}"
        case "Reservation":
            what = _joined([capacity_of(spec), _labeled("for", spec.get("clusterQueue"))])
            return f"{what}, {_time(spec['from'])} to {_time(spec['until'])}"
        case "WorkloadPriorityClass":
            return _joined([str(document["value"]), document.get("description") or ""])
        case _:
            return ", ".join(key for key in document if key not in _HEAD)


def _amount(written: object) -> str:
    """An amount of a document: a whole number as on all pages, another one as it is written."""
    text = str(written)
    return number(int(text)) if text.isdecimal() and len(text) <= _LONGEST_AMOUNT else text


def _time(text: str) -> str:
    at = seconds_of(text)
    return text if at is None else calendar(at)


def capacity_of(spec: Mapping[str, Any]) -> str:
    """The capacity or the nodes of a Reservation: ``4 pods with 8 nvidia.com/gpu each``, or the names of nodes."""
    capacity = spec.get("capacity")
    if not capacity:
        return ", ".join(spec.get("nodes") or ())
    asked = ", ".join(f"{_amount(amount)} {name}" for name, amount in capacity["requests"].items())
    return f"{counted(capacity['pods'], 'pod')} with {asked} each"


def _quotas(spec: Mapping[str, Any]) -> Iterable[str]:
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            amounts = (
                f"{_amount(one['nominalQuota'])} {one['name']}" for one in flavor["resources"]
            )
            yield f"{flavor['name']}: {', '.join(amounts)}"


def _labeled(what: str, name: str | None) -> str:
    return f"{what} {name}" if name else ""


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


# ---- Latest changes

SHOWN: Final = 5
_MOST_LINES: Final = 200  # lines; lines of objects with a longer name are among them


async def changes_of(audit_store: AuditStore, key: DocumentKey) -> list[AuditLine]:
    """The latest requests that changed an object, or whose result is unknown, newest first. May raise StoreUnavailable."""
    found: list[AuditLine] = []
    for path in (kind_of(key).path(key.namespace, key.name), address_of(key)):
        lines = await audit_store.lines(AuditFilter(path=path), _MOST_LINES)
        found += [line for line in lines if _changed(line, path)]
    found.sort(key=lambda line: -line.id)
    return found[:SHOWN]


def _changed(line: AuditLine, path: str) -> bool:
    """Whether a line is a change of this object. A line whose result is unknown counts."""
    given = line.path.partition("?")[0]
    refused = line.status is not None and line.status >= 400
    changes = given in (path, f"{path}/stop", f"{path}/resume")
    done = not refused and not line.detail.startswith("unchanged")
    return changes and done


# ---- The editor

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 16


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that can become an object.

    Attributes:
        text: the content of the editor.
        key: of the object; None = a new object, which the text itself names.
        version: of the object when its text was taken into the editor; None = there was none.
        base: that object's text; empty = there was none.
        checked: the seal of the last checked text; empty = none.
    """

    text: str
    key: DocumentKey | None = None
    version: int | None = None
    base: str = ""
    checked: str = ""

    @property
    def seal(self) -> str:
        """Identifies this text together with this version."""
        return hashlib.blake2b(f"{self.version}\n{self.text}".encode(), digest_size=12).hexdigest()

    @property
    def part(self) -> str:
        """The part of an address that identifies its object; empty = the object is new."""
        return _part_of(self.key) if self.key is not None else ""

    @property
    def conditions(self) -> tuple[str | None, str | None]:
        """If-Match and If-None-Match, so that the text replaces only the version that it was edited from."""
        return (etag(self.version), None) if self.version is not None else (None, "*")


async def form_of(request: Request, bodies: Bodies) -> dict[str, str]:
    """The fields of a form, line ends as one character.

    Raises:
        Problem: it is not one, or too large.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != _FORM:
        raise ApiProblem(
            ProblemType.UNSUPPORTED_MEDIA_TYPE, f"{media!r} is not supported: send {_FORM}"
        )
    body = await read_bytes(request, MAX_FORM_BYTES)
    return await bodies.work(partial(_fields, body))


def _fields(body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace")
    try:
        fields = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS)
    except ValueError as error:
        raise ApiProblem(ProblemType.MALFORMED_BODY, f"not a form: {error}") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def draft_of(form: dict[str, str]) -> Draft:
    """The draft in a form. Raises ApiProblem when it is not a form of the editor."""
    part = form.get("of", "")
    return Draft(
        form.get("text", ""),
        key_of(part) if part else None,
        version_of(form),
        form.get("base", ""),
        form.get("checked", ""),
    )


def version_of(form: dict[str, str]) -> int | None:
    """The version that a form is about; None = the object did not exist. Raises ApiProblem when it is not a version."""
    given = form.get("version", "")
    if given and not (given.isdecimal() and len(given) < 19):
        raise ApiProblem(ProblemType.INVALID_PARAMETER, f"version: {given!r} is not a version")
    return int(given) if given else None

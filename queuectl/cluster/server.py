"""The answers of the API server about itself: its version, resources and schemas.

This module names all differences between versions that queuectl adapts to. Kubernetes 1.36 and newer need no adaptation. Declared job
kinds are compared with the schemas of the server: a path that no object has would never have a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from queuectl.cluster.access import Remembered
from queuectl.cluster.client import Api, document_in
from queuectl.domain.errors import ClusterUnavailable, ObjectGone
from queuectl.objects.kinds import JobKinds, descriptions_of
from queuectl.objects.kinds.declared import KEY
from queuectl.objects.kinds.description import Declared, PodSets

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
"""The path of all CustomResourceDefinitions."""

# ---- Discovery of a resource

#
# A 404 alone does not show that the API server lacks a resource: a proxy or a load balancer can also answer with it.


class _ServedVersion(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct):
    versions: list[_ServedVersion]


class _Groups(msgspec.Struct, tag_field="kind", tag="APIGroupList"):
    groups: list[_Group]


class _Named(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct, tag_field="kind", tag="APIResourceList"):
    resources: list[_Named]


_groups: Final = msgspec.json.Decoder(_Groups).decode
_resources: Final = msgspec.json.Decoder(_Resources).decode


async def confirm_absent(api: Api, path: str) -> None:
    """Return if the discovery of the API server does not list the resource.

    Args:
        api: the API server.
        path: of the collection in all namespaces, ``/apis/GROUP/VERSION/PLURAL``.

    Raises:
        ClusterError: it serves the resource, or its discovery is not available.
    """
    base, _, plural = path.rpartition("/")
    try:
        found = _groups(await api.request("GET", "/apis"))
        served = {version.group_version for group in found.groups for version in group.versions}
        if base.removeprefix("/apis/") not in served:
            return
        listed = _resources(await api.request("GET", base)).resources
    except (ObjectGone, ValueError) as error:
        text = f"{path}: answered 404, and the API server does not list what it serves: {error}"
        raise ClusterUnavailable(text) from error
    if any(one.name == plural for one in listed):
        raise ClusterUnavailable(f"{path}: answered 404, but the API server lists it as served")


# ---- Version of the API server

MINIMUM: Final = (1, 33)
"""The oldest version that `make test-versions` tests."""
_VALID_SECONDS: Final = 600.0
_Number = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,9}\+?$")]


class _Version(msgspec.Struct):
    major: _Number
    minor: _Number


_version: Final = msgspec.json.Decoder(_Version).decode


@dataclass(frozen=True, order=True, slots=True)
class Server:
    """An API server of this version, as a pair of numbers."""

    version: tuple[int, int]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def supported(self) -> bool:
        """Whether queuectl runs on it."""
        return self.version >= MINIMUM

    @property
    def has_mutating_policies(self) -> bool:
        """MutatingAdmissionPolicy is v1. Before, the webhook of queuectl mutates new jobs."""
        return self.version >= (1, 36)

    @property
    def keeps_templates_mutable(self) -> bool:
        """The template of a suspended Job can change after a first start. Before, only while ``status.startTime`` is empty."""
        return self.version >= (1, 36)

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs of queuectl on this version that newer ones do not have."""
        found: tuple[str, ...] = ()
        if not self.has_mutating_policies:
            found += ("the webhook for new jobs (queuectl webhook)",)
        if not self.keeps_templates_mutable:
            found += ("the right to patch the status of Jobs",)
        return found


async def discover(api: Api) -> Server:
    """The current version of the API server. Raises ClusterError, including when the answer is not from an API server."""
    body = await api.request("GET", "/version")
    try:
        version = _version(body)
    except ValueError as error:
        text = body[:100].decode(errors="replace")
        raise ClusterUnavailable(
            f"GET /version: no version of Kubernetes: {error}: {text}"
        ) from error
    return Server((_number(version.major), _number(version.minor)))


def _number(text: str) -> int:
    """Some distributions write ``36+``."""
    return int(text.rstrip("+") or 0)


class Discovered:
    """The version of one API server, which is read again after ten minutes: a cluster is upgraded while queuectl runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: Remembered[None, Server] = Remembered(lambda *_: _VALID_SECONDS, most=1)

    async def get(self) -> Server:
        """The version. Raises ClusterError."""
        return await self._known.get(None, lambda: discover(self._api))


# ---- Schemas

_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_KINDS: Final = "x-kubernetes-group-version-kind"
_Schema = Mapping[str, Any]


async def mismatches(api: Api, kinds: JobKinds) -> list[str]:
    """Sentences with the value, the kind and the field, of the declared kinds that are installed.

    Raises:
        ClusterError: a request failed.
    """
    found = []
    for one in descriptions_of(kinds):
        if not isinstance(one, Declared):
            continue
        with suppress(ObjectGone):  # no kind of this API version is installed
            target = f"/openapi/v3/apis/{one.group}/{one.version}"
            served = document_in(target, await api.request("GET", target))
            differences = compared(one, served)
            found += [f"{KEY} ({one.kind}): {field}: {reason}" for field, reason in differences]
    return found


def compared(declared: Declared, served: _Schema) -> Iterator[tuple[str, str]]:
    """The fields of a declaration that do not fit the schemas of its API version, with reasons."""
    schemas = served.get("components", {}).get("schemas", {})
    schema = next((each for each in schemas.values() if _is_of(each, declared)), None)
    if schema is None:
        return  # the version has other kinds, and this one is not installed
    paths = served.get("paths", {})
    objects = f"/apis/{declared.group}/{declared.version}/namespaces/{{namespace}}/{declared.plural}/{{name}}"
    if paths and objects not in paths:
        yield "plural", f"the API server serves no {declared.plural} in namespaces"
    for field, path, types in _expected(declared):
        yield from _differs(schema, field, path, types, schemas)
    for number, place in enumerate(declared.podsets):
        yield from _place(schema, f"podsets[{number}]", place, schemas)


def _is_of(schema: _Schema, declared: Declared) -> bool:
    named = {"group": declared.group, "version": declared.version, "kind": declared.kind}
    return named in schema.get(_KINDS, ())


def _expected(declared: Declared) -> Iterator[tuple[str, str, str]]:
    """Fields outside the podsets: the name, the path, and the type."""
    yield "suspend", declared.suspend, "boolean"
    if declared.phase is not None:
        yield "phase.path", declared.phase.path, "string"
    else:
        yield "conditions", "status.conditions", "array"
    if declared.priority_class:
        yield "priorityClass", declared.priority_class, "string"
    if declared.manager is not None:
        yield "manager.path", declared.manager.path, "string"


def _place(
    schema: _Schema, field: str, place: PodSets, schemas: _Schema
) -> Iterator[tuple[str, str]]:
    kind = "array" if place.key else "object"
    wrong = list(_differs(schema, f"{field}.path", place.path, kind, schemas))
    yield from wrong
    if wrong:
        return
    found = _at(schema, place.path, schemas) or {}
    for entry, path in _entries(found, place, schemas):
        expected = [("template", place.template, "object")]
        expected += [("count", count, "integer") for factor in place.count for count in factor]
        expected += [("key", place.key, "string")] if place.key else []
        for name, inner, kind in expected:
            for where, reason in _differs(entry, f"{field}.{name}", inner, kind, schemas):
                yield where, f"{path}: {reason}"


def _entries(schema: _Schema, place: PodSets, schemas: _Schema) -> Iterator[tuple[_Schema, str]]:
    if place.name:
        yield schema, place.path
    elif place.key:
        yield _resolved(schema.get("items", {_OPEN: True}), schemas), f"{place.path}[]"
    elif "additionalProperties" in schema:
        yield _resolved(schema["additionalProperties"], schemas), f"{place.path}[]"
    else:
        for name in place.types:
            entry = _step(schema, name, schemas)
            yield (entry if entry is not None else {}), f"{place.path}.{name}"


def _differs(
    schema: _Schema, field: str, path: str, kind: str, schemas: _Schema
) -> Iterator[tuple[str, str]]:
    found = _at(schema, path, schemas)
    if found is None:
        yield field, f"the schema of the CustomResourceDefinition has no field {path}"
    elif (actual := found.get("type", kind)) != kind:
        yield field, f"{path} has the type {actual} in the CustomResourceDefinition, not {kind}"


def _at(schema: _Schema, path: str, schemas: _Schema) -> _Schema | None:
    """The schema of a field, or None."""
    found: _Schema | None = _resolved(schema, schemas)
    for name in path.split("."):
        found = _step(found, name, schemas) if found is not None else None
    return found


def _step(schema: _Schema, name: str, schemas: _Schema) -> _Schema | None:
    properties = schema.get("properties", {})
    if name in properties:
        return _resolved(properties[name], schemas)
    return {_OPEN: True} if schema.get(_OPEN) else None


def _resolved(schema: Any, schemas: _Schema) -> _Schema:
    """A reference is the only member of its schema, or the only one of ``allOf``."""
    if not isinstance(schema, Mapping):
        return {_OPEN: True}
    [*parts] = schema.get("allOf", ())
    reference = schema.get("$ref") or (parts[0].get("$ref") if len(parts) == 1 else None)
    if reference is None:
        return schema
    found: _Schema = schemas.get(reference.rpartition("/")[2], {_OPEN: True})
    return found

"""Compares declared job kinds with the schemas that the API server serves: a path that no object has would never have a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from queuectl.cluster.client import Api, document_in
from queuectl.domain.errors import ObjectGone
from queuectl.objects.kinds import JobKinds, descriptions_of
from queuectl.objects.kinds.declared import KEY
from queuectl.objects.kinds.description import Declared, PodSets

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
    elif paths and declared.scale is not (f"{objects}/scale" in paths):
        has = "has no" if declared.scale else "has the"
        yield "scale", f"the CustomResourceDefinition {has} subresource scale"
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
    """The schema of a field; None if there is none."""
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

"""The documents that kube-apiserver and kubectl read about the group: its versions, its resources and their schemas."""

from __future__ import annotations

import functools
from typing import Any, Final

from queuectl.visibility.objects import (
    API_VERSION,
    GROUP,
    KIND,
    LIST_KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    VERSION,
    QueuedJob,
)

VERBS: Final = ("get", "list", "watch")
ROOT: Final = f"/apis/{API_VERSION}"
OPENAPI_V3: Final = f"/openapi/v3/apis/{API_VERSION}"

_VERSION: Final = {"groupVersion": API_VERSION, "version": VERSION}
_GROUP_VERSION_KIND: Final = {"group": GROUP, "version": VERSION}

GROUP_DOCUMENT: Final = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [_VERSION],
    "preferredVersion": _VERSION,
}
GROUP_LIST: Final = {
    "kind": "APIGroupList",
    "apiVersion": "v1",
    "groups": [{key: GROUP_DOCUMENT[key] for key in ("name", "versions", "preferredVersion")}],
}
RESOURCE_LIST: Final = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": API_VERSION,
    "resources": [
        {
            "name": PLURAL,
            "singularName": SINGULAR,
            "namespaced": True,
            "kind": KIND,
            "verbs": list(VERBS),
            "shortNames": [SHORT_NAME],
        }
    ],
}
AGGREGATED: Final = {
    "kind": "APIGroupDiscoveryList",
    "apiVersion": "apidiscovery.k8s.io/v2",
    "metadata": {},
    "items": [
        {
            "metadata": {"name": GROUP, "creationTimestamp": None},
            "versions": [
                {
                    "version": VERSION,
                    "freshness": "Current",
                    "resources": [
                        {
                            "resource": PLURAL,
                            "responseKind": {**_GROUP_VERSION_KIND, "kind": KIND},
                            "scope": "Namespaced",
                            "singularResource": SINGULAR,
                            "verbs": list(VERBS),
                            "shortNames": [SHORT_NAME],
                        }
                    ],
                }
            ],
        }
    ],
}
AGGREGATED_TYPE: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@functools.cache
def openapi_v3_root() -> dict[str, Any]:
    """The list of the schemas."""
    return {"paths": {f"apis/{API_VERSION}": {"serverRelativeURL": OPENAPI_V3}}}


@functools.cache
def openapi_v3() -> dict[str, Any]:
    """The schema of the group."""
    reference = "#/components/schemas/"
    return {
        "openapi": "3.0.0",
        "info": {"title": "queuectl visibility", "version": VERSION},
        "paths": {
            path: {"get": _operation(action, {"content": {"application/json": {"schema": schema}}})}
            for path, action, schema in _reads(reference)
        },
        "components": {"schemas": _schemas(reference)},
    }


@functools.cache
def openapi_v2() -> dict[str, Any]:
    """The same for clients that read version 2."""
    reference = "#/definitions/"
    return {
        "swagger": "2.0",
        "info": {"title": "queuectl visibility", "version": VERSION},
        "paths": {
            path: {"get": _operation(action, {"schema": schema})}
            for path, action, schema in _reads(reference)
        },
        "definitions": _schemas(reference),
    }


def _reads(reference: str) -> list[tuple[str, str, dict[str, str]]]:
    """The path of each read, its action, and the schema of its answer."""
    collection = f"{ROOT}/namespaces/{{namespace}}/{PLURAL}"
    one, several = (
        {"$ref": reference + _definition(KIND)},
        {"$ref": reference + _definition(LIST_KIND)},
    )
    return [
        (f"{ROOT}/{PLURAL}", "list", several),
        (collection, "list", several),
        (f"{collection}/{{name}}", "get", one),
    ]


def _operation(action: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "responses": {"200": {"description": "OK", **answer}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {**_GROUP_VERSION_KIND, "kind": KIND},
    }


def _definition(name: str) -> str:
    return f"dev.queuectl.visibility.{VERSION}.{name}"


def _schemas(reference: str) -> dict[str, Any]:
    """The schemas by their names, with references below ``reference``."""
    schema = QueuedJob.model_json_schema(
        by_alias=True, mode="serialization", ref_template=reference + _definition("{model}")
    )
    definitions: dict[str, Any] = schema.pop("$defs")
    definitions[KIND] = schema
    definitions[LIST_KIND] = {
        "description": "A list of QueuedJobs.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": reference + _definition(KIND)}},
        },
    }
    made = {_definition(name): _plain(one) for name, one in definitions.items()}
    for name in (KIND, LIST_KIND):
        made[_definition(name)]["x-kubernetes-group-version-kind"] = [
            {**_GROUP_VERSION_KIND, "kind": name}
        ]
    return made


def _plain(schema: Any) -> Any:
    """A schema of pydantic in the subset that Kubernetes reads: no alternatives, no constants and no titles.

    A field that can be null has the schema of its other values.
    """
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: one for key, one in schema.items() if key not in _DROPPED}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            kept = {**choice, **kept}
            break
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: _plain(one) for name, one in kept["properties"].items()}
    return {
        key: one if key == "properties" else _plain(one)
        for key, one in kept.items()
        if key not in _DROPPED
    }


_DROPPED: Final = frozenset(
    ("title", "anyOf", "const", "default", "additionalProperties", "propertyNames", "pattern")
)

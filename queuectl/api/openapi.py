"""The OpenAPI 3.1 description: the description by FastAPI, with problems and schemas of documents.

docs/reference/openapi.json is this description, committed; a test compares the two, so that a breaking change is a visible diff.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from queuectl.api import reading
from queuectl.api.body import JSON_TYPES, YAML_TYPES
from queuectl.api.budgets import TopUpBody
from queuectl.api.command_batches import BatchBody
from queuectl.api.command_views import BODIES
from queuectl.api.plans import PlanBody
from queuectl.api.problems import MEDIA_TYPE, ProblemType
from queuectl.api.queue_stops import ResumeBody, StopBody
from queuectl.api.schemas import ConfirmBody, ProblemView, SignInBody
from queuectl.api.subscriptions import SubscriptionBody
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.configuration.queue_config import READERS

_REF: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
_ETAG: Final = {
    "ETag": {"description": "Version of the object.", "schema": {"type": "string"}},
}

_EVERYWHERE: Final = (
    ProblemType.UNAUTHENTICATED,
    ProblemType.FORBIDDEN,
    ProblemType.FOREIGN_ORIGIN,
    ProblemType.MISDIRECTED,
    ProblemType.INVALID_PARAMETER,
    ProblemType.TOO_MANY_REQUESTS,
    ProblemType.STORE_UNAVAILABLE,
    ProblemType.CLUSTER_UNAVAILABLE,
)
_SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the cluster, for example of `kubectl create token`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-queuectl",
        "description": "Of POST /api/v1/session; for browsers. A change needs X-Queuectl-Session: 1 too.",
    },
}
Responses = dict[int | str, dict[str, Any]]


BODY_PROBLEMS: Final = (
    ProblemType.MALFORMED_BODY,
    ProblemType.BODY_TOO_LARGE,
    ProblemType.UNSUPPORTED_MEDIA_TYPE,
)
"""The problems of each operation that reads a body."""


def responses(
    *problems: ProblemType,
    created: type[BaseModel] | None = None,
    not_modified: bool = False,
) -> Responses:
    """The problems of an operation, without those that each operation can answer: see :data:`_EVERYWHERE`."""
    found: Responses = {}
    if created is not None:
        found[201] = {"model": created, "description": "Created", "headers": _ETAG}
    if not_modified:
        found[200] = {"headers": _ETAG}
        found[304] = {"description": "Not modified", "headers": _ETAG}
    every = (*problems, *_EVERYWHERE)
    for status in sorted({problem.status for problem in every}):
        slugs = [problem.slug for problem in every if problem.status == status]
        found[status] = {"description": f"Problem: {' or '.join(slugs)}", "content": _PROBLEM}
    return found


def _body(struct: str) -> dict[str, Any]:
    media = {"schema": {"$ref": _REF.format(name=struct)}}
    content = dict.fromkeys((JSON_TYPES[0], YAML_TYPES[0]), media)
    return {"requestBody": {"required": True, "content": content}}


def model_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The JSON body of an operation that reads it by itself, see :mod:`queuectl.api.body`."""
    media = {"schema": {"$ref": _REF.format(name=model.__name__)}}
    return {"requestBody": {"required": required, "content": {JSON_TYPES[0]: media}}}


CONFIG_BODY: Final = {name: _body(kind.wire.__name__) for name, kind in READERS.items()}
PATCH_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "RFC 7386: only what changes; null takes a field away, a list replaces the list.",
        "content": {reading.MERGE_PATCH: {"schema": {"type": "object"}}},
    }
}
LIST_BODY: Final = _body("ConfigDocuments")


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description; :attr:`FastAPI.openapi` is replaced by it."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version=app.openapi_version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
        )
        components = schema["components"]["schemas"]
        components["Problem"] = ProblemView.model_json_schema(ref_template=_template())
        components.update(components["Problem"].pop("$defs", {}))
        components.update(_documents())
        components.update(_bodies())
        components["ConfigDocuments"] = _list_of_documents()
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        schema["components"]["schemas"] = dict(sorted(components.items()))
        schema["components"]["securitySchemes"] = _SCHEMES
        schema["security"] = [{scheme: []} for scheme in _SCHEMES]
        app.openapi_schema = schema
    return app.openapi_schema


def _list_of_documents() -> dict[str, Any]:
    """Several documents of any kinds, as kubectl prints them."""
    any_kind = [{"$ref": _REF.format(name=kind.wire.__name__)} for kind in READERS.values()]
    return {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"anyOf": any_kind}}},
        "required": ["items"],
    }


def _bodies() -> dict[str, Any]:
    """Schemas of the bodies that :func:`model_body` names."""
    models: list[type[BaseModel]] = [
        *set(BODIES.values()),
        ConfirmBody,
        StopBody,
        BatchBody,
        ResumeBody,
        PlanBody,
        SignInBody,
        SubscriptionBody,
        TopUpBody,
    ]
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template=_template()
    )
    return dict(schemas["$defs"])


def _template() -> str:
    return _REF.replace("{name}", "{model}")


def _documents() -> dict[str, Any]:
    """Schemas of the configuration kinds, from the reader's own structs."""
    structs = [kind.wire for kind in READERS.values()]
    _, components = msgspec.json.schema_components(structs, ref_template=_REF)
    for name, kind in READERS.items():
        properties = components[kind.wire.__name__]["properties"]
        properties["kind"] = {"const": name}
        properties["apiVersion"] = {"enum": list(BY_KIND[name].versions)}
        properties["status"] = {"description": "Ignored."}
    return dict(components)

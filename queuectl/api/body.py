"""Reading one configuration document from a request body, JSON or YAML. How large it may be, auth/limits.py says."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson
import yaml
from fastapi import Request

from queuectl.api import merge
from queuectl.api.problems import Problem, ProblemType

JSON_TYPES: Final = ("application/json",)
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")

_CONTROL: Final = re.compile("[\x00\ud800-\udfff]")  # what Postgres' jsonb cannot hold


async def read_document(request: Request) -> dict[str, Any]:
    """The body as one mapping.

    Raises:
        Problem: unsupported-media-type or malformed-body.
    """
    media = request.headers.get("content-type", JSON_TYPES[0]).partition(";")[0].strip().lower()
    if media not in JSON_TYPES + YAML_TYPES:
        raise Problem(
            ProblemType.UNSUPPORTED_MEDIA_TYPE,
            f"{media!r} is not understood; send {JSON_TYPES[0]} or {YAML_TYPES[0]}",
            {"Accept": ", ".join(JSON_TYPES + YAML_TYPES)},
        )
    body = await request.body()
    return _mapping(_from_json(body) if media in JSON_TYPES else _from_yaml(body))


def read_yaml(text: str) -> dict[str, Any]:
    """A text that somebody typed, as one mapping.

    Raises:
        Problem: malformed-body.
    """
    return _mapping(_from_yaml(text.encode()))


async def read_patch(request: Request) -> dict[str, Any]:
    """The body as a merge patch of a mapping.

    Raises:
        Problem: unsupported-media-type or malformed-body.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != merge.MEDIA_TYPE:
        detail = f"{media!r} is not understood; send {merge.MEDIA_TYPE}"
        raise Problem(
            ProblemType.UNSUPPORTED_MEDIA_TYPE, detail, {"Accept-Patch": merge.MEDIA_TYPE}
        )
    patch = _from_json(await request.body())
    if not isinstance(patch, dict):
        raise _malformed("a patch must be a mapping of what changes")
    return patch


def _mapping(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _malformed("the body must be one document: a mapping with apiVersion and kind")
    return document


def _from_json(body: bytes) -> Any:
    try:
        return _storable(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise _malformed(f"not JSON: {error}") from error


def _from_yaml(body: bytes) -> Any:
    try:
        value = yaml.load(body, _PlainLoader)  # noqa: S506 - a SafeLoader
        # Through JSON once: what only YAML knows (sets, binary, numbers as keys) ends here, not in the database.
        return _storable(orjson.loads(orjson.dumps(value)))
    except yaml.YAMLError as error:
        raise _malformed(f"not YAML: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _malformed(f"YAML that is not also JSON: {error}") from error


def _storable(value: Any) -> Any:
    """Refuse characters that the database cannot keep."""
    stack = [value]
    while stack:
        match stack.pop():
            case dict() as mapping:
                stack += [*mapping.keys(), *mapping.values()]
            case list() as items:
                stack += items
            case str() as text if _CONTROL.search(text):
                raise _malformed("a string holds a character that cannot be stored")
            case _:
                pass
    return value


def _malformed(detail: str) -> Problem:
    return Problem(ProblemType.MALFORMED_BODY, detail)


class _PlainLoader(yaml.SafeLoader):
    """YAML as Kubernetes means it: dates stay text; no aliases, which let a small body unfold into a huge document."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not accepted")
        return super().compose_node(parent, index)


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

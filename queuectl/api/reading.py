"""Reads of bodies and of the stored configuration.

Bodies become plain JSON values, within bounds, so that a small body cannot cost much. These functions are synchronous and hold nothing
between calls: they may run in a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
import structlog
import yaml

from queuectl.api.problems import ApiProblem, ProblemType, configuration_unreadable
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import BadInput
from queuectl.domain.queries import ConfigChanges
from queuectl.domain.queues import QueueConfig
from queuectl.domain.words import UNSTORABLE
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.documents import place_of, problem_of
from queuectl.objects.yaml_loader import YamlLoader

_log = structlog.get_logger(source="queuectl.api")

# ---- The stored configuration


class CurrentConfiguration:
    """The configuration in one process. A thread parses changed documents."""

    def __init__(self, store: ApiStore) -> None:
        self._store = store
        self._catalog = Catalog()
        self._revision: int | None = None
        self._config: QueueConfig | None = None
        self._reading = asyncio.Lock()

    async def config(self) -> QueueConfig:
        """The current configuration without QuotaOverrides; like the leader's, the last one that could be read.

        Raises:
            Problem: not-known-yet, if none could be read.
            StoreUnavailable: no response from the database.
        """
        async with self._reading:
            changes = await self._store.config_changes(self._revision or 0, self._catalog.keys)
            if changes.revision != self._revision:
                await asyncio.to_thread(self._follow, changes)
                self._revision = changes.revision
            if self._config is None:
                raise configuration_unreadable()
            return self._config

    def _follow(self, changes: ConfigChanges) -> None:
        self._catalog.follow(changes)
        try:
            self._config = self._catalog.config(changes.revision)
        except BadInput as error:  # stored by another release, or changed in the database
            held = self._config
            _log.exception(
                "configuration_unreadable", error=str(error), previous_in_force=held is not None
            )
            self._config = replace(held, revision=changes.revision) if held is not None else None


# ---- JSON and YAML

MAX_DEPTH: Final = 64
"""Mappings and lists inside each other. The deepest document of ours has 10."""
MAX_VALUES: Final = 20_000
"""Values of one document, keys included: a ClusterQueue of 64 flavors with 16 resources each has 8,000."""
_LONGEST_NUMBER: Final = 64  # characters
_STR: Final = "tag:yaml.org,2002:str"
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def read_json(body: bytes, most: int = MAX_VALUES) -> Any:
    """The value of a JSON text.

    Args:
        body: the text, UTF-8.
        most: how many values it may hold, keys included.

    Raises:
        Problem: malformed-body.
    """
    if _values_of(body) > most and _values_of(_STRINGS.sub(b"", body)) > most:
        raise _too_many(most)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed(f"not JSON: {error}") from error
    return _bounded(value, most)


def read_yaml(body: bytes) -> Any:
    """The value of a YAML text that has an equivalent in JSON. Errors as for :func:`read_json`."""
    return _read_yaml(body, _Loader.get_single_data)


def read_yaml_stream(body: bytes) -> list[Any]:
    """The values of all documents of a YAML text, together within the bounds of one. Otherwise as :func:`read_yaml`."""
    values: list[Any] = _read_yaml(body, _Loader.documents)
    return values


def _read_yaml(body: bytes, read: Callable[[_Loader], Any]) -> Any:
    try:
        text = body.decode()
        if text.startswith("%") or "\n%" in text:
            raise malformed("not YAML: directives are not accepted")
        value = _load(text, read)
        # Through JSON: what only YAML has (sets, binary) must not reach the database.
        return _bounded(orjson.loads(orjson.dumps(value)), MAX_VALUES)
    except yaml.MarkedYAMLError as error:
        detail = f"{place_of(error)}: {problem_of(error)}".removeprefix(": ")
        raise malformed(detail) from error
    except yaml.YAMLError as error:
        raise malformed(f"not YAML: {error}") from error
    except (TypeError, ValueError) as error:
        raise malformed(f"YAML that is not also JSON: {error}") from error


def malformed(detail: str) -> ApiProblem:
    """Of a body that cannot be read."""
    return ApiProblem(ProblemType.MALFORMED_BODY, detail)


def _values_of(text: bytes) -> int:
    """How many values a JSON text without strings has at least; with strings, the marks in them count too.

    The parser does not stop in between: what it makes of one large text keeps all other threads waiting.
    """
    return max(text.count(b",") + text.count(b":"), text.count(b"[") + text.count(b"{"))


def _too_many(most: int) -> ApiProblem:
    return malformed(f"more than {most} values")


def _bounded(body: Any, most: int) -> Any:
    """The value, if it is neither too deep nor too large and has no characters that the database cannot keep."""
    level = [body]
    seen = depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise malformed(f"more than {MAX_DEPTH} mappings and lists are nested")
        seen += len(level)
        if seen > most:
            raise _too_many(most)
        below: list[Any] = []
        for one in level:
            match one:
                case dict():
                    below += one.keys()
                    below += one.values()
                case list():
                    below += one
                case str() if UNSTORABLE.search(one):
                    raise malformed("a string holds a character that cannot be stored")
                case _:
                    pass
        level = below
    return body


def _load(text: str, read: Callable[[_Loader], Any]) -> Any:
    loader = _Loader(text, MAX_VALUES, MAX_DEPTH)
    try:
        return read(loader)
    finally:
        loader.dispose()


class _Loader(YamlLoader):
    """Also without aliases, tags of Python and merge keys; keys are strings."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise self.refused("aliases are not supported")
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag != _STR and len(node.value) > _LONGEST_NUMBER:
            raise self.refused(f"a number has more than {_LONGEST_NUMBER} characters")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        if any(key.tag != _STR for key, _ in node.value):  # numbers can be made to collide
            raise self.refused("a key is not a string")
        return node


# ---- JSON Merge Patch (RFC 7386)

MERGE_PATCH: Final = "application/merge-patch+json"


def merged(target: Any, patch: Any) -> Any:
    """``target`` after the patch; neither is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result

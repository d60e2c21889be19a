"""YAML and JSON streams of objects, and the address of each object in them.

A stream is YAML (documents divided by ``---``), JSON (one object, or several one after the other), or either of them
holding a ``List``, whose items count as separate objects. An item can be a ``List`` again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeVar

import msgspec
import yaml

from queuectl.domain.errors import bounded
from queuectl.objects.decoding import decoding_error
from queuectl.objects.errors import Address, DocumentError
from queuectl.objects.yaml_loader import RepeatedKey, YamlLoader

T = TypeVar("T")

_HEAD: Final = ("apiVersion", "kind", "metadata", "spec")
_LEVELS: Final = 100
"""Mappings and lists inside each other in a YAML file. CustomResourceDefinitions have up to 50."""
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TYPES: Final = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a Boolean value",
    int: "a number",
    float: "a number",
    type(None): "null",
}
"""The types of JSON in messages."""
_ALIASED: Final = 100_000
"""Values that the aliases of a YAML file may add. Without aliases, a text has at most as many values as characters."""


class _RefusedJson(ValueError):
    """JSON with two equal keys in an object, or with a number that no float can hold. Its place is not known."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a stream: plain JSON values under text keys."""

    address: Address
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body.get("kind") or "")

    @property
    def api_version(self) -> str:
        return str(self.body.get("apiVersion") or "")

    @property
    def name(self) -> str:
        """``namespace/name``, with ``default`` for a missing namespace."""
        meta = self.body.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        return f"{meta.get('namespace') or 'default'}/{meta.get('name') or ''}"

    def error(self, field: str, reason: str) -> DocumentError:
        return DocumentError(self.address, field, reason)

    def convert(self, wire: type[T]) -> T:
        """Decode the body to a struct.

        Raises:
            DocumentError: a field has the wrong type, is missing, or is unknown to a strict struct.
        """
        try:
            return msgspec.convert(self.body, wire, strict=False)
        except msgspec.ValidationError as error:
            raise self.error(*decoding_error(self.body, wire, error)) from None
        except RecursionError:
            raise self.error("", "is nested too deeply") from None


def read_documents(text: str | bytes, source: str = "") -> list[Document]:
    """All objects of a stream, ``List`` items included, in order.

    Args:
        text: the stream.
        source: file name or other name of the stream, for messages.

    Raises:
        DocumentError: it is not YAML or JSON, or a document is not an object.
    """
    bodies, plain = _load(text, source)
    return documents_of(bodies, source, plain=plain)


def read_values(text: str | bytes, source: str = "") -> list[Any]:
    """The values of a stream whose documents are not objects of Kubernetes. Raises DocumentError: it is not YAML or JSON."""
    return list(_load(text, source)[0])


def documents_of(bodies: Iterable[Any], source: str = "", *, plain: bool = False) -> list[Document]:
    """All objects of a stream that is decoded already; ``plain``: its values are sure to be JSON's. Raises DocumentError."""
    documents: list[Document] = []
    for number, body in enumerate(bodies, 1):
        if body is None:
            continue  # an empty document between two ---
        address = Address(source, number)
        checked = _object(body, address) if plain else _plain_object(body, address)
        try:
            documents.extend(_unfold(Document(address, checked)))
        except RecursionError:
            raise DocumentError(address, "", "is nested too deeply") from None
    return documents


def with_names(documents: Iterable[Document]) -> list[Document]:
    """Each under a name: where ``generateName`` stands for one, that and the next number that is free.

    The API server would add random letters. Equal input must give an equal plan.
    """
    listed = list(documents)
    taken = {(document.kind, document.name) for document in listed}
    numbers: dict[tuple[str, str], Iterator[int]] = {}

    def given(document: Document) -> Document:
        meta = document.body.get("metadata") or {}
        prefix = meta.get("generateName")
        if meta.get("name") or not prefix or not isinstance(prefix, str):
            return document
        unnamed = f"{meta.get('namespace') or 'default'}/{prefix}"
        counter = numbers.setdefault((document.kind, unnamed), count(1))
        number = next(n for n in counter if (document.kind, f"{unnamed}{n}") not in taken)
        body = {**document.body, "metadata": {**meta, "name": f"{prefix}{number}"}}
        return _named(Document(document.address, body))

    return list(map(given, listed))


def as_document(body: Any, source: str = "") -> Document:
    """One object that is not part of a stream, for example of a request.

    Raises:
        DocumentError: it is not an object of JSON values.
    """
    address = Address(source)
    return _named(Document(address, _plain_object(body, address)))


def _load(text: str | bytes, source: str) -> tuple[list[Any], bool]:
    """The values of a stream, and whether they are known to be JSON values."""
    try:
        return _values(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError:
        raise DocumentError(Address(source), "", "is not UTF-8 text") from None
    except _RefusedJson as error:
        raise DocumentError(Address(source), "", str(error)) from None
    except yaml.MarkedYAMLError as error:
        raise DocumentError(Address(source), place_of(error), problem_of(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise DocumentError(Address(source), "", f"is not YAML: {error}") from None
    except RecursionError:
        raise DocumentError(Address(source), "", "is nested too deeply") from None


def _values(stream: str) -> tuple[list[Any], bool]:
    refused: _RefusedJson | None = None
    if stream.lstrip()[:1] in ("{", "["):
        try:
            return _load_json(stream), not _ESCAPED_SURROGATE.search(stream)
        except _RefusedJson as error:
            refused = error  # the parser of YAML knows the lines
        except ValueError:
            pass  # flow-style YAML also begins like this
    try:
        values = _load_yaml(stream)
    except RepeatedKey:
        raise
    except yaml.YAMLError as error:
        raise refused or error from None
    if refused is not None:
        raise refused
    return values, False


def _load_yaml(stream: str) -> list[Any]:
    """The values of all documents. Raises YAMLError and ValueError."""
    loader = YamlLoader(stream, len(stream) + _ALIASED, _LEVELS)
    try:
        return loader.documents()
    finally:
        loader.dispose()


def _load_json(stream: str) -> list[Any]:
    """One object, or several one after the other. Raises ValueError."""
    at, found = len(stream) - len(stream.lstrip()), []
    while at < len(stream):
        body, end = _JSON.raw_decode(stream, at)
        found.append(body)
        at = end + len(stream[end:]) - len(stream[end:].lstrip())
    return found


def _with_single_keys(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) < len(members):
        counts = Counter(key for key, _ in members)
        raise _RefusedJson(f"key {counts.most_common(1)[0][0]!r} appears twice in an object")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _RefusedJson(f"{bounded(text)} is too large for a number")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(name)  # NaN and Infinity are not JSON


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_with_single_keys, parse_float=_finite, parse_constant=_no_constant
)


def _object(body: Any, address: Address) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise DocumentError(address, "", f"must be an object, not {_TYPES[type(body)]}")
    return body


def _plain_object(body: Any, address: Address) -> dict[str, Any]:
    try:
        _check_plain(body, "", address, set(), set())
    except RecursionError:
        raise DocumentError(address, "", "is nested too deeply") from None
    return _object(body, address)


def _check_plain(
    node: Any, path: str, address: Address, open_: set[int], checked: set[int]
) -> None:
    """Text keys and JSON values only, and no value inside itself (YAML's anchors could)."""
    if node is None or isinstance(node, (bool, int)):
        return
    if isinstance(node, str):
        if not node.isascii() and _SURROGATE.search(node):
            raise DocumentError(address, path, "is not text: it has half of a surrogate pair")
        return
    if isinstance(node, float):
        if node != node or node in (float("inf"), float("-inf")):
            raise DocumentError(address, path, f"{node} is not a number")
        return
    if not isinstance(node, (dict, list)):
        raise DocumentError(address, path, f"{type(node).__name__} is not a JSON value")
    if id(node) in open_:
        raise DocumentError(address, path, "contains itself")
    if id(node) in checked:
        return
    open_.add(id(node))
    for key, part in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(node, dict) and not isinstance(key, str):
            raise DocumentError(address, path, f"key {key!r} is not text")
        if isinstance(key, str):
            _check_plain(key, path, address, open_, checked)
        inner = f"{path}[{key}]" if isinstance(node, list) else f"{path}.{key}".lstrip(".")
        _check_plain(part, inner, address, open_, checked)
    open_.discard(id(node))
    checked.add(id(node))


def _unfold(document: Document) -> Iterator[Document]:
    listed = document.body.get("items")
    if document.kind == "List":
        listed = [] if listed is None else listed
        if not isinstance(listed, list):
            raise document.error("items", f"must be a list, not {_TYPES[type(listed)]}")
    if not document.kind.endswith("List") or not isinstance(listed, list):
        yield _named(document)
        return
    inherited: dict[str, Any] = {}
    if document.kind != "List":  # items of a typed list can omit their kind
        inherited = {"apiVersion": document.api_version, "kind": document.kind[: -len("List")]}
    for position, item in enumerate(listed, 1):
        address = replace(document.address, list_position=position)
        if not isinstance(item, dict):
            raise DocumentError(address, "", f"must be an object, not {_TYPES[type(item)]}")
        yield from _unfold(Document(address, {**inherited, **item}))


def place_of(error: yaml.MarkedYAMLError) -> str:
    """The line and the column of an error in a YAML text, counted from 1; empty if the parser gives none."""
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def problem_of(error: yaml.MarkedYAMLError) -> str:
    """The error of a YAML text, without its place."""
    return str(error.problem) if isinstance(error, RepeatedKey) else f"is not YAML: {error.problem}"


def _named(document: Document) -> Document:
    for field in ("kind", "apiVersion"):
        if not isinstance(document.body.get(field), str) or not document.body[field]:
            raise document.error(field, "is required")
    meta = document.body.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        raise document.error("metadata", f"must be an object, not {_TYPES[type(meta)]}")
    name = (meta or {}).get("name")
    shown = f"{document.kind}/{name if isinstance(name, str) else ''}"
    named = Document(replace(document.address, name=shown), document.body)
    for field in ("name", "namespace"):
        value = (meta or {}).get(field)
        if value is not None and not isinstance(value, str):
            raise named.error(f"metadata.{field}", f"{value!r} is not text")
    return named


def in_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with its fields in the order in which people write them. A column of JSONB keeps no order.

    The order is ``apiVersion``, ``kind``, ``metadata``, ``spec`` and the rest. Inside them it is ``name``, plain values, nested
    values, each by name.
    """
    keys = sorted(document, key=lambda key: (_HEAD.index(key) if key in _HEAD else len(_HEAD), key))
    return {key: _ordered(document[key]) for key in keys}


def _ordered(node: Any) -> Any:
    if isinstance(node, list):
        return [_ordered(item) for item in node]
    if not isinstance(node, dict):
        return node
    keys = sorted(node, key=lambda key: (key != "name", isinstance(node[key], (dict, list)), key))
    return {key: _ordered(node[key]) for key in keys}

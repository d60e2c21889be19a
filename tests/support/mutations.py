"""Objects with one wrong value: each field of a valid object, and each field that its reader knows, with each awkward value.

A value is JSON text, so that it can be what no Python value is: a number of 5,000 digits, or 10,000 levels.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import inspect

Path = tuple[str | int, ...]

_HERE: Final = "\ufdd0 here"


_UNKNOWN: Final = (('{"x":', "}"), ('[{"x":', "}]"), ('{"phase":"x","x":', "}"))
"""JSON in an annotation: before and after the value of a field that no reader knows."""


def _nested(opening: str, closing: str, levels: int) -> str:
    return opening * levels + "1" + closing * levels


def _texts() -> Iterator[str]:
    yield from (
        "",
        " ",
        "x",
        "true",
        "0",
        "-1",
        "1",
        "inf",
        "-inf",
        "nan",
        "1e400",
        "1_0",
        "\uff11",
    )
    yield from ("9" * 18, "9" * 19, "9" * 400, "9" * 5_000, "9" * 400 + "g", "0-" + "9" * 400)
    yield from ("1E", "9E", "9223372036854775807", "-9223372036854775808", "1e99", "1n", "1e-99")
    yield from (
        "after the review",
        "after Job/a:ok",
        "a,,b",
        "a b/c d",
        "\x1b]0;x\x07",
        "\x00",
        "ü",
    )
    yield from ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z")
    yield from ("x" * 20_000, "," * 20_000, "0-99999," * 2_000, "[" * 2_000, "{}", "[null]")
    yield from (f"{before}{_nested('[', ']', 2_000)}{after}" for before, after in _UNKNOWN)


VALUES: Final = (
    *("null", "true", "false", "0", "-1", "1", "1.5", "-0.0", "1e308", "1e400", "1E-400"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "9" * 400, "9" * 5_000),
    *("[]", "[null]", "[[]]", "[{}]", '["x"]', "[1]", '["x","x"]', '[["a","b"]]', "[{},{}]"),
    *("{}", '{"":null}', '{"x":null}', '{"x":"y"}', '{"x":{}}', '{"x":[]}', '{"x":1}'),
    *('{"x":1,"x":2}', '{"name":"x"}', '{"name":null}', '{"kind":[]}', '{"metadata":"x"}'),
    *('{"metadata":{"labels":"x"}}', '{"metadata":{"labels":{"a":1}}}', '{"spec":[1]}'),
    *('{"spec":{"containers":[null]}}', '{"spec":{"containers":["x"]}}', '{"spec":{}}'),
    *('{"spec":{"containers":{}}}', '{"spec":{"nodeSelector":[["a","b"]]}}'),
    *('{"spec":{"containers":[{"name":1,"resources":[]}]}}',),
    *(_nested("[", "]", levels) for levels in (90, 900, 10_000)),
    *(_nested('{"x":', "}", levels) for levels in (90, 900, 10_000)),
    *map(json.dumps, _texts()),
)
"""Awkward values, as JSON."""


def mutations(document: Any, path: Path, values: Iterable[str]) -> Iterator[bytes]:
    """The document with each of the values at the path, where it can be absent."""
    hole = json.dumps(_HERE)
    before, after = json.dumps(_with_hole(document, path)).split(hole)
    for value in values:
        yield f"{before}{value}{after}".encode()


def _with_hole(document: Any, path: Path) -> Any:
    if not path:
        return _HERE
    changed: Any = json.loads(json.dumps(document))  # no part is in it twice
    parent = changed
    for step, following in pairwise(path):
        wanted = list if isinstance(following, int) else dict
        if isinstance(parent, list) and step == len(parent):
            parent.append(None)
        known = parent.get(step) if isinstance(parent, dict) else parent[step]
        parent[step] = known if isinstance(known, wanted) else wanted()
        parent = parent[step]
    if isinstance(parent, list) and path[-1] == len(parent):
        parent.append(None)
    parent[path[-1]] = _HERE
    return changed


def paths_of(document: Any, wire: type[msgspec.Struct]) -> list[Path]:
    """All fields of the document, and all that its reader knows at each place, also inside absent ones."""
    found = dict.fromkeys(
        (*_of_document(document, ()), *_of_type(inspect.type_info(wire), document, ()))
    )
    return list(found)


def sampled(values: int, seed: str) -> Iterator[str]:
    """Some of the values, the same for the same seed."""
    yield from random.Random(seed).sample(VALUES, min(values, len(VALUES)))


def _of_document(document: Any, at: Path) -> Iterator[Path]:
    yield at
    children: Iterable[tuple[str | int, Any]] = ()
    match document:
        case dict():
            children = document.items()
        case list():
            children = enumerate(document)
    for key, value in children:
        yield from _of_document(value, (*at, key))


def _of_type(kind: inspect.Type, document: Any, at: Path) -> Iterator[Path]:
    yield at
    match kind:
        case inspect.StructType():
            for one in kind.fields:
                below = document.get(one.encode_name) if isinstance(document, dict) else None
                yield from _of_type(one.type, below, (*at, one.encode_name))
        case inspect.UnionType():
            for member in kind.types:
                yield from _of_type(member, document, at)
        case inspect.ListType():
            for index, below in enumerate(
                document if isinstance(document, list) and document else [None]
            ):
                yield from _of_type(kind.item_type, below, (*at, index))
        case inspect.DictType():
            known = document if isinstance(document, dict) and document else {"x": None}
            for key, below in known.items():
                yield from _of_type(kind.value_type, below, (*at, key))
        case _:
            pass

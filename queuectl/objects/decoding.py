"""Errors of decoding, with the key of the map and the values of the enumeration that msgspec leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from queuectl.domain.errors import bounded
from queuectl.objects.errors import explain

_KEY: Final = "[...]"
_PARTS: Final = re.compile(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+")
_Place = str | int


def decoding_error(body: Any, wire: type[Any], error: msgspec.ValidationError) -> tuple[str, str]:
    """Path and reason of an error.

    Args:
        body: the value that was decoded.
        wire: the type to which it was decoded.
        error: of the decoder.
    """
    path, reason = explain(error)
    parts = _PARTS.findall(path)
    values = _values(wire, parts)
    if values and reason.startswith(("invalid enum value", "expected")):
        reason = f"{reason}; the values are {', '.join(map(str, values))}"
        if reason.startswith("expected") and "got `bool`" in reason and "Off" in values:
            reason += '; write "Off" in quotes'
    return (_with_keys(body, wire, parts, str(error)) if _KEY in parts else path), reason


def _values(wire: type[Any], parts: Iterable[str]) -> list[Any]:
    """The values of the enumeration at a path."""
    found: list[inspect.Type] = [inspect.type_info(wire)]
    for part in parts:
        found = [below for kind in _alternatives(found) for below in _below(kind, part)]
    values: dict[Any, None] = {}
    for kind in _alternatives(found):
        if isinstance(kind, inspect.EnumType):
            values |= dict.fromkeys(one.value for one in kind.cls)
        elif isinstance(kind, inspect.LiteralType):
            values |= dict.fromkeys(kind.values)
    return list(values)


def _alternatives(kinds: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from _alternatives(kind.types)
        elif isinstance(kind, inspect.Metadata):
            yield from _alternatives([kind.type])
        else:
            yield kind


def _below(kind: inspect.Type, part: str) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        yield from (field.type for field in kind.fields if field.encode_name == part)
    elif isinstance(kind, inspect.DictType) and part == _KEY:
        yield kind.value_type
    elif isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        yield kind.item_type


def _with_keys(body: Any, wire: type[Any], parts: Sequence[str], message: str) -> str:
    """The path with the first wrong key of each map."""
    trail: list[_Place] = []
    path = ""
    for part in parts:
        place: _Place = int(part[1:-1]) if part[0] == "[" and part != _KEY else part
        if part == _KEY:
            place = _wrong_key(body, wire, trail, message)
        path += part if isinstance(place, int) else f".{bounded(place)}"
        trail.append(place)
    return path.removeprefix(".")


def _wrong_key(body: Any, wire: type[Any], trail: Sequence[_Place], message: str) -> str:
    """The key of a map whose value is wrong: the decoder finds the same error with half of the entries, as long as that one is among them."""
    mapping = body
    for place in trail:
        mapping = mapping[place]
    keys: list[str] = list(mapping)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        tried = _replaced(body, trail, {key: mapping[key] for key in half})
        keys = half if _fails(tried, wire, message) else keys[len(half) :]
    return keys[0]


def _fails(body: Any, wire: type[Any], message: str) -> bool:
    try:
        msgspec.convert(body, wire, strict=False)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _replaced(container: Any, trail: Sequence[_Place], new: Any) -> Any:
    if not trail:
        return new
    copied = container.copy()
    copied[trail[0]] = _replaced(container[trail[0]], trail[1:], new)
    return copied

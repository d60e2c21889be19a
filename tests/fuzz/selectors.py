"""CEL selectors of devices: parts of known expressions put together in other ways, evaluated for known devices.

A selector is refused with a message before it is evaluated, or its value is a Boolean or an error with a message.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from queuectl.cel.expression import EvaluationError
from queuectl.devices.selectors import Selector
from queuectl.domain.devices import DeviceKind
from queuectl.domain.errors import MOST_REFUSAL, BadInput
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import WireResourceSlice
from tests.fuzz.figures import Result

_FACTS: Final = Path(__file__).parents[1] / "fixtures" / "device_selectors.yaml"
_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[A-Za-z_]\w*|\d[\w.]*|==|!=|<=|>=|&&|\|\||[^\s\w]'
)
_PIECES: Final = (
    *("true", "false", "null", "0", "-1", "1u", "1e308", "9223372036854775807", '""', "b''", "[]"),
    *("{}", "size", "has", "map", "filter", "exists", "all", "matches", "quantity", "semver"),
    *(
        "device",
        "driver",
        "attributes",
        "capacity",
        "[0]",
        ".a",
        "[?'x']",
        ".?x",
        "optional.none()",
    ),
    *("timestamp", "duration", "string", "int", "double", "bytes", "type", "dyn", "cel.bind"),
    *("'" + "a" * 2000 + "'", "[" * 30, "(" * 60, "!" * 40, "-" * 40, "\\", "\x00", "\ufeff", "ü"),
    *("{'a': 1, 'a': 2}", "[1, 'a', null]", "'%s'.format([1])", "'a'.replace('', 'b')"),
)
WAYS: Final = (
    *("cut", "repeated", "replaced", "swapped", "inserted", "joined", "nested", "comprehension"),
    *("conditional", "argument"),
)
FEATURES: Final = frozenset(WAYS)
"""The ways in which expressions are changed."""


@cache
def _facts() -> tuple[tuple[str, ...], tuple[DeviceKind, ...]]:
    """All known expressions, and devices."""
    groups: list[dict[str, Any]] = yaml.safe_load(_FACTS.read_text())
    sources = [
        source
        for group in groups
        for name in ("true", "false", "error", "invalid", "refused")
        for source in group.get(name, ())
    ]
    return tuple(map(str, sources)), tuple(map(kind_of, groups))


def kind_of(group: dict[str, Any]) -> DeviceKind:
    """The device of a group of expressions, as a ResourceSlice publishes it."""
    spec = {
        "driver": group["driver"],
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node",
        "devices": [group["device"]],
    }
    wire = msgspec.convert({"metadata": {"name": "slice"}, "spec": spec}, WireResourceSlice)
    return read_resource_slice(wire).content.devices[0].kind


def _changed(rng: random.Random, source: str, way: str) -> str:
    """The expression after one change."""
    other = rng.choice(_facts()[0])
    tokens = _TOKEN.findall(source) or [source]
    at, upto = sorted((rng.randrange(len(tokens)), rng.randrange(len(tokens))))
    match way:
        case "cut":
            del tokens[at : upto + 1]
        case "repeated":
            tokens[at:at] = tokens[at : upto + 1] * rng.randint(1, 8)
        case "replaced":
            tokens[at] = rng.choice((*_PIECES, *_TOKEN.findall(other)))
        case "swapped":
            tokens[at], tokens[upto] = tokens[upto], tokens[at]
        case "inserted":
            tokens.insert(at, rng.choice(_PIECES))
        case _:
            return _around(rng, source, other, way)
    return " ".join(tokens)


def _around(rng: random.Random, source: str, other: str, way: str) -> str:
    depth = rng.choice((1, 2, 5, 20, 100))
    macro = rng.choice(("all", "exists", "exists_one", "filter", "map"))
    match way:
        case "joined":
            operator = rng.choice(("&&", "||", "==", "!=", "+", "in", "<"))
            return f"({source}) {operator} ({other})"
        case "nested":
            return "(" * depth + source + ")" * depth
        case "comprehension":
            items = ", ".join(str(n) for n in range(depth))
            inner = f"[{items}].{macro}(y, {source})" if rng.random() < 0.4 else source
            return f"[{items}].{macro}(x, {inner})"
        case "conditional":
            return f"({source}) ? ({other}) : ({source})"
        case _:
            name = rng.choice(("size", "string", "has", "quantity", "semver", "!", "type"))
            return f"{name}({source})"


def selectors(seed: int) -> Result:
    """The stage."""
    rng, result = random.Random(f"selector {seed}"), Result()
    sources, kinds = _facts()
    found = set[str]()
    for _ in range(20):
        source = rng.choice(sources)
        for _ in range(rng.choice((1, 1, 2, 3))):
            way = rng.choice(WAYS)
            found.add(way)
            source = _changed(rng, source, way)[:12_000]
        _evaluated(source, rng.choice(kinds), result)
    result.features = frozenset(found)
    return result


def _evaluated(source: str, kind: DeviceKind, result: Result) -> None:
    result.counted["selectors"] += 1
    try:
        selector = Selector(source)
    except BadInput as error:
        if len(str(error)) > MOST_REFUSAL:
            result.defects.append(f"the message has {len(str(error))} characters: {source!r}")
        return
    result.counted["selectors that are valid"] += 1
    try:
        value: Any = selector.matches(kind)
    except EvaluationError:
        result.counted["selectors whose evaluation is an error"] += 1
        return
    if not isinstance(value, bool):
        result.defects.append(f"the value of {source!r} is {value!r}")


class Selectors:
    """The stage as a class, like the others."""

    def __call__(self, seed: int) -> Result:
        return selectors(seed)

"""Job kinds that the configuration declares: descriptions under the key ``jobKinds`` of a YAML file, as in the values of the chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from queuectl.domain.errors import BadInput
from queuectl.objects import keys
from queuectl.objects.documents import read_values
from queuectl.objects.errors import explain
from queuectl.objects.kinds import KINDS, descriptions_of
from queuectl.objects.kinds.description import Declared, Description, PodSets
from queuectl.objects.kinds.makers import MAKERS

KEY: Final = "jobKinds"
_FACTS: Final = ("types", "key", "name")
_BUILT_IN_ONLY: Final = ("operator",)
_TAKEN: Final = frozenset(
    [
        *(maker.plural for maker in MAKERS),
        *("components", "deletions", "leaderworkersets", "namespaces", "pods", "preemption"),
        *("provisioning", "resizes", "submitters"),
    ]
)
"""Plurals of other kinds, and names of policies."""
_RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "namespace",
        "null",
        "package",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)
"""Words of CEL, which are not names of fields in an expression."""


def read_kinds(text: str | bytes, source: str) -> tuple[Declared, ...]:
    """The declared kinds. Other keys of the file are for other readers.

    Args:
        text: YAML or JSON.
        source: name of the file, for messages.

    Raises:
        BadInput: the first error, with the file, the kind and the field.
    """
    values = read_values(text, source)
    given = values[0].get(KEY) if len(values) == 1 and isinstance(values[0], dict) else None
    if not isinstance(given, list):
        raise BadInput(f"{source}: {KEY}: is required, as a list of job kinds")
    found: list[Declared] = []
    for number, one in enumerate(given):
        place = f"{source}: {KEY}[{number}]{_named(one)}"
        found.append(_read(one, place))
        for field, reason in problems(found[-1], found[:-1]):
            raise BadInput(f"{place}: {field}: {reason}")
    return tuple(found)


def _named(declaration: Any) -> str:
    kind = declaration.get("kind") if isinstance(declaration, dict) else None
    return f" ({kind})" if isinstance(kind, str) else ""


def _read(declaration: Any, place: str) -> Declared:
    for name in _BUILT_IN_ONLY:
        if isinstance(declaration, dict) and name in declaration:
            raise BadInput(f"{place}: {name}: is for built-in kinds; set controller")
    try:
        return msgspec.convert(declaration, Declared)
    except msgspec.ValidationError as error:
        raise BadInput(f"{place}: {': '.join(filter(None, explain(error)))}") from None


def problems(declared: Declared, earlier: Sequence[Description]) -> Iterator[tuple[str, str]]:
    """The errors of a declaration, as fields with reasons. ``earlier``: the kinds that are declared before it."""
    known = (*descriptions_of(KINDS), *earlier)
    if declared.kind in {
        *KINDS,
        *(other.kind for other in known),
        *(maker.kind for maker in MAKERS),
    }:
        yield "kind", f"{declared.kind} is the name of another job kind"
    if declared.plural in _TAKEN | {KINDS["Job"].plural} | {other.plural for other in known}:
        yield "plural", f"{declared.plural} is the name of another kind"
    if "." not in declared.group:
        yield "group", f"{declared.group} is not the group of a CustomResourceDefinition"
    if declared.patches is not None:
        yield "patches", "is for built-in kinds"
    if not declared.suspend.startswith("spec."):
        yield "suspend", f"{declared.suspend} is not a field of the spec"
    for number, child in enumerate(declared.children):
        if child.kind not in keys.CHILD_KINDS:
            allowed = ", ".join(sorted(keys.CHILD_KINDS))
            yield f"children[{number}].kind", f"{child.kind} is none of {allowed}"
    if declared.phase is not None and not declared.phase.succeeded:
        yield "phase.succeeded", "is empty: no value would mean that a job has succeeded"
    yield from _podset_problems(declared.podsets)
    for field, path in _paths(declared):
        words = sorted(_RESERVED & {*path.split(".")})
        if words:
            yield field, f"{path}: {words[0]} is a word of CEL, so no policy can read the field"


def _podset_problems(places: Sequence[PodSets]) -> Iterator[tuple[str, str]]:
    if not places:
        yield "podsets", "is empty"
    for number, place in enumerate(places):
        for field, reason in _place_problems(place):
            yield f"podsets[{number}]{field}", reason
    for name, times in Counter(name for place in places for name in _names(place)).items():
        if times > 1:
            yield "podsets", f"{name} is the name of two podsets"
    for number, place in enumerate(places):
        for other in places:
            if place.path.startswith(f"{other.path}.") and not other.name:
                yield (
                    f"podsets[{number}].path",
                    f"{place.path} is inside {other.path}, which has entries",
                )
    if sum(bool(place.key) for place in places) > 1:
        yield "podsets", "two of them are lists: a kind has one list of podsets at most"


def _place_problems(place: PodSets) -> Iterator[tuple[str, str]]:
    given = [fact for fact in _FACTS if getattr(place, fact)]
    if len(given) != 1:
        has = " and ".join(given) or "none of them"
        yield "", f"exactly one of types, key and name is needed, not {has}"
    if not place.path.startswith("spec.") and place.path != "spec":
        yield ".path", f"{place.path} is not a field of the spec"
    if not all(place.count):
        yield ".count", "a factor of it is empty"
    if place.ranks:
        yield ".ranks", "is for built-in kinds; set index"
    if place.labels is not None:
        yield ".labels", "is for built-in kinds"


def _names(place: PodSets) -> list[str]:
    return [place.name] if place.name else [name.lower() for name in place.types]


def _paths(description: Description) -> Iterator[tuple[str, str]]:
    """The paths that policies read, by their fields."""
    yield "suspend", description.suspend
    if description.priority_class:
        yield "priorityClass", description.priority_class
    yield from (("fixed", path) for path in description.fixed)
    if description.manager is not None:
        yield "manager.path", description.manager.path
    yield from (("zero", one.path) for one in description.zero)
    for number, place in enumerate(description.podsets):
        field = f"podsets[{number}]"
        yield f"{field}.path", place.path
        yield f"{field}.template", place.template
        yield f"{field}.addedLabels", place.added_labels
        yield from ((f"{field}.count", path) for factor in place.count for path in factor)
        if place.key:
            yield f"{field}.key", place.key

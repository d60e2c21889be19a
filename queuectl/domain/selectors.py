"""Label and field selectors of Kubernetes, within bounds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from queuectl.domain.errors import BadInput

LONGEST: Final = 16 * 1024
"""Characters of a selector."""
MOST_TERMS: Final = 256
_KEY: Final = (
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
# For terms without spaces around them. Two repetitions of spaces with only optional parts between them would take quadratic time.
_EQUALITY: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_PRESENCE: Final = re.compile(rf"(!?)\s*({_KEY})")
_FIELD: Final = re.compile(r"([A-Za-z.]{1,64})(==|=|!=)((?:[^\\,=]|\\[\\,=]){0,253})")
_ESCAPED: Final = re.compile(r"\\([\\,=])")


class Match(Enum):
    """How the value of a key is compared."""

    IN = auto()
    NOT_IN = auto()
    EXISTS = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class SelectorCondition:
    """One condition of a selector. ``accepted``: those that count, for :attr:`Match.IN` and :attr:`Match.NOT_IN`."""

    key: str
    match: Match
    accepted: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = labels.get(self.key)
        match self.match:
            case Match.IN:
                return present is not None and present in self.accepted
            case Match.NOT_IN:
                return present is None or present not in self.accepted
            case Match.EXISTS:
                return present is not None
            case Match.ABSENT:
                return present is None


Selector = tuple[SelectorCondition, ...]
"""All terms must hold."""


def label_selector(text: str) -> Selector:
    """The selector in the form of ``kubectl -l``.

    Raises:
        BadInput: it is malformed or too long.
    """
    return tuple(_label_term(part) for part in _parts(text, "label"))


def field_selector(text: str, fields: Collection[str]) -> Selector:
    """The selector in the form of ``kubectl --field-selector``. ``fields``: the names of the fields.

    Raises:
        BadInput: it is malformed or too long, or a field does not exist.
    """
    return tuple(_field_term(part, fields) for part in _parts(text, "field"))


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether all terms hold."""
    return all(term.matches(labels) for term in selector)


def exact(selector: Selector, key: str) -> str | None:
    """The only value that a selector admits for a key; None if it admits several."""
    for term in selector:
        if term.key == key and term.match is Match.IN and len(term.accepted) == 1:
            return next(iter(term.accepted))
    return None


def _parts(text: str, form: str) -> list[str]:
    """The terms of a selector: the texts between commas outside parentheses, without spaces around them."""
    if len(text) > LONGEST:
        raise BadInput(f"the {form} selector has more than {LONGEST} characters")
    if not text.strip():
        return []
    parts, depth, start = [], 0, 0
    escaped = False
    for index, sign in enumerate(text):
        if escaped:
            escaped = False
        elif sign == "\\" and form == "field":
            escaped = True
        elif sign == "(" and form == "label":
            depth += 1
        elif sign == ")" and form == "label":
            depth -= 1
        elif sign == "," and depth <= 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    if len(parts) > MOST_TERMS:
        raise BadInput(f"the {form} selector has more than {MOST_TERMS} terms")
    return parts


def _label_term(text: str) -> SelectorCondition:
    if equality := _EQUALITY.fullmatch(text):
        key, sign, value = equality.groups()
        return SelectorCondition(
            key, Match.NOT_IN if sign == "!=" else Match.IN, frozenset((value,))
        )
    if among := _SET.fullmatch(text):
        key, verb, listed = among.groups()
        values = [value.strip() for value in listed.split(",")]
        if all(re.fullmatch(_VALUE, value) for value in values):
            return SelectorCondition(
                key, Match.IN if verb == "in" else Match.NOT_IN, frozenset(values)
            )
    if presence := _PRESENCE.fullmatch(text):
        absent, key = presence.groups()
        return SelectorCondition(key, Match.ABSENT if absent else Match.EXISTS)
    raise BadInput(f"the label selector is malformed at {text[:100]!r}")


def _field_term(text: str, fields: Collection[str]) -> SelectorCondition:
    equality = _FIELD.fullmatch(text)
    if equality is None:
        raise BadInput(f"the field selector is malformed at {text[:100]!r}")
    key, sign, value = equality.groups()
    if key not in fields:
        supported = ", ".join(sorted(fields))
        raise BadInput(f"the field {key} is not supported; the fields are {supported}")
    value = _ESCAPED.sub(r"\1", value)
    return SelectorCondition(key, Match.NOT_IN if sign == "!=" else Match.IN, frozenset((value,)))

"""Bounds and rules of fields of the configuration that a schema states in addition to their types: for the CRDs, and for OpenAPI.

A reader refuses the same values with a sentence that names the value. ``tests/operations/test_crd_validation.py`` compares both on an
API server. A bound that only the decoder checks is in :class:`msgspec.Meta` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from queuectl.domain.quantity import LONGEST_QUANTITY, NOT_NEGATIVE
from queuectl.objects.names import LABEL_KEY, NAME


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of CEL about an object or a list.

    Attributes:
        expression: true for valid values. ``self`` is the value; a field can be absent.
        message: why others are refused.
        field: path of the field to blame, below the value; empty = the value.
    """

    expression: str
    message: str
    field: str = ""

    def written(self) -> dict[str, str]:
        """An entry of ``x-kubernetes-validations``."""
        blamed = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.expression, "message": self.message, **blamed}


def has_text(field: str, text: str = "") -> str:
    """An expression: whether ``self`` has this value of a text field; without ``text``, whether it is not empty."""
    return f"has(self.{field}) && self.{field} " + (f"== '{text}'" if text else "!= ''")


def or_default(field: str, default: float) -> str:
    """An expression: the number in a field of ``self``, or its default."""
    return f"(has(self.{field}) ? self.{field} : {default})"


def states(*rules: Rule, **keywords: Any) -> msgspec.Meta:
    """Keywords of JSON Schema, and rules about the value, that a reader checks."""
    validations = {"x-kubernetes-validations": [rule.written() for rule in rules]} if rules else {}
    return msgspec.Meta(extra_json_schema=keywords | validations)


def keyed(*keys: str) -> msgspec.Meta:
    """A list whose entries differ in these fields. Server-side apply merges it by them."""
    return states(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


UNIQUE: Final = states(**{"x-kubernetes-list-type": "set"})
"""A list without duplicates. Server-side apply merges it."""


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


_LONGEST_NAME: Final = 253
_LONGEST_KEY: Final = _LONGEST_NAME + 1 + 63

Name = Annotated[str, states(maxLength=_LONGEST_NAME, pattern=_whole(NAME))]
"""The name of an object that a reader checks."""
NameOrEmpty = Annotated[str, states(maxLength=_LONGEST_NAME, pattern=_whole(f"({NAME})?"))]
LabelKey = Annotated[str, states(maxLength=_LONGEST_KEY, pattern=_whole(LABEL_KEY))]
"""The key of a label, or the name of a resource."""
Text = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]
"""The name of an object, or a value, of which only the length is checked."""
Amount = Annotated[
    str | int, states(minimum=0, maxLength=LONGEST_QUANTITY, pattern=_whole(NOT_NEGATIVE))
]
"""A quantity that is not negative. One with a fraction is text, as an API server has no other type for both."""
LABEL_KEYS: Final = Rule(
    f"self.all(key, key.matches(r'{_whole(LABEL_KEY)}'))", "must have keys of labels"
)
"""For a map."""
NAMES: Final = Rule(f"self.all(name, name.matches(r'{_whole(NAME)}'))", "must have names as keys")
"""For a map."""

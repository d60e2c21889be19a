"""The reasons for which fields are refused, in the form of the other messages: one sentence for each error of a validator.

The texts of the validator address programmers in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_UNKNOWN: Final = "is invalid"
_OBJECT: Final = "must be an object"
_LIST: Final = "must be a list"
_STRING: Final = "must be a string"
_BOOLEAN: Final = "must be true or false"
_INTEGER: Final = "must be an integer"
_NUMBER: Final = "must be a number"
_CHOICE: Final = "must be {expected}"
_TIME: Final = "must be a time such as 2026-01-31T12:00:00Z"

SENTENCES: Final[Mapping[str, str]] = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "invalid_key": "must have strings as keys",
    "model_type": _OBJECT,
    "dict_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": _STRING,
    "string_unicode": "must be valid Unicode",
    "path_type": _STRING,
    "is_instance_of": _STRING,  # the only such type is the path of a file
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": "must be an integer with fewer digits",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "none_required": "must be null",
    "enum": _CHOICE,
    "literal_error": _CHOICE,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have at most {max_length} items",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "datetime_from_date_parsing": _TIME,
    "value_error": "{error}",
}
"""By type of error; ``{…}`` is a part of its context."""


def requirement(error: Mapping[str, Any]) -> str:
    """The reason of an error of pydantic (``type`` and ``ctx``)."""
    return SENTENCES.get(error["type"], _UNKNOWN).format_map(error.get("ctx", {}))

"""JSON within limits: a document with too many values is refused before it is decoded, and no other."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.api import reading
from queuectl.api.problems import ApiProblem
from queuectl.api.reading import read_json

MARKS = st.text(alphabet='[]{},:"\\ a')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | MARKS,
    lambda inner: st.lists(inner) | st.dictionaries(MARKS, inner),
)


def values_of(value: Any) -> int:
    """Values in a value, itself and keys included."""
    match value:
        case dict():
            return 1 + len(value) + sum(map(values_of, value.values()))
        case list():
            return 1 + sum(map(values_of, value))
    return 1


@given(JSON)
def test_a_document_with_the_greatest_number_of_values_is_read_with_any_strings(value: Any) -> None:
    assert read_json(orjson.dumps(value), values_of(value)) == value
    with pytest.raises(ApiProblem, match="more than"):
        read_json(orjson.dumps(value), values_of(value) - 1)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 100_000 + b"[]]",
        b"[" + b"1," * 100_000 + b"1]",
        b"[" + b"[[]]," * 100_000 + b"1]",
        b'{"a":[' + b'{"b":1},' * 100_000 + b"1]}",
        b'["' + b'\\",' * 100_000 + b'",' + b"1," * 30_000 + b"1]",
    ],
    ids=[
        "empty lists",
        "numbers",
        "lists in lists",
        "mappings",
        "alongside a string full of commas",
    ],
)
def test_too_many_values_are_refused_before_they_are_decoded(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "orjson", None)
    with pytest.raises(ApiProblem, match="more than 20000 values"):
        read_json(body)

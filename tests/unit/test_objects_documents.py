"""Streams of objects: YAML, JSON, Lists, and the address of an error in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.objects.documents import documents_of, read_documents
from queuectl.objects.errors import DocumentError

POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
NODE: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}


def names(text: str) -> list[str]:
    return [d.address.name for d in read_documents(text)]


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: Node\nmetadata: {name: b}\n",
        json.dumps(POD) + json.dumps(NODE),
        json.dumps(POD) + "\n" + json.dumps(NODE) + "\n",
        json.dumps(POD) + "\n---\n" + json.dumps(NODE),
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [POD, NODE]}, indent="\t"),
        "{kind: List, apiVersion: v1, items: [&a {apiVersion: v1, kind: Pod, metadata: {name: a}}, {<<: *a, kind: Node, metadata: {name: b}}]}",
    ],
    ids=["yaml", "json", "json lines", "json and dashes", "list", "flow yaml"],
)
def test_all_forms_of_a_stream_give_the_same_objects(text: str) -> None:
    assert names(text) == ["Pod/a", "Node/b"]


def test_items_of_a_typed_list_inherit_its_kind() -> None:
    text = json.dumps(
        {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "x"}}]}
    )
    assert names(text) == ["Node/x"]


def test_a_key_can_override_that_of_a_merged_mapping() -> None:
    """Also where the mapping that is merged has a merge itself, and is deeper in the document."""
    text = "{apiVersion: v1, kind: Pod, b: &b {k: 1}, x: {y: &a {<<: *b, k: 2}}, z: {<<: *a, k: 3}}"
    (document,) = read_documents(text)
    assert (document.body["x"], document.body["z"]) == ({"y": {"k": 2}}, {"k": 3})


def test_a_pair_of_surrogates_is_one_character() -> None:
    text = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "\\ud83d\\ude00"}}'
    assert names(text) == ["Pod/\U0001f600"]


def multiplied(levels: int, of_ten: str) -> str:
    """A text in which each line has ten aliases of the line before it."""
    lines = ["  a0: &a0 {k: v}"]
    for level in range(1, levels + 1):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"  a{level}: &a{level} {of_ten.format(aliases)}")
    return "\n".join(["apiVersion: v1", "kind: Pod", "spec:", *lines])


@pytest.mark.parametrize("of_ten", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_may_add_a_bounded_number_of_values(of_ten: str) -> None:
    assert names(multiplied(3, of_ten)) == ["Pod/"]
    with pytest.raises(DocumentError, match=r"f\.yaml: line \d+, column \d+: .*too many values"):
        read_documents(multiplied(9, of_ten), "f.yaml")


def test_a_long_text_without_aliases_is_read() -> None:
    items = "\n".join(["- {apiVersion: v1, kind: Pod}"] * 30_000)
    assert len(read_documents(f"apiVersion: v1\nkind: List\nitems:\n{items}")) == 30_000


def test_a_time_stays_the_text_it_is() -> None:
    (document,) = read_documents(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, creationTimestamp: 2026-08-22T10:00:00Z}"
    )
    assert document.body["metadata"]["creationTimestamp"] == "2026-08-22T10:00:00Z"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: b: c", "f.yaml: line 1, column 5: is not YAML: mapping values are not allowed"),
        ("- 1", "f.yaml: document 1: must be an object, not a list"),
        ("kind: Pod", "f.yaml: document 1: apiVersion: is required"),
        ("apiVersion: v1\nkind: Pod\n---\n---\napiVersion: v1", "f.yaml: document 3: kind: is required"),
        ("{apiVersion: v1, kind: List, items: [3]}", "f.yaml: document 1, item 1: must be an object, not a number"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: 3}}", "f.yaml: document 1 (Pod/): metadata.name: 3 is not text"),
        ("{apiVersion: v1, kind: Pod, metadata: 3}", "f.yaml: document 1: metadata: must be an object, not a number"),
        ("{apiVersion: v1, kind: Pod, spec: {a: .inf}}", "f.yaml: document 1: spec.a: inf is not a number"),
        ("{apiVersion: v1, kind: Pod, spec: {1: a}}", "f.yaml: document 1: spec: key 1 is not text"),
        ("{apiVersion: v1, kind: Pod, spec: &a [*a]}", "f.yaml: document 1: spec[0]: contains itself"),
        ("{apiVersion: v1, kind: Pod, spec: !!set {a}}", "f.yaml: document 1: spec: set is not a JSON value"),
        ("kind: Pod\nspec:\n  quota: 96\n  quota: 1", "f.yaml: line 4, column 3: key 'quota' appears twice, first on line 3"),
        ("a: &a {k: 1}\nb: {<<: *a, 'k': 2, k: 3}", "f.yaml: line 2, column 21: key 'k' appears twice, first on line 2"),
        ('{"kind": "Pod",\n "kind": "Job"}', "f.yaml: line 2, column 2: key 'kind' appears twice, first on line 1"),
        ("a: {&k x: 1, *k : 2}", "f.yaml: line 1, column 19: key 'x' appears twice, first on line 1"),
        ("{apiVersion: v1, kind: List, items: {a: b}}", "f.yaml: document 1: items: must be a list, not an object"),
        ('{"kind": "\\ud83d\\ude00", "kind": "Job"}', "f.yaml: key 'kind' appears twice in an object"),
        ('{"apiVersion": "v1", "kind": "Pod", "spec": 1e999}', "f.yaml: 1e999 is too large for a number"),
        ('{"apiVersion": "v1", "kind": "Pod"} {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x\\ud800y"}}',
         "f.yaml: document 2: metadata.name: is not text: it has half of a surrogate pair"),
        ('{"apiVersion": "v1", "kind": "Pod", "spec": {"\\uDFFF": 1}}', "f.yaml: document 1: spec: is not text: it has half"),
        ("[" * 5000, "f.yaml: "),  # which of the parser's limits is met first differs between Pythons
        ("a: " + "[" * 100_000, "f.yaml: line 1, column 104: is not YAML: more than 100 mappings and lists are nested"),
        ("a: &a {k: *b}", "f.yaml: line 1, column 11: is not YAML: found undefined alias 'b'"),
        ("a: 0x" + "f" * 4500, "f.yaml: line 1, column 4: is not YAML: a number has more than 1000 characters"),
        ("a: 1" + ":59" * 9000, "f.yaml: line 1, column 4: is not YAML: a number has more than 1000 characters"),
    ],
)  # fmt: skip
def test_a_broken_stream_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_documents(text, "f.yaml")
    assert str(caught.value).startswith(sentence)


def test_the_items_of_a_list_in_a_list_count() -> None:
    inner = {"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Pod"}]}
    empty = {"kind": "List", "apiVersion": "v1", "items": None}
    found = documents_of([{"kind": "List", "apiVersion": "v1", "items": [inner, empty]}])
    assert [one.kind for one in found] == ["Pod"]


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(DocumentError, match=r"f\.yaml: is not UTF-8 text"):
        read_documents(b"\xff\xfe", "f.yaml")


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!#,'\"\n 1.|>%@`?~\t\x00\u0085"), max_size=60))
def test_any_text_is_a_stream_or_is_refused(text: str) -> None:
    try:
        documents = read_documents(text)
    except DocumentError as error:
        assert str(error)  # noqa: PT017 - refusing is one of two right answers
    else:
        assert all(d.kind and d.api_version for d in documents)

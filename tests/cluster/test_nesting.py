"""Documents of any depth: what is below a level is emptied, and the identity of an object is always found."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuectl.cluster import stream
from queuectl.cluster.resources import watched
from queuectl.cluster.stream import LEVELS, ObjectIdentity, decoded, identify, shallow

DEEPEST = 10_000
"""Levels that the API server accepts."""

RESOURCES = {resource.name: resource for resource in watched()}
AWKWARD = st.sampled_from(['"', "\\", '\\"', "[", "]", "{", "}", "ü", "\n", "", "[[", '"}'])
TEXTS = st.text() | st.lists(AWKWARD).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def emptied(value: Any, levels: int) -> Any:
    """The same by recursion, over decoded values."""
    match value:
        case list():
            return [emptied(one, levels - 1) for one in value] if levels else []
        case dict():
            return {key: emptied(one, levels - 1) for key, one in value.items()} if levels else {}
        case _:
            return value


def nested(depth: int, kind: str = "[]") -> str:
    opening = {"[]": "[", "{}": '{"f:a":'}[kind]
    return opening * depth + "1" + kind[1] * depth


def written(document: Any, **deep: str) -> bytes:
    """The document, in which a placeholder "@name" stands for the text of that name."""
    text = json.dumps(document)
    for name, value in deep.items():
        text = text.replace(f'"@{name}"', value)
    return text.encode()


@given(VALUES, st.integers(0, 6), st.booleans(), st.integers(1, 40))
@example([["\\", ['"[', [["]"]]]]], 2, False, 1)
def test_what_is_below_a_level_is_emptied(
    value: Any, levels: int, ascii_only: bool, part: int
) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_PART", part)
        found = shallow(document, levels)
    assert json.loads(found) == emptied(json.loads(document), levels)


@pytest.mark.parametrize("garbage", [b"", b"]", b'"', b"\\", b'{"a":[', b"[[[[", b"}{", b'["\\"]'])
def test_bytes_that_are_not_json_stay_that(garbage: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(shallow(garbage, 2))
    with pytest.raises(msgspec.MsgspecError):
        identify(garbage)


@pytest.mark.parametrize("kind", ["[]", "{}"])
@pytest.mark.parametrize("depth", [LEVELS, 1_000, DEEPEST, 100 * DEEPEST])
def test_a_document_of_any_depth_is_decoded(depth: int, kind: str) -> None:
    document = written({"a": "x", "b": "@b"}, b=nested(depth, kind))
    found: list[Any] = []

    def read() -> None:
        found.append(decoded(msgspec.json.Decoder(dict[str, Any]).decode, document, LEVELS)["a"])

    thread = threading.Thread(target=read)
    for run in (read, thread.start, thread.join):
        run()
    assert found == ["x", "x"]


META: dict[str, Any] = {"uid": "u", "name": "n", "namespace": "team", "resourceVersion": "7"}
META |= {"labels": {"a": "b"}, "annotations": {"c": "d"}}
WHOLE = ObjectIdentity("u", "team", "n", "7", "n0", "Running", "", {"a": "b"}, {"c": "d"})


@pytest.mark.parametrize("place", ["managedFields", "ownerReferences", "labels", "annotations"])
def test_the_identity_is_found_alongside_a_part_that_is_deep(place: str) -> None:
    document = {
        "metadata": META | {place: "@deep"},
        "spec": {"x": "@deep", "nodeName": "n0"},
        "status": {"phase": "Running", "x": "@deep"},
    }
    found = identify(written(document, deep=nested(DEEPEST, "{}")))
    labels = {} if place == "labels" else WHOLE.labels
    annotations = {} if place == "annotations" else WHOLE.annotations
    assert found == ObjectIdentity("u", "team", "n", "7", "n0", "Running", "", labels, annotations)


PARTS = {
    "uid": ("metadata", "uid"),
    "namespace": ("metadata", "namespace"),
    "name": ("metadata", "name"),
    "resource_version": ("metadata", "resourceVersion"),
    "node_name": ("spec", "nodeName"),
    "phase": ("status", "phase"),
    "deletion_timestamp": ("metadata", "deletionTimestamp"),
    "labels": ("metadata", "labels"),
    "annotations": ("metadata", "annotations"),
}
NAMES = st.text(st.characters(codec="utf-8"))


@given(st.data())
def test_each_part_of_the_identity_is_read_alone(data: st.DataObject) -> None:
    maps = st.dictionaries(NAMES, NAMES, max_size=3)
    good = {part: maps if part in ("labels", "annotations") else NAMES for part in PARTS}
    document: dict[str, Any] = {"metadata": {}}
    for part, (above, name) in PARTS.items():
        if data.draw(st.booleans()):
            document.setdefault(above, {})[name] = data.draw(good[part] | VALUES)
    for extra in data.draw(st.sets(st.sampled_from(["metadata", "spec", "status"]))):
        document.setdefault(extra, {})["other"] = data.draw(VALUES)
    for scalar in data.draw(st.sets(st.sampled_from(["spec", "status"]), max_size=1)):
        document[scalar] = data.draw(VALUES)
    found = identify(msgspec.json.encode(document))
    for part, (above, name) in PARTS.items():
        parent = document.get(above)
        value = parent.get(name) if isinstance(parent, dict) else None
        assert getattr(found, part) == _readable(part, value)


def _readable(part: str, value: Any) -> Any:
    if part in ("labels", "annotations"):
        whole = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
        return value if whole else {}
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("number", ["1e999", "9" * 400, "9" * 5_000, "-0", "1e-999"])
def test_a_number_of_any_size_does_not_hide_the_identity(number: str) -> None:
    document = {
        "metadata": META | {"x": "@n"},
        "spec": {"nodeName": "n0", "x": "@n"},
        "status": {"phase": "Running", "x": ["@n"]},
    }
    assert identify(written(document, n=number)) == WHOLE


@pytest.mark.parametrize(
    ("spec", "suspended"),
    [
        ({"suspend": True}, True),
        ({"suspend": False, "runPolicy": {"suspend": True}}, False),
        ({"runPolicy": {"suspend": True, "x": "@deep"}, "x": "@deep"}, True),
        ({"suspend": "yes"}, None),
        ({"runPolicy": []}, None),
        ([], None),
    ],
)
def test_the_identity_of_a_job_states_whether_it_is_suspended(
    spec: Any, suspended: bool | None
) -> None:
    document = {"metadata": META, "spec": spec}
    assert identify(written(document, deep=nested(DEEPEST, "{}"))).suspended is suspended


def test_an_object_without_metadata_has_no_identity() -> None:
    documents: tuple[Any, ...] = ({}, {"metadata": None}, {"metadata": []}, [], 1)
    for document in documents:
        with pytest.raises(msgspec.MsgspecError):
            identify(msgspec.json.encode(document))


class Page(msgspec.Struct):
    items: list[msgspec.Raw]


def test_an_item_of_a_page_that_nests_too_deep_is_read_like_its_neighbors() -> None:
    claim = {"metadata": META, "spec": {"devices": {"config": [{"opaque": {"parameters": "@p"}}]}}}
    body = written({"items": [claim, claim, claim]}, p=nested(DEEPEST, "{}"))
    page = decoded(msgspec.json.Decoder(Page).decode, body, LEVELS + 2)
    read = RESOURCES["resourceclaims"].read
    records = [read(item) for item in page.items]
    assert records == 3 * [read(written(claim, p="{}"))]

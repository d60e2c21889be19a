"""PATCH of configuration: it changes single fields, and only of the version that was read."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.api.reading import MERGE_PATCH, merged
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, QUEUE_PATH

# RFC 7386, appendix A.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
DOCUMENT = st.recursive(
    st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(("target", "patch", "expected"), EXAMPLES)
def test_a_merge_patch_follows_the_examples_of_the_rfc(
    target: Any, patch: Any, expected: Any
) -> None:
    assert merged(target, patch) == expected


@given(DOCUMENT, DOCUMENT)
def test_applying_a_patch_twice_has_one_effect(target: Any, patch: Any) -> None:
    once = merged(target, patch)
    assert merged(once, patch) == once


async def put(api: httpx2.AsyncClient) -> str:
    """Stores the queue and returns its tag."""
    answer = await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    assert answer.status_code == 201
    return answer.headers["ETag"]


async def patch(
    api: httpx2.AsyncClient,
    body: Any,
    tag: str | None = "*",
    query: str = "",
    path: str = QUEUE_PATH,
) -> httpx2.Response:
    headers = {"Content-Type": MERGE_PATCH} | ({"If-Match": tag} if tag is not None else {})
    return await api.patch(f"{path}{query}", json=body, headers=headers)


async def test_a_patch_changes_only_the_fields_that_it_names(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    answer = await patch(api, {"spec": {"cohort": "all", "queueingStrategy": None}}, tag)
    assert answer.status_code == 200
    assert answer.json()["result"] == "configured"
    fields = {change["field"] for change in answer.json()["changes"]}
    assert "spec.queueingStrategy" in fields
    stored = await api.get(QUEUE_PATH)
    assert stored.headers["ETag"] == answer.headers["ETag"] != tag
    assert "queueingStrategy" not in stored.json()["spec"]
    assert stored.json()["spec"]["resourceGroups"] == CLUSTER_QUEUE["spec"]["resourceGroups"]


async def test_a_patch_without_changes_is_reported_as_unchanged(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    answer = await patch(api, {}, tag)
    assert (answer.json()["result"], answer.headers["ETag"]) == ("unchanged", tag)


async def test_without_if_match_nothing_is_changed(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    answer = await patch(api, {"spec": {"cohort": "all"}}, None)
    assert answer.status_code == 428
    assert answer.json()["type"].endswith("/precondition-required")
    assert (await api.get(QUEUE_PATH)).headers["ETag"] == tag


async def test_a_patch_over_a_newer_version_changes_nothing(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    assert (await patch(api, {"spec": {"stopPolicy": "Hold"}}, tag)).status_code == 200
    answer = await patch(api, {"spec": {"stopPolicy": "None"}}, tag)
    assert answer.status_code == 412
    assert (await api.get(QUEUE_PATH)).json()["spec"]["stopPolicy"] == "Hold"


async def test_one_of_two_concurrent_patches_of_a_version_succeeds(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    policies = ("Hold", "HoldAndDrain")
    answers = await asyncio.gather(
        *(patch(api, {"spec": {"stopPolicy": policy}}, tag) for policy in policies)
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412]


async def test_a_dry_run_stores_nothing(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    answer = await patch(api, {"spec": {"stopPolicy": "Hold"}}, tag, "?dry_run=true")
    assert (answer.status_code, answer.json()["result"]) == (200, "configured")
    assert (await api.get(QUEUE_PATH)).headers["ETag"] == tag


@pytest.mark.parametrize("path", DOCUMENTS)
async def test_every_kind_can_be_patched(api: httpx2.AsyncClient, path: str) -> None:
    assert (await api.put(path, json=DOCUMENTS[path])).status_code == 201
    answer = await patch(api, {"metadata": {"labels": {"team": "a"}}}, path=path)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"metadata": {"name": "another"}}, 422, "invalid-document"),
        ({"kind": "Cohort"}, 422, "invalid-document"),
        ({"spec": {"color": "red"}}, 422, "invalid-document"),
        ([1], 400, "malformed-body"),
    ],
)
async def test_a_wrong_patch_is_refused(
    api: httpx2.AsyncClient, body: Any, status: int, problem: str
) -> None:
    tag = await put(api)
    answer = await patch(api, body, tag)
    assert answer.status_code == status, answer.text
    assert answer.json()["type"].endswith(f"/{problem}")
    assert (await api.get(QUEUE_PATH)).headers["ETag"] == tag


async def test_a_missing_document_cannot_be_patched(api: httpx2.AsyncClient) -> None:
    assert (await patch(api, {})).status_code == 404


async def test_only_merge_patches_are_understood(api: httpx2.AsyncClient) -> None:
    tag = await put(api)
    answer = await api.patch(QUEUE_PATH, json={}, headers={"If-Match": tag})
    assert answer.status_code == 415
    assert answer.headers["Accept-Patch"] == MERGE_PATCH

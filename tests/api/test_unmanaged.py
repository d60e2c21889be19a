"""The report of pods outside the queues over REST: rows and sums, page by page, without namespaces that the caller may not see."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.domain.identity import Right
from queuectl.domain.queries import UnmanagedPod
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people
from tests.api.support import FixedHealth, FixedLookout, job, live_through
from tests.doubles.store import MemoryStore

PATH = "/api/v1/reports/unmanaged"
TENANT = "of-the-tenant"
HELD = (
    UnmanagedPod("a", "one", "n1", Fraction(4), 10.0),
    UnmanagedPod("a", "two", "n2", Fraction(1), None),
    UnmanagedPod("a-b", "three", "n1", Fraction(2), 20.0),
    UnmanagedPod("secret", "four", "hidden-node", Fraction(8), 30.0),
)


async def answer(
    token: str | None,
    *rights: Right,
    held: tuple[UnmanagedPod, ...] | None = HELD,
    **query: Any,
) -> Any:
    """The answer for a caller with these rights."""
    access = people()
    access.know(TENANT, "tenant", *rights)
    store = MemoryStore()
    for change in live_through(job("queued", namespace="a")):
        store._write(change, 1)
    authenticated = AuthenticationLayer(access, secure=True, open_paths=OpenPaths())
    cluster_reader = FixedLookout(None, held=held)
    registry = MetricsRecorder().registry
    app = create_app(
        store, FixedHealth(), registry, cluster_reader=cluster_reader, authenticated=authenticated
    )
    async with asking(app, token) as client:
        return await client.get(PATH, params={k: str(v) for k, v in query.items()})


def refs(body: dict[str, Any]) -> list[str]:
    return [f"{item['namespace']}/{item['name']}" for item in body["items"]]


async def test_an_admin_sees_every_pod_with_its_node_and_the_sums() -> None:
    body = (await answer(ADMIN)).json()
    assert body["items"][:2] == [
        {"namespace": "a", "name": "one", "node": "n1", "gpus": 4.0, "since": "1970-01-01T00:00:10Z"},
        {"namespace": "a", "name": "two", "node": "n2", "gpus": 1.0, "since": None},
    ]  # fmt: skip
    assert refs(body)[2:] == ["a-b/three", "secret/four"]
    assert [(one["namespace"], one["pods"], one["gpus"]) for one in body["namespaces"]] == [
        ("a", 2, 5.0),
        ("a-b", 1, 2.0),
        ("secret", 1, 8.0),
    ]
    assert body["nextCursor"] is None


@pytest.mark.parametrize(
    ("namespaces", "expected"),
    [
        (["a"], ["a/one", "a/two"]),
        (["a-b"], ["a-b/three"]),  # which has no queue
        (["a", "a-b"], ["a/one", "a/two", "a-b/three"]),
        (["elsewhere"], []),
        ([], []),
    ],
)
async def test_a_tenant_sees_its_own_namespaces_alone(
    namespaces: list[str], expected: list[str]
) -> None:
    rights = [Right("get", "reports", namespace) for namespace in namespaces]
    found = await answer(TENANT, *rights)
    assert refs(found.json()) == expected
    assert {one["namespace"] for one in found.json()["namespaces"]} == {
        ref.partition("/")[0] for ref in expected
    }
    assert "secret" not in found.text
    assert "hidden-node" not in found.text


async def test_a_namespace_is_shown_to_callers_that_may_get_its_reports() -> None:
    own = Right("get", "reports", "a-b")
    assert refs((await answer(TENANT, own, namespace="a-b")).json()) == ["a-b/three"]
    for token in (TENANT, NO_RIGHTS):
        refused = await answer(token, own, namespace="secret")
        assert refused.status_code == 403
        assert "four" not in refused.text


async def test_a_caller_without_credentials_is_refused() -> None:
    assert (await answer(None)).status_code == 401


async def test_pages_join_to_the_whole_list_with_the_sums_of_all_items() -> None:
    found: list[str] = []
    sums: dict[str, float] = {}
    query: dict[str, Any] = {"limit": 1}
    for _ in HELD:
        body = (await answer(ADMIN, **query)).json()
        found += refs(body)
        sums |= {one["namespace"]: one["gpus"] for one in body["namespaces"]}
        assert len(body["namespaces"]) == 1
        query["cursor"] = body["nextCursor"]
    assert query["cursor"] is None
    assert found == [f"{pod.namespace}/{pod.name}" for pod in HELD]
    assert sums == {"a": 5.0, "a-b": 2.0, "secret": 8.0}


@pytest.mark.parametrize("query", [{"limit": 501}, {"limit": 0}, {"cursor": "?"}])
async def test_a_wrong_parameter_is_refused(query: dict[str, Any]) -> None:
    assert (await answer(ADMIN, **query)).status_code == 422


async def test_without_a_snapshot_the_report_is_a_problem() -> None:
    """Also to a tenant: an empty report would say that no pod holds GPUs."""
    for token in (ADMIN, TENANT):
        found = await answer(token, Right("get", "reports", "a"), held=None)
        assert found.status_code == 503
        assert found.json()["type"].endswith("/not-known-yet")

"""Every route requires a right; a caller without it sees nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx2
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from queuectl.domain.identity import Right
from tests.api.conftest import commit
from tests.api.signed import ADMIN, NO_RIGHTS, asking, signed_app
from tests.api.support import DOCUMENTS, LIVES, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryDatabase, MemoryStore

OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/api/v1/openapi.json")}
"""Routes without authentication."""
KNOWN = {(method, "/api/v1/session") for method in ("GET", "POST", "DELETE")} | {
    ("GET", "/api/v1/subscriptions")
}
"""Routes that need authentication only, or that authenticate."""
PARAMETERS = {"namespace": "team-a", "name": "running", "uid": "uid-job-running", "number": "1"}


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is not covered by this test"
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, route.path


STORE = MemoryStore()
ACCESS = MemoryAccess()
APP = signed_app(STORE, ACCESS)  # made once: it takes longer than a request
ALL = sorted(set(operations(APP)))
GUARDED = [one for one in ALL if one not in OPEN | KNOWN]


@pytest.fixture
async def store() -> MemoryStore:
    """A workload in every state, all of team-a, and a document of every kind."""
    fresh, database = MemoryDatabase(), STORE.database
    for name in ("entries", "documents", "history", "commands", "outcomes"):
        setattr(database, name, getattr(fresh, name))
    database.audit.clear()
    for name, life in LIVES.items():
        await commit(STORE, live_through(job(name), *life))
    for document in DOCUMENTS.values():
        await STORE.put_config(document)
    return STORE


@pytest.fixture
def access() -> MemoryAccess:
    for known in (ACCESS.callers, ACCESS.granted, ACCESS.masters, ACCESS.asked):
        known.clear()
    ACCESS.down = False
    ACCESS.know(ADMIN, "admin", master=True)
    ACCESS.know(NO_RIGHTS, "without-rights")
    return ACCESS


@pytest.fixture
def app(store: MemoryStore, access: MemoryAccess) -> FastAPI:
    return APP


async def asked(app: FastAPI, method: str, path: str, token: str | None) -> httpx2.Response:
    """The answer to one request."""
    filled = path.format_map(PARAMETERS | {"kind": "Job"})
    stream = "?follow=false&after=0" if path.endswith("/events") else ""
    body = {"items": [next(iter(DOCUMENTS.values()))]} if path.endswith("/dryrun") else None
    async with asking(app, token) as client:
        return await client.request(method, filled + stream, json=body)


def test_each_path_parameter_has_a_value() -> None:
    for _, path in ALL:
        path.format_map(PARAMETERS)
    assert len(GUARDED) > 60


@pytest.mark.parametrize(("method", "path"), [o for o in ALL if o not in OPEN], ids=" ".join)
async def test_without_credentials_every_guarded_route_is_refused(
    app: FastAPI, method: str, path: str
) -> None:
    answer = await asked(app, method, path, None)
    if (method, path) == ("POST", "/api/v1/session"):
        assert answer.status_code == 422  # the token is in the body
        return
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"].endswith("/unauthenticated")


@pytest.mark.parametrize(("method", "path"), sorted(OPEN), ids=" ".join)
async def test_open_routes_answer_without_authentication(
    app: FastAPI, method: str, path: str
) -> None:
    assert (await asked(app, method, path, None)).status_code == 200


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=" ".join)
async def test_without_rights_every_guarded_route_is_refused_and_nothing_changes(
    app: FastAPI, store: MemoryStore, access: MemoryAccess, method: str, path: str
) -> None:
    before = (dict(store.database.documents), dict(store.database.commands))
    answer = await asked(app, method, path, NO_RIGHTS)
    assert access.asked, "the route asked for no right"
    assert (store.database.documents, store.database.commands) == before
    if answer.status_code == 200:
        assert method == "GET"
        assert not any(known in answer.text for known in ("uid-job", "team-a", "h100", "racks"))
    else:
        assert answer.status_code in (403, 404), answer.text


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=" ".join)
async def test_with_every_right_no_route_is_forbidden(app: FastAPI, method: str, path: str) -> None:
    assert (await asked(app, method, path, ADMIN)).status_code not in (401, 403)


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=" ".join)
async def test_without_the_api_server_every_guarded_route_is_refused(
    app: FastAPI, access: MemoryAccess, method: str, path: str
) -> None:
    access.down = True
    answer = await asked(app, method, path, ADMIN)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/cluster-unavailable")
    assert int(answer.headers["retry-after"]) > 0


# ---- the view of a tenant

TENANT = "of-the-tenant"


@pytest.fixture
async def tenant(app: FastAPI, access: MemoryAccess, store: MemoryStore) -> MemoryAccess:
    """Of team-b, alongside team-a."""
    resources = ("workloads", "localqueues", "reports")
    rights = [Right(v, r, "team-b") for r in resources for v in ("get", "list", "watch")]
    access.know(TENANT, "tenant", *rights, Right("create", "workloads/hold", "team-b"))
    await commit(store, live_through(job("own", namespace="team-b"), *LIVES["pending"]))
    for where in ("team-b", "team-c"):
        queue = DOCUMENTS["/api/v1/namespaces/team-a/localqueues/default"]
        await store.put_config({**queue, "metadata": {"name": "default", "namespace": where}})
    return access


async def test_a_list_has_only_the_namespaces_of_the_caller(
    app: FastAPI, tenant: MemoryAccess
) -> None:
    async with asking(app, TENANT) as client:
        workloads = (await client.get("/api/v1/workloads")).json()["items"]
        queues = (await client.get("/api/v1/localqueues")).json()["items"]
        assert [w["namespace"] for w in workloads] == ["team-b"]
        assert [q["metadata"]["namespace"] for q in queues] == ["team-b"]
        for path in ("workloads", "localqueues"):
            theirs = await client.get(f"/api/v1/{path}?namespace=team-a")
            assert theirs.status_code == 403
            assert "team-a" in theirs.json()["detail"]
            own = await client.get(f"/api/v1/{path}?namespace=team-b")
            assert len(own.json()["items"]) == 1


async def test_pages_of_a_list_have_only_items_of_the_caller(
    app: FastAPI, tenant: MemoryAccess, store: MemoryStore
) -> None:
    for name in ("b1", "b2"):
        await commit(store, live_through(job(name, namespace="team-b")))
    async with asking(app, TENANT) as client:
        names: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await client.get(f"/api/v1/workloads?limit=1{cursor}")).json()
            names += [w["name"] for w in page["items"]]
            cursor = f"&cursor={page['nextCursor']}" if page["nextCursor"] else None
    assert sorted(names) == ["b1", "b2", "own"]


async def test_the_uid_of_a_hidden_workload_is_not_found(
    app: FastAPI, tenant: MemoryAccess
) -> None:
    async with asking(app, TENANT) as client:
        for path in ("", "/history", "/explain"):
            theirs = await client.get(f"/api/v1/workloads/uid-job-running{path}")
            none = await client.get(f"/api/v1/workloads/uid-job-nothing{path}")
            assert theirs.status_code == none.status_code == 404
            assert theirs.json()["detail"].replace("running", "nothing") == none.json()["detail"]
            assert (await client.get(f"/api/v1/workloads/uid-job-own{path}")).status_code == 200
        assert (await client.post("/api/v1/workloads/uid-job-running/hold")).status_code == 404
        events = "/api/v1/events?follow=false&uid=uid-job-"
        theirs, none = await client.get(f"{events}running"), await client.get(f"{events}nothing")
        assert theirs.status_code == none.status_code == 404
        assert theirs.json()["detail"].replace("running", "nothing") == none.json()["detail"]
        assert (await client.get(f"{events}own")).status_code == 200


async def test_a_tenant_may_act_in_its_namespace_and_elsewhere_the_missing_right_is_named(
    app: FastAPI, tenant: MemoryAccess
) -> None:
    async with asking(app, TENANT) as client:
        for path in ("workloads/uid-job-own", "namespaces/team-b/workloads/own"):
            held = await client.post(f"/api/v1/{path}/hold")
            assert held.status_code == 202
            assert held.json()["by"] == "tenant"
            refused = await client.post(f"/api/v1/{path}/requeue")
            assert refused.status_code == 403
            assert (
                "create workloads/requeue own of queuectl.dev in namespace team-b"
                in (refused.json()["detail"])
            )


async def test_an_authenticated_caller_cannot_act_in_the_name_of_another(
    app: FastAPI, tenant: MemoryAccess
) -> None:
    async with asking(app, TENANT) as client:
        held = await client.post("/api/v1/workloads/uid-job-own/hold", json={"by": "somebody"})
    assert held.json()["by"] == "tenant"


async def test_a_dry_run_needs_the_rights_of_its_writes(app: FastAPI, tenant: MemoryAccess) -> None:
    tenant.know(TENANT, "tenant", Right("update", "localqueues", "team-b"))
    queue = DOCUMENTS["/api/v1/namespaces/team-a/localqueues/default"]
    own = {**queue, "metadata": {"name": "default", "namespace": "team-b"}}
    async with asking(app, TENANT) as client:
        assert (await client.post("/api/v1/dryrun", json={"items": [own]})).status_code == 200
        both = await client.post("/api/v1/dryrun", json={"items": [own, queue]})
        assert both.status_code == 403
        assert "localqueues default" in both.json()["detail"]


@pytest.mark.parametrize(
    "item", [{}, {"kind": 1}, {"kind": "Pod"}, {"kind": "LocalQueue", "metadata": 5}]
)
async def test_a_dry_run_of_unknown_documents_needs_more_rights_than_a_team_has(
    app: FastAPI, tenant: MemoryAccess, item: object
) -> None:
    async with asking(app, TENANT) as client:
        assert (await client.post("/api/v1/dryrun", json={"items": [item]})).status_code == 403
    async with asking(app, ADMIN) as client:
        assert (await client.post("/api/v1/dryrun", json={"items": [item]})).status_code == 422


@pytest.mark.usefixtures("store")
async def test_a_workload_is_named_only_in_namespaces_that_the_caller_lists(
    access: MemoryAccess,
) -> None:
    for namespace in ("team-b", "team-c", "team-d"):
        mine = replace(job("mine", namespace=namespace), uid=f"uid-{namespace}")
        await commit(STORE, live_through(mine))
    list_b, get_a = Right("list", "workloads", "team-b"), Right("get", "workloads", "team-a")
    for token, rights, status, elsewhere in (
        ("of-b", (list_b,), 403, ["team-b/mine"]),
        ("of-a-and-b", (list_b, get_a), 404, ["team-b/mine"]),
        ("of-a", (get_a,), 404, []),
        (NO_RIGHTS, (), 403, []),
        (ADMIN, (), 404, ["team-b/mine", "team-c/mine", "team-d/mine"]),
    ):
        if rights:
            access.know(token, token, *rights)
        async with asking(APP, token) as client:
            answer = await client.get("/api/v1/namespaces/team-a/workloads/mine/explain")
        assert (answer.status_code, answer.json()["elsewhere"]) == (status, elsewhere), token

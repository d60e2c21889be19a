"""Every request that changes something is recorded, refused or not; no change takes effect without an entry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.auth.audit import forget_old
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.errors import StoreUnavailable
from tests.api.conftest import AnyStore, commit, talking_to
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people, signed_app
from tests.api.support import CLUSTER_QUEUE, COHORT, LIVES, job, live_through
from tests.doubles.store import MemoryStore

COHORT_PATH, QUEUE_PATH = "/api/v1/cohorts/all", "/api/v1/clusterqueues/team-a"
HOLD = "/api/v1/namespaces/team-a/workloads/running/hold"


@pytest.fixture
def signed(store: AnyStore) -> FastAPI:
    return signed_app(store, people())


@pytest.fixture
async def admin(signed: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with asking(signed, ADMIN) as client:
        yield client


async def log(client: httpx2.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    answer = await client.get(f"/api/v1/audit{query}")
    assert answer.status_code == 200
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_a_write_is_recorded_with_its_caller_its_request_and_its_changes(
    admin: httpx2.AsyncClient,
) -> None:
    await admin.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    spec = {**CLUSTER_QUEUE["spec"], "queueingStrategy": "BestEffortFIFO"}
    changed = await admin.put(
        QUEUE_PATH, json={**CLUSTER_QUEUE, "spec": spec}, headers={"X-Request-Id": "change-1"}
    )
    assert changed.status_code == 200
    newest, first = await log(admin)
    assert first["detail"] == "created"
    del newest["id"], newest["at"]
    assert newest == {
        "requestId": "change-1",
        "caller": "admin",
        "groups": ["system:authenticated"],
        "method": "PUT",
        "path": QUEUE_PATH,
        "operation": "putClusterQueue",
        "status": 200,
        "detail": "configured; spec.queueingStrategy: 'StrictFIFO' -> 'BestEffortFIFO'",
        "what": "apply ClusterQueue team-a",
        "result": "done: configured; spec.queueingStrategy: 'StrictFIFO' -> 'BestEffortFIFO'",
    }


async def test_refusals_are_recorded_with_their_reason(
    admin: httpx2.AsyncClient, signed: FastAPI
) -> None:
    async with asking(signed, NO_RIGHTS) as without_rights:
        await without_rights.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    await admin.put(QUEUE_PATH, json={"kind": "ClusterQueue"})
    await admin.delete(QUEUE_PATH)
    await admin.post("/api/v1/nothing")
    await admin.patch("/api/v1/audit")
    found = [(line["caller"], line["status"], line["operation"]) for line in await log(admin)]
    assert found[::-1] == [
        ("without-rights", 403, "putClusterQueue"),
        ("admin", 422, "putClusterQueue"),
        ("admin", 404, "deleteClusterQueue"),
        ("admin", 404, ""),
        ("admin", 405, "listAudit"),
    ]
    assert all(line["detail"] for line in await log(admin))


async def test_a_command_is_recorded(admin: httpx2.AsyncClient, store: AnyStore) -> None:
    await commit(store, live_through(job("running"), *LIVES["running"]))
    assert (await admin.post(HOLD)).status_code == 202
    [line] = await log(admin)
    assert (line["path"], line["status"], line["operation"]) == (HOLD, 202, "holdNamedWorkload")


async def test_reads_and_dry_runs_are_not_recorded(
    admin: httpx2.AsyncClient,
) -> None:
    await admin.get("/api/v1/cohorts")
    await admin.post("/api/v1/dryrun", json={"items": [COHORT]})
    await admin.put(COHORT_PATH, json=COHORT, params={"dry_run": "true"})
    await admin.delete(COHORT_PATH, params={"dry_run": "1"})
    assert await log(admin) == []
    assert (await admin.get(COHORT_PATH)).status_code == 404


async def test_a_parameter_that_makes_no_dry_run_hides_no_change(
    admin: httpx2.AsyncClient,
) -> None:
    """A route that does not read it, the last of several values, and a path without a route."""
    for query in ("?dry_run=true&dry_run=false", "?dry_run=no"):
        assert (await admin.put(COHORT_PATH + query, json=COHORT)).is_success
    await admin.post("/api/v1/configurationowner/confirm?dry_run=true", json={"id": "x"})
    await admin.post("/api/v1/nowhere?dry_run=true")
    assert len(await log(admin)) == 4


async def test_a_request_of_an_unknown_caller_is_not_recorded(
    admin: httpx2.AsyncClient, signed: FastAPI
) -> None:
    """Otherwise every client that can reach the API could fill the database."""
    async with asking(signed) as signed_out:
        await signed_out.put(COHORT_PATH, json=COHORT)
        await signed_out.post("/api/v1/session", json={"token": "guess"})
    assert await log(admin) == []


async def test_without_authentication_entries_name_an_unauthenticated_caller(app: FastAPI) -> None:
    async with talking_to(app) as client:
        await client.put(COHORT_PATH, json=COHORT)
        [line] = await log(client)
        assert line["caller"] == "unauthenticated caller"


async def test_the_log_is_read_page_by_page_and_by_caller_path_and_time(
    admin: httpx2.AsyncClient, signed: FastAPI
) -> None:
    for _ in range(3):
        await admin.put(COHORT_PATH, json=COHORT)
    async with asking(signed, NO_RIGHTS) as without_rights:
        await without_rights.delete(QUEUE_PATH)
    page = (await admin.get("/api/v1/audit?limit=2")).json()
    rest = (await admin.get(f"/api/v1/audit?limit=2&before={page['nextBefore']}")).json()
    ids = [line["id"] for line in page["items"] + rest["items"]]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 4
    assert [line["caller"] for line in await log(admin, "?caller=without-rights")] == [
        "without-rights"
    ]
    assert len(await log(admin, "?path=/api/v1/cohorts")) == 3
    assert await log(admin, "?since=99999999999") == []
    assert len(await log(admin, "?since=0")) == 4
    for wrong in ("before=0", "before=x", "limit=501", "since=-1", "since=nan", "path=%00"):
        assert (await admin.get(f"/api/v1/audit?{wrong}")).status_code == 422, wrong


# ---- what is guaranteed


class FailingAuditStore:
    """The log of a store, with failures that the test sets."""

    def __init__(self, memory: MemoryStore) -> None:
        self._real = memory.audit
        self.begins = self.ends = True

    async def begin(self, line: AuditLine) -> int:
        if not self.begins:
            raise StoreUnavailable("away")
        return await self._real.begin(line)

    async def end(self, number: int, outcome: RequestOutcome) -> None:
        if not self.ends:
            raise StoreUnavailable("away")
        await self._real.end(number, outcome)

    async def lines(self, wanted: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        return await self._real.lines(wanted, limit)

    async def prune(self, age: float) -> int:
        return await self._real.prune(age)


@pytest.fixture
def audit_store(memory: MemoryStore) -> FailingAuditStore:
    memory.audit = FailingAuditStore(memory)  # type: ignore[assignment]  # the same, as far as the API knows
    return memory.audit  # type: ignore[return-value]


async def test_a_write_that_cannot_be_recorded_is_not_executed(
    memory: MemoryStore, audit_store: FailingAuditStore
) -> None:
    audit_store.begins = False
    async with asking(signed_app(memory, people()), ADMIN) as client:
        answer = await client.put(COHORT_PATH, json=COHORT)
        assert answer.status_code == 503
        assert not memory.database.documents
        assert (await client.get("/api/v1/cohorts")).status_code == 200


async def test_an_entry_that_cannot_be_completed_is_kept(
    memory: MemoryStore, audit_store: FailingAuditStore
) -> None:
    audit_store.ends = False
    async with asking(signed_app(memory, people()), ADMIN) as client:
        assert (await client.put(COHORT_PATH, json=COHORT)).status_code == 201
        [line] = await log(client)
        assert (line["path"], line["status"]) == (COHORT_PATH, None)


async def test_a_defect_is_recorded(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(memory, "put_config", broken)
    async with asking(signed_app(memory, people()), ADMIN) as client:
        assert (await client.put(COHORT_PATH, json=COHORT)).status_code == 500
        [line] = await log(client)
    assert (line["status"], line["operation"]) == (500, "putCohort")
    assert "secret" not in str(line)


async def test_old_entries_are_deleted(memory: MemoryStore) -> None:
    now, day = time.time(), 86400.0
    old, older, new = (AuditLine(0, now - n * day, "", "a", (), "PUT", "/") for n in (9, 5, 1))
    memory.database.audit += [old, older, new]
    forgetting = asyncio.create_task(forget_old(memory.audit, 3.0))
    while len(memory.database.audit) > 1:  # noqa: ASYNC110 - of what is in the log
        await asyncio.sleep(0)
    forgetting.cancel()
    assert memory.database.audit == [new]

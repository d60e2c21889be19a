"""The roles of deploy/postgres/roles.sql: the leader and the API can do all of their work, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import make_url

from queuectl.db import migrate
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.commands import CommandFilter
from queuectl.domain.errors import StoreError
from queuectl.domain.notifications import Event, EventType, Mode, Scope, Subscription
from queuectl.domain.pastuse import PastUseAccount, Used
from queuectl.domain.queries import DocumentKey
from tests.api.conftest import live
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import DOCUMENTS
from tests.api.test_rights import ALL, OPEN, asked
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

ROLES = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql"
LEADER, API = "queuectl_leader", "queuectl_api"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin", "X-Queuectl-Session": "1"}


class Database:
    def __init__(self, postgres: TestPostgres, url: str) -> None:
        self._postgres = postgres
        self._name = make_url(url).database or ""
        self._url = make_url(url)

    def url(self, role: str) -> str:
        return self._url.set(username=role).render_as_string(hide_password=False)

    async def store(self, role: str) -> PostgresStore:
        return await PostgresStore.connect(DatabaseSettings(self.url(role)))

    async def may(self, role: str, right: str) -> set[str]:
        """Tables on which a role has a right."""
        asked = f"SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND has_table_privilege('{role}', format('%I.%I', schemaname, tablename), '{right}')"
        return {name for (name,) in await self._postgres.execute(asked, self._name)}


@pytest_asyncio.fixture
async def database(postgres: TestPostgres, database_url: str) -> AsyncIterator[Database]:
    name = make_url(database_url).database or ""
    owner = await asyncpg.connect(postgres.server.url(name))
    for _ in range(2):
        await owner.execute(ROLES.read_text())
    await owner.close()
    yield Database(postgres, database_url)
    for role in (LEADER, API):
        await postgres.execute(f"DROP OWNED BY {role} CASCADE", name)
        await postgres.execute(f"DROP ROLE {role}")


async def test_the_leader_and_the_api_do_all_of_their_work(database: Database) -> None:
    """A caller with all rights requests each route of the API once, after the writes of the leader."""
    assert (await migrate.upgrade(database.url(LEADER))).up_to_date
    leader, session_service = await database.store(LEADER), await database.store(API)
    await live(leader)
    for document in DOCUMENTS.values():
        await session_service.put_config(document)
    app = signed_app(session_service, people())
    failed = {}
    for method, path in ALL:
        if (method, path) not in OPEN:
            answer = await asked(app, method, path, ADMIN)
            if answer.status_code >= 500:
                failed[method, path] = answer.text
    assert {key: text for key, text in failed.items() if "not-known-yet" not in text} == {}
    assert await session_service.newest_commands(
        CommandFilter()
    )  # some of the routes added a command
    used = Used(PastUseAccount.of_local_queue("team", "a"), 7.5, {"cpu": 0.1})
    await session_service.put_config(DOCUMENTS["/api/v1/cohorts/all"], None, [used])
    assert await session_service.past_use() == (used,)
    rows = session_service.notifications
    test = Event(1.0, EventType.RECEIVER_TEST, receivers=("hook",))
    assert await rows.claim([("hook", Mode.IMMEDIATE)], "api", 60.0) is None
    await rows.announce_test(test)
    assert await rows.claim([("hook", Mode.IMMEDIATE)], "api", 60.0) is not None
    made = await rows.subscribe(Subscription("ann", Scope.USER, "ann", "hook"))
    assert made is not None
    assert await rows.unsubscribe(made.id)
    for address in ("ann@example.org", None):
        await rows.keep_address("ann", address)
    await session_service.delete_config(DocumentKey.of(DOCUMENTS["/api/v1/cohorts/all"]))
    async with asking(app) as browser:
        session = "/api/v1/session"
        own = OWN_PAGE | {"Origin": str(browser.base_url)}
        assert (await browser.post(session, json={"token": ADMIN}, headers=own)).is_success
        assert (await browser.delete(session, headers=own)).is_success
    assert await session_service.audit.prune(3600.0) == 0
    for store in (leader, session_service):
        await store.close()


async def test_the_api_writes_no_state(database: Database) -> None:
    session_service = await database.store(API)
    with pytest.raises(StoreError, match="permission denied"):
        await session_service.take_over("api", 0)
    with pytest.raises(StoreError, match="permission denied"):
        await live(session_service)
    await session_service.close()
    allowed = {right: await database.may(API, right) for right in ("INSERT", "UPDATE", "DELETE")}
    asks = {"documents", "sessions", "audit", "replicas", "subscriptions", "addresses"}
    assert allowed == {
        "INSERT": asks | {"commands", "past_use", "notification_progress", "notifications"},
        "UPDATE": asks | {"configuration", "notification_progress"},
        "DELETE": asks,
    }


async def test_the_leader_changes_no_schema(database: Database) -> None:
    everything = await database.may(LEADER, "SELECT")
    for right in ("INSERT", "UPDATE", "DELETE"):
        assert await database.may(LEADER, right) == everything - {
            "alembic_version",
            "schema_requirement",
        }
    assert await database.may(LEADER, "TRUNCATE") == set()
    assert await database.may(LEADER, "TRIGGER") == set()

"""A reader of the database or of a backup learns names, but cannot act as a caller."""

from __future__ import annotations

import hashlib
import re

from sqlalchemy import make_url

from queuectl.db.engine import DatabaseSettings
from tests.api.signed import ADMIN, HOST, asking, bearer, people, signed_app
from tests.api.support import COHORT
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

TABLES = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
OWN_PAGE = {"Origin": HOST, "Sec-Fetch-Site": "same-origin", "X-Queuectl-Session": "1"}
PATH = "/api/v1/cohorts/all"


async def dumped(postgres: TestPostgres, database: str) -> dict[str, str]:
    """The content of each table, as text."""
    tables = [name for (name,) in await postgres.execute(TABLES, database)]
    return {
        name: "\n".join(
            row[0] for row in await postgres.execute(f"SELECT t::text FROM {name} t", database)
        )
        for name in tables
    }


async def test_a_reader_of_the_database_cannot_act_as_a_caller(
    postgres: TestPostgres, database_url: str
) -> None:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    app = signed_app(store, people())
    async with asking(app) as browser:
        opened = await browser.post("/api/v1/session", json={"token": ADMIN}, headers=OWN_PAGE)
        assert opened.status_code == 201
        (cookie,) = browser.cookies.values()
        assert (await browser.put(PATH, json=COHORT, headers=OWN_PAGE)).is_success
    # Secrets in the wrong place.
    async with asking(app, ADMIN) as client:
        await client.put(f"{PATH}?kind=Cohort&token={ADMIN}", json=COHORT)
        await client.delete(f"/api/v1/cohorts/none?{cookie}")
    tables = await dumped(postgres, make_url(database_url).database or "")
    assert "admin" in tables["sessions"]
    assert f"{PATH}?kind=Cohort," in tables["audit"]
    everything = "\n".join(tables.values())
    for secret in (ADMIN, cookie, hashlib.sha256(ADMIN.encode()).hexdigest()):
        assert secret not in everything
    words = set(re.findall(r"[\w.-]{16,}", tables["sessions"]))
    assert hashlib.sha256(cookie.encode()).hexdigest() in words
    for word in words:
        async with asking(app) as reader:
            reader.cookies.set("__Host-queuectl", word)
            assert (await reader.get(PATH)).status_code == 401
            assert (await reader.get(PATH, headers=bearer(word))).status_code == 401
    await store.close()

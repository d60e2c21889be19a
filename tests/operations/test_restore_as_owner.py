"""The owner of the tables, as the page of the database creates it, saves the database and restores it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.db.embedded import DATABASE
from queuectl.db.migrate import upgrade
from tests.operations.servers import committed, own_server, programs_first, socket_url, workloads
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(300)]

OWNER, ADMINISTRATOR = "queuectl", "postgres"


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_server(superuser=ADMINISTRATOR) as made:
        yield made


def test_the_owner_of_the_tables_saves_and_restores_the_database(folder: Path) -> None:
    url = socket_url(folder, DATABASE, user=OWNER)
    restored = socket_url(folder, "queuectl_restored", user=OWNER)
    environment = {
        "PATH": programs_first(os.environ["PATH"]),
        "ADMIN_URL": socket_url(folder, user=ADMINISTRATOR),
        "PASSWORD": "secret",
        "QUEUECTL_DATABASE_URL": url,
        "RESTORED_URL": restored,
    }
    with shell(environment) as typing:
        Page("database.md", typing).type('psql "$ADMIN_URL"')
        asyncio.run(upgrade(url))
        asyncio.run(committed(url, "u1"))
        page = Page("back-up.md", typing)
        for begins in ("pg_dump", "psql", "pg_restore --no-owner", "queuectl db upgrade"):
            page.type(begins)
    assert asyncio.run(workloads(restored)) == {"u1"}

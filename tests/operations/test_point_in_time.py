"""The commands of the example of a point-in-time recovery: the database is restored as it was before a mistake."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from queuectl.db.migrate import current, upgrade
from tests.operations.servers import (
    as_server,
    committed,
    folder_for_the_server,
    own_server,
    program,
    programs_first,
    socket_url,
    workloads,
)
from tests.support.codeblocks import transcript
from tests.support.pages import PAGES

pytestmark = [pytest.mark.operations, pytest.mark.timeout(300)]


class Typed:
    """A page whose commands the account of the server runs."""

    def __init__(self, name: str, environment: dict[str, str], folder: Path) -> None:
        self._left = [shown.command for shown in transcript(PAGES[name].read_text())]
        self._environment = environment
        self._folder = folder

    def run(self, begins: str) -> None:
        """Run the next command that begins so."""
        command = next(one for one in self._left if one.startswith(begins))
        self._left.remove(command)
        with (self._folder / "output").open("ab") as output:
            done = as_server(
                ["bash", "-e", "-c", command],
                env=self._environment,
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        assert done.returncode == 0, (self._folder / "output").read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_server() as made:
        yield made


async def mistake(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("DELETE FROM workloads")
    await connection.execute("SELECT pg_switch_wal()")
    await connection.close()


def test_the_example_restores_the_state_before_a_mistake(folder: Path) -> None:
    for name in ("archive", "archive/wal"):
        folder_for_the_server(folder, name)
    url = socket_url(folder)
    environment = {
        "PATH": programs_first(os.environ["PATH"]),
        "DATA": str(folder / "data"),
        "ARCHIVE": str(folder / "archive"),
        "RESTORED": str(folder / "restored"),
        "ADMIN_URL": url,
    }
    page = Typed("back-up.md", environment, folder)
    page.run('psql "$ADMIN_URL" -c "ALTER SYSTEM')
    page.run("pg_ctl")
    asyncio.run(upgrade(url))
    asyncio.run(committed(url, "before"))
    page.run("pg_basebackup")
    asyncio.run(committed(url, "after"))
    time.sleep(1.1)  # the example names a time in whole seconds
    environment["TARGET"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S+00}"
    time.sleep(1.1)
    asyncio.run(mistake(url))
    assert asyncio.run(workloads(url)) == set()
    as_server([program("pg_ctl"), "-D", str(folder / "data"), "-m", "fast", "-w", "stop"])
    for begins in ("cp -a", "printf", "touch", "pg_ctl"):
        page.run(begins)
    until_writable(url)
    assert asyncio.run(workloads(url)) == {"before", "after"}
    assert asyncio.run(current(url)).up_to_date


def until_writable(url: str) -> None:
    async def recovering() -> bool:
        connection = await asyncpg.connect(url)
        try:
            return bool(await connection.fetchval("SELECT pg_is_in_recovery()"))
        finally:
            await connection.close()

    deadline = time.monotonic() + 30
    while asyncio.run(recovering()):
        assert time.monotonic() < deadline
        time.sleep(0.1)

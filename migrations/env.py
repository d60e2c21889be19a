"""The entry point of alembic. It uses the connection of `queuectl db upgrade`, or QUEUECTL_DATABASE_URL for developers."""

from __future__ import annotations

import asyncio
import os

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from queuectl.db.engine import parse_url
from queuectl.db.tables import metadata


def run(connection: Connection) -> None:
    """Run the revisions asked for, all in one transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_run() -> None:
    engine = create_async_engine(parse_url(os.environ["QUEUECTL_DATABASE_URL"]))
    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(connect_and_run())

"""``queuectl db``: the database schema, for administrators and for the init container of a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from queuectl.db.migrate import SchemaState
    from queuectl.db.replicas import Replica

app = typer.Typer(
    name="db",
    help="Show or upgrade the database schema, and show the replicas that use it.",
    no_args_is_help=True,
)

Url = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="QUEUECTL_DATABASE_URL",
        metavar="URL",
        help="Database, as postgresql://user@host/database. Default: the embedded database.",
    ),
]


@app.command()
def upgrade(
    database_url: Url = None,
    pre: Annotated[
        bool,
        typer.Option(
            "--pre",
            help="Only the migrations that are compatible with the previous release. Run them before a rollout.",
        ),
    ] = False,
) -> None:
    """Upgrade the schema to the revision of this release.

    You can run it at any time, and several times at once.
    """
    from queuectl.db import migrate

    typer.echo(_sentence(_run(database_url, lambda url: migrate.upgrade(url, pre_only=pre))))


@app.command()
def current(database_url: Url = None) -> None:
    """Show the revision of the schema.

    The exit code is 1 if the schema is older than this release.
    """
    from queuectl.db import migrate

    state = _run(database_url, migrate.current)
    typer.echo(_sentence(state))
    if state.recognized and not state.up_to_date:
        raise typer.Exit(1)


@app.command()
def status(database_url: Url = None) -> None:
    """Show the revision of the schema, and the replicas that use the database.

    The exit code is 1 if the schema is older than this release.
    """
    from queuectl.cli.render import Column, emit_table
    from queuectl.db import migrate

    state = _run(database_url, migrate.current)
    typer.echo(f"schema {_sentence(state)}")
    if state.replicas:
        columns = [
            Column("REPLICA", lambda row: row["name"]),
            Column("VERSION", lambda row: row["release"]),
            Column("SCHEMA", lambda row: row["revision"]),
            Column("ROLE", lambda row: row["role"]),
            Column("HEARTBEAT", lambda row: row["heartbeat"]),
        ]
        emit_table(columns, map(_row, state.replicas), wide=False)
    else:
        typer.echo("no replica is registered")
    if state.recognized and not state.up_to_date:
        raise typer.Exit(1)


def _row(replica: Replica) -> dict[str, str]:
    heartbeat = f"{replica.age:.0f}s ago" + (", expired" if replica.expired else "")
    role = "leader" if replica.leads else "standby"
    return {
        "name": replica.name,
        "release": replica.release,
        "revision": replica.revision,
        "role": "" if replica.expired else role,
        "heartbeat": heartbeat,
    }


def _run(database_url: str | None, work: Callable[[str], Awaitable[SchemaState]]) -> SchemaState:
    from queuectl.db.embedded import provided
    from queuectl.domain.errors import BadInput, StoreError

    async def run() -> SchemaState:
        async with provided(database_url) as url:
            return await work(url)

    try:
        return asyncio.run(run())
    except BadInput as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except StoreError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _sentence(state: SchemaState) -> str:
    if not state.recognized:
        return f"{state.current}: belongs to a newer release, not changed (this release has {state.head})"
    if state.up_to_date:
        return f"{state.current}: up to date"
    return f"{state.current or 'empty'}: older than {state.head}"

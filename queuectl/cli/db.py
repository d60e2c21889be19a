"""``queuectl db``: the database's schema, for administrators and for the init container of a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from queuectl.db.migrate import SchemaState

app = typer.Typer(
    name="db",
    help="The database's schema. Without QUEUECTL_DATABASE_URL: of the embedded database.",
    no_args_is_help=True,
)

Url = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="QUEUECTL_DATABASE_URL",
        show_envvar=True,
        help="postgresql://user@host/database; the embedded database when unset.",
    ),
]


@app.command()
def upgrade(
    database_url: Url = None,
    pre: Annotated[
        bool,
        typer.Option(
            "--pre", help="Only what the release before this one can live with: run it first."
        ),
    ] = False,
) -> None:
    """Bring the schema to what this release needs. Safe to run at any time, by several at once."""
    from queuectl.db import migrate

    typer.echo(_sentence(_run(database_url, lambda url: migrate.upgrade(url, pre_only=pre))))


@app.command()
def current(database_url: Url = None) -> None:
    """Say which revision the schema is at. Exit status 1 when it is not the newest this release knows."""
    from queuectl.db import migrate

    state = _run(database_url, migrate.current)
    typer.echo(_sentence(state))
    if state.known and not state.up_to_date:
        raise typer.Exit(1)


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
    if not state.known:
        return f"{state.current}: upgraded by a newer release, left alone (this one knows {state.head})"
    if state.up_to_date:
        return f"{state.current}: the newest"
    return f"{state.current or 'empty'}: behind {state.head}"

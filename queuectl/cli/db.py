"""``queuectl db``: the database and its schema, for administrators and for the pods of the chart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queuectl.cli.program import FormatOption, LevelOption, configure_log

if TYPE_CHECKING:
    from queuectl.control.bundled_database import BundledSettings
    from queuectl.db.migrate import SchemaState
    from queuectl.db.replicas import Replica

T = TypeVar("T")

app = typer.Typer(
    name="db",
    help="Show or upgrade the database schema, show the replicas that use it, and move the data.",
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

SystemNamespace = Annotated[
    str,
    typer.Option(
        envvar="QUEUECTL_NAMESPACE", metavar="NAME", help="Namespace of queuectl in the cluster."
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
    bundled_claim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="PersistentVolumeClaim of the bundled database. While it exists, an unused database is refused.",
        ),
    ] = None,
    start_empty: Annotated[
        bool, typer.Option("--start-empty", help="Accept an unused database in any case.")
    ] = False,
    grant: Annotated[
        bool,
        typer.Option(
            "--grant",
            help="Then give the roles queuectl_leader and queuectl_api their rights, as deploy/postgres/roles.sql.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show the revisions that are missing.")
    ] = False,
    namespace: SystemNamespace = "queuectl-system",
) -> None:
    """Upgrade the schema to the revision of this release.

    You can run it at any time, and several times at once.
    """
    from queuectl.db import migrate

    if bundled_claim and not start_empty:
        claim = bundled_claim

        async def refuse(url: str) -> None:
            from queuectl.control.bundled_database import refuse_unmoved

            await refuse_unmoved(url, namespace, claim, _kubeconfig())

        _run(database_url, refuse, existing=dry_run)
    if dry_run:
        missing = _run(database_url, lambda url: migrate.planned(url, pre_only=pre), existing=True)
        for line in missing:
            typer.echo(f"{line} would be applied")
        typer.echo(_sentence(_run(database_url, migrate.current, existing=True)))
        return
    typer.echo(_sentence(_run(database_url, lambda url: migrate.upgrade(url, pre_only=pre))))
    if grant:
        from queuectl.cluster.apply import deploy_folder

        statements = (deploy_folder() / "postgres" / "roles.sql").read_text()
        _run(database_url, lambda url: migrate.grant(url, statements))
        typer.echo("rights granted to queuectl_leader and queuectl_api")


@app.command()
def current(database_url: Url = None) -> None:
    """Show the revision of the schema.

    The exit code is 1 if the schema is older than this release.
    """
    from queuectl.db import migrate

    state = _run(database_url, migrate.current, existing=True)
    typer.echo(_sentence(state))
    if state.recognized and not state.up_to_date:
        raise typer.Exit(1)


@app.command()
def status(database_url: Url = None) -> None:
    """Show the schema revision, and the replicas that use the database.

    The exit code is 1 if the schema is older than this release.
    """
    from queuectl.cli.render import Column, emit_table
    from queuectl.db import migrate

    state = _run(database_url, migrate.current, existing=True)
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


@app.command()
def move(
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="An empty database, as postgresql://user@host/database.",
        ),
    ],
    database_url: Url = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; check both databases.")
    ] = False,
) -> None:
    """Copy all data to another database, while no replica runs.

    The database itself does not change.
    """
    from queuectl.db.move import check, counted_rows
    from queuectl.db.move import move as copied

    if dry_run:
        _run(database_url, lambda url: check(url, target), existing=True)
        there = _run(database_url, counted_rows, existing=True)
        typer.echo(f"{sum(there.values())} rows of {len(there)} tables would be copied")
        return
    rows = _run(database_url, lambda url: copied(url, target), existing=True)
    typer.echo(f"{sum(rows.values())} rows of {len(rows)} tables copied")


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Name by which the replicas reach the server.")
    ],
    secret: Annotated[
        str, typer.Option(metavar="NAME", help="Secret to which it writes the URLs.")
    ] = "queuectl-database",  # noqa: S107 - a name
    certificate: Annotated[
        str, typer.Option(metavar="NAME", help="Secret in which it keeps its certificate.")
    ] = "queuectl-database-tls",
    authority: Annotated[
        str,
        typer.Option(metavar="NAME", help="ConfigMap in which the replicas read the authority."),
    ] = "queuectl-database-ca",
    directory: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the data.")] = Path(
        "/var/lib/queuectl/postgres"
    ),
    namespace: SystemNamespace = "queuectl-system",
    log_format: FormatOption = "auto",
    log_level: LevelOption = "info",
) -> None:
    """Run the bundled PostgreSQL server of the chart, for evaluation.

    It has no replica and no backup.
    """
    from queuectl.control.bundled_database import BundledSettings

    configure_log(log_format, log_level)
    settings = BundledSettings(
        directory, host, namespace, secret, certificate, authority, kubeconfig=_kubeconfig()
    )
    _done(_serve(settings))


async def _serve(settings: BundledSettings) -> None:
    from queuectl.control.bundled_database import serve as serve_until

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve_until(settings, stop)


def _kubeconfig() -> Path | None:
    """The kubeconfig of the setting; None = the service account of the pod."""
    path = os.environ.get("QUEUECTL_KUBECONFIG")
    return Path(path) if path else None


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


def _run(
    database_url: str | None, work: Callable[[str], Awaitable[T]], *, existing: bool = False
) -> T:
    """The result of work on the database. ``existing``: create no embedded server."""
    from queuectl.db.embedded import provided

    async def run() -> T:
        async with provided(database_url, existing=existing) as url:
            return await work(url)

    return _done(run())


def _done(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. An error that the user can understand ends the command with one line."""
    from queuectl.domain.errors import BadInput, ClusterError, StoreError

    try:
        return asyncio.run(work)
    except BadInput as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except (ClusterError, StoreError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _sentence(state: SchemaState) -> str:
    if not state.recognized:
        return f"{state.current}: belongs to a newer release, not changed (this release has {state.head})"
    if state.up_to_date:
        return f"{state.current}: up to date"
    return f"{state.current or 'empty'}: older than {state.head}"

"""``queuectl delete``: delete configuration objects by name, or the objects of files.

Objects of files are deleted in the reverse order of their creation, so that no object refers to a deleted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from queuectl.cli import complete
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Json,
    Namespace,
    Server,
    connect,
)
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.get import plural_of
from queuectl.cli.options import files_option
from queuectl.cli.targets import ORDER, Target, check, read_objects, refused, target_kind
from queuectl.cli.whatif import show_other_gangs, tried
from queuectl.client.client import Client
from queuectl.client.errors import NotPermitted, RequestRefused

_WORKLOADS: Final = "delete its job with `queuectl cancel`, or stop it with `queuectl deactivate`"


def delete_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="clusterqueue, localqueue, cohort, ..., or subscription; omit it with -f.",
            autocompletion=complete.deleted_kinds,
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Names of objects; ids of subscriptions.",
            autocompletion=complete.names,
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        files_option(" with the objects"),
    ] = None,
    namespace: Namespace = None,
    version: Annotated[
        int | None,
        typer.Option(
            "--resource-version",
            min=0,
            metavar="VERSION",
            help="Delete one object only if it still has this version.",
        ),
    ] = None,
    ignore_not_found: Annotated[
        bool,
        typer.Option("--ignore-not-found", help="Do not fail for an object that does not exist."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing; show the effect on running and pending gangs.",
        ),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete subscriptions, or configuration: queues, cohorts, flavors, topologies, priority classes, overrides, Reservations, budgets or the Configuration."""
    if plural_of(kind or "") == "subscriptions":
        if files or namespace is not None or version is not None:
            raise CommandFailed(_OPTIONS, Exit.BAD_INPUT)
        raise typer.Exit(
            _subscriptions(server, names or [], ignore_not_found=ignore_not_found, dry_run=dry_run)
        )
    scope = namespace or default_namespace()
    targets = list(_targets(kind, names or [], files or [], scope))
    if version is not None and len(targets) != 1:
        raise CommandFailed("--resource-version: needs exactly one object", Exit.BAD_INPUT)
    required = str(version) if version is not None else None
    code, deleted = Exit.OK, []
    with connect(server) as client:
        for target in targets:
            try:
                client.delete(target.path, required, dry_run=dry_run)
            except RequestRefused as refusal:
                code = max(code, _refused(target, refusal, ignore_not_found=ignore_not_found))
            else:
                typer.echo(f"{target} {'would be deleted' if dry_run else 'deleted'}")
                deleted.append(target.key)
        if dry_run and deleted:
            _show_effect(client, deleted)
    raise typer.Exit(code)


_OPTIONS: Final = (
    "subscriptions are deleted by their ids; the only options are --ignore-not-found and --dry-run"
)


_LONGEST_ID: Final = 18  # digits


def _subscriptions(
    server: str, ids: Sequence[str], *, ignore_not_found: bool, dry_run: bool
) -> Exit:
    """Delete subscriptions by their ids. ``dry_run``: only check whether the user can."""
    if wrong := [each for each in ids if not each.isdecimal() or len(each) > _LONGEST_ID]:
        raise CommandFailed(f"{wrong[0]!r} is not the id of a subscription", Exit.BAD_INPUT)
    if not ids:
        raise CommandFailed("give the ids of subscriptions", Exit.BAD_INPUT)
    code = Exit.OK
    with connect(server) as client:
        for number in ids:
            subject = f"subscription/{number}"
            try:
                client.unsubscribe(int(number), dry_run=dry_run)
            except RequestRefused as refusal:
                code = max(code, _refused(subject, refusal, ignore_not_found=ignore_not_found))
            else:
                typer.echo(f"{subject} {'would be deleted' if dry_run else 'deleted'}")
    return code


def _targets(
    kind: str | None, names: Sequence[str], files: Sequence[str], namespace: str
) -> Iterator[Target]:
    if files and kind is None:
        documents = read_objects(files)
        check(documents)
        documents.sort(key=lambda document: ORDER.index(document.kind), reverse=True)
        for document in documents:
            yield Target.of(document.body, namespace)
        return
    if files or kind is None or not names:
        raise CommandFailed("give a kind and names, or files with -f", Exit.BAD_INPUT)
    found = target_kind(kind, _WORKLOADS)
    for name in names:
        yield Target(found, name, namespace if found.namespaced else "")


def _refused(target: Target | str, refusal: RequestRefused, *, ignore_not_found: bool) -> Exit:
    if exit_code(refusal) is Exit.NOT_FOUND and ignore_not_found:
        typer.echo(f"{target} not found")
        return Exit.OK
    return refused(target, refusal)


def _show_effect(client: Client, keys: Sequence[Json]) -> None:
    """Print the effect of the deletion of these objects together."""
    try:
        body = tried(client, delete=keys)
    except NotPermitted as refusal:
        typer.echo(f"effect on gangs not known: {refusal}")
    else:
        show_other_gangs(body)

"""``queuectl apply``: create or replace configuration from files with queuectl's or Kueue's objects.

The command reads the whole input before it sends a request, so that a syntax error changes nothing. The server reports an
invalid object by itself, and the others are still applied. An object is applied after the objects that it refers to, so that
the server warns only about names that neither the server nor the input has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from queuectl.cli.client import (
    DEFAULT_SERVER,
    Server,
    connect,
)
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import Exit, exit_code
from queuectl.cli.targets import (
    ORDER,
    Files,
    ObjectNamespace,
    Target,
    addressed,
    check,
    read_objects,
)
from queuectl.client.client import Client
from queuectl.client.errors import RequestRefused
from queuectl.domain.errors import BadInput
from queuectl.domain.quantity import format_quantity
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.objects.configuration.diff import Difference
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.documents import Document


def apply_command(
    files: Files,
    namespace: ObjectNamespace = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing; show the changes, and the running gangs that would exceed a quota.",
        ),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create or replace configuration: queues, cohorts, flavors, topologies, priority classes and the Configuration."""
    documents = read_objects(files)
    check(documents)
    scope = namespace or default_namespace()
    documents.sort(key=lambda document: ORDER.index(document.kind))
    with connect(server) as client:
        if dry_run:
            worst = _dry_run(client, documents, scope)
        else:
            worst = max((_apply(client, each, scope) for each in documents), default=Exit.OK)
    raise typer.Exit(worst)


def _apply(client: Client, document: Document, namespace: str) -> Exit:
    """Send one document and print the result."""
    target = Target.of(document.body, namespace)
    try:
        answer = client.put(target.path, addressed(document, namespace))
    except RequestRefused as refusal:
        for line in _messages(refusal):
            typer.echo(f"error: {document.address}: {line}", err=True)
        return exit_code(refusal)
    _show(f"{target} {answer['result']}", answer)
    return Exit.OK


def _messages(refusal: RequestRefused) -> list[str]:
    """A line for each wrong field, otherwise the message of the problem."""
    return [
        ": ".join(part for part in (error["field"], error["reason"]) if part)
        for error in refusal.errors
    ] or [str(refusal)]


def _show(head: str, answer: dict[str, Any]) -> None:
    """Print the result for one object: its changed fields, and warnings."""
    typer.echo(head)
    for change in answer["changes"]:
        typer.echo(f"    {Difference(change['field'], change['before'], change['after'])}")
    for warning in answer["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


# ---- dry run


def _dry_run(client: Client, documents: Iterable[Document], namespace: str) -> Exit:
    """Print what all documents would change together, without the invalid ones, which are reported."""
    code, sound = Exit.OK, []
    for document in documents:
        try:
            body = addressed(document, namespace)
            validate(Document(document.address, body))
        except BadInput as mistake:
            typer.echo(f"error: {mistake}", err=True)
            code = max(code, Exit.BAD_INPUT)
        else:
            sound.append((document, body))
    if not sound:
        return code
    answer = client.post(f"{PREFIX}/dryrun", {"items": [body for _, body in sound]})
    for (document, _), expected in zip(sound, answer["objects"], strict=True):
        if expected["refused"] is not None:
            typer.echo(f"error: {document.address}: {expected['refused']}", err=True)
            code = max(code, Exit.CONFLICT)
            continue
        result = expected["result"]
        verb = result if result == "unchanged" else f"would be {result}"
        _show(f"{Target.of(document.body, namespace)} {verb}", expected)
    _show_excesses(answer["overQuota"])
    return code


def _show_excesses(excesses: list[dict[str, Any]] | None) -> None:
    if excesses is None:
        typer.echo(
            "running gangs over quota: not known. Either you may not list workloads in all namespaces, or the server was started a moment ago"
        )
    elif not excesses:
        typer.echo("no running gang would exceed a quota")
    for excess in excesses or ():
        typer.echo(excess_line(excess))


def excess_line(excess: dict[str, Any]) -> str:
    """A quota that running gangs exceed, with their names."""
    resource = excess["resource"]
    used, allowed = (format_quantity(resource, excess[key]) for key in ("used", "allowed"))
    return (
        f"over quota: {excess['kind']} {excess['name']}: {used} {resource} of flavor {excess['flavor']}"
        f" in use, {allowed} allowed: {', '.join(excess['workloads'])}"
    )

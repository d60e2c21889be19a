"""``queuectl apply``: create or replace configuration from files, ours or Kueue's.

The whole input is read before anything is sent, so a typing mistake in the last document leaves nothing half done. What
only the server can judge is told per object, and the other objects are still applied. What others refer to goes first,
so that the server's warning about a name that leads nowhere is never about one that comes later in the same input.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from queuectl.api.kinds import PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Client, Refused, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import Exit
from queuectl.cli.targets import ORDER, Target, addressed, check, read
from queuectl.domain.errors import BadInput
from queuectl.domain.quantity import format_quantity
from queuectl.objects.configuration.diff import Difference
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.documents import Document


def apply_command(
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="YAML or JSON file; - is stdin.")
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="For documents that name none; the kubeconfig's without it."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Store nothing: show what would change, and which running gangs would be over quota.",
        ),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create or replace ClusterQueues, LocalQueues, Cohorts, flavors, Topologies, priority classes and the Configuration."""
    documents = [document for file in files for document in read(file)]
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
    """Send one document and say what became of it."""
    target = Target.of(document.body, namespace)
    try:
        answer = client.put(target.path, addressed(document, namespace))
    except Refused as refusal:
        for line in _mistakes(refusal):
            typer.echo(f"error: {document.address}: {line}", err=True)
        return refusal.code
    _tell(f"{target} {answer['result']}", answer)
    return Exit.OK


def _mistakes(refusal: Refused) -> list[str]:
    """A line per field, or the one sentence there is."""
    return [
        ": ".join(part for part in (error["field"], error["reason"]) if part)
        for error in refusal.errors
    ] or [str(refusal)]


def _tell(head: str, answer: dict[str, Any]) -> None:
    """What became of one object, or would: each field that changes, and each that has no effect."""
    typer.echo(head)
    for change in answer["changes"]:
        typer.echo(f"    {Difference(change['field'], change['before'], change['after'])}")
    for warning in answer["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


# ---- dry run


def _dry_run(client: Client, documents: Iterable[Document], namespace: str) -> Exit:
    """Say what all documents together would do; the wrong ones are told and left out."""
    code, sound = Exit.OK, []
    for document in documents:
        try:
            body = addressed(document, namespace)
            validate(Document(document.address, body))
        except BadInput as mistake:
            typer.echo(f"error: {mistake}", err=True)
            code = Exit.BAD_INPUT
        else:
            sound.append((document, body))
    answer = client.post(f"{PREFIX}/dryrun", {"items": [body for _, body in sound]})
    for (document, _), told in zip(sound, answer["objects"], strict=True):
        result = told["result"]
        verb = result if result == "unchanged" else f"would be {result}"
        _tell(f"{Target.of(document.body, namespace)} {verb}", told)
    _tell_excesses(answer["overQuota"])
    return code


def _tell_excesses(excesses: list[dict[str, Any]] | None) -> None:
    if excesses is None:
        typer.echo(
            "which running gangs would be over quota is not known: the server has just started"
        )
    elif not excesses:
        typer.echo("no running gang would be over quota")
    for excess in excesses or ():
        typer.echo(excess_line(excess))


def excess_line(excess: dict[str, Any]) -> str:
    """A quota that running gangs exceed, and which."""
    resource = excess["resource"]
    used, allowed = (format_quantity(resource, excess[key]) for key in ("used", "allowed"))
    return (
        f"over quota: {excess['kind']} {excess['name']}: {used} {resource} of flavor {excess['flavor']}"
        f" in use, {allowed} allowed: {', '.join(excess['workloads'])}"
    )

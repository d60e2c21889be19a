"""``queuectl apply``: create or replace configuration from files, ours or Kueue's.

The whole input is read before anything is sent, so a typing mistake in the last document leaves nothing half done. What
only the server can judge is told per object, and the other objects are still applied. What others refer to goes first,
so that the server's warning about a name that leads nowhere is never about one that comes later in the same input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from queuectl.api.kinds import API_VERSIONS, BY_KIND
from queuectl.cli.client import DEFAULT_SERVER, Client, Refused, Server, connect
from queuectl.cli.client import config_path as path_of
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document, read_documents

_ORDER: Final = (
    "Topology",
    "ResourceFlavor",
    "WorkloadPriorityClass",
    "Cohort",
    "ClusterQueue",
    "LocalQueue",
)


def apply_command(
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="YAML or JSON file; - is stdin.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="For documents that name none.")
    ] = "default",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create or replace ClusterQueues, LocalQueues, Cohorts, ResourceFlavors, Topologies and priority classes."""
    documents = [document for file in files for document in _read(file)]
    _check(documents)
    documents.sort(key=lambda document: _ORDER.index(document.kind))
    with connect(server) as client:
        worst = max((_apply(client, each, namespace) for each in documents), default=Exit.OK)
    raise typer.Exit(worst)


def _read(file: str) -> list[Document]:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", Exit.BAD_INPUT) from error
    return read_documents(content, "stdin" if file == "-" else file)


def _check(documents: Iterable[Document]) -> None:
    """Refuse what could not even be addressed, all of it at once."""
    mistakes = []
    for document in documents:
        if document.kind not in BY_KIND or document.api_version not in API_VERSIONS:
            kinds = ", ".join(BY_KIND)
            found = f"{document.api_version} {document.kind}"
            mistakes.append(document.error("kind", f"{found} is no configuration; that is {kinds}"))
        elif not _meta(document, "name"):
            mistakes.append(document.error("metadata.name", "is required"))
    if mistakes:
        raise BadInput("\nerror: ".join(str(mistake) for mistake in mistakes))


def _meta(document: Document, field: str) -> str:
    return str((document.body.get("metadata") or {}).get(field) or "")


def _apply(client: Client, document: Document, namespace: str) -> Exit:
    """Send one document and say what became of it."""
    kind = BY_KIND[document.kind]
    name, scope = _meta(document, "name"), _meta(document, "namespace") or namespace
    shown = f"{kind.singular}/{name}" + (f" in {scope}" if kind.namespaced else "")
    try:
        answer = client.put(path_of(kind, name, scope), document.body)
    except Refused as refusal:
        for line in _mistakes(refusal):
            typer.echo(f"error: {document.address}: {line}", err=True)
        return refusal.code
    typer.echo(f"{shown} {answer['result']}")
    for warning in answer["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    return Exit.OK


def _mistakes(refusal: Refused) -> list[str]:
    """A line per field, or the one sentence there is."""
    return [
        ": ".join(part for part in (error["field"], error["reason"]) if part)
        for error in refusal.errors
    ] or [str(refusal)]

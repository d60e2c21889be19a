"""How a command reaches the server and says who asks: options that all commands of clients have.

They are added to a command when it is loaded (``lazy``), so that no command has to pass them on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.main import get_command

from queuectl.cli import kubeconfig
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.kubeconfig import Context

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

_PANEL: Final = "Connection"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What the command line says of them; None = it says nothing.

    Attributes:
        token_file: whose token is shown, in place of the kubeconfig's.
        service_account: ``namespace/name`` of one whose token is made and shown; likewise.
        ca_file: authorities of the server's certificate; None = those of this machine.
        kubeconfig: paths as in ``$KUBECONFIG``.
        context: of the kubeconfig.
    """

    token_file: Path | None = None
    service_account: str | None = None
    ca_file: Path | None = None
    kubeconfig: str | None = None
    context: str | None = None


_means: ContextVar[ConnectionOptions] = ContextVar("means", default=ConnectionOptions())  # noqa: B039 - it is frozen


def _keeper(field: str) -> Callable[[Any], Any]:
    def keep(value: Any) -> Any:
        _means.set(replace(_means.get(), **{field: value}))
        return value

    return keep


def _options(
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="QUEUECTL_TOKEN_FILE",
            help="File with the token to show; without it, that of the kubeconfig's user.",
            callback=_keeper("token_file"),
            expose_value=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--as-serviceaccount",
            metavar="NAMESPACE/NAME",
            envvar="QUEUECTL_AS_SERVICEACCOUNT",
            help="Act as this service account: your kubeconfig's cluster makes a token for ten minutes.",
            callback=_keeper("service_account"),
            expose_value=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="QUEUECTL_CA_FILE",
            help="Authorities (PEM) of the server's certificate; without it, this machine's.",
            callback=_keeper("ca_file"),
            expose_value=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            help="Where the token and the namespace are from; without it $KUBECONFIG, or ~/.kube/config.",
            callback=_keeper("kubeconfig"),
            expose_value=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Of the kubeconfig; without it, the current one.",
            callback=_keeper("context"),
            expose_value=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
) -> None:
    """Only its parameters are used."""


def connected(command: TyperCommand | TyperGroup) -> None:
    """Give a command, or each of a group, the options."""
    members = getattr(command, "commands", None)
    if members:
        for member in members.values():
            connected(member)
        return
    program = typer.Typer(add_completion=False)
    program.command()(_options)
    command.params += [each for each in get_command(program).params if each.name != "help"]


def means() -> ConnectionOptions:
    """Of the command that runs."""
    return _means.get()


def context() -> Context | None:
    """The kubeconfig's context in use, or None without a kubeconfig. Raises CommandFailed."""
    chosen = means()
    return kubeconfig.current(chosen.kubeconfig, chosen.context)


def default_namespace() -> str:
    """Of what is named without one: that of the kubeconfig's context."""
    found = context()
    return (found.namespace if found is not None else None) or "default"


def trusted(*, secure: bool) -> ssl.SSLContext | bool:
    """Whose certificates are taken; where no TLS is spoken, nobody's: to read all public authorities takes 30 ms.

    Raises:
        CommandFailed: the file holds no certificates.
    """
    path = means().ca_file
    if path is None:
        return secure
    try:
        found = ssl.create_default_context(cafile=path.expanduser())
    except OSError as error:
        wrong = isinstance(error, ssl.SSLError)  # which is an OSError, too
        reason = "holds no certificate" if wrong else error.strerror
        raise CommandFailed(f"authorities {path}: {reason}", Exit.BAD_INPUT) from error
    return lenient(found)


def lenient(tls: ssl.SSLContext) -> ssl.SSLContext:
    """The same, and it takes authorities without certain extensions, as Go does: those of many clusters have none."""
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets since 3.13
    return tls

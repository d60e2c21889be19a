"""Options of the connection and of authentication, which all client commands have.

``lazy`` adds them when it loads a command, so that no command has to pass them on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperOption
from typer.main import get_command

from queuectl import kubeconfig
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.errors import BadInput
from queuectl.kubeconfig import KubeconfigContext

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Their values; None = the option is not given.

    Attributes:
        token_file: file with the token to send, in place of the kubeconfig's token.
        service_account: ``namespace/name`` of the ServiceAccount to act as.
        ca_file: CA certificates for the server's certificate; None = those of this machine.
        tls_server_name: name in the server's certificate; None = the host of the address.
        kubeconfig: paths as in ``$KUBECONFIG``.
        context: name of the kubeconfig's context.
    """

    token_file: Path | None = None
    service_account: str | None = None
    ca_file: Path | None = None
    tls_server_name: str | None = None
    kubeconfig: str | None = None
    context: str | None = None


_given: ContextVar[ConnectionOptions] = ContextVar("given", default=ConnectionOptions())  # noqa: B039 - it is frozen


def _keeper(field: str) -> Callable[[Any], Any]:
    def keep(option: Any) -> Any:
        _given.set(replace(_given.get(), **{field: option}))
        return option

    return keep


SERVER_HELP: Final = "Address of the REST API."


def _options(
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="QUEUECTL_TOKEN_FILE",
            metavar="FILE",
            help="File with a bearer token. Default: the token of the kubeconfig's user.",
            callback=_keeper("token_file"),
            expose_value=False,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--as-serviceaccount",
            metavar="NAMESPACE/NAME",
            envvar="QUEUECTL_AS_SERVICEACCOUNT",
            help="Act as this ServiceAccount, with a token for ten minutes that the kubeconfig's cluster issues.",
            callback=_keeper("service_account"),
            expose_value=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="QUEUECTL_CA_FILE",
            metavar="FILE",
            help="CA certificates (PEM) for the server's certificate. Default: those of this machine.",
            callback=_keeper("ca_file"),
            expose_value=False,
        ),
    ] = None,
    tls_server_name: Annotated[
        str | None,
        typer.Option(
            envvar="QUEUECTL_TLS_SERVER_NAME",
            metavar="NAME",
            help="Name in the server's certificate. Default: the host of --server.",
            callback=_keeper("tls_server_name"),
            expose_value=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="kubeconfig with the token and the namespace. Default: $KUBECONFIG, then ~/.kube/config.",
            callback=_keeper("kubeconfig"),
            expose_value=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Context of the kubeconfig. Default: the current context.",
            callback=_keeper("context"),
            expose_value=False,
        ),
    ] = None,
) -> None:
    """A function without effect: its parameters are added to the commands."""


def connected(command: TyperCommand | TyperGroup) -> None:
    """Add the options to a command, or to each command of a group. Their help is a page of its own: `queuectl options`."""
    members = getattr(command, "commands", None)
    if members:
        for member in members.values():
            connected(member)
        return
    program = typer.Typer(add_completion=False)
    program.command()(_options)
    shared = [each for each in get_command(program).params if each.name != "help"]
    for param in (*command.params, *shared):
        if isinstance(param, TyperOption):
            param.hidden = param in shared or param.help == SERVER_HELP
    command.params += shared


def connection_options() -> ConnectionOptions:
    """The options of the command that runs."""
    return _given.get()


def context() -> KubeconfigContext | None:
    """The kubeconfig's context in use, or None without a kubeconfig. Raises CommandFailed."""
    chosen = connection_options()
    try:
        return kubeconfig.current_context(chosen.kubeconfig, chosen.context)
    except BadInput as error:
        raise CommandFailed(str(error), Exit.BAD_INPUT) from error


def default_namespace() -> str:
    """The namespace of an object that is named without one: that of the kubeconfig's context."""
    found = context()
    return (found.namespace if found is not None else None) or "default"


def trusted(*, secure: bool) -> ssl.SSLContext | bool:
    """The CA certificates for the server's certificate. ``secure``: the address is https.

    Without TLS there are none: to read the certificates of this machine takes 30 ms.

    Raises:
        CommandFailed: the file holds no certificate.
    """
    path = connection_options().ca_file
    if path is None:
        return secure
    try:
        found = ssl.create_default_context(cafile=path.expanduser())
    except OSError as error:
        invalid = isinstance(error, ssl.SSLError)  # a subclass of OSError
        reason = "holds no certificate" if invalid else error.strerror
        raise CommandFailed(f"--ca-file {path}: {reason}", Exit.BAD_INPUT) from error
    return lenient(found)


def lenient(tls: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, without a check of two extensions that the CA certificates of many clusters lack. Go omits it too."""
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets since 3.13
    return tls

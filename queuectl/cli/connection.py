"""Options of the connection and of authentication, which all client commands have.

``lazy`` adds them when it loads a command, so that no command has to pass them on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperOption
from typer.main import get_command

from queuectl.client.options import ClientOptions

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup


_NONE: Final = ClientOptions(flags=True)
_given: ContextVar[ClientOptions] = ContextVar("given", default=_NONE)


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
    """Add the options to a command, or to each command of a group. Their help is on a separate page: `queuectl options`."""
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


def connection_options() -> ClientOptions:
    """The options of the command that runs. ``server`` is a parameter of the command."""
    return _given.get()


def default_namespace() -> str:
    """The namespace of an object that is named without one: that of the kubeconfig's context."""
    return connection_options().default_namespace()

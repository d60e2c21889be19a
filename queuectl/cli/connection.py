"""Options of the connection and of authentication, which each command with the option ``--server`` has.

``lazy`` adds them when it loads a command, so that no command has to pass them on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperOption
from typer.main import get_command

from queuectl.client.options import ClientOptions

if TYPE_CHECKING:
    from typer.core import TyperCommand


_typed: ContextVar[Mapping[str, Any]] = ContextVar("typed", default=MappingProxyType({}))


def _keeper(field: str) -> Callable[[Any], Any]:
    def keep(option: Any) -> Any:
        _typed.set({**_typed.get(), field: option})
        return option

    return keep


SERVER_HELP: Final = "Address of the REST API."
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig with the token and the namespace. Default: $KUBECONFIG, then ~/.kube/config.",
        callback=_keeper("kubeconfig"),
        expose_value=False,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig. Default: the current context.",
        callback=_keeper("context"),
        expose_value=False,
    ),
]


def _options(
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a bearer token. Default: $QUEUECTL_TOKEN_FILE, then the token of the kubeconfig's user.",
            callback=_keeper("token_file"),
            expose_value=False,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--as-serviceaccount",
            metavar="NAMESPACE/NAME",
            help="Act as this ServiceAccount, with a token for ten minutes that the kubeconfig's cluster issues. Default: $QUEUECTL_AS_SERVICEACCOUNT.",
            callback=_keeper("service_account"),
            expose_value=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CA certificates (PEM) for the server's certificate. Default: $QUEUECTL_CA_FILE, then those of this machine.",
            callback=_keeper("ca_file"),
            expose_value=False,
        ),
    ] = None,
    tls_server_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name in the server's certificate. Default: $QUEUECTL_TLS_SERVER_NAME, then the host of --server.",
            callback=_keeper("tls_server_name"),
            expose_value=False,
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """A function without effect: its parameters are added to the commands."""


def connected(command: TyperCommand) -> None:
    """Add the options to a command. Their help is on a separate page: `queuectl options`."""
    program = typer.Typer(add_completion=False)
    program.command()(_options)
    shared = [each for each in get_command(program).params if each.name != "help"]
    for param in (*command.params, *shared):
        if isinstance(param, TyperOption):
            param.hidden = param in shared or param.help == SERVER_HELP
    command.params += shared


def connection_options() -> ClientOptions:
    """The options of the command that runs, then the variables. ``server`` is a parameter of the command."""
    return ClientOptions.from_environment(flags=True, **_typed.get())


def default_namespace() -> str:
    """The namespace of an object that is named without one: that of the kubeconfig's context."""
    return connection_options().default_namespace()

"""``queuectl webhook``: the mutating webhook, for API servers before Kubernetes 1.36."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.interpreter import tune_interpreter

if TYPE_CHECKING:
    from queuectl.webhook.process import WebhookSettings


def webhook_command(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "0.0.0.0:9443",
    namespace: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Namespace of its Secret and its Service.")
    ] = "queuectl-system",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Further name or IP address of the server, for its certificate."
        ),
    ] = None,
    log_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="auto, json or console.")
    ] = "auto",
) -> None:
    """Serve the mutating webhook that Kubernetes before 1.36 needs."""
    from queuectl.api.server import Address
    from queuectl.telemetry.logs import LogFormat, configure
    from queuectl.webhook.process import WebhookSettings

    try:
        configure(LogFormat(log_format), "info")
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    settings = WebhookSettings(Address.parse(listen), namespace, tuple(host or ()))
    asyncio.run(_serve(settings))


async def _serve(settings: WebhookSettings) -> None:
    from queuectl.webhook.process import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tune_interpreter()
    await serve(settings, stop, lambda url: typer.echo(f"Webhook {url}", err=True))

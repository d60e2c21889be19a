"""``queuectl webhook``: the mutating webhook, for API servers before Kubernetes 1.36."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.program import FormatOption, LevelOption, configure_log, tune_interpreter

if TYPE_CHECKING:
    from queuectl.webhook.app import WebhookSettings


def webhook_command(
    host: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Name or IP address of a replica, for the certificate. Repeat it."
        ),
    ],
    policies: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The MutatingAdmissionPolicies that it evaluates, which the chart writes.",
        ),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "0.0.0.0:9443",
    namespace: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Namespace of its Secret.")
    ] = "queuectl-system",
    log_format: FormatOption = "auto",
    log_level: LevelOption = "info",
) -> None:
    """Serve the mutating webhook that Kubernetes before 1.36 needs."""
    from queuectl.control.listen_address import ListenAddress
    from queuectl.webhook.app import WebhookSettings

    configure_log(log_format, log_level)
    settings = WebhookSettings(ListenAddress.parse(listen), namespace, host, policies)
    asyncio.run(_serve(settings))


async def _serve(settings: WebhookSettings) -> None:
    from queuectl.webhook.app import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tune_interpreter()
    await serve(settings, stop, lambda url: typer.echo(f"Webhook {url}", err=True))

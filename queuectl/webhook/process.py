"""The process of one replica of the webhook."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from queuectl.api.connections import ConnectionLimits
from queuectl.api.server import Certificate, ListenAddress, WebServer
from queuectl.cluster.apply import manifests
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.containment import Containment
from queuectl.telemetry.containment import ContainmentMetrics
from queuectl.webhook.app import application
from queuectl.webhook.keeper import CertificateKeeper
from queuectl.webhook.mutations import mutations, read_mutations

_LIMITS: Final = ConnectionLimits(of_address=None)  # its clients are a few API servers


@dataclass(frozen=True)
class WebhookSettings:
    """The options of the command line.

    Attributes:
        listen: where it listens.
        namespace: of its Secret.
        hosts: names and addresses of all replicas, for the certificate.
        policies: file with the policies of declared job kinds; None = there are none.
    """

    listen: ListenAddress
    namespace: str
    hosts: Sequence[str]
    policies: Path | None = None


async def serve(
    settings: WebhookSettings, stop: asyncio.Event, listening: Callable[[str], None]
) -> None:
    """Serve until ``stop`` is set. ``listening`` is called with the URL.

    Raises:
        QueuectlError: the address, the credentials, the policies or the Secret cannot be used.
    """
    by_policy = mutations(manifests())
    if settings.policies is not None:
        by_policy |= read_mutations(settings.policies)
    registry = CollectorRegistry()
    metrics = ContainmentMetrics(registry)
    containment = Containment(time.time, metrics.report)
    metrics.watch(containment)
    api = await Api.connect(Connection())
    try:
        with tempfile.TemporaryDirectory(prefix="queuectl-webhook-") as folder:
            keeper = CertificateKeeper(
                api, settings.namespace, settings.hosts, Path(folder), containment
            )
            await keeper.start()
            server = WebServer(
                application(by_policy, registry),
                settings.listen,
                Certificate(keeper.chain, keeper.key),
                limits=_LIMITS,
            )
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(server.run()), group.create_task(keeper.run())]
                listening(server.url)
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        await api.close()

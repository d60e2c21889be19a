"""Connects the parts of shadow mode to the database and to the API server, whose client only reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from queuectl.cluster.connection import Connection
from queuectl.cluster.read_only import ReadOnlyCluster
from queuectl.control.composition import opened, process_parts
from queuectl.control.settings import Settings
from queuectl.db.replicas import Registration
from queuectl.db.store import PostgresApiStore
from queuectl.domain.containment import Containment
from queuectl.domain.errors import StoreUnavailable
from queuectl.shadow.loop import ShadowLoop
from queuectl.telemetry.metrics import MetricsRecorder

_IN_FLIGHT = 4  # requests: lists one after the other, and the LeaderLease


@dataclass(frozen=True)
class ShadowComponents:
    """Everything that ``queuectl serve --shadow`` runs, wired together. ``store``: for the API."""

    loop: ShadowLoop
    store: PostgresApiStore
    metrics: MetricsRecorder
    registration: Registration

    async def run(self, stop: asyncio.Event) -> None:
        """Observe until ``stop`` is set."""
        await self.loop.run(stop)

    def stalled(self) -> str:
        """Why this process is to be ended; empty while it makes progress."""
        return self.loop.stalled()

    @property
    def containment(self) -> Containment:
        """The tasks of this process that are set aside."""
        return self.loop.containment

    async def live(self) -> Sequence[str]:
        """The reasons why this process must be restarted."""
        stalled = self.stalled()
        return [stalled] if stalled else []

    async def ready(self) -> Sequence[str]:
        """The reasons why this process is not ready."""
        blockers = self.loop.blockers()
        try:
            await self.store.configuration()
        except StoreUnavailable as error:
            blockers.append(f"database: {error}")
        return blockers


@asynccontextmanager
async def shadow(settings: Settings) -> AsyncIterator[ShadowComponents]:
    """Open all connections, and close them at the end.

    Raises:
        BadInput: a URL, a kubeconfig, a server version or a declared kind is wrong.
        StoreError, ClusterError: no connection, or this release cannot use the schema (UnusableSchema).
    """
    async with AsyncExitStack() as stack:
        yield await opened(stack, lambda: _connected(settings))


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[ShadowComponents]:
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(process_parts(settings))
        target = Connection(kubeconfig=settings.kubeconfig, in_flight=_IN_FLIGHT)
        cluster = await ReadOnlyCluster.connect(target, settings.namespace, parts.kinds)
        stack.push_async_callback(cluster.close)
        loop = ShadowLoop(
            store=parts.store,
            cluster=cluster,
            settings=settings,
            clock=parts.clock,
            kinds=parts.kinds,
            containment=parts.containment,
        )
        yield ShadowComponents(loop, parts.api_store, parts.metrics, parts.registration)

"""Connects the parts of shadow mode to the database and to the API server, whose client only reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from queuectl.cluster.client import ReadOnlyApi
from queuectl.cluster.connection import Connection
from queuectl.cluster.read_only import ReadOnlyCluster
from queuectl.control.composition import ProcessComponents, ProcessParts, opened, process_parts
from queuectl.control.settings import Settings
from queuectl.objects.configuration.owners import FOLLOWED
from queuectl.ownership.source import KubernetesObjects
from queuectl.ownership.status_forms import FORMS
from queuectl.shadow.loop import ShadowLoop
from queuectl.shadow.simulation import ChildSimulation

_IN_FLIGHT = 4  # requests: lists one after the other, and the Lease


@asynccontextmanager
async def shadow(settings: Settings) -> AsyncIterator[ProcessComponents]:
    """Open all connections, and close them at the end.

    Raises:
        BadInput: a URL, a kubeconfig, a server version or a declared kind is wrong.
        StoreError, ClusterError: no connection, or this release cannot use the schema (UnusableSchema).
    """
    async with AsyncExitStack() as stack:
        yield await opened(stack, lambda: _connected(settings))


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[ProcessComponents]:
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(process_parts(settings))
        target = Connection(kubeconfig=settings.kubeconfig, in_flight=_IN_FLIGHT)
        cluster = await ReadOnlyCluster.connect(target, settings.namespace, parts.kinds)
        stack.push_async_callback(cluster.close)
        objects = await _objects(stack, settings, parts)
        loop = ShadowLoop(
            store=parts.store,
            cluster=cluster,
            settings=settings,
            clock=parts.clock,
            kinds=parts.kinds,
            containment=parts.containment,
            simulation=ChildSimulation(parts.url, settings.shadow_seconds, settings.shadow_days),
            metrics=parts.metrics,
            objects=objects,
        )
        yield ProcessComponents(loop, parts.api_store, parts.metrics, parts.registration)


async def _objects(
    stack: AsyncExitStack, settings: Settings, parts: ProcessParts
) -> KubernetesObjects | None:
    """The objects that own the configuration, over a client that only reads; None = the database owns it."""
    kinds = FOLLOWED[settings.configuration_owner]
    if not kinds:
        return None
    connection = Connection(settings.kubeconfig, in_flight=_IN_FLIGHT)
    api = await ReadOnlyApi.open(connection, lambda *_: False, watches=len(kinds))
    stack.push_async_callback(api.close)
    return KubernetesObjects(api, kinds, parts.containment, FORMS[settings.configuration_owner])

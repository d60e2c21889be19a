"""The composition root: the only module that names concrete adapters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.client import Connection
from queuectl.control.settings import Settings
from queuectl.control.supervise import Supervisor
from queuectl.db.embedded import provided
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.store import PostgresStore
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.queues import QueueConfig
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import Metrics

SPARE_CONNECTIONS = 4


class WatchMeter:
    """What the reflectors tell, as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def listed(self, resource: str, objects: int) -> None:
        self._metrics.relisted(resource)
        self._metrics.watched(resource, objects, time.time())

    def received(self, resource: str, events: int) -> None:
        self._metrics.watched(resource, events, time.time())

    def interrupted(self, resource: str, error: str) -> None:
        """Logged by the reflector; its age shows in the metrics."""


@dataclass(frozen=True)
class Controller:
    """Everything ``queuectl serve`` runs, wired together."""

    supervisor: Supervisor
    store: PostgresStore
    metrics: Metrics

    async def live(self) -> Sequence[str]:
        """Nothing that a restart would mend is left running: what cannot go on ends the process."""
        return []

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a waiting workload does not start; None while another process leads."""
        return await self.supervisor.diagnose(uid)

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """What runs and would be over quota under another configuration; None while another process leads."""
        return await self.supervisor.over_quota(config)

    async def ready(self) -> Sequence[str]:
        """What keeps us from doing our work now."""
        blockers = self.supervisor.blockers()
        try:
            await self.store.configuration()
        except StoreUnavailable as error:
            blockers.append(f"database: {error}")
        return blockers


@asynccontextmanager
async def controller(settings: Settings) -> AsyncIterator[Controller]:
    """Connect to everything; give everything back at the end.

    Raises:
        BadInput: a URL, a kubeconfig or a server version is wrong.
        StoreError, ClusterError: no connection.
    """
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provided(settings.database_url))
        await upgrade(url)
        store = await PostgresStore.connect(DatabaseSettings.from_environment(url))
        stack.push_async_callback(store.close)
        cluster = await KubernetesCluster.connect(
            Connection(
                kubeconfig=settings.kubeconfig,
                in_flight=settings.in_flight + SPARE_CONNECTIONS,
            ),
            namespace=settings.namespace,
            hooks=WatchMeter(metrics),
        )
        stack.push_async_callback(cluster.close)
        supervisor = Supervisor(
            store=store,
            cluster=cluster,
            metrics=metrics,
            settings=settings,
            clock=time.time,
            job_resources={kind.plural: kind.kind for kind in KINDS.values()},
        )
        yield Controller(supervisor, store, metrics)

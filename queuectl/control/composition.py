"""The composition root: the only module that names concrete adapters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.connection import Connection
from queuectl.control.clock import SteadyClock
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.recovery import Recovered, recover
from queuectl.control.ports import UseSource
from queuectl.control.settings import Settings, UtilizationSettings
from queuectl.control.supervisor import Supervisor
from queuectl.db.api_store import ApiStore
from queuectl.db.embedded import provided
from queuectl.db.engine import DatabaseSettings
from queuectl.db.leader_store import LeaderStore
from queuectl.db.migrate import upgrade
from queuectl.db.replicas import Registration
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import BadInput, StoreUnavailable
from queuectl.domain.invariants import Checked
from queuectl.domain.ledger import Entry
from queuectl.domain.preview import DrainCost, Preview
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import PodRecord
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.unmanaged import UnmanagedPod
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import WhatIfResult
from queuectl.objects.configuration.queue_config import named, validate
from queuectl.objects.documents import Document as GivenDocument
from queuectl.objects.documents import with_names
from queuectl.objects.files.what_if import WhatIf
from queuectl.objects.kinds import KINDS
from queuectl.planner.cache import PlannerCache
from queuectl.telemetry.metrics import Metrics
from queuectl.telemetry.signal.exporters import DNS, ExporterSource
from queuectl.telemetry.signal.names import HONORED, RENAMED, VENDORS, ExporterNames, Gauge
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.trust import JOBS, Trust, names_of

SPARE_CONNECTIONS = 4


class WatchMeter:
    """The events of reflectors as metrics."""

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
    """Everything ``queuectl serve`` runs, wired together. ``store``: for the API; the controller has its own."""

    supervisor: Supervisor
    store: ApiStore
    metrics: Metrics
    registration: Registration

    async def live(self) -> Sequence[str]:
        """Run the process. A part that cannot continue ends it, because a restart repairs its state."""
        return []

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending workload does not start; None while this process has no plan."""
        return await self.supervisor.diagnose(uid)

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """The cost and the effect of an action on a running gang; None until this process has a snapshot."""
        return await self.supervisor.previewer.preview(entry, action)

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a queue now; None while this process does not know the cluster."""
        return await self.supervisor.previewer.drain_cost(queue)

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """Running gangs that exceed the quota of another configuration; None until this process has a snapshot."""
        return await self.supervisor.over_quota(config)

    async def check(self) -> Checked | None:
        """The violations that a complete check of the invariants finds; None if this process is not the leader."""
        return await self.supervisor.check()

    async def leader(self) -> str:
        """The name of the leader; empty without one."""
        return await self.supervisor.leader()

    async def cluster_map(self) -> ClusterMap | None:
        """The cluster map; None until this process has a snapshot."""
        return await self.supervisor.viewer.cluster_map()

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Unmanaged pods that hold GPUs; None until this process has a snapshot."""
        return await self.supervisor.viewer.unmanaged()

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods; None until the watch has listed all objects."""
        return self.supervisor.viewer.pods(entry)

    @property
    def cache(self) -> PlannerCache:
        """The cache of the planner in this process."""
        return self.supervisor.cache

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot for a plan; None until this process has one."""
        seen = await self.supervisor.viewer.seen()
        return seen.snapshot if seen is not None else None

    async def try_out(self, asked: WhatIf) -> WhatIfResult | None:
        """The result of a what-if; None until this process has a snapshot."""
        return await self.supervisor.what_if.try_out(asked)

    def gang_use(self, uid: str) -> GangUse | None:
        """The GPU utilization of a gang in the leader's last evaluation; None without a source."""
        return self.supervisor.gang_use(uid)

    def estimated_start(self, uid: str) -> float | None:
        """The estimated start of a pending gang (unix seconds); None if it is unknown."""
        return self.supervisor.estimated_start(uid)

    async def ready(self) -> Sequence[str]:
        """The reasons why this process is not ready."""
        blockers = self.supervisor.blockers()
        try:
            await self.store.configuration()
        except StoreUnavailable as error:
            blockers.append(f"database: {error}")
        return blockers


def metric_names(asked: UtilizationSettings) -> ExporterNames:
    """The metric names of the vendor, with the configured replacements."""
    vendor, given = VENDORS[asked.vendor], asked.names
    device = tuple(label.strip() for label in (given.device or "").split(",") if label.strip())
    return ExporterNames(
        busy=_gauge(given.busy, given.busy_full, vendor.busy) or vendor.busy,
        coarse=_gauge(given.coarse, given.coarse_full, vendor.coarse),
        tensor=_gauge(given.tensor, None, vendor.tensor),
        memory_busy=_gauge(given.memory_busy, given.memory_busy_full, vendor.memory_busy),
        memory_used=given.memory_used or vendor.memory_used,
        memory_free=given.memory_free or vendor.memory_free,
        device=device or vendor.device,
    )


def _gauge(name: str | None, full: float | None, vendor: Gauge | None) -> Gauge | None:
    if vendor is None:
        return Gauge(name, full or 1.0) if name else None
    return Gauge(name or vendor.name, full or vendor.full)


def trust(asked: UtilizationSettings) -> Trust:
    """The scrape jobs whose series count: the configured ones, or else those of the vendor's installers.

    Raises:
        BadInput: a name is invalid, or namespaces are configured although the namespace of the exporter is not known.
    """
    names = "QUEUECTL_UTILIZATION__TRUSTED_NAMESPACES"
    namespaces = names_of(asked.trusted_namespaces, names)
    if namespaces and asked.labels == "pod":
        raise BadInput(
            f"{names} needs QUEUECTL_UTILIZATION__LABELS=exported_pod: where honor_labels is on, a series "
            "has the namespace of the pod that it is about, and not that of its exporter"
        )
    jobs = names_of(asked.trusted_jobs, "QUEUECTL_UTILIZATION__TRUSTED_JOBS")
    return Trust(jobs or JOBS[asked.vendor], namespaces)


def use_source(settings: Settings) -> UseSource | None:
    """The source of GPU utilization; None without one.

    Raises:
        BadInput: two sources are configured, a URL is invalid, or a trusted name is invalid.
    """
    asked, url = settings.utilization, settings.prometheus_url
    exporters = [part.strip() for part in asked.exporters.split(",") if part.strip()]
    if url and exporters:
        raise BadInput(
            "QUEUECTL_PROMETHEUS_URL and QUEUECTL_UTILIZATION__EXPORTERS: set only one of the two"
        )
    for name, given in (
        ("QUEUECTL_PROMETHEUS_URL", [url] if url else []),
        ("QUEUECTL_UTILIZATION__EXPORTERS", exporters),
    ):
        for one in given:
            if not one.removeprefix(DNS).startswith(("http://", "https://")):
                raise BadInput(f"{name}: {one!r} is no http:// or https:// URL")
    if asked.ca_file is not None and not asked.ca_file.is_file():
        raise BadInput(f"QUEUECTL_UTILIZATION__CA_FILE: there is no file {asked.ca_file}")
    names = metric_names(asked)
    if exporters:
        return ExporterSource(
            exporters,
            names=names,
            scrape_seconds=asked.sample_seconds,
            retention_seconds=asked.retention_seconds,
            trust_slices=asked.trust_slices,
        )
    if not url:
        return None
    return PrometheusSource(
        url,
        names=names,
        trust=trust(asked),
        scrape_seconds=asked.sample_seconds,
        labels={"auto": None, "pod": HONORED, "exported_pod": RENAMED}[asked.labels],
        rules={"auto": None, "on": True, "off": False}[asked.recording_rules],
        trust_slices=asked.trust_slices,
        token_file=asked.token_file,
        ca_file=asked.ca_file,
        timeout=asked.timeout_seconds,
    )


@asynccontextmanager
async def access(settings: Settings) -> AsyncIterator[KubernetesAccess]:
    """Authentication and authorization of API callers by the cluster.

    Raises:
        BadInput: the kubeconfig is wrong.
    """
    made = await KubernetesAccess.connect(settings.kubeconfig)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def controller(settings: Settings) -> AsyncIterator[Controller]:
    """Open all connections, and close them at the end.

    Raises:
        BadInput: a URL, a kubeconfig or a server version is wrong.
        StoreError, ClusterError: no connection, or this release cannot use the schema.
    """
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provided(settings.database_url))
        await upgrade(url, pre_only=True)
        database = DatabaseSettings.from_environment(url)
        store = await LeaderStore.connect(database)
        stack.push_async_callback(store.close)
        registration = store.registration(settings.holder)
        await stack.enter_async_context(registration.registered())
        clock = SteadyClock()
        clock.set(await store.now())
        # Separate connections: a commit must not wait for readers.
        own = settings.api_database_url
        command_service = await ApiStore.connect(
            DatabaseSettings.from_environment(own, api=True) if own else database
        )
        stack.push_async_callback(command_service.close)
        cluster = await KubernetesCluster.connect(
            Connection(
                kubeconfig=settings.kubeconfig,
                in_flight=settings.in_flight + SPARE_CONNECTIONS,
            ),
            namespace=settings.namespace,
            hooks=WatchMeter(metrics),
        )
        stack.push_async_callback(cluster.close)
        source = use_source(settings)
        if source is not None:
            stack.push_async_callback(source.close)
        supervisor = Supervisor(
            store=store,
            cluster=cluster,
            metrics=metrics,
            settings=settings,
            clock=clock,
            job_resources={kind.plural: kind.kind for kind in KINDS.values()},
            use_source=source,
        )
        yield Controller(supervisor, command_service, metrics, registration)


async def recovered(settings: Settings, documents: Sequence[GivenDocument]) -> Recovered:
    """Make the ledger again from the cluster, in a database that has lost it; ``documents``: the configuration.

    Raises:
        BadInput: a document is wrong, or the database has workloads.
        StoreError, ClusterError: no connection, or no response.
    """
    kept = [validate(document)[0] for document in with_names(map(named, documents))]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provided(settings.database_url))
        await upgrade(url)
        store = await LeaderStore.connect(DatabaseSettings.from_environment(url))
        stack.push_async_callback(store.close)
        clock = SteadyClock()
        clock.set(await store.now())
        connection = Connection(kubeconfig=settings.kubeconfig, in_flight=SPARE_CONNECTIONS)
        cluster = await KubernetesCluster.connect(connection, namespace=settings.namespace)
        stack.push_async_callback(cluster.close)

        async def configure() -> None:
            for document in kept:
                await store.put_config(document)

        leadership = Leadership(
            cluster,
            store,
            clock,
            holder=f"{settings.holder} (queuectl recover)",
            duration=settings.lease_duration,
            renew=settings.lease_renew,
        )
        kinds = {kind.plural: kind.kind for kind in KINDS.values()}
        return await recover(store, cluster, settings, clock, leadership, kinds, configure)

"""The composition root: the only module that names concrete adapters.

It builds the parts of the controller, with the sources of GPU utilization and GPU faults that the settings describe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import structlog

from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.installation import cluster_uid
from queuectl.cluster.pod_logs import KubernetesPodLogs
from queuectl.control.careful import ChildProcess
from queuectl.control.careful_child import ChildArguments, begin, try_everything
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.recovery import Recovered, recover, refuse_workloads
from queuectl.control.notifications import Notifications
from queuectl.control.progress import SteadyClock, longest_step
from queuectl.control.settings import Settings, job_kinds
from queuectl.control.sources import container_source, health_source, use_source
from queuectl.control.supervisor import Supervisor
from queuectl.db.embedded import provided
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import current, upgrade
from queuectl.db.replicas import Registration
from queuectl.db.store import PostgresApiStore, PostgresLeaderStore
from queuectl.distribution import version
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action
from queuectl.domain.containment import Containment
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Checked, Entry
from queuectl.domain.pacing import doubling
from queuectl.domain.plan import Cost
from queuectl.domain.queries import DocumentKey, UnmanagedPod
from queuectl.domain.queues import QueueConfig
from queuectl.domain.related_jobs import RelatedJobs
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import BudgetReport
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import DrainCost, Preview, WhatIf, WhatIfResult
from queuectl.domain.words import counted
from queuectl.notify.receivers_file import ReceiverList
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import named, validate
from queuectl.objects.documents import Document as GivenDocument
from queuectl.objects.documents import with_names
from queuectl.objects.kinds import JobKinds
from queuectl.ownership.own_status import UnownedStatusForm
from queuectl.ownership.source import KubernetesObjects
from queuectl.ownership.status_form import StatusForm
from queuectl.ownership.status_forms import FORMS
from queuectl.planner.cache import PlannerCache
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.telemetry.tracing import OtlpSink, SpanSink

# ---- The parts of the controller

log = structlog.get_logger()
_SPARE_CONNECTIONS = 4
_TRIES: Final = 4
"""To connect, before the process ends with the error."""
_RECOVERY_SECONDS: Final = 3600.0
"""For the statements of a recovery. With 60,000 workloads, one of them took longer than the 10 s that a leader allows."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 4.0  # seconds; the pause doubles
_LONGEST_PAUSE_OWNED, _LONGEST_PAUSE_UNOWNED = 30.0, 300.0
"""Seconds between two reads of a CustomResourceDefinition that does not exist: of objects that own the configuration, and of others."""


class WatchMeter:
    """The events of reflectors as metrics."""

    def __init__(self, metrics: MetricsRecorder) -> None:
        self._metrics = metrics

    def listed(self, resource: str) -> None:
        self._metrics.relisted(resource)
        self._metrics.watched(resource, 0, time.time())

    def received(self, resource: str, objects: int) -> None:
        self._metrics.watched(resource, objects, time.time())

    def interrupted(self, resource: str, error: str) -> None:
        """Logged by the reflector; its age shows in the metrics."""

    def absent(self, resource: str) -> None:
        self._metrics.unwatched(resource)


class MainTask(Protocol):
    """The work of a process of ``queuectl serve``: to control the cluster, or to observe it."""

    @property
    def containment(self) -> Containment:
        """The units of this process that are set aside."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set."""

    def stalled(self) -> str:
        """Why this process is to be ended; empty while it makes progress."""

    def blockers(self) -> list[str]:
        """Why this process is not ready; empty if it is."""


@dataclass(frozen=True)
class ProcessComponents:
    """The parts of each process of ``queuectl serve``. ``store``: for the API; the main task has its own."""

    task: MainTask
    store: PostgresApiStore
    metrics: MetricsRecorder
    registration: Registration

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set."""
        await self.task.run(stop)

    def stalled(self) -> str:
        """Why this process is to be ended; empty while it makes progress."""
        return self.task.stalled()

    @property
    def containment(self) -> Containment:
        """The units of this process that are set aside."""
        return self.task.containment

    async def live(self) -> Sequence[str]:
        """The reasons why this process must be restarted. A part that cannot continue ends the process by itself."""
        stalled = self.stalled()
        return [stalled] if stalled else []

    async def ready(self) -> Sequence[str]:
        """The reasons why this process is not ready."""
        blockers = self.task.blockers()
        try:
            await self.store.configuration()
        except StoreUnavailable as error:
            blockers.append(f"database: {error}")
        return blockers


@dataclass(frozen=True)
class ServeComponents(ProcessComponents):
    """Everything that a controller runs, wired together. ``notifications``: None without receivers."""

    task: Supervisor
    notifications: Notifications | None = None

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending workload does not start; None while this process has no plan."""
        return await self.task.diagnose(uid)

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """The cost and the effect of an action on a running gang; None until this process has a snapshot."""
        return await self.task.previewer.preview(entry, action)

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a queue now; None while this process does not know the cluster."""
        return await self.task.previewer.drain_cost(queue)

    async def eviction_costs(self, uids: Collection[str]) -> Mapping[str, Cost]:
        """The cost of evicting each of these gangs now, by uid; without those that this process does not know."""
        return await self.task.previewer.eviction_costs(uids)

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """Running gangs that exceed the quota of another configuration; None until this process has a snapshot."""
        return await self.task.viewer.over_quota(config)

    async def device_resources(self) -> frozenset[str]:
        """The resources that only devices of ResourceSlices provide; none until this process has a snapshot."""
        return await self.task.viewer.device_resources()

    async def check(self) -> Checked | None:
        """The violations that a complete check of the invariants finds; None if this process is not the leader."""
        return await self.task.check()

    async def leader(self) -> str:
        """The name of the leader; empty without one."""
        return await self.task.leader()

    async def cluster_map(self) -> ClusterMap | None:
        """The cluster map; None until this process has a snapshot."""
        return await self.task.viewer.cluster_map()

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Unmanaged pods that hold GPUs; None until this process has a snapshot."""
        return await self.task.viewer.unmanaged()

    async def budgets(self) -> BudgetReport | None:
        """The use of budgets and its forecast; None until this process has a snapshot."""
        return await self.task.viewer.budgets()

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods; None until the watch has listed all objects."""
        return self.task.viewer.pods(entry)

    async def checkpoint_at(self, entry: Entry) -> float | None:
        """The time of the last checkpoint that a job or its pods declare; None without one."""
        return self.task.viewer.checkpoint_at(entry)

    async def related(self, entry: Entry) -> RelatedJobs | None:
        """The jobs on which a job depends, and those that depend on it; None without any."""
        return self.task.viewer.related(entry)

    @property
    def cache(self) -> PlannerCache:
        """The cache of the planner in this process."""
        return self.task.cache

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot for reports, with device rows; None until this process has one."""
        return await self.task.viewer.counted()

    @property
    def kinds(self) -> JobKinds:
        """The job kinds, with the declared ones."""
        return self.task.kinds

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        """The result of a what-if; None until this process has a snapshot."""
        return await self.task.what_if.try_out(question)

    def gang_use(self, uid: str) -> GangUse | None:
        """The GPU utilization of a gang in the leader's last evaluation; None without a source."""
        return self.task.gang_use(uid)

    def expected_starts(self) -> ExpectedStarts:
        """The expected starts of pending gangs, by the leader's last estimate."""
        return self.task.expected_starts()


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
async def pod_logs(settings: Settings) -> AsyncIterator[KubernetesPodLogs | None]:
    """The logs of pods for pages; None without the opt-in, and in shadow mode, which knows no pods of workloads.

    Raises:
        BadInput: the kubeconfig is wrong.
    """
    if not settings.pod_logs or settings.shadow:
        yield None
        return
    source = await KubernetesPodLogs.connect(settings.kubeconfig, settings.log_streams)
    try:
        yield source
    finally:
        await source.close()


@asynccontextmanager
async def controller(settings: Settings) -> AsyncIterator[ServeComponents]:
    """Open all connections, and close them at the end. If the database does not answer, this is tried again for a few seconds.

    Raises:
        BadInput: a URL, a kubeconfig, a server version or a declared kind is wrong.
        StoreError, ClusterError: no connection, or this release cannot use the schema (UnusableSchema).
    """
    async with AsyncExitStack() as stack:
        yield await opened(stack, lambda: _connected(settings))


_Opened = TypeVar("_Opened")


async def opened(
    stack: AsyncExitStack, connect: Callable[[], AbstractAsyncContextManager[_Opened]]
) -> _Opened:
    """Enter a context. A database that fails over, or that closes a connection, must not end the process.

    Raises:
        BadInput, StoreError, ClusterError: those of the last try.
    """
    for failures in range(1, _TRIES):
        try:
            return await stack.enter_async_context(connect())
        except StoreUnavailable as error:
            log.warning("database_not_reached", error=str(error))
            await asyncio.sleep(doubling(_FIRST_PAUSE, _LONGEST_PAUSE, failures))
    return await stack.enter_async_context(connect())


@dataclass(frozen=True)
class ProcessParts:
    """The parts of ``queuectl serve`` in each mode.

    Attributes:
        url: of the database.
        store: of the leader.
        api_store: of the API, with its own connections: a commit must not wait for readers.
        clock: of the database.
    """

    url: str
    store: PostgresLeaderStore
    api_store: PostgresApiStore
    registration: Registration
    metrics: MetricsRecorder
    clock: SteadyClock
    containment: Containment
    kinds: JobKinds


@asynccontextmanager
async def process_parts(settings: Settings) -> AsyncIterator[ProcessParts]:
    """Connect to the database, and register this process.

    Raises:
        BadInput: a URL or a declared kind is wrong.
        StoreError: no connection, or this release cannot use the schema (UnusableSchema).
    """
    metrics, kinds = MetricsRecorder(), job_kinds(settings)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provided(settings.database_url))
        await upgrade(url, pre_only=True)
        database = DatabaseSettings.from_environment(url)
        store = await PostgresLeaderStore.connect(database)
        stack.push_async_callback(store.close)
        registration = store.registration(settings.holder)
        await stack.enter_async_context(registration.registered())
        clock = SteadyClock()
        clock.set(await store.now())
        containment = Containment(clock, metrics.containment.report)
        metrics.containment.watch(containment)
        metrics.careful.watch(containment)
        own = settings.api_database_url
        api_store = await PostgresApiStore.connect(
            DatabaseSettings.from_environment(own, api=True) if own else database
        )
        stack.push_async_callback(api_store.close)
        yield ProcessParts(url, store, api_store, registration, metrics, clock, containment, kinds)


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[ServeComponents]:
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(process_parts(settings))
        metrics, kinds = parts.metrics, parts.kinds
        cluster = await KubernetesCluster.connect(
            Connection(settings.kubeconfig, in_flight=settings.in_flight + _SPARE_CONNECTIONS),
            namespace=settings.namespace,
            hooks=WatchMeter(metrics),
            kinds=kinds,
            containment=parts.containment,
        )
        stack.push_async_callback(cluster.close)
        source, health = use_source(settings), health_source(settings)
        containers = container_source(settings)
        for opened in (source, health, containers):
            if opened is not None:
                stack.push_async_callback(opened.close)
        owner = settings.configuration_owner
        objects = unowned = None
        if owner is not Owner.DATABASE:
            objects = await _objects(stack, settings, parts.containment, owner, FORMS[owner])
        if owner is not Owner.KUBERNETES:
            form = UnownedStatusForm(owner)
            unowned = await _objects(stack, settings, parts.containment, Owner.KUBERNETES, form)
        supervisor = Supervisor(
            store=parts.store,
            cluster=cluster,
            metrics=metrics,
            settings=settings,
            clock=parts.clock,
            kinds=kinds,
            containment=parts.containment,
            use_source=source,
            health_source=health,
            container_source=containers,
            run_child=ChildProcess(parts.url, longest_step(settings.solver.wall_seconds)),
            objects=objects,
            spans=_spans(stack, settings, metrics),
            unowned=unowned,
        )
        notifications = _notifications(settings, parts)
        parts.store.notifications_enabled = notifications is not None
        yield ServeComponents(
            supervisor, parts.api_store, metrics, parts.registration, notifications
        )


def _notifications(settings: Settings, parts: ProcessParts) -> Notifications | None:
    """The delivery of events in this process; None without receivers."""
    if settings.notify_file is None:
        return None
    return Notifications(
        ReceiverList(settings.notify_file),
        parts.api_store.notifications,
        parts.metrics.notifications,
        parts.containment,
        settings.holder,
        lambda: cluster_uid(settings.kubeconfig),
    )


def _spans(stack: AsyncExitStack, settings: Settings, metrics: MetricsRecorder) -> SpanSink | None:
    """A collector of spans; None without one."""
    if not settings.otlp_endpoint:
        return None
    metrics.add_traces()
    sink = OtlpSink(settings.otlp_endpoint, version())
    stack.callback(sink.close)
    return sink


async def _objects(
    stack: AsyncExitStack,
    settings: Settings,
    containment: Containment,
    group: Owner,
    form: StatusForm,
) -> KubernetesObjects:
    """The objects of one API group, over separate connections."""
    kinds = FOLLOWED[group]
    api = await Api.connect(
        Connection(settings.kubeconfig, in_flight=_SPARE_CONNECTIONS), watches=len(kinds)
    )
    stack.push_async_callback(api.close)
    owns = group is settings.configuration_owner
    pause = _LONGEST_PAUSE_OWNED if owns else _LONGEST_PAUSE_UNOWNED
    return KubernetesObjects(api, kinds, containment, form, longest_pause=pause)


async def careful_child(arguments: ChildArguments) -> None:
    """Do the work of a leader up to a verified plan, in a child process. The server of the database refuses each write of it.

    Raises:
        BadInput: a setting is wrong.
        StoreError, ClusterError: no connection, or no response.
    """
    clock = SteadyClock()
    containment = begin(arguments, clock)
    settings = Settings()
    kinds = job_kinds(settings)
    async with AsyncExitStack() as stack:
        database = DatabaseSettings.from_environment(arguments.database_url)
        store = await PostgresLeaderStore.connect(replace(database, read_only=True))
        stack.push_async_callback(store.close)
        clock.set(await store.now())
        cluster = await KubernetesCluster.connect(
            Connection(settings.kubeconfig, in_flight=_SPARE_CONNECTIONS),
            namespace=settings.namespace,
            kinds=kinds,
            containment=containment,
        )
        stack.push_async_callback(cluster.close)
        await try_everything(store, cluster, settings, clock, kinds, containment)


async def recovered(settings: Settings, documents: Sequence[GivenDocument]) -> Recovered:
    """Make the ledger again from the cluster, in a database that has lost it; ``documents``: the configuration.

    Raises:
        BadInput: a document or a declared kind is wrong, no database is given, or it has workloads.
        StoreError, ClusterError: no connection, or no response.
    """
    kinds = job_kinds(settings)
    configuration = [validate(document)[0] for document in with_names(map(named, documents))]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provided(settings.database_url, existing=True))
        await upgrade(url)
        # All workloads are one transaction.
        database = replace(
            DatabaseSettings.from_environment(url),
            statement_timeout=_RECOVERY_SECONDS,
            answer_timeout=_RECOVERY_SECONDS,
        )
        store = await PostgresLeaderStore.connect(database)
        stack.push_async_callback(store.close)
        clock = SteadyClock()
        clock.set(await store.now())
        cluster = await KubernetesCluster.connect(
            Connection(settings.kubeconfig, in_flight=_SPARE_CONNECTIONS),
            namespace=settings.namespace,
            kinds=kinds,
        )
        stack.push_async_callback(cluster.close)

        async def configure() -> None:
            for document in configuration:
                await store.put_config(document)

        leadership = Leadership.of(cluster, store, clock, settings, "queuectl recover")
        return await recover(store, cluster, settings, clock, leadership, kinds, configure)


async def recovery_check(settings: Settings, documents: Sequence[GivenDocument]) -> str:
    """The checks of :func:`recovered` that write nothing, with the same errors. The cluster is not read.

    Returns:
        The text about the changes that a recovery would store.
    """
    job_kinds(settings)
    configuration = [validate(document)[0] for document in with_names(map(named, documents))]
    async with provided(settings.database_url, existing=True) as url:
        schema = await current(url)
        if schema.current is not None and schema.up_to_date:
            store = await PostgresLeaderStore.connect(DatabaseSettings.from_environment(url))
            try:
                await refuse_workloads(store)
            finally:
                await store.close()
    stored = counted(len(configuration), "object")
    return f"{stored} of the configuration would be stored, and the ledger rebuilt from the cluster"

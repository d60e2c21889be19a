"""The Protocol ``Cluster`` of the control loop on a real API server. Each part of it is a module of this package."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.lease import Lease
from queuectl.cluster.reflector import NoHooks, Pace, Reflector, Sink, Synced, WatchHooks
from queuectl.cluster.resources import watched
from queuectl.cluster.review import kueue_keys_act, kueue_runs, probe_policies
from queuectl.cluster.server import mismatches
from queuectl.cluster.takeover import read_admissions
from queuectl.cluster.writes import Events, Writer
from queuectl.domain.containment import Containment
from queuectl.domain.jobs import JobRecord, PriorAdmission
from queuectl.domain.records import LeaderRecord
from queuectl.objects.kinds import KINDS, JobKinds

SYSTEM_NAMESPACE: Final = "queuectl-system"
LEASE: Final = "queuectl"


class KubernetesCluster:
    """See :class:`queuectl.control.ports.Cluster`."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str = SYSTEM_NAMESPACE,
        hooks: WatchHooks | None = None,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
        kinds: JobKinds = KINDS,
        containment: Containment | None = None,
    ) -> None:
        """Make one; no request is sent yet.

        Args:
            api: under queuectl's own identity; closed by :meth:`close`.
            namespace: of the Lease and of dry runs.
            hooks: receive the events of the watches.
            clock: unix seconds.
            pace: of the watches.
            kinds: of jobs.
            containment: of objects that no reader can decode; None = its own.
        """
        self._api = api
        self._namespace = namespace
        self._hooks = hooks or NoHooks()
        self._pace = pace or Pace()
        self._kinds = kinds
        self._containment = containment or Containment(clock)
        self._writer = Writer(api, kinds)
        self._events = Events(api, clock, kinds)
        self._lease = Lease(api, namespace, LEASE)
        self._following: Mapping[str, Reflector] = {}  # of the last watch, by resource

    @classmethod
    async def connect(
        cls,
        connection: Connection,
        *,
        namespace: str = SYSTEM_NAMESPACE,
        hooks: WatchHooks | None = None,
        kinds: JobKinds = KINDS,
        containment: Containment | None = None,
    ) -> KubernetesCluster:
        """Read the configuration; no request is sent yet. Each watch has its own connection.

        ``containment``: of the process; None = its own.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        api = await Api.connect(connection, watches=len(watched(kinds=kinds)))
        return cls(api, namespace=namespace, hooks=hooks, kinds=kinds, containment=containment)

    async def watch(self, sink: Sink, synced: Synced, *, kueue: bool = True) -> None:
        reported: set[str] = set()
        self._following = {
            resource.name: Reflector(
                self._api,
                resource,
                sink,
                synced,
                self._hooks,
                self._pace,
                reported=reported,
                containment=self._containment,
            )
            for resource in watched(kueue=kueue, kinds=self._kinds)
        }
        async with asyncio.TaskGroup() as group:
            for name, reflector in self._following.items():
                group.create_task(reflector.run(), name=f"watch {name}")

    async def catch_up(self) -> None:
        while True:
            following = self._following.values()
            if following and all(await asyncio.gather(*(one.catch_up() for one in following))):
                return
            await asyncio.sleep(self._pace.lag)  # another watch is about to begin

    def uncompared(self) -> list[str]:
        return [one.uncompared for one in self._following.values() if one.uncompared]

    async def patch_job(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        return await self._writer.patch_job(kind, namespace, name, patch)

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> int:
        return await self._writer.patch_pod(namespace, name, patch)

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        await self._writer.stop_pod(namespace, name, uid)

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        await self._writer.delete_pod(namespace, name, uid, version)

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        await self._writer.evict_pod(namespace, name, uid, version)

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> int:
        return await self._writer.patch_node(name, patch)

    async def patch_namespace(self, name: str, patch: Mapping[str, Any]) -> None:
        await self._writer.patch_namespace(name, patch)

    async def create_object(self, resource: str, document: Mapping[str, Any]) -> None:
        await self._writer.create_object(resource, document)

    async def delete_object(self, resource: str, namespace: str, name: str) -> None:
        await self._writer.delete_object(resource, namespace, name)

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        await self._events.create(job, kind, reason, message)

    async def read_leader(self) -> LeaderRecord | None:
        return await self._lease.read()

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        return await self._lease.write(record, over)

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        missing = await probe_policies(self._api, self._namespace, kueue=kueue, kinds=self._kinds)
        return missing + await mismatches(self._api, self._kinds)

    async def kueue_runs(self) -> bool:
        return await kueue_runs(self._api)

    async def kueue_keys_act(self) -> bool | None:
        return await kueue_keys_act(self._api, self._namespace)

    async def read_admissions(self) -> list[PriorAdmission]:
        return await read_admissions(self._api)

    async def close(self) -> None:
        await self._api.close()

"""The cluster of shadow mode: all objects that a plan depends on but those of its configuration, and no write but those of the Lease.

:class:`~.client.ReadOnlyApi` refuses each other write, and RBAC refuses it once more (the chart with ``shadow``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from queuectl.cluster.adapter import LEASE, SYSTEM_NAMESPACE
from queuectl.cluster.client import Api, Forbidden, Permits, ReadOnlyApi
from queuectl.cluster.connection import Connection
from queuectl.cluster.lease import Lease
from queuectl.cluster.resources import watched
from queuectl.cluster.server import DEFINITIONS, confirm_absent
from queuectl.cluster.stream import LEVELS, decoded
from queuectl.domain.errors import ClusterUnavailable, ObjectGone
from queuectl.domain.records import LeaderRecord
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.kinds import KINDS, JobKinds


def permits_lease(namespace: str) -> Permits:
    """Permits the creation and the renewal of the Lease of a namespace."""
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    allowed = {("POST", collection), ("PATCH", f"{collection}/{LEASE}")}
    return lambda method, path: (method, path) in allowed


# ---- All objects that a plan depends on

_CONFIGURATION: Final = FOLLOWED[Owner.KUEUE]
_GROUP: Final = f"/apis/{_CONFIGURATION[0].group}"
_WORKLOADS: Final = tuple(f"{_GROUP}/{version}/workloads" for version in _CONFIGURATION[0].versions)
_PAGE: Final = 500
Body = dict[str, Any]


async def unreadable(api: Api, kinds: JobKinds) -> list[str]:
    """The lists of shadow mode that the API server refuses, as paths.

    Raises:
        ClusterUnavailable: it does not answer.
    """
    versions = {kind.definition: kind.path(kind.versions[0]) for kind in _CONFIGURATION}
    definitions = (f"{DEFINITIONS}/{name}" for name in versions)
    of_kueue = (_WORKLOADS[0], *definitions, *versions.values())
    refused = []
    for path in (*of_kueue, *(resource.path for resource in watched(kinds=kinds))):
        try:
            await api.request("GET", path, query=[("limit", "1")])
        except ObjectGone:
            continue  # the server does not have this kind
        except Forbidden:
            refused.append(path)
    return refused


class _Meta(msgspec.Struct):
    next: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[Body] = msgspec.field(default_factory=list)


_page = msgspec.json.Decoder(_Page).decode


class ReadOnlyCluster:
    """The objects of a cluster as documents, and the Lease."""

    def __init__(
        self, api: Api, namespace: str = SYSTEM_NAMESPACE, kinds: JobKinds = KINDS
    ) -> None:
        """``api``: closed by :meth:`close`. ``namespace``: of the Lease. ``kinds``: of jobs."""
        self._api = api
        self._kinds = kinds
        self._lease = Lease(api, namespace, LEASE)

    @classmethod
    async def connect(
        cls, connection: Connection, namespace: str, kinds: JobKinds
    ) -> ReadOnlyCluster:
        """Read the configuration; no request is sent yet.

        Raises:
            BadInput: the kubeconfig, or the pod's service account, cannot be used.
        """
        api = await ReadOnlyApi.open(connection, permits_lease(namespace))
        return cls(api, namespace, kinds)

    async def objects(self) -> list[Body]:
        """All objects that a plan depends on, with kind and apiVersion, and Kueue's Workloads. Its configuration is not among them.

        Workloads are listed before pods: a gang that starts in between is shown as waiting at one moment, never as missing.

        Raises:
            ClusterError: a list cannot be read completely.
        """
        bodies = await self._served(_WORKLOADS, optional=True)
        for resource in watched(kinds=self._kinds):
            paths = (resource.path, *([resource.older.path] if resource.older else []))
            optional = resource.optional or resource.older is not None
            bodies += await self._served(paths, optional=optional)
        return bodies

    async def read_leader(self) -> LeaderRecord | None:
        """See :class:`queuectl.control.ports.Election`."""
        return await self._lease.read()

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        """See :class:`queuectl.control.ports.Election`."""
        return await self._lease.write(record, over)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _served(self, paths: Sequence[str], *, optional: bool) -> list[Body]:
        """The items of the first of these paths that the server serves; none if it serves none of them."""
        failed: ClusterUnavailable | None = None
        for path in paths:
            try:
                return await self._list(path)
            except ObjectGone:
                if not optional:
                    raise
                await confirm_absent(self._api, path)
            except ClusterUnavailable as error:
                # Only the webhook of Kueue converts objects that are stored in another version.
                failed = failed or error
        if failed is not None:
            raise failed
        return []

    async def _list(self, path: str) -> list[Body]:
        bodies: list[Body] = []
        token = ""
        while True:
            query = [("limit", str(_PAGE)), *([("continue", token)] if token else [])]
            raw = await self._api.request("GET", path, query=query)
            try:
                page = decoded(_page, raw, LEVELS + 2)
            except ValueError as error:
                raise ClusterUnavailable(f"{path}: not a list: {error}") from error
            bodies += _typed(page)
            token = page.metadata.next
            if not token:
                return bodies


def _typed(page: _Page) -> Iterator[Body]:
    """The items with their kind, which a list does not repeat, and without what no plan reads."""
    head = {"apiVersion": page.api_version, "kind": page.kind.removesuffix("List")}
    for item in page.items:
        meta = item.get("metadata")
        if isinstance(meta, dict):
            meta.pop("managedFields", None)
        yield {**head, **item}

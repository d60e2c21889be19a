"""Makes and deletes the requests for nodes of gangs that are held for admission checks of an autoscaler.

The ledger states which requests must exist, and the watch which do. The objects of a request are created in an order in which the request is
the last, and deleted in an order in which it is the last, so a new leader finishes what another one began. A leader also knows the templates
of requests that do not exist: the API server refused them, or the autoscaler deleted them. Others are deleted with their job, which owns them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.namespace_tasks import NamespaceTasks, NamespaceWrite
from queuectl.control.leader.schedule import FIRST_RETRY, SLOW_SECONDS, Job, Pauses
from queuectl.control.ports import Cluster
from queuectl.domain.checks import CheckState
from queuectl.domain.containment import Boundary
from queuectl.domain.errors import ClusterError, ClusterUnavailable
from queuectl.domain.ledger import Entry
from queuectl.domain.provisioning import ProvisioningConfig, ProvisioningRecord
from queuectl.objects.kinds import owner_references
from queuectl.objects.kubernetes.provisioning import (
    REQUESTS,
    TEMPLATES,
    documents,
    request_name,
    template_name,
)
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

POLL_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 10.0
"""After the API server refused a request, until it is sent again; the longest pause after it gave no usable answer."""

SHOWN_SECONDS: Final = 10.0
"""After a request was created, until it is created again if the watch does not show it."""

_Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request that must exist for a check. ``due``: its gang waits for it."""

    entry: Entry
    settings: ProvisioningConfig
    due: bool


class Provisioner:
    """Creates and deletes the requests for nodes of one leadership."""

    def __init__(
        self,
        cluster: Cluster,
        mirror: Mirror,
        leader_state: LeaderState,
        wake: Callable[[], None],
    ) -> None:
        """``wake``: begins a cycle."""
        self._cluster = cluster
        self._mirror = mirror
        self._leader_state = leader_state
        self._wake = wake
        self._create_pauses = Pauses[_Key](FIRST_RETRY, REFUSED_SECONDS)
        self._created: dict[_Key, float] = {}  # until the watch shows them; when they were
        self._made: dict[_Key, ProvisioningRecord] = {}  # their templates, until they are deleted
        self._delete_pauses = Pauses[_Key](REFUSED_SECONDS, REFUSED_SECONDS)
        self._tasks = NamespaceTasks(Boundary.TASK, mirror.containment)

    async def run(self) -> None:
        """Create and delete requests until canceled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._tasks.start_due(group, self._writes())
                await asyncio.sleep(POLL_SECONDS)

    def _writes(self) -> Iterator[NamespaceWrite]:
        """The creations of missing requests, and the deletions of those that no gang needs."""
        requests = self._mirror.provisioning
        missing = dict(self._wanted())
        self._create_pauses.keep(missing)
        for key in {*requests.refused, *requests.unanswered} - missing.keys():
            self._settle(key)
        now = asyncio.get_running_loop().time()
        # A request can be deleted before the watch shows it. It is then created again.
        self._created = {
            key: at
            for key, at in self._created.items()
            if key in missing and now - at < SHOWN_SECONDS
        }
        for key, one in missing.items():
            if requests.of(*key, one.entry.uid) is not None:
                self._created.pop(key, None)
                self._settle(key)  # also after a creation whose answer was lost
            elif one.due and key not in self._created:
                yield _write(one.entry.uid, key, partial(self._create, key, one))
            if one.entry.state.live and key not in self._made:
                self._remember_started(key, one)
        yield from self._deletions(missing)

    def _deletions(self, needed: Mapping[_Key, _Wanted]) -> Iterator[NamespaceWrite]:
        now = asyncio.get_running_loop().time()
        present = {(record.namespace, record.name): record for record in self._mirror.provisioning}
        known = {**self._made, **present}
        self._delete_pauses.keep(known)
        unneeded = {
            key: record
            for key, record in known.items()
            if key not in needed
            and record.gang not in self._leader_state.unwritten
            and not record.deleting
            and self._delete_pauses.over(key, now)
        }
        kept = self._templates_of(needed) if unneeded else frozenset()
        for key, record in unneeded.items():
            # A user can write a request that names the templates of another gang.
            own = tuple(name for name in record.templates if (record.namespace, name) not in kept)
            send = partial(self._delete, key, replace(record, templates=own))
            yield _write(record.uid or record.gang, key, send)

    def _templates_of(self, requests: Mapping[_Key, _Wanted]) -> frozenset[_Key]:
        """The templates that these requests can have, created or not."""
        jobs = {key: self._mirror.jobs.get(one.entry.uid) for key, one in requests.items()}
        return frozenset(
            (key[0], template_name(key[1], podset.name))
            for key, job in jobs.items()
            if job is not None
            for podset in job.podsets
        )

    def _wanted(self) -> Iterator[tuple[_Key, _Wanted]]:
        state = self._leader_state
        checks = state.config.checks.values()
        if all(check.provisioning is None for check in checks):
            return  # without a pass over the ledger
        for entry in state.ledger:
            for status, settings in state.config.provisioning_checks(entry.checks):
                key = (entry.namespace, request_name(entry, status.name))
                waits = entry.awaits_checks and status.state is CheckState.PENDING
                due = waits and entry.uid not in state.unwritten
                yield key, _Wanted(entry, settings, due)

    def _remember(self, key: _Key, gang: str, *templates: str) -> None:
        """Note templates of a gang (uid), which are deleted even if their request does not exist."""
        known = self._made.get(key) or ProvisioningRecord(*key, uid="", version=0, gang=gang)
        self._made[key] = replace(
            known, templates=tuple(dict.fromkeys((*known.templates, *templates)))
        )

    def _remember_started(self, key: _Key, request: _Wanted) -> None:
        """Note those of a gang that has started: an autoscaler deletes its request after a week."""
        job = self._mirror.jobs.get(request.entry.uid)
        podsets = job.podsets if job is not None else ()
        requested = request.settings.requested(podsets, request.entry.placement)
        names = (template_name(key[1], podset.name) for podset, _ in requested)
        self._remember(key, request.entry.uid, *names)

    async def _create(self, key: _Key, request: _Wanted) -> None:
        job = self._mirror.jobs.get(request.entry.uid)
        clock = asyncio.get_running_loop().time
        began = clock()
        if job is None or request.entry.lease is None or not self._create_pauses.over(key, began):
            return
        if not request.settings.requested(job.podsets):
            return
        flavors = self._leader_state.config.flavors
        try:
            for resource, document in documents(
                key[1],
                request.entry,
                job,
                request.settings,
                flavors,
                owner_references(job, self._mirror.kinds),
            ):
                await self._cluster.create_object(resource, document)
                if resource == TEMPLATES:
                    self._remember(key, request.entry.uid, document["metadata"]["name"])
        except ClusterUnavailable as error:
            slow = clock() - began > SLOW_SECONDS  # then others come first
            self._create_pauses.failed(key, error, clock(), REFUSED_SECONDS if slow else 0.0)
            why = f"the request is not created yet: {error}"
            self._tell(self._mirror.provisioning.unanswered, key, request.entry.uid, why)
            return
        except ClusterError as error:
            self._create_pauses.failed(key, error, clock(), REFUSED_SECONDS)
            why = f"its nodes cannot be requested: {error}"
            self._tell(self._mirror.provisioning.refused, key, request.entry.uid, why)
            return
        self._created[key] = began
        self._settle(key)
        log.info("nodes_requested", workload=request.entry.ref, request=key[1])

    def _settle(self, key: _Key) -> None:
        """Forget why a request was not created: it exists, or no gang needs it."""
        requests = self._mirror.provisioning
        self._create_pauses.passed(key)
        for table in (requests.refused, requests.unanswered):
            table.pop(key, None)

    def _tell(self, why: dict[_Key, str], key: _Key, uid: str, text: str) -> None:
        if why.get(key) != text:
            log.warning("nodes_not_requested", request=key[1], message=text)
            why[key] = text
            self._mirror.touched.add(uid)
            self._wake()

    async def _delete(self, key: _Key, record: ProvisioningRecord) -> None:
        """Its templates first: the request is what a later leader finds."""
        try:
            for template in record.templates:
                await self._cluster.delete_object(TEMPLATES, record.namespace, template)
            if record.uid:  # otherwise it does not exist, or is of others
                await self._cluster.delete_object(REQUESTS, record.namespace, record.name)
        except ClusterError as error:
            if self._delete_pauses.failed(key, error, asyncio.get_running_loop().time()):
                log.warning("request_not_deleted", request=record.name, error=str(error))
            return
        self._delete_pauses.passed(key)
        self._made.pop(key, None)
        log.info("request_deleted", request=record.name)


def _write(uid: str, key: _Key, send: Job) -> NamespaceWrite:
    """For one gang or request."""
    namespace, name = key
    return NamespaceWrite(namespace, uid, f"ProvisioningRequest/{namespace}/{name}", send)

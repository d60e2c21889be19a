"""The objects of followed kinds at the API server, each kind in the version in which the server stores them.

Objects that are stored in another version than the one that a client asks for are converted by the webhook of their controller, which may not
run. The CustomResourceDefinition states the stored version, and it is read again when a watch fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from queuectl.cluster.client import APPLY_PATCH, METADATA_ONLY, Api
from queuectl.cluster.reflector import Pace, Reflector
from queuectl.cluster.resources import Resource
from queuectl.cluster.review import active_kueue
from queuectl.cluster.server import DEFINITIONS
from queuectl.cluster.writes import MANAGER
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterError, ClusterUnavailable, ObjectGone
from queuectl.domain.pacing import doubling
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import Delta
from queuectl.objects.configuration.followed import followed_reader
from queuectl.objects.configuration.owners import GROUP, FollowedKind
from queuectl.objects.configuration.status_wire import ObjectStatus
from queuectl.ownership.status_form import StatusForm

RECHECK_SECONDS: Final = 60.0
"""Time between two reads of a CustomResourceDefinition while the watch of its objects works."""
_FIRST_PAUSE = 0.5


class ObjectWatcher(Protocol):
    """Takes in what the watches of all kinds show. ``plural`` names the kind."""

    def changed(self, deltas: Sequence[Delta]) -> None:
        """Objects have changed, or a list is complete."""

    def failed(self, plural: str, why: str) -> None:
        """The objects of a kind are not known now."""

    def answered(self, plural: str) -> None:
        """The watch of a kind is alive."""


class ObjectSource(Protocol):
    """The objects of followed kinds."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The version in which each kind is read, by plural; a kind that is not read has none."""

    async def watch(self, observer: ObjectWatcher) -> None:
        """Pass all changes on until canceled."""

    async def doubt(self, plural: str) -> str:
        """Why the deletions of a kind do not decide about its objects; empty if they are. A kind in doubt is listed again.

        Raises:
            ClusterError: the API server does not say.
        """

    async def write_status(self, key: DocumentKey, status: ObjectStatus) -> None:
        """Write the status of an object. Fields of other field managers stay.

        Raises:
            ObjectGone: the object does not exist.
            ClusterError: it was not written.
        """

    async def other_writer(self) -> str:
        """The other controller that writes the statuses now; empty if none does.

        Raises:
            ClusterError: the API server does not say.
        """


class _Version(msgspec.Struct):
    name: str
    served: bool = False
    storage: bool = False


class _Spec(msgspec.Struct):
    versions: list[_Version]


class _Meta(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None


class _Definition(msgspec.Struct):
    spec: _Spec
    metadata: _Meta


_definition = msgspec.json.Decoder(_Definition).decode


class KubernetesObjects:
    """See :class:`ObjectSource`."""

    def __init__(
        self,
        api: Api,
        kinds: Collection[FollowedKind],
        containment: Containment,
        form: StatusForm,
        pace: Pace | None = None,
        longest_pause: float = 30.0,
    ) -> None:
        """Make one; no request is sent yet.

        Args:
            api: with one stream for each kind.
            kinds: of one API group.
            containment: of the process.
            form: of the statuses.
            pace: of the watches.
            longest_pause: seconds between two reads of a CustomResourceDefinition that does not exist.
        """
        self._form = form
        self._longest_pause = longest_pause
        self._api = api
        self._kinds = {kind.plural: kind for kind in kinds}
        self._containment = containment
        self._pace = pace or Pace()
        self._versions: dict[str, str] = {}
        self._in_doubt = {plural: asyncio.Event() for plural in self._kinds}

    @property
    def versions(self) -> Mapping[str, str]:
        return self._versions

    async def watch(self, observer: ObjectWatcher) -> None:
        async with asyncio.TaskGroup() as group:
            for plural in self._kinds:
                group.create_task(self._watch(plural, observer), name=f"objects {plural}")

    async def doubt(self, plural: str) -> str:
        definition = self._kinds[plural].definition
        why = ""
        try:
            found = await self._definition(definition)
        except ObjectGone:
            why = f"the CustomResourceDefinition {definition} does not exist"
        else:
            if found.metadata.deletion_timestamp is not None:
                why = f"the CustomResourceDefinition {definition} is being deleted"
        if why:
            self._in_doubt[plural].set()
        return why

    async def write_status(self, key: DocumentKey, status: ObjectStatus) -> None:
        kind = next(one for one in self._kinds.values() if one.kind.kind == key.kind)
        version = self._versions.get(kind.plural)
        if version is None:
            raise ClusterUnavailable(f"{kind.definition}: its version is not known now")
        # No uid: a write of the status of a custom resource ignores it. A new object of this name has its own status with the next decision.
        metadata = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
        body = {
            "apiVersion": f"{kind.group}/{version}",
            "kind": key.kind,
            "metadata": metadata,
            "status": self._form.body(key.kind, version, status),
        }
        await self._api.request(
            "PATCH",
            f"{kind.object_path(version, key)}/status",
            query=(("fieldManager", MANAGER), ("force", "true")),
            body=body,
            content_type=APPLY_PATCH,
            accept=METADATA_ONLY,
        )

    async def other_writer(self) -> str:
        ours = all(kind.group == GROUP for kind in self._kinds.values())
        return "" if ours else await active_kueue(self._api)

    async def _watch(self, plural: str, observer: ObjectWatcher) -> None:
        """Follow one kind, in its storage version at each time."""
        failures = 0
        while True:
            try:
                version = await self._storage_version(plural)
            except ClusterError as error:
                observer.failed(plural, str(error))
                failures += 1
                await asyncio.sleep(doubling(_FIRST_PAUSE, self._longest_pause, failures))
                continue
            failures = 0
            self._versions[plural] = version
            await self._watch_version(plural, version, observer)
            self._versions.pop(plural, None)

    async def _watch_version(self, plural: str, version: str, observer: ObjectWatcher) -> None:
        """Follow one kind until its storage version is another one, or its deletions are in doubt."""
        kind = self._kinds[plural]
        reader = followed_reader(kind.kind.kind)
        resource = Resource(plural, kind.path(version), reader, by_uid=True)
        hooks = _Hooks(observer)
        reflector = Reflector(
            self._api,
            resource,
            observer.changed,
            _ignored,
            hooks,
            self._pace,
            containment=self._containment,
        )
        watching = asyncio.create_task(reflector.run())
        checking = asyncio.create_task(self._other_version(plural, version, hooks.interruption))
        doubting = asyncio.create_task(self._in_doubt[plural].wait())
        tasks: tuple[asyncio.Task[Any], ...] = (watching, checking, doubting)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._in_doubt[plural].clear()
        for task in done:
            task.result()

    async def _other_version(self, plural: str, version: str, failed: asyncio.Event) -> None:
        """Return when the objects are stored in another version."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await failed.wait()
            failed.clear()
            await asyncio.sleep(self._pace.lag)
            with suppress(ClusterError):  # the reflector reports why the objects are not known
                if await self._storage_version(plural) != version:
                    return

    async def _storage_version(self, plural: str) -> str:
        """The version in which the server stores the objects.

        Raises:
            ClusterError: the kind does not exist, or is about to be removed, or this release does not read the version.
        """
        kind = self._kinds[plural]
        why = await self.doubt(plural)
        self._in_doubt[plural].clear()
        if why:
            raise ClusterUnavailable(why)
        versions = (await self._definition(kind.definition)).spec.versions
        stored = next((one for one in versions if one.storage), None)
        if stored is None or not stored.served or stored.name not in kind.versions:
            text = (
                f"{kind.definition}: objects are stored in version {stored.name if stored else ''}"
            )
            listed = ", ".join(kind.versions)
            raise ClusterUnavailable(f"{text}, and this release reads {listed}")
        return stored.name

    async def _definition(self, name: str) -> _Definition:
        path = f"{DEFINITIONS}/{name}"
        body = await self._api.request("GET", path)
        try:
            return _definition(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            text = f"{path}: no CustomResourceDefinition: {error}"
            raise ClusterUnavailable(text) from error


def _ignored(_: str) -> None:
    """The end of the first list is also a delta."""


class _Hooks:
    """The events of a reflector for an observer."""

    def __init__(self, observer: ObjectWatcher) -> None:
        self.interruption = asyncio.Event()
        self._observer = observer

    def listed(self, resource: str) -> None:
        self._observer.answered(resource)

    def received(self, resource: str, objects: int) -> None:  # noqa: ARG002 - of WatchHooks
        self._observer.answered(resource)

    def interrupted(self, resource: str, error: str) -> None:
        self.interruption.set()
        self._observer.failed(resource, error)

    def absent(self, resource: str) -> None:
        """Never called: a followed kind is not optional, so its absence is an interruption."""

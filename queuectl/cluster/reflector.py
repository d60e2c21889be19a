"""Continuous list and watch of one resource, as batches of deltas.

    list (WatchList, or pages where that is not served) ──▶ watch from its version ──▶ reconnect from the last version
      ▲                                                                                     │
      └──────────────────────── 410: the version has expired on the server ─────────────────┘

The reflector has no cache: the copy in state/ is the cache. A complete list ends with ``ListCompleted``, after which the copy drops objects
whose deletion was missed. A connection is dead if it is silent for longer than the interval of bookmarks, about a minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from queuectl.cluster.client import Api, Expired, Forbidden, Query, StreamTimeout
from queuectl.cluster.resources import Resource
from queuectl.cluster.server import confirm_absent
from queuectl.cluster.stream import LineSplitter, ResourceFeed, WatchBatch, current_version
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import ClusterError, ClusterUnavailable, ObjectGone, WriteRefused
from queuectl.domain.pacing import doubling
from queuectl.domain.records import Delta

log = logging.getLogger(__name__)

Sink = Callable[[Sequence[Delta]], None]
Synced = Callable[[str], None]


class WatchHooks(Protocol):
    """The events of reflectors, which telemetry counts."""

    def listed(self, resource: str) -> None:
        """A (re)list is complete. Its objects were received before."""

    def received(self, resource: str, objects: int) -> None:
        """Objects have arrived, or bookmarks (``objects`` is 0): the stream is alive."""

    def interrupted(self, resource: str, error: str) -> None:
        """The stream ended early, and is opened again."""

    def absent(self, resource: str) -> None:
        """The API server does not serve the resource: nothing is watched until a list."""


class NoHooks:
    """Ignores all events."""

    def listed(self, resource: str) -> None: ...
    def received(self, resource: str, objects: int) -> None: ...
    def interrupted(self, resource: str, error: str) -> None: ...
    def absent(self, resource: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a reflector, in seconds.

    Attributes:
        watch: after which the server ends a watch, plus up to a tenth, so that load spreads over API servers again.
        idle: silence after which a connection is dead; the server sends bookmarks every 60 s.
        initial: the same during the initial events.
        backoff, ceiling: first and longest pause after a failure; doubled each time, with jitter.
        absent: interval of checks for an API that is not installed.
        upgrade: the same for an API that an older API server does not serve.
        page: objects per page of a list.
        lag: between two tries of a new leader to compare the watch with the server.
        silence: of a watch that does not show the newest version, after which it counts as behind.
        brief: after which the server ends a watch that is opened to see the newest version. It sends a bookmark two seconds before the
            end, but none at the beginning, so 3 is the least.
        few: of so many objects, a new list takes less time than a brief watch.
    """

    watch: float = 290.0
    idle: float = 150.0
    initial: float = 10.0
    backoff: float = 0.1
    ceiling: float = 30.0
    absent: float = 30.0
    upgrade: float = 600.0
    page: int = 500
    lag: float = 1.0
    silence: float = 0.2
    brief: float = 3.0
    few: int = 1000


class Reflector:
    """Follows one resource; :meth:`run` never returns."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        sink: Sink,
        synced: Synced,
        hooks: WatchHooks,
        pace: Pace,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        reported: set[str] | None = None,
        containment: Containment | None = None,
    ) -> None:
        """``reported``: the APIs whose absence is in the log, for all reflectors of an API server."""
        self._containment = containment or Containment(time.time)
        self._reported = reported if reported is not None else set()
        self._api = api
        self._newest = self._resource = resource
        self._sink = sink
        self._synced = synced
        self._hooks = hooks
        self._pace = pace
        self._sleep = sleep
        self._feed = ResourceFeed(resource, self._containment)
        self._listed = False  # the version includes a complete list
        self._announced = False  # synced() was called
        self._watch_list = True  # until the server rejects it
        self._by_pages = False  # for the next list
        self._failures = 0
        self._absent = False
        self._lacking: set[str] = set()  # versions of its API that are not served
        self._asked = asyncio.Event()  # for another stream, before the current one ends
        self._list_again = False  # by that stream
        self._brief = False  # that stream is a brief watch
        self._progress = asyncio.Event()  # something was delivered
        self._ended = False
        self.uncompared = ""  # why it cannot be compared with the API server, while catch_up waits

    async def run(self) -> None:
        """Follow the resource until canceled."""
        try:
            while True:
                await self._until_asked(self._attempt())
        finally:
            self._ended = True
            self._report_progress()

    async def catch_up(self) -> bool:
        """Return when the state of the server at the time of this call, or a newer one, is delivered.

        If the watch does not show it soon, it is opened again from its version: nothing can have changed, or its connection can be broken
        without an error. If the new one does not show it either, or if there are few objects, all are listed again. False: the reflector has
        ended.
        """
        while not self._ended:
            try:
                version = await current_version(self._api, self._resource.path)
                self.uncompared = ""
                break
            except ObjectGone:
                if self._absent:
                    return True  # the kind is not installed
            except ClusterError as error:
                self.uncompared = (
                    f"{self._resource.name}: not compared with the API server: {error}"
                )
                log.warning("%s", self.uncompared)
            await self._sleep(self._pace.lag)
        if self._ended:
            return False
        if not await self._passes(version, self._pace.silence) and not await self._shown(version):
            log.info("%s: listing again: the watch is behind", self._resource.name)
            self._list_again = True
            self._asked.set()
            await self._passes(version, None)
        return not self._ended

    async def _shown(self, version: int) -> bool:
        """Whether a brief watch delivers this version. Few objects are not watched so."""
        if len(self._feed.keys) <= self._pace.few:
            return False
        self._brief = True
        self._asked.set()
        return await self._passes(version, self._pace.brief)

    async def _passes(self, version: int, silence: float | None) -> bool:
        """Whether this version is delivered before the watch delivers nothing for so many seconds. True if none will be delivered.

        A list that is under way takes as long as it takes.
        """
        try:
            while not (self._ended or self._absent or self._shows(version)):
                self._progress.clear()
                async with asyncio.timeout(silence if self._listed else None):
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    def _shows(self, version: int) -> bool:
        return self._listed and self._version >= version and not self._list_again

    @property
    def _version(self) -> int:
        return int(self._feed.version or 0)

    def _report_progress(self) -> None:
        self._progress.set()

    async def _until_asked(self, attempt: Coroutine[Any, Any, None]) -> None:
        """Run it until it ends, or until another stream is asked for."""
        asked = asyncio.create_task(self._asked.wait())
        turn = asyncio.create_task(attempt)
        try:
            await asyncio.wait((turn, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            turn.cancel()
            await asyncio.wait((turn, asked))
        if not turn.cancelled():
            turn.result()
        self._asked.clear()
        if self._list_again:
            self._list_again = self._listed = False

    async def _attempt(self) -> None:
        """One stream, and the pause after it if it failed."""
        try:
            await self._turn()
        except Expired as error:
            self._listed = False
            await self._pause(error)
        except ObjectGone as error:
            if self._resource.optional:
                await self._missing(error)
            else:
                await self._pause(error)
        except ClusterError as error:
            await self._pause(error)
        except Exception as error:  # noqa: BLE001 - contained: the resource is listed again
            self._containment.failed(Boundary.TASK, f"watch {self._resource.name}", error)
            self._listed = False
            await self._pause(ClusterUnavailable(f"{self._resource.path}: {error}"))

    async def _turn(self) -> None:
        """One stream, from its opening to its orderly end."""
        if self._listed:
            await self._follow()
        elif self._by_pages or not self._watch_list:
            self._by_pages = False
            await self._list()
        else:
            await self._list_and_follow()

    async def _list_and_follow(self) -> None:
        """By WatchList: one stream that begins with all objects."""
        self._feed.keys.clear()
        try:
            await self._follow()
        except Forbidden:
            raise
        except WriteRefused as error:
            log.info("%s: no WatchList here, listing by pages: %s", self._resource.name, error)
            self._watch_list = False
        except StreamTimeout as error:
            if self._listed:
                raise
            # Some servers send the objects, but never the bookmark that ends the list.
            log.info("%s: listing by pages: %s", self._resource.name, error)
            self._by_pages = True

    async def _list(self) -> None:
        self._feed.keys.clear()
        token = ""
        while True:
            query = [("limit", str(self._pace.page))]
            query += [("continue", token)] if token else []
            body = await self._api.request("GET", self._resource.path, query=query)
            batch, token = self._feed.page(body)
            self._deliver(batch)
            if not token:
                break

    async def _follow(self) -> None:
        """One watch: from the last version, or with all objects first without one."""
        lines, opened, received = LineSplitter(), asyncio.get_running_loop().time(), False
        async with self._api.stream(self._resource.path, self._query()) as stream:
            self._brief = False
            while piece := await stream.read(self._read_timeout()):
                received = True
                self._deliver(self._feed.events(lines.feed(piece)))
        short = asyncio.get_running_loop().time() - opened < 1.0
        if not self._listed or (short and not received):
            raise ClusterUnavailable(f"{self._resource.path}: the watch ended too soon")

    def _read_timeout(self) -> float:
        return self._pace.idle if self._listed else self._pace.initial

    def _query(self) -> Query:
        seconds = self._pace.watch * random.uniform(1.0, 1.1)  # noqa: S311 - jitter
        if self._brief and self._listed:
            seconds = self._pace.brief
        query = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(int(seconds))),
        ]
        if self._listed:
            return [*query, ("resourceVersion", self._feed.version)]
        return [*query, ("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]

    def _deliver(self, batch: WatchBatch) -> None:
        """Pass the deltas on, then handle the end of the stream."""
        if batch.deltas:
            self._sink(batch.deltas)
        if batch.complete:
            self._complete()
        if batch.events:
            self._hooks.received(self._resource.name, batch.objects)
        self._report_progress()
        if batch.error is not None:
            raise batch.error
        if self._listed and batch.events:
            self._healthy()

    def _healthy(self) -> None:
        if self._failures:
            log.info("%s: followed again after %d failures", self._resource.name, self._failures)
        self._failures = 0

    def _complete(self) -> None:
        self._listed = True
        self._lacking.clear()
        if self._absent:
            self._absent = False
            self._reported.discard(self._absence)
        self._hooks.listed(self._resource.name)
        self._announce()

    def _announce(self) -> None:
        """Report that the objects are known, once."""
        if not self._announced:
            self._announced = True
            self._synced(self._resource.name)

    async def _pause(self, error: ClusterError) -> None:
        # The first failure is logged, the next ones are not, until the stream works again.
        level = logging.DEBUG if self._failures else logging.WARNING
        log.log(level, "%s: %s", self._resource.name, error)
        self._hooks.interrupted(self._resource.name, str(error))
        self._failures += 1
        wait = doubling(self._pace.backoff, self._pace.ceiling, self._failures)
        asked = error.retry_after if isinstance(error, ClusterUnavailable) else None
        jittered = wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        await self._sleep(max(jittered, asked or 0.0))

    async def _missing(self, error: ObjectGone) -> None:
        """If the API is not installed, no objects of this kind exist. Otherwise the 404 is not from the API server."""
        try:
            await confirm_absent(self._api, self._resource.path)
        except ClusterError as unconfirmed:
            await self._pause(unconfirmed)
            return
        self._listed = False
        self._lacking.add(self._resource.path)
        for version in (self._newest, self._newest.older):
            if version is not None and version.path not in self._lacking:
                self._use(version)
                return
        self._lacking.clear()
        if not self._absent:
            self._report(error)
            self._feed, nothing = ResourceFeed(self._resource, self._containment), WatchBatch()
            self._feed.complete(nothing)
            self._sink(nothing.deltas)
            self._announce()
            self._absent = True
            self._report_progress()
        self._use(self._newest)
        self._hooks.absent(self._resource.name)
        await self._sleep(self._pace.upgrade if self._resource.since else self._pace.absent)

    @property
    def _absence(self) -> str:
        """All resources of an API that comes with a release of Kubernetes are absent together."""
        path, name = self._resource.path, self._resource.name
        return path.rpartition("/")[0].removeprefix("/apis/") if self._resource.since else name

    def _report(self, error: ObjectGone) -> None:
        what, since = self._absence, self._resource.since
        if what in self._reported:
            return
        self._reported.add(what)
        if since:
            log.warning("%s: not used, the API server is older than Kubernetes %s", what, since)
        elif self._newest.older is not None:  # off by default in some releases
            log.info("%s: not used, the API server serves no known version of it", what)
        else:
            log.warning("%s: kind disabled until it is installed: %s", what, error)

    def _use(self, version: Resource) -> None:
        """Follow the resource in this version of its API."""
        if version is not self._resource:
            self._resource, self._feed = version, ResourceFeed(version, self._containment)

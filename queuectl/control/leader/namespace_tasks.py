"""Writes apart from those that the ledger owes the cluster: Events, requests for nodes, forced deletions, labels of namespaces.

A webhook of one namespace does not delay the writes of others: each namespace has one task at a time, and pauses after a slow write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import Final

from queuectl.control.leader.schedule import SLOW_SECONDS, Job
from queuectl.domain.containment import Boundary, Containment

WRITERS: Final = 8
"""Namespaces at a time."""
SLOW_PAUSE: Final = 15.0
"""Seconds in which a namespace has no task after a write that took longer than ``SLOW_SECONDS``."""


@dataclass(frozen=True, slots=True)
class NamespaceWrite:
    """A write to an object of a namespace. ``key``, ``ref``: of its unit of containment, and the object for messages."""

    namespace: str
    key: str
    ref: str
    send: Job


class NamespaceTasks:
    """At most one task of each namespace, and ``WRITERS`` of all. Each unexpected error concerns one write only."""

    def __init__(self, boundary: Boundary, containment: Containment) -> None:
        """``boundary``: of the units of containment."""
        self._boundary = boundary
        self._containment = containment
        self._busy: set[str] = set()  # namespaces
        self._due: dict[str, list[NamespaceWrite]] = {}  # by namespace
        self._begun: dict[str, float] = {}  # of namespaces: when their last task began
        self._paused: dict[str, float] = {}  # namespaces, until a time of the event loop

    @property
    def full(self) -> bool:
        """Whether no further task can start."""
        return len(self._busy) >= WRITERS

    def barred(self) -> AbstractSet[str]:
        """The namespaces in which no task can start."""
        now = asyncio.get_running_loop().time()
        self._paused = {name: until for name, until in self._paused.items() if until > now}
        return self._paused.keys() | self._busy

    def start_due(self, group: asyncio.TaskGroup, writes: Iterable[NamespaceWrite]) -> None:
        """Send those whose back-off has ended, and those of a namespace one after the other. They replace those that have not begun.

        Namespaces take turns: the one whose last task began the longest ago is the first.
        """
        barred, due = self.barred(), dict[str, list[NamespaceWrite]]()
        for write in writes:
            namespace = write.namespace
            set_aside = self._containment.waits(self._boundary, write.key, None, namespace)
            if namespace not in barred and set_aside is None:
                due.setdefault(namespace, []).append(write)
        known = due.keys() | barred
        self._begun = {name: at for name, at in self._begun.items() if name in known}
        self._due = dict(sorted(due.items(), key=lambda each: self._begun.get(each[0], -inf)))
        for _ in range(min(len(self._due), WRITERS - len(self._busy))):
            group.create_task(self._send_due(), name="send the writes of namespaces")

    async def _send_due(self) -> None:
        while self._due and not self.full:
            namespace = next(iter(self._due))
            await self._send(namespace, self._due.pop(namespace))

    def start(self, group: asyncio.TaskGroup, write: NamespaceWrite) -> None:
        """Send a write of a namespace that is not barred, while the tasks are not full."""
        self._busy.add(write.namespace)
        group.create_task(self._send(write.namespace, (write,)), name=f"write {write.ref}")

    async def _send(self, namespace: str, writes: Sequence[NamespaceWrite]) -> None:
        """Send these. After a slow one, the rest is dropped."""
        clock = asyncio.get_running_loop().time
        self._busy.add(namespace)
        self._begun[namespace] = clock()
        try:
            for write in writes:
                began = clock()
                with self._containment.unit(
                    self._boundary, write.key, write.ref, namespace=namespace
                ):
                    await write.send()
                if clock() - began > SLOW_SECONDS:
                    self._paused[namespace] = clock() + SLOW_PAUSE
                    return
        finally:
            self._busy.discard(namespace)

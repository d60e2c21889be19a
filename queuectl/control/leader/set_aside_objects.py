"""Stores the objects of units that are set aside, so that the defect can be found. Nothing depends on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.db.ports import LeaderStore
from queuectl.domain.containment import Boundary, SetAside
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry
from queuectl.domain.set_aside_objects import KEPT_OBJECTS, Received, SetAsideObject
from queuectl.objects.files.set_aside_objects import File, pack
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

PAUSE_SECONDS: Final = 10.0
"""Between two rounds of writes. A round writes at most as many objects as are kept."""
_REST: Final = 19.0
"""Seconds of rest for each second of redaction, so that a storm of large objects takes at most a twentieth of a core."""
_MOST_PODS: Final = 100
_KEEP: Final = "store set-aside objects"
_WITHOUT_OBJECT: Final = frozenset({Boundary.TASK, Boundary.QUESTION})
"""The snapshot of a question is stored as that of a plan that fails."""


class SetAsideObjects:
    """Of one leader. It stores the newest object of each unit, redacted."""

    def __init__(
        self, store: LeaderStore, mirror: Mirror, entry: Callable[[str], Entry | None], epoch: int
    ) -> None:
        """``entry(uid)``: of the ledger."""
        self._store = store
        self._mirror = mirror
        self._entry = entry
        self._epoch = epoch
        self._due: dict[tuple[Boundary, str], SetAside] = {}
        self._noted = asyncio.Event()

    def note(self, failure: SetAside) -> None:
        """Store the object of this unit soon. It does not wait, and raises nothing."""
        if failure.boundary in _WITHOUT_OBJECT:
            return
        unit = failure.boundary, failure.key
        self._due.pop(unit, None)
        self._due[unit] = failure
        if len(self._due) > KEPT_OBJECTS:
            del self._due[next(iter(self._due))]
        self._noted.set()

    async def run(self) -> None:
        """Store objects until canceled, first those of units that were set aside before this process led.

        Raises:
            Fenced: another leader has taken over.
        """
        for found in self._mirror.containment:
            self.note(found)
        while True:
            await self._noted.wait()
            self._noted.clear()
            due, self._due = list(self._due.values()), {}
            for found in due:
                began = time.perf_counter()
                with self._mirror.containment.unit(Boundary.TASK, _KEEP):
                    await self._keep(found)
                await asyncio.sleep(_REST * (time.perf_counter() - began))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _keep(self, failure: SetAside) -> None:
        given = self._mirror.containment.inputs.get(failure.boundary, failure.key)
        received = given if isinstance(given, Received) else None
        records = self._records(failure.key) if given is None else [given]
        if received is None and not records:
            return
        file = await asyncio.to_thread(pack, failure, received, records)
        try:
            await self._store.keep_set_aside(self._about(failure, file), file.content)
        except StoreUnavailable as error:
            log.warning("set_aside_object_not_stored", unit=failure.ref, error=str(error))

    def _about(self, failure: SetAside, file: File) -> SetAsideObject:
        return SetAsideObject(
            id=0,
            at=failure.since,
            epoch=self._epoch,
            boundary=str(failure.boundary),
            key=failure.key,
            ref=failure.ref,
            error=failure.error,
            place=failure.place,
            size=file.size,
            truncated=file.truncated,
        )

    def _records(self, uid: str) -> list[object]:
        """The job, its line of the ledger and its pods."""
        known = [one for one in (self._mirror.jobs.get(uid), self._entry(uid)) if one is not None]
        pods = sorted(self._mirror.pods_of(known[0]), key=lambda pod: pod.name) if known else []
        return [*known, *pods[:_MOST_PODS]]

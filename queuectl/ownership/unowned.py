"""Objects of ``queuectl.dev`` that do not own the configuration: a leader watches them only to write that in their status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from queuectl.domain.records import Delta
from queuectl.objects.configuration.owners import FollowedKind
from queuectl.ownership.observed import ObservedObjects
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_form import Decision

_BURST_SECONDS: Final = 1.0
"""Changes within this time are taken in together."""


class UnownedObjects:
    """Watches until canceled. Each leadership has its own. A kind that does not exist, or cannot be read, has no objects."""

    def __init__(
        self,
        source: ObjectSource,
        kinds: Collection[FollowedKind],
        clock: Callable[[], float],
        decided: Callable[[Decision], None],
    ) -> None:
        """Know nothing yet.

        Args:
            source: of the objects.
            kinds: of the objects.
            clock: unix seconds.
            decided: receives all objects after each change.
        """
        self._source = source
        self._clock = clock
        self._on_decision = decided
        self._observed = ObservedObjects(kinds)
        self._plurals = {kind.kind.kind: kind.plural for kind in kinds}
        self._wake = asyncio.Event()

    # ---- ObjectWatcher

    def changed(self, deltas: Sequence[Delta]) -> None:
        if self._observed.apply(deltas, self._clock()):
            self._wake.set()

    def failed(self, plural: str, why: str) -> None:
        if self._observed.fail(plural, why):
            self._wake.set()

    def answered(self, plural: str) -> None:
        if self._observed.answer(plural):
            self._wake.set()

    # ---- The task

    async def run(self) -> None:
        """Watch until canceled."""
        watching = asyncio.create_task(self._source.watch(self))
        watching.add_done_callback(lambda _: self._wake.set())
        try:
            while not watching.done():
                await self._wake.wait()
                self._wake.clear()
                self._hand_on()
                await asyncio.sleep(_BURST_SECONDS)
            watching.result()
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _hand_on(self) -> None:
        observed = self._observed
        known = {
            kind for kind in observed.known_kinds if self._plurals[kind] not in observed.faults
        }
        self._on_decision(Decision(observed.unread(), known, {}, frozenset(), 0, observed.status))

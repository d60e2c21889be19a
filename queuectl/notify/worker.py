"""Delivery by this replica: receivers are claimed, and each claim has its own task.

A receiver that is slow or down delays no other. Every replica runs a worker, the leader and the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import structlog

from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.notifications import Mode, NotificationStore
from queuectl.domain.pacing import doubling
from queuectl.notify.delivery import (
    CLAIM_SECONDS,
    LONGEST_RETRY,
    Ahead,
    ClaimLost,
    Delivery,
    Turn,
)
from queuectl.notify.receivers import Receiver
from queuectl.telemetry.notifications import NotificationMetrics

log = structlog.get_logger()

Key: TypeAlias = tuple[str, Mode]

POLL_SECONDS: Final = 1.0
EXTEND_SECONDS: Final = 10.0
MAX_TURNS: Final = 16  # at the same time
GRACE_SECONDS: Final = 0.4
"""For messages in flight when the process ends; afterwards they are canceled, and sent once more by another replica."""
RELEASE_SECONDS: Final = 0.4
MEASURE_SECONDS: Final = 15.0
FIRST_FAULT: Final = 15.0  # seconds; pause of a receiver after an unexpected error


class DeliveryWorker:
    """Claims receivers and delivers to them until it is canceled."""

    def __init__(
        self,
        store: NotificationStore,
        delivery: Delivery,
        receivers: Callable[[], Sequence[Receiver]],
        metrics: NotificationMetrics,
        containment: Containment,
        by: str,
    ) -> None:
        """Claim nothing yet.

        Args:
            store: the outbox.
            delivery: sends the messages of a claim.
            receivers: the receivers as they are configured now.
            metrics: of the process.
            containment: of the process.
            by: the name of this process in claims; it is unique.
        """
        self._store = store
        self._delivery = delivery
        self._receivers = receivers
        self._metrics = metrics
        self._containment = containment
        self._by = by
        self._tasks: dict[Key, tuple[Turn, asyncio.Task[None]]] = {}
        self._ahead: dict[Key, Ahead] = {}
        self._measured = 0.0

    async def run(self) -> None:
        """Deliver until this task is canceled. It ends within a second, and gives its claims back."""
        try:
            while True:
                if not await self._claimed():
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            await self._wind_down()

    async def _claimed(self) -> bool:
        """Claim one more receiver. False if none is due or the database does not answer."""
        receivers = {each.name: each for each in self._receivers()}
        self._metrics.meet(receivers)
        keys = [(name, mode) for name, each in receivers.items() for mode in each.modes]
        for key in self._ahead.keys() - keys:
            del self._ahead[key]
        free = [key for key in keys if key not in self._tasks]
        try:
            await self._measure(receivers)
            if not free or len(self._tasks) >= MAX_TURNS:
                return False
            progress = await self._store.claim(free, self._by, CLAIM_SECONDS)
        except StoreUnavailable as error:
            log.warning("notifications_not_claimed", error=str(error))
            return False
        if progress is None:
            return False
        key = (progress.receiver, progress.mode)
        ahead = self._ahead.setdefault(key, Ahead())
        turn = Turn(receivers[progress.receiver], progress, ahead)
        task = asyncio.create_task(self._turn(turn), name=f"notify {key[0]}")
        self._tasks[key] = turn, task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return True

    async def _turn(self, turn: Turn) -> None:
        """One turn, while the claim is kept. Its errors concern this receiver only."""
        unit = f"notifications to {turn.name}"
        keeping = asyncio.create_task(self._keep(turn))
        running = asyncio.create_task(self._delivery.run(turn))
        try:
            await asyncio.wait((keeping, running), return_when=asyncio.FIRST_COMPLETED)
            for task in (running, keeping):
                if task.done():
                    task.result()
            self._containment.passed(Boundary.TASK, unit)
        except ClaimLost:
            log.warning("notification_claim_lost", receiver=turn.name)
        except StoreUnavailable as error:
            log.warning("notifications_not_claimed", error=str(error))
        except Exception as error:  # noqa: BLE001 - contained
            failures = self._containment.failed(Boundary.TASK, unit, error).failures
            await self._rest(turn, doubling(FIRST_FAULT, LONGEST_RETRY, failures))
        finally:
            for task in (running, keeping):
                task.cancel()
            await asyncio.gather(running, keeping, return_exceptions=True)

    async def _rest(self, turn: Turn, seconds: float) -> None:
        mode, kept = turn.progress.mode, turn.kept_seconds
        try:
            await self._store.postpone(
                turn.name, mode, self._by, seconds, "internal error", keep_seconds=kept
            )
        except StoreUnavailable as error:
            log.warning("notifications_not_claimed", error=str(error))

    async def _keep(self, turn: Turn) -> None:
        """Keep a claim for as long as its task runs.

        Raises:
            ClaimLost: another replica has it, or the database has not answered for too long.
        """
        until = time.monotonic() + CLAIM_SECONDS
        while True:
            await asyncio.sleep(EXTEND_SECONDS)
            now = time.monotonic()
            try:
                mode = turn.progress.mode
                if not await self._store.extend(turn.name, mode, self._by, CLAIM_SECONDS):
                    raise ClaimLost
                until = now + CLAIM_SECONDS
            except StoreUnavailable as error:
                if now + EXTEND_SECONDS >= until:
                    raise ClaimLost from error

    async def _measure(self, receivers: dict[str, Receiver]) -> None:
        """Show how long the oldest events have waited."""
        if time.monotonic() < self._measured + MEASURE_SECONDS:
            return
        self._measured = time.monotonic()
        delays: dict[str, float] = {}
        for status in await self._store.statuses():
            receiver = receivers.get(status.receiver)
            if receiver is not None and status.oldest_age is not None:
                due = receiver.digest_seconds if status.mode is Mode.DIGEST else 0.0
                delay = max(0.0, status.oldest_age - due)
                delays[receiver.name] = max(delay, delays.get(receiver.name, 0.0))
        self._metrics.delayed(delays)

    async def _wind_down(self) -> None:
        """Let messages in flight finish for a short time, cancel the rest, and give the claims back."""
        turns = dict(self._tasks)
        for turn, _ in turns.values():
            turn.stopping = True
        if turns:
            await asyncio.wait([task for _, task in turns.values()], timeout=GRACE_SECONDS)
        for _, task in turns.values():
            task.cancel()
        kept = {key for key, ahead in self._ahead.items() if ahead.tried}
        releases = [
            asyncio.create_task(self._released(key, turns[key][1] if key in turns else None))
            for key in sorted(turns.keys() | kept)
        ]
        if releases:
            await asyncio.wait(releases, timeout=RELEASE_SECONDS)
            for release in releases:
                release.cancel()

    async def _released(self, key: Key, task: asyncio.Task[None] | None) -> None:
        """Give a claim back, after the end of its task."""
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        try:
            await self._store.release(*key, self._by)
        except StoreUnavailable as error:
            log.warning("notifications_not_claimed", error=str(error))

"""One turn of a receiver: its undelivered events are sent, and its cursor moves past them.

The cursor moves after the messages are sent. While messages after the cursor are sent, the claim stays with this process, which knows
them: another one would send them once more. It does so after a crash. The claim also stays while the message about dropped events
fails: the cursor moves in the meantime, and this process knows the id and the failures of the message.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

import structlog

from queuectl.domain.notifications import (
    LARGEST_BACKLOG,
    Event,
    Mode,
    NotificationStore,
    Progress,
    SubscriptionIndex,
    recipients,
)
from queuectl.domain.pacing import Buckets, doubling
from queuectl.notify.channels import Channel, MessageRefused, NotDelivered
from queuectl.notify.messages import Digest, Message, Messages
from queuectl.notify.receivers import Receiver, SmtpTarget
from queuectl.telemetry.notifications import NotificationMetrics

log = structlog.get_logger()

OpenChannel: TypeAlias = Callable[[Receiver], Channel]
Place: TypeAlias = tuple[str, str]  # id of a message, mail address

BATCH: Final = 200  # events of digests that are read at once
CHUNK: Final = 64  # messages without a known failure between two moves of the cursor
CLAIM_SECONDS: Final = 30.0
"""After which another replica takes over the receivers of one that has crashed."""
TURN_SECONDS: Final = 30.0
"""After which a receiver with more events gives its place to one that waits."""
FIRST_RETRY: Final = 2.0  # seconds
LONGEST_RETRY: Final = 300.0
MOST_FAILURES: Final = 3  # in one chunk, after which no further message of it is sent
MOST_ATTEMPTS: Final = 4
"""For a message that fails while others are delivered: then it is skipped."""
UNREADABLE_SECONDS: Final = 10.0
"""Pause of a receiver whose next events only a newer release can read."""
DIGEST_ROWS: Final = LARGEST_BACKLOG
LOOK_SECONDS: Final = 60.0
"""Pause of a digest without events."""
NO_EVENT: Final = 0
"""Instead of the id of an event, for the message about dropped events: the cursor passes it."""


class ClaimLost(Exception):
    """Another replica delivers to this receiver now."""


@dataclass(slots=True)
class _Send:
    """One message to one place. ``event``: id in the outbox, or NO_EVENT. ``kept``: it is not skipped, however often it fails."""

    event: int
    message: Message
    to: str
    kept: bool = False
    sent: bool = False
    skipped: bool = False
    failure: NotDelivered | None = None

    @property
    def place(self) -> Place:
        return self.message.id, self.to

    @property
    def settled(self) -> bool:
        return self.sent or self.skipped


@dataclass(slots=True)
class Trial:
    """The outcome of a message so far. ``failures``: while others were delivered."""

    event: int
    sent: bool = False
    skipped: bool = False
    failures: int = 0


@dataclass(slots=True)
class Ahead:
    """The memory of this process about the messages after the cursor of a receiver.

    Attributes:
        tried: the messages that were sent or skipped, or that failed for another reason than a fault of the whole receiver.
        failing: mail addresses that were refused at the last try.
        suspected: mail addresses to which messages failed and, since then, none was sent.
        notice: the message about dropped events, until it is sent or skipped.
        digest_end: id of the last event of the digests that are being sent; None if none are. Later events are for the next ones.
    """

    tried: dict[Place, Trial] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    suspected: set[str] = field(default_factory=set)
    notice: Message | None = None
    digest_end: int | None = None

    def doubts(self, send: _Send) -> int:
        """How doubtful a message is that is not settled.

        2 if it failed before or its address was refused, 1 if other messages to its address failed, otherwise 0.
        """
        if send.place in self.tried or send.to in self.failing:
            return 2
        return int(send.to in self.suspected)

    def needed(self, line: int) -> bool:
        """Whether this process must go on: a message after this line was sent, or the one about dropped events failed by itself."""
        return any(
            each.event == NO_EVENT or (each.sent and each.event > line)
            for each in self.tried.values()
        )

    def forget(self, line: int) -> None:
        """Forget messages that the cursor has passed."""
        self.tried = {
            place: each
            for place, each in self.tried.items()
            if each.event > line or each.event == NO_EVENT
        }

    def replace_notice(self, notice: Message | None) -> None:
        """Take a new message about dropped events. One with the same text keeps its id, though the cursor has moved."""
        if notice is None or self.notice is None or notice.text != self.notice.text:
            self.notice = notice
            self.tried = {
                place: each for place, each in self.tried.items() if each.event != NO_EVENT
            }


@dataclass(slots=True)
class Turn:
    """One claim of one receiver.

    Attributes:
        receiver: where messages go.
        progress: of the receiver, as this replica last saw it.
        ahead: kept from turn to turn.
        stopping: no further message begins.
    """

    receiver: Receiver
    progress: Progress
    ahead: Ahead = field(default_factory=Ahead)
    stopping: bool = False

    @property
    def name(self) -> str:
        return self.receiver.name

    @property
    def kept_seconds(self) -> float:
        """For how long the claim is kept after this delivery."""
        return CLAIM_SECONDS if self.ahead.needed(self.progress.line) else 0.0


class Delivery:
    """Delivers the events of claimed receivers."""

    def __init__(
        self,
        store: NotificationStore,
        messages: Messages,
        open_channel: OpenChannel,
        metrics: NotificationMetrics,
        by: str,
    ) -> None:
        """Use ``by`` as the name of this process in claims; it is unique."""
        self._store = store
        self._messages = messages
        self._open = open_channel
        self._metrics = metrics
        self._by = by
        self._logged = Buckets(per_second=0.05, burst=5)

    async def run(self, turn: Turn) -> None:
        """Send the undelivered events. Give the claim back, unless this process must go on.

        Raises:
            ClaimLost: another replica has the claim.
            StoreUnavailable: the database does not answer.
        """
        channel = self._open(turn.receiver)
        try:
            if turn.progress.mode is Mode.DIGEST:
                await self._digest(turn, channel)
            else:
                await self._immediate(turn, channel)
        except NotDelivered as error:
            await self._postpone(turn, error)
        finally:
            await channel.close()

    async def _end(self, turn: Turn) -> None:
        if not turn.kept_seconds:
            await self._store.release(turn.name, turn.progress.mode, self._by)

    # ---- Events one by one

    async def _immediate(self, turn: Turn, channel: Channel) -> None:
        bounds, end = turn.receiver.bounds, time.monotonic() + TURN_SECONDS
        begun = False
        while not turn.stopping and time.monotonic() < end:
            await self._drop(turn, bounds.max_age, bounds.max_rows)
            begun |= turn.progress.dropped > 0
            notice = await self._notice(turn)
            sends, last = await self._sends(turn)
            if last == turn.progress.line and not notice:
                if not begun:
                    await self._pause(turn, UNREADABLE_SECONDS)
                    return
                break
            begun = True
            await self._chunk(turn, channel, notice, sends, last)
        await self._end(turn)

    async def _chunk(
        self,
        turn: Turn,
        channel: Channel,
        notice: Sequence[_Send],
        sends: Sequence[_Send],
        last: int,
    ) -> None:
        """Send messages and move the cursor.

        ``notice``: as :meth:`_notice` returns it. ``last``: the id of the last event whose messages are among ``sends``.
        """
        try:
            await self._pump(turn, channel, [*notice, *sends])
        finally:
            line = self._line(sends, last)
            delivered = sum(each.sent and each.event <= line for each in sends)
            await self._advance(turn, notice, line, delivered)
        self._raise_failure([*notice, *sends])

    @staticmethod
    def _raise_failure(sends: Sequence[_Send]) -> None:
        failure = next((each.failure for each in sends if not each.settled and each.failure), None)
        if failure is not None:
            raise failure

    async def _sends(self, turn: Turn) -> tuple[list[_Send], int]:
        """The messages of the first events, and the id of the last of those events.

        About :data:`CHUNK` of them have no known failure. Those that fail keep no later message back, however many they are.
        """
        subscriptions = SubscriptionIndex(await self._store.subscriptions(turn.name))
        sends: list[_Send] = []
        line, hopeful = turn.progress.line, 0
        while hopeful < CHUNK and not turn.stopping:
            events = await self._store.events(line, CHUNK)
            if not events:
                break
            for event, to in await self._places(turn, events, subscriptions):
                message = self._message(turn, event) if to else None
                if message is not None:
                    added = [_Send(event.id, message, each) for each in to]
                    hopeful += sum(not turn.ahead.doubts(each) for each in added)
                    sends += added
                line = event.id
                if hopeful >= CHUNK:
                    break
            await asyncio.sleep(0)
        return sends, line

    async def _places(
        self, turn: Turn, events: Sequence[Event], subscriptions: SubscriptionIndex
    ) -> list[tuple[Event, Sequence[str]]]:
        """Where the message of each event goes. Two users can have one address."""
        receiver = turn.receiver
        users = [
            [
                each.user
                for each in recipients(event, receiver.audience, subscriptions.about(event))
                if each.mode is Mode.IMMEDIATE
            ]
            for event in events
        ]
        addresses = await self._addresses(receiver, chain.from_iterable(users))
        return [
            (event, tuple(dict.fromkeys(addresses[user] for user in own if user in addresses)))
            for event, own in zip(events, users, strict=True)
        ]

    def _message(self, turn: Turn, event: Event) -> Message | None:
        """The message of an event; None if it cannot be made: it delays no other."""
        try:
            return self._messages.of_event(event)
        except Exception as error:  # noqa: BLE001 - one event hurts no other
            self._skipped(turn, event.id, f"{type(error).__name__} in the message")
            return None

    async def _addresses(self, receiver: Receiver, users: Iterable[str]) -> Mapping[str, str]:
        """Where the messages for these users go, without users that have no address."""
        distinct = set(users)
        if not isinstance(receiver.target, SmtpTarget):
            return dict.fromkeys(distinct, "")
        own = {"": receiver.target.to} if receiver.target.to else {}
        distinct.discard("")
        return {**await self._store.addresses(sorted(distinct)), **own} if distinct else own

    async def _pump(self, turn: Turn, channel: Channel, sends: Sequence[_Send]) -> None:
        """Send messages over a channel, several at a time, until too many fail or it must stop.

        The most doubtful ones are the last ones. An address that is refused gets no further message.
        """
        for each in sends:
            if (trial := turn.ahead.tried.get(each.place)) is not None:
                each.sent, each.skipped = trial.sent, trial.skipped
        left = sorted((each for each in sends if not each.settled), key=turn.ahead.doubts)
        waiting = iter(left[: 2 * CHUNK])
        failures: list[NotDelivered] = []
        closed: set[str] = set()

        async def lane() -> None:
            for each in waiting:
                if turn.stopping or len(failures) >= MOST_FAILURES:
                    return
                if each.to in closed:
                    continue
                await self._send(turn, channel, each)
                if each.failure is not None:
                    failures.append(each.failure)
                    if each.failure.address:
                        closed.add(each.to)
                    if each.failure.whole:
                        failures.extend([each.failure] * MOST_FAILURES)

        lanes = [asyncio.create_task(lane()) for _ in range(min(channel.at_once, len(sends)))]
        try:
            await asyncio.gather(*lanes)
        finally:
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            self._judge(turn, sends, left)

    def _judge(self, turn: Turn, sends: Sequence[_Send], left: Sequence[_Send]) -> None:
        """Count what was sent, and skip a message that fails again and again while others do not.

        ``left``: the sends that were not settled before.
        """
        ahead = turn.ahead
        new = [each for each in left if each.settled]
        for each in new:
            ahead.tried[each.place] = Trial(each.event, each.sent, each.skipped)
        events = sum(each.sent and each.event != NO_EVENT for each in new)
        self._metrics.delivered(turn.name, events)
        failed = [each for each in left if each.failure is not None and not each.failure.whole]
        ahead.failing |= {each.to for each in failed if each.failure and each.failure.address}
        ahead.suspected |= {each.to for each in failed if each.to}
        sent = {each.to for each in new if each.sent}
        ahead.failing -= sent
        ahead.suspected -= sent
        # The receiver can break after a delivery, so only a new one counts. The digests of one time have no later ones to try.
        signs = sends if turn.progress.mode is Mode.DIGEST else new
        blamed = any(each.sent for each in signs)
        for each in failed:
            trial = ahead.tried.setdefault(each.place, Trial(each.event))
            trial.failures += blamed
            if trial.failures >= MOST_ATTEMPTS and not each.kept:
                each.skipped = trial.skipped = True
                self._skipped(turn, each.event, str(each.failure))

    async def _send(self, turn: Turn, channel: Channel, send: _Send) -> None:
        try:
            await channel.send(send.message, send.to)
        except NotDelivered as error:
            send.failure = error
            self._metrics.failed(turn.name, 1)
        except MessageRefused as error:
            send.skipped = True
            self._skipped(turn, send.event, str(error))
        except Exception as error:  # noqa: BLE001 - one message hurts no other
            send.skipped = True
            self._skipped(turn, send.event, f"{type(error).__name__} in the message")
        else:
            send.sent = True

    @staticmethod
    def _line(sends: Sequence[_Send], last: int) -> int:
        """The id up to which all messages are settled."""
        left = [each.event for each in sends if not each.settled]
        return min(left) - 1 if left else last

    # ---- Digests

    async def _digest(self, turn: Turn, channel: Channel) -> None:
        receiver = turn.receiver
        max_age = receiver.bounds.max_age + receiver.digest_seconds
        await self._drop(turn, max_age, DIGEST_ROWS)
        notice = await self._notice(turn)
        digests, last = await self._collected(turn)
        first = min(
            (digest.first for digest in digests.values() if digest.first is not None),
            key=lambda event: event.id,
            default=None,
        )
        if first is None:
            turn.ahead.digest_end = None  # the events before it can be dropped in the meantime
            await self._chunk(turn, channel, notice, (), last)
            await self._pause(turn, min(LOOK_SECONDS, receiver.digest_seconds))
            return
        # Both times are those of the database, so the clock of this machine does not matter.
        wait = first.at + receiver.digest_seconds - turn.progress.claimed_at
        # A clock that was far ahead, and was set back, must not postpone the digest for years.
        if 0 < wait <= 2 * receiver.digest_seconds:
            await self._chunk(turn, channel, notice, (), first.id - 1)
            await self._pause(turn, min(wait, receiver.digest_seconds))
            return
        turn.ahead.digest_end = last
        # The next digests are due one period later. Until then, one that fails delays no other.
        kept = -receiver.digest_seconds < wait <= 0
        addresses = await self._addresses(receiver, digests)
        sends = [
            _Send(last, self._messages.of_digest(turn.name, digest, user), addresses[user], kept)
            for user, digest in digests.items()
            if user in addresses
        ]
        await self._pump(turn, channel, [*notice, *sends])
        if all(each.settled for each in sends):
            delivered = sum(digests[user].counts.total() for user in digests if user in addresses)
            await self._advance(turn, notice, last, delivered)
            turn.ahead.digest_end = None
        else:
            await self._advance(turn, notice, turn.progress.line, 0)
        self._raise_failure([*notice, *sends])
        await self._end(turn)

    async def _collected(self, turn: Turn) -> tuple[dict[str, Digest], int]:
        """The digests by user, and the id of the last event that was read."""
        subscriptions = SubscriptionIndex(await self._store.subscriptions(turn.name))
        digests: dict[str, Digest] = {}
        line, end = turn.progress.line, turn.ahead.digest_end
        while not turn.stopping:
            events = await self._store.events(line, BATCH)
            if end is not None:
                events = [event for event in events if event.id <= end]
            for event in events:
                for each in recipients(event, turn.receiver.audience, subscriptions.about(event)):
                    if each.mode is Mode.DIGEST:
                        digests.setdefault(each.user, Digest()).add(event)
            if not events:
                break
            line = events[-1].id
            await asyncio.sleep(0)
        return digests, line

    # ---- Bounds and progress

    async def _drop(self, turn: Turn, max_age: float, max_rows: int) -> None:
        mode, before = turn.progress.mode, turn.progress.dropped
        progress = await self._store.drop_beyond(
            turn.name, mode, self._by, max_age=max_age, max_rows=max_rows
        )
        if progress is None:
            raise ClaimLost
        turn.progress = progress
        turn.ahead.forget(progress.line)
        if progress.dropped > before:
            count = progress.dropped - before
            self._metrics.dropped(turn.name, count)
            if not self._logged.take(turn.name):
                log.warning("notifications_dropped", receiver=turn.name, count=count)

    async def _notice(self, turn: Turn) -> Sequence[_Send]:
        """The message about dropped events. Empty if none were dropped, or if each place belongs to one user: they count as reported."""
        target = turn.receiver.target
        to = target.to if isinstance(target, SmtpTarget) else ""
        if turn.progress.dropped and isinstance(target, SmtpTarget) and not to:
            await self._moved(turn, turn.progress.line, 0, reported=turn.progress.dropped)
        progress = turn.progress
        made = self._messages.of_dropped(progress, time.time()) if progress.dropped else None
        turn.ahead.replace_notice(made)
        return [_Send(NO_EVENT, turn.ahead.notice, to)] if turn.ahead.notice else []

    async def _advance(
        self, turn: Turn, notice: Sequence[_Send], line: int, delivered: int
    ) -> None:
        """Move the cursor up to a line. The dropped events count as reported once their message is settled."""
        reported = turn.progress.dropped if any(each.settled for each in notice) else 0
        if reported or line > turn.progress.line:
            await self._moved(turn, line, delivered, reported=reported)
        if reported:
            turn.ahead.replace_notice(None)

    async def _moved(self, turn: Turn, line: int, delivered: int, *, reported: int = 0) -> None:
        progress = turn.progress
        kept = await self._store.settle(
            turn.name,
            progress.mode,
            self._by,
            line,
            delivered=delivered,
            reported=reported,
        )
        if not kept:
            raise ClaimLost
        dropped = progress.dropped - reported
        turn.progress = Progress(
            progress.receiver,
            progress.mode,
            line,
            0,
            dropped,
            progress.dropped_since if dropped else None,
            progress.dropped_until if dropped else None,
        )

    async def _pause(self, turn: Turn, seconds: float) -> None:
        await self._store.postpone(turn.name, turn.progress.mode, self._by, seconds, "")

    async def _postpone(self, turn: Turn, error: NotDelivered) -> None:
        failures = turn.progress.failures + 1
        seconds = doubling(FIRST_RETRY, LONGEST_RETRY, failures) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        seconds = max(seconds, error.retry_after or 0.0)
        if not self._logged.take(turn.name):
            log.warning(
                "notification_not_delivered",
                receiver=turn.name,
                error=str(error),
                failures=failures,
                seconds=round(seconds),
            )
        mode, kept = turn.progress.mode, turn.kept_seconds
        await self._store.postpone(
            turn.name, mode, self._by, seconds, str(error), keep_seconds=kept
        )

    def _skipped(self, turn: Turn, event: int, reason: str) -> None:
        self._metrics.refused(turn.name, 1)
        if not self._logged.take(turn.name):
            log.warning("notification_refused", receiver=turn.name, event_id=event, reason=reason)

"""Sends the writes that entries of the ledger owe the cluster, with a limit on writes at a time, by turns between ClusterQueues.

A restart needs none of its state. The state is the version for which to wait: an answered write is *assumed* until the watch shows
the object at that version, so that it is not sent twice. A write that failed has a time before which it is not sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from queuectl.control.leader.schedule import TURN_WRITES, Retries, SlowWrites, Turns
from queuectl.control.ports import Clock, Cluster
from queuectl.domain.containment import Boundary, Containment, SetAside
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.ledger import Purpose
from queuectl.lifecycle.outstanding_writes import POD, Write
from queuectl.lifecycle.refusals import Refusals, WriteOutcome, outcome_of
from queuectl.state.usage import SentPin, SentPins
from queuectl.telemetry.metrics import MetricsRecorder, WriteResult

log = structlog.get_logger()


@dataclass(slots=True)
class _Batch:
    """The writes that a workload owed when a worker took it.

    Attributes:
        writes: in the order in which they are sent.
        sent: the number of writes that a worker has taken.
        answered: the number of sent writes that have ended.
        accepted: whether no owed write is put off, and each answered one took effect.
        held: why the workload is not tried now.
        known: whether it is known what the workload owes.
        send_at: the first time (unix seconds) of the writes that are owed later; None = all are owed now.
    """

    writes: list[Write] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    accepted: bool = False
    held: SetAside | None = None
    known: bool = True
    send_at: float | None = None


class Actuator:
    """Workers over the workloads that can owe writes. Each worker sends one write at a time; a workload has one batch at a time."""

    def __init__(
        self,
        cluster: Cluster,
        outstanding_writes: Callable[[str], list[Write] | None],
        metrics: MetricsRecorder,
        in_flight: int,
        placed: Callable[[str], None] = lambda _: None,
        *,
        cluster_queue: Callable[[str], str] = lambda _: "",
        refusals: Refusals | None = None,
        pins: SentPins | None = None,
        refused: Callable[[str], None] = lambda _: None,
        unpinned: Callable[[str], None] = lambda _: None,
        clock: Clock = time.time,
        containment: Containment | None = None,
    ) -> None:
        """Send nothing yet.

        Args:
            cluster: where writes go.
            outstanding_writes: of a workload, by uid; None = not known now: the workload is added again when they are.
            metrics: count the writes.
            in_flight: writes at a time.
            placed: called with the uid of a workload each time one of its pods was released to its node.
            cluster_queue: of a workload, by uid. ClusterQueues take turns.
            refusals: stores the denials of the API server.
            pins: stores the pins that are sent.
            refused: called with the uid of a workload each time one of its writes was denied.
            unpinned: called with the uid of a pod that a pin can no longer take to its node.
            clock: unix seconds.
            containment: of the process; None = its own.
        """
        self._containment = containment or Containment(clock)
        self._cluster = cluster
        self._outstanding_writes = outstanding_writes
        self._metrics = metrics
        self._placed = placed
        self._refusals = refusals if refusals is not None else Refusals()
        self._pins = pins if pins is not None else SentPins()
        self._refused = refused
        self._unpinned = unpinned
        self._clock = clock
        self._workers = in_flight
        self._cluster_queue = cluster_queue
        self._turns = Turns()
        self._slow = SlowWrites(max(1, in_flight // 2))
        self._waiting: set[str] = set()
        self._busy: dict[str, _Batch] = {}
        self._again: set[str] = set()
        # Of each workload: version of each object that an answered write made, until the watch shows the write's effect.
        self._assumed: dict[str, dict[str, int]] = {}
        self._retries = Retries()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the next retry, by workload
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def quiet(self) -> bool:
        """Whether no write waits for a worker or is in progress, apart from slow ones."""
        in_progress = sum(batch.sent - batch.answered for batch in self._busy.values())
        return not self._turns and in_progress == self._slow.in_progress

    async def settled(self) -> None:
        """Return when no write is queued or in progress."""
        await self._settled.wait()

    def poke(self, uids: Iterable[str], *, changed: bool = False) -> None:
        """Add workloads that can owe writes now. ``changed``: they owe other writes than before, so those that are not sent yet are dropped."""
        for uid in uids:
            if uid in self._busy:
                self._again.add(uid)
                if changed:
                    self._drop_unsent(uid, self._busy[uid])
            elif uid not in self._waiting:
                self._settled.clear()
                self._waiting.add(uid)
                self._turns.add(self._cluster_queue(uid), uid)

    async def run(self) -> None:
        """Send until canceled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"actuate-{number}")

    async def _work(self) -> None:
        while True:
            uid = await self._turns.take()
            batch = self._busy.get(uid) or self._begin(uid)
            try:
                if batch.sent < len(batch.writes):
                    await self._send_next(uid, batch)
            finally:
                if batch.answered == len(batch.writes):
                    self._end(uid, batch)

    def _begin(self, uid: str) -> _Batch:
        self._waiting.discard(uid)
        batch = self._busy[uid] = _Batch(held=self._containment.waits(Boundary.WRITE, uid))
        if batch.held is None:
            try:
                outstanding_writes = self._outstanding_writes(uid)
                if outstanding_writes is None:
                    batch.known = False
                else:
                    now = self._clock()
                    batch.send_at = min(
                        (w.send_at for w in outstanding_writes if w.send_at > now), default=None
                    )
                    owed = [w for w in outstanding_writes if w.send_at <= now]
                    batch.writes, all_owed = self._ready(uid, owed)
                    batch.accepted = all_owed and batch.send_at is None
            except Exception as error:  # noqa: BLE001 - contained
                batch.held = self._containment.failed(Boundary.WRITE, uid, error)
        return batch

    async def _send_next(self, uid: str, batch: _Batch) -> None:
        """Send one write. The next one of the workload is added to those that wait, for any worker."""
        write = batch.writes[batch.sent]
        if self._slow.full(write):
            self._slow.put_off(uid)
            return
        batch.sent += 1
        if batch.sent < len(batch.writes):
            goes_on = batch.sent % TURN_WRITES != 0
            self._turns.add(self._cluster_queue(uid), uid, first=goes_on)
        accepted = False
        try:
            with self._slow.sending(write):
                accepted = await self._send(uid, write)
        except BaseException as error:  # also a cancellation: the request can take effect later
            self._without_effect(uid, write, WriteOutcome.UNKNOWN)
            if not isinstance(error, Exception):
                raise
            if batch.held is None:
                batch.held = self._containment.failed(Boundary.WRITE, uid, error)
        finally:
            batch.answered += 1
            batch.accepted &= accepted
            for other in reversed(self._slow.released()):
                self._turns.add(self._cluster_queue(other), other, first=True)

    def _drop_unsent(self, uid: str, batch: _Batch) -> None:
        """A gang that is stopped, or that a repair gives other nodes, does not first get all its pins."""
        for write in batch.writes[batch.sent :]:
            self._without_effect(uid, write, WriteOutcome.OUTDATED)
            batch.accepted = False
        del batch.writes[batch.sent :]

    def _without_effect(
        self, uid: str, write: Write, outcome: WriteOutcome, error: ClusterError | None = None
    ) -> None:
        """Record that a write has no effect, or none that is known, and report a denial. ``error``: the answer, if there is one."""
        pin = _pin_of(write)
        if pin is not None and self._pins.ended(
            write.uid, pin, unknown=outcome is WriteOutcome.UNKNOWN
        ):
            self._unpinned(write.uid)
        version = error.version if isinstance(error, ClusterUnavailable) else None
        why = "" if error is None else str(error)
        if self._refusals.ended(uid, write, outcome, why, self._clock(), version):
            log.warning("write_refused", object=f"{write.namespace}/{write.name}", error=why)
            self._refused(uid)

    def _end(self, uid: str, batch: _Batch) -> None:
        del self._busy[uid]
        if batch.held is not None:
            self._wake(uid, self._from_now(batch.held.until))
        elif not batch.known:  # what is known of sent writes stays, and a retry that is due waits
            self._wake(uid, None)
        else:
            self._containment.passed(Boundary.WRITE, uid)
            if batch.accepted:
                self._refusals.accepted(uid)
            again = self._retries.next_of(uid)
            if batch.send_at is not None:
                at = self._from_now(batch.send_at)
                again = at if again is None else min(at, again)
            self._wake(uid, again)
        if uid in self._again:
            self._again.discard(uid)
            self.poke((uid,))
        if not self._waiting and not self._busy:
            self._settled.set()

    def _from_now(self, at: float) -> float:
        """Unix seconds as a time of the event loop."""
        return asyncio.get_running_loop().time() + max(0.0, at - self._clock())

    def _ready(self, uid: str, outstanding_writes: list[Write]) -> tuple[list[Write], bool]:
        """The owed writes that can be sent now, and whether they are all owed writes."""
        known = self._assumed.pop(uid, {})
        assumed = {
            w.uid: known[w.uid] for w in outstanding_writes if known.get(w.uid, 0) > w.version
        }
        if assumed:
            self._assumed[uid] = assumed
        owed = [write for write in outstanding_writes if write.uid not in assumed]
        writes = self._retries.ready(uid, owed, asyncio.get_running_loop().time())
        for write in writes:
            self._refusals.sending(uid, write)
            if (pin := _pin_of(write)) is not None:
                self._pins.sending(write.uid, pin)
        return writes, len(writes) == len(owed)

    def _wake(self, uid: str, at: float | None) -> None:
        """Set the one timer of a workload to this time of the event loop; None = it needs no retry."""
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        if at is not None:
            self._timers[uid] = asyncio.get_running_loop().call_at(at, self.poke, (uid,))

    async def _send(self, uid: str, write: Write) -> bool:
        """Send one write. Returns whether it took effect."""
        began = time.perf_counter()
        outcome, metric = WriteOutcome.TOOK_EFFECT, WriteResult.OK
        try:
            version = await self._patch(write)
        except ClusterError as error:
            outcome, metric = outcome_of(error), _result_of(error)
            self._without_effect(uid, write, outcome, error)
            asked = error.retry_after if isinstance(error, ClusterUnavailable) else None
            self._retries.failed(uid, write, outcome, asyncio.get_running_loop().time(), asked)
        else:
            self._assumed.setdefault(uid, {})[write.uid] = version
            self._refusals.ended(uid, write, outcome)
            self._retries.succeeded(uid, write)
            if write.purpose is Purpose.PIN:
                self._placed(uid)
        self._metrics.wrote(write.resource, metric, time.perf_counter() - began)
        return outcome is WriteOutcome.TOOK_EFFECT

    async def _patch(self, write: Write) -> int:
        """Send it. If it is denied, send it again without its optional parts. Returns the object's new version."""
        try:
            return await self._patch_with(write)
        except WriteRefused:
            bare = write.bare()
            if bare is None:
                raise
            return await self._patch_with(bare)

    async def _patch_with(self, write: Write) -> int:
        if write.evicts:
            await self._cluster.evict_pod(write.namespace, write.name, write.uid, write.version)
            return write.version + 1
        if write.deletes:
            await self._cluster.stop_pod(write.namespace, write.name, write.uid)
            return write.version + 1
        if write.resource == POD:
            return await self._cluster.patch_pod(write.namespace, write.name, write.patch)
        return await self._cluster.patch_job(
            write.resource, write.namespace, write.name, write.patch
        )

    def forget(self, uid: str) -> None:
        """Forget a deleted object."""
        if uid in self._busy:
            self._again.add(uid)  # the state of its last writes is removed later
        self._assumed.pop(uid, None)
        self._retries.forget(uid)
        self._wake(uid, None)
        self._refusals.forget(uid)


def _pin_of(write: Write) -> SentPin | None:
    if write.purpose is not Purpose.PIN or write.node is None:
        return None
    return SentPin(write.node, write.version, write.attempt)


def _result_of(error: ClusterError) -> WriteResult:
    match error:
        case WriteConflict():
            return WriteResult.CONFLICT
        case ObjectGone():
            return WriteResult.GONE
        case ClusterUnavailable():
            return WriteResult.UNAVAILABLE
        case _:
            return WriteResult.REFUSED

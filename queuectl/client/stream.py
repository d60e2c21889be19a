"""The event stream: its blocks, and the position from which it continues after a break. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from queuectl.client import requests
from queuectl.client.answers import Json, parsed
from queuectl.client.errors import (
    BadAnswer,
    ClientError,
    InvalidOption,
    NoAnswer,
    WaitTimeout,
    WorkloadEnded,
)
from queuectl.client.requests import UNFINISHED, Request
from queuectl.client.retries import passes

if TYPE_CHECKING:
    from queuectl.client.types import EventJson, WorkloadJson

RETRY_SECONDS: Final = 2.0
OUTAGE_SECONDS: Final = 60.0  # without an answer, until a stream fails
SILENCE_SECONDS: Final = 45.0  # the server sends a sign of life every 15 s
LARGEST_BLOCK: Final = 16 * 2**20  # bytes
_SHORTER: Final = 0.9
_DIGITS: Final = 19
_FINISHED: Final = "Finished"

Clock = Callable[[], float]


@dataclass(frozen=True)
class StreamEvent:
    """One block of a stream.

    Attributes:
        id: position in the stream, from which a client continues.
        event: ``step``, ``cut``, ``reset`` or ``end``; empty for the first block and for signs of life.
        data: for a step, the change of one workload (:class:`queuectl.client.types.EventJson`).
    """

    id: int
    event: str
    data: Json


class EventDecoder:
    """Blocks from the bytes of one connection (HTML §9.2)."""

    def __init__(self, url: str, clock: Clock = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._buffer = b""
        self._fields: dict[str, str] = {}
        self._size = 0
        self._completed = clock()

    def add(self, chunk: bytes) -> Iterator[StreamEvent]:
        """The blocks that this part completes.

        Raises:
            BadAnswer: a block is too large or is none of queuectl.
            NoAnswer: bytes arrive, but for a long time no complete block.
        """
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        self._size += len(chunk)
        for line in lines:
            if stripped := line.rstrip(b"\r"):
                name, _, value = stripped.decode(errors="replace").partition(":")
                self._fields[name] = value.removeprefix(" ")
            elif self._fields:
                fields, self._fields = self._fields, {}
                self._size, self._completed = len(self._buffer), self._clock()
                yield self._block(fields)
        if self._size > LARGEST_BLOCK:
            raise BadAnswer(f"{self._url}: an event is larger than {LARGEST_BLOCK // 2**20} MiB")
        if self._clock() - self._completed > SILENCE_SECONDS:
            raise NoAnswer(f"{self._url}: no complete event for {SILENCE_SECONDS:.0f} s")

    def _block(self, fields: Mapping[str, str]) -> StreamEvent:
        number = fields.get("id", "")
        if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS):
            raise BadAnswer(f"{self._url}: an event without an id, so it is not from queuectl")
        data = parsed(fields["data"].encode(), self._url) if fields.get("data") else {}
        return StreamEvent(int(number), fields.get("event", ""), data)


class ExistingSteps:
    """The steps of a stream that does not follow. Without its last block, some can be missing."""

    def __init__(self) -> None:
        self._steps: list[EventJson] = []
        self._last = StreamEvent(0, "", {})

    def add(self, block: StreamEvent) -> None:
        """The next block."""
        self._last = block
        if block.event == "step":
            self._steps.append(requests.event(block.data))

    def complete(self) -> list[EventJson]:
        """All steps. Raises NoAnswer if the stream has ended before."""
        if self._last.event != "end":
            why = self._last.data.get("reason") or "the stream ended before its last event"
            raise NoAnswer(f"{requests.EVENTS}: {why}")
        return self._steps


class Following:
    """A stream over all its connections: each continues from the last block of the one before.

    Attributes:
        pause: seconds before the next connection.
    """

    def __init__(
        self,
        after: int,
        filters: Mapping[str, Any],
        deadline: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """``deadline``: a time of the clock at which the stream ends with WaitTimeout; None = never."""
        self._after = after
        self._filters = filters
        self._deadline = deadline
        self._clock = clock
        self._answered = clock()
        self._silence = SILENCE_SECONDS
        self.pause = 0.0

    def request(self) -> Request[None]:
        """The request of the next connection."""
        return requests.events(self._after, self._filters, follow=True)

    def silence(self) -> float:
        """Seconds after which a connection without a block has failed. Raises WaitTimeout."""
        self._silence, self.pause = SILENCE_SECONDS, RETRY_SECONDS
        if self._deadline is not None:
            self._silence = min(self._silence, self._left(self._deadline))
        return self._silence

    def received(self, block: StreamEvent) -> bool:
        """Whether the caller gets this block. Raises WaitTimeout."""
        self._after, self._answered = block.id, self._clock()
        if self._deadline is not None:
            self._left(self._deadline)
        return block.event in ("step", "reset")

    def shortens(self) -> bool:
        """Whether a new connection is necessary to end in time: a connection waits equally long for each block."""
        if self._deadline is None or self._left(self._deadline) > _SHORTER * self._silence:
            return False
        self.pause = 0.0
        return True

    def ended(self) -> None:
        """The server has closed the connection. Raises NoAnswer if it has sent nothing for a minute."""
        if self._clock() - self._answered > OUTAGE_SECONDS:
            raise NoAnswer("the server closes each event stream without an event")

    def interrupted(self, error: ClientError) -> None:
        """Raise the error unless another connection can continue. Raises WaitTimeout."""
        passing = passes(error)
        if self._deadline is not None and passing:
            self.pause = min(self.pause, self._left(self._deadline))
        if not passing or self._clock() - self._answered > OUTAGE_SECONDS:
            raise error

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise WaitTimeout("the time of the wait is over")
        return left


class StateWait:
    """A wait for a state of a workload."""

    def __init__(
        self,
        until: str,
        timeout: float | None,
        clock: Clock = time.monotonic,
    ) -> None:
        """``until``: a state, in any case of letters. ``timeout``: seconds; None = no limit. Raises InvalidOption."""
        self._goal = until.capitalize()
        if self._goal not in (*UNFINISHED, _FINISHED):
            states = ", ".join((*UNFINISHED, _FINISHED))
            raise InvalidOption(f"{until!r} is not a state; the states are {states}")
        self.deadline: Final = None if timeout is None else clock() + timeout
        self._last: object = None

    def reached(self, state: object) -> bool:
        """Whether this is the state. Raises WorkloadEnded where the workload can no longer reach it."""
        self._last = state or self._last
        if state == _FINISHED and self._goal != _FINISHED:
            raise WorkloadEnded(f"the workload has finished; it does not become {self._goal}")
        return state == self._goal

    def late(self, workload: WorkloadJson) -> WaitTimeout:
        """The error of this workload at the end of the time."""
        name = f"{workload['namespace']}/{workload['name']}"
        return WaitTimeout(
            f"workload {name} is still {self._last}; it did not reach {self._goal} in time"
        )

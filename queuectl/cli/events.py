"""The server's event stream. It continues after a broken connection, without a lost event."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cli.client import Json, RequestRefused, ServerClient
from queuectl.cli.errors import CommandFailed
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/events"
RETRY_SECONDS: Final = 2.0
TIMEOUT_SECONDS: Final = 60.0  # without an answer, until a command fails


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One block of a stream.

    Attributes:
        id: position in the stream, from which a client continues.
        event: ``step``, ``cut`` or ``reset``; empty for the first block and for signs of life.
        data: for a step, the change of one workload.
    """

    id: int
    event: str
    data: Json


def newest(client: ServerClient) -> int:
    """The id of the newest event."""
    return next(iter(_once(client, None, {"follow": False}))).id


def so_far(client: ServerClient, after: int, **filters: object) -> list[Json]:
    """Steps above an id, oldest first."""
    blocks = _once(client, after, {"follow": False, **filters})
    return [block.data for block in blocks if block.event == "step"]


def follow(client: ServerClient, after: int, **filters: object) -> Iterator[StreamEvent]:
    """Steps above an id as they arrive, without end; ``reset`` where the server's history was replaced.

    Raises:
        CommandFailed: the server has not answered for a minute, or has refused the request.
    """
    answered = time.monotonic()
    while True:
        try:
            for block in _once(client, after, filters):
                after, answered = block.id, time.monotonic()
                if block.event in ("step", "reset"):
                    yield block
        except RequestRefused:
            raise
        except CommandFailed:
            if time.monotonic() - answered > TIMEOUT_SECONDS:
                raise
        time.sleep(RETRY_SECONDS)


def gathered(stream: Iterable[StreamEvent]) -> Iterator[list[StreamEvent]]:
    """The same events in batches: a batch has all events since the last one, so that a slow reader gets larger batches.

    Raises what ``stream`` raises.
    """
    arrived: queue.SimpleQueue[StreamEvent | BaseException] = queue.SimpleQueue()

    def listen() -> None:
        try:
            for block in stream:
                arrived.put(block)
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            arrived.put(error)

    threading.Thread(target=listen, name="events", daemon=True).start()
    while True:
        batch = [arrived.get()]
        while not arrived.empty():
            batch.append(arrived.get())
        blocks = [block for block in batch if isinstance(block, StreamEvent)]
        if blocks:
            yield blocks
        for other in batch:
            if isinstance(other, BaseException):
                raise other


def _once(
    client: ServerClient, after: int | None, filters: dict[str, Any]
) -> Iterator[StreamEvent]:
    """The blocks of one connection, until it ends."""
    with client.lines(PATH, after=after, **filters) as lines:
        fields: dict[str, str] = {}
        for line in lines:
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif fields:
                data = json.loads(fields.get("data") or "{}")
                yield StreamEvent(int(fields["id"]), fields.get("event", ""), data)
                fields = {}

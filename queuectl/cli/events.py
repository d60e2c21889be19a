"""The server's event stream as a client hears it: told on over broken connections, and nothing lost."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuectl.api.kinds import PREFIX
from queuectl.cli.client import Client, Json, Refused
from queuectl.cli.errors import CommandFailed

PATH: Final = f"{PREFIX}/events"
RETRY_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 60.0  # without an answer, before a command gives up


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One block of a stream.

    Attributes:
        id: after which to ask for what follows.
        event: ``step``, ``cut`` or ``reset``; empty for the opening and for signs of life.
        data: of a step: the change of one workload.
    """

    id: int
    event: str
    data: Json


def newest(client: Client) -> int:
    """The id of what has happened last, of all that ever happened."""
    return next(iter(_once(client, None, {"follow": False}))).id


def so_far(client: Client, after: int, **filters: object) -> list[Json]:
    """Steps above an id, oldest first."""
    blocks = _once(client, after, {"follow": False, **filters})
    return [block.data for block in blocks if block.event == "step"]


def follow(client: Client, after: int, **filters: object) -> Iterator[StreamEvent]:
    """Steps above an id as they come, without end; ``reset`` where the server's history begins anew.

    Raises:
        CommandFailed: the server has not answered for a minute, or refuses.
    """
    answered = time.monotonic()
    while True:
        try:
            for block in _once(client, after, filters):
                after, answered = block.id, time.monotonic()
                if block.event in ("step", "reset"):
                    yield block
        except Refused:
            raise
        except CommandFailed:
            if time.monotonic() - answered > PATIENCE_SECONDS:
                raise
        time.sleep(RETRY_SECONDS)


def gathered(stream: Iterable[StreamEvent]) -> Iterator[list[StreamEvent]]:
    """The same in batches: all that arrived since the last batch was taken, so a slow reader gets fewer and larger ones.

    Raises what ``stream`` raises.
    """
    heard: queue.SimpleQueue[StreamEvent | BaseException] = queue.SimpleQueue()

    def listen() -> None:
        try:
            for block in stream:
                heard.put(block)
        except BaseException as error:  # noqa: BLE001 - it is raised where it can be handled
            heard.put(error)

    threading.Thread(target=listen, name="events", daemon=True).start()
    while True:
        handful = [heard.get()]
        while not heard.empty():
            handful.append(heard.get())
        blocks = [block for block in handful if isinstance(block, StreamEvent)]
        if blocks:
            yield blocks
        for other in handful:
            if isinstance(other, BaseException):
                raise other


def _once(client: Client, after: int | None, filters: dict[str, Any]) -> Iterator[StreamEvent]:
    """One connection, to its end."""
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

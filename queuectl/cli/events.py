"""Events in batches, for output that can be slower than they arrive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuectl.client.stream import StreamEvent


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
        blocks = [block for block in batch if not isinstance(block, BaseException)]
        if blocks:
            yield blocks
        for other in batch:
            if isinstance(other, BaseException):
                raise other

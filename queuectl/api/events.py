"""The event stream: its data and its encoding (server-sent events, HTML §9.2)."""

from __future__ import annotations

import json
from typing import Final

from pydantic import Field

from queuectl.api.schemas import HistoryView
from queuectl.api.views import history_view
from queuectl.domain.queries import HistoryLine

RETRY_MILLISECONDS: Final = 2000  # after which a browser reconnects


class EventView(HistoryView):
    """The data of a `step`: one committed step of one workload."""

    uid: str
    kind: str
    namespace: str
    name: str
    cluster_queue: str = Field(description="Current LocalQueue of the workload; empty without one.")
    epoch: int = Field(description="Epoch of the leader; cycle numbers are for each epoch.")


def event_view(line: HistoryLine) -> EventView:
    """One step of one workload."""
    return EventView(
        **dict(history_view(line)),
        uid=line.uid,
        kind=line.kind,
        namespace=line.namespace,
        name=line.name,
        cluster_queue=line.cluster_queue,
        epoch=line.epoch,
    )


def opening(position: int) -> str:
    """The first message: the id of the start, so that a stream that breaks before the first line loses none."""
    return f"retry: {RETRY_MILLISECONDS}\nid: {position}\n\n"


def step(number: int, text: str) -> str:
    """One line of history; ``text`` is JSON."""
    return f"id: {number}\nevent: step\ndata: {text}\n\n"


def heartbeat(position: int) -> str:
    """A comment that keeps proxies from closing the stream, and advances its id past lines that do not match."""
    return f": alive\nid: {position}\n\n"


def cut(position: int) -> str:
    """The last message to a client that is too slow."""
    reason = "the client reads events more slowly than they arrive; reconnect with this id as Last-Event-ID"
    return _special("cut", position, reason)


def signed_out(position: int) -> str:
    """The last message to a client whose credentials are no longer valid."""
    reason = "your session or token has ended; ask again with this id as Last-Event-ID and new credentials"
    return _special("cut", position, reason)


def reset(position: int) -> str:
    """History is shorter than it was: the database was restored from a backup."""
    reason = "the database was restored from a backup: read again whatever you keep"
    return _special("reset", position, reason)


def _special(event: str, position: int, reason: str) -> str:
    data = json.dumps({"after": position, "reason": reason})
    return f"id: {position}\nevent: {event}\ndata: {data}\n\n"

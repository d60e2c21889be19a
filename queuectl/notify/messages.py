"""The fixed messages: one event, a digest of several, and how many were dropped.

A message holds the text as users wrote it, on one line each and bounded. Each transport escapes it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from queuectl.domain.notifications import Event, EventType, Mode, Progress
from queuectl.domain.words import counted, format_time, printable, shortened

MAX_TEXT: Final = 500  # characters of one line
MAX_LINES: Final = 100  # of a digest
MAX_DETAILS: Final = 30
TYPE_PREFIX: Final = "dev.queuectl."

TITLES: Final[Mapping[EventType, str]] = {
    EventType.STARTED: "Workload started",
    EventType.EVICTED: "Workload evicted",
    EventType.EVICTION_NOTICE: "Workload will be evicted",
    EventType.IDLE: "Workload uses no GPU",
    EventType.FINISHED: "Workload finished",
    EventType.FAILED: "Workload failed",
    EventType.HELD: "Workload held",
    EventType.DELAYED: "Workload starts later",
    EventType.BUDGET_NEARLY_SPENT: "Budget nearly spent",
    EventType.BUDGET_SPENT: "Budget spent",
    EventType.OBJECT_SET_ASIDE: "Object set aside",
    EventType.LEADER_CHANGED: "Leader changed",
    EventType.RECEIVER_TEST: "Test of a receiver",
}

_INSTALLATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_WHITE: Final = re.compile(r"\s+")

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True)
class Message:
    """The content for one place.

    Attributes:
        id: the same for each attempt, of any replica. Receivers remove doubles by it.
        at: unix seconds of the newest change in it.
        type: of CloudEvents.
        title: fixed words.
        text: one sentence.
        lines: further lines, such as facts.
        subject: the object, as ``Job/namespace/name``; empty without one.
        json: the facts for programs.
    """

    id: str
    at: float
    type: str
    title: str
    text: str
    lines: tuple[str, ...] = ()
    subject: str = ""
    json: Mapping[str, Json] = field(default_factory=dict)


class Messages:
    """Makes the messages of one installation."""

    def __init__(self, installation: str) -> None:
        """Use ``installation`` as the prefix of ids: it is unique, such as the uid of the namespace ``kube-system``."""
        if not _INSTALLATION.fullmatch(installation):
            raise ValueError("the name of the installation has characters that are not allowed")
        self.installation = installation

    def of_event(self, event: Event) -> Message:
        """One event.

        Raises:
            ValueError: JSON cannot hold one of its details.
        """
        facts = _facts(event)
        return Message(
            f"{self.installation}-{_position(event)}",
            event.at,
            TYPE_PREFIX + event.type,
            TITLES[event.type],
            _line(event.message) or TITLES[event.type],
            tuple(f"{name}: {text}" for name, text in facts.items()),
            _subject(event),
            _data(event),
        )

    def of_digest(self, receiver: str, digest: Digest, user: str = "") -> Message:
        """Several events. Digests of two users to one address have different ids, or the mailbox would remove one as a double."""
        first, last = digest.first, digest.last
        if first is None or last is None:
            raise ValueError("the digest has no event")
        total = digest.counts.total()
        counts = [f"{TITLES[kind]}: {number}" for kind, number in sorted(digest.counts.items())]
        place = f"-{hashlib.sha256(user.encode()).hexdigest()[:12]}" if user else ""
        left_out = total - len(digest.lines)
        more = [f"{counted(left_out, 'further event')}"] if left_out else []
        return Message(
            f"{self.installation}-digest-{receiver}-{_position(first)}-{_position(last)}{place}",
            last.at,
            f"{TYPE_PREFIX}digest",
            "Digest",
            f"{counted(total, 'event')} from {format_time(first.at)} to {format_time(last.at)}",
            (*counts, "", *digest.lines, *more),
            json={
                "events": total,
                "counts": {kind.value: number for kind, number in sorted(digest.counts.items())},
                "from": format_time(first.at),
                "until": format_time(last.at),
                "lines": list(digest.lines),
            },
        )

    def of_dropped(self, progress: Progress, now: float) -> Message:
        """How many events a receiver does not get."""
        since = format_time(progress.dropped_since or now)
        until = format_time(progress.dropped_until or now)
        mode = "" if progress.mode is Mode.IMMEDIATE else f"-{progress.mode}"
        return Message(
            f"{self.installation}-dropped-{progress.receiver}{mode}-{progress.line}",
            progress.dropped_until or now,
            f"{TYPE_PREFIX}dropped",
            "Notifications dropped",
            f"{counted(progress.dropped, 'event')} from {since} to {until} could not be delivered in time and will not be sent",
            json={"dropped": progress.dropped, "from": since, "until": until},
        )


@dataclass(slots=True)
class Digest:
    """The events of one digest to one place: all are counted, and the first ones have a line."""

    first: Event | None = None
    last: Event | None = None
    counts: Counter[EventType] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Add a later event."""
        self.first = self.first or event
        self.last = event
        self.counts[event.type] += 1
        if len(self.lines) < MAX_LINES:
            text = _line(event.message) or _subject(event)
            self.lines.append(f"{format_time(event.at)} {TITLES[event.type]}: {text}")


def _position(event: Event) -> str:
    """Also unique in a database that was restored from a backup, in which ids of rows repeat."""
    return f"{event.id}-{int(event.at * 1000):x}"


def _line(text: str) -> str:
    """Text of users on one line, without characters that control a terminal."""
    return shortened(printable(_WHITE.sub(" ", text[: 4 * MAX_TEXT]).strip()), MAX_TEXT)


def _subject(event: Event) -> str:
    return "/".join(_line(part) for part in (event.kind, event.namespace, event.name) if part)


def _facts(event: Event) -> dict[str, str]:
    facts = {
        "Object": _subject(event),
        "ClusterQueue": _line(event.cluster_queue),
        "User": _line(event.user),
        "Time": format_time(event.at),
    }
    for name, detail in list(event.details.items())[:MAX_DETAILS]:
        facts.setdefault(_line(name), _line(str(detail)))
    return {name: text for name, text in facts.items() if text}


def _data(event: Event) -> dict[str, Json]:
    details: dict[str, Json] = {}
    for name, detail in list(event.details.items())[:MAX_DETAILS]:
        if isinstance(detail, str):
            details[_line(name)] = _line(detail)
        elif math.isfinite(detail):
            details[_line(name)] = detail
        else:
            raise ValueError("JSON cannot hold one of the details")
    texts = {
        "message": event.message,
        "kind": event.kind,
        "namespace": event.namespace,
        "name": event.name,
        "uid": event.uid,
        "clusterQueue": event.cluster_queue,
        "user": event.user,
    }
    return {**{name: _line(text) for name, text in texts.items() if text}, "details": details}

"""The annotations of a job that name the receivers of its events.

A wrong value does not keep the job from its start: it has no effect, and the record states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuectl.domain.notifications import MOST_RECEIVERS, EventType, JobNotifications
from queuectl.domain.words import comma_separated, printable, shortened
from queuectl.objects import keys
from queuectl.objects.names import is_dns_label

_PREFIX: Final = "workload."
EVENTS: Final = {
    each.value.removeprefix(_PREFIX): each for each in EventType if each.startswith(_PREFIX)
}
"""The events of a job by the names that its annotation has."""
_MOST_EVENTS: Final = len(EVENTS)
_LONGEST: Final = 64 * (MOST_RECEIVERS + _MOST_EVENTS)
"""Characters of a value that are read: enough for any right value with some spaces."""


def read_notify(annotations: Mapping[str, str] | None) -> JobNotifications | None:
    """The request in the annotations; None without the annotation of receivers."""
    values = annotations or {}
    if keys.NOTIFY not in values:
        return None
    receivers, wrong = _receivers(values[keys.NOTIFY])
    events, wrong_event = _events(values.get(keys.NOTIFY_EVENTS, ""))
    return JobNotifications(receivers, events, wrong or wrong_event)


def _receivers(text: str) -> tuple[tuple[str, ...], str]:
    """The names, and what is wrong with the value."""
    error = ""
    names: dict[str, None] = {}
    for name in comma_separated(text[:_LONGEST]):
        if not is_dns_label(name):
            error = error or f"{_quoted(name)} is not the name of a receiver"
        elif len(names) == MOST_RECEIVERS and name not in names:
            error = error or f"a job can name at most {MOST_RECEIVERS} receivers"
        else:
            names[name] = None
    return tuple(names), _at(keys.NOTIFY, error or _too_long(text))


def _events(text: str) -> tuple[tuple[EventType, ...], str]:
    """The types, and what is wrong with the value. Without a right one, all types are selected."""
    error = ""
    events: set[EventType] = set()
    for name in comma_separated(text[:_LONGEST]):
        if name in EVENTS:
            events.add(EVENTS[name])
        else:
            error = error or f"{_quoted(name)} is none of {', '.join(EVENTS)}"
    return tuple(sorted(events)), _at(keys.NOTIFY_EVENTS, error or _too_long(text))


def _too_long(text: str) -> str:
    return f"it has more than {_LONGEST} characters" if len(text) > _LONGEST else ""


def _quoted(text: str) -> str:
    return repr(printable(shortened(text)))


def _at(key: str, error: str) -> str:
    return f"metadata.annotations: {key}: {error}" if error else ""

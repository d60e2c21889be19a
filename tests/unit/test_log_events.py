"""docs/reference/log-events.md lists each event that queuectl logs, with its level and fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.pages import PAGES

ROOT: Final = Path(__file__).parents[2]
LEVELS: Final = {"debug", "info", "warning", "error", "exception"}
BY_VARIABLE: Final = {"lease_not_renewed", "leadership_not_acquired", "cycle_completed"}
"""Events whose call takes the name, or the method, from a variable."""
ROW: Final = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([\w, ]+) \| ([^|]*) \|", re.MULTILINE)
SPREAD: Final = {"caller", "status", "request_id"}
"""Fields that the audit log gives in one mapping."""


class Logged(NamedTuple):
    event: str
    level: str
    fields: frozenset[str]


@cache
def logged() -> tuple[Logged, ...]:
    """The calls of structlog's loggers, which name an event in lower case."""
    return tuple(_logged())


def _logged() -> Iterator[Logged]:
    for path in sorted((ROOT / "queuectl").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr not in LEVELS or not call.args:
                continue
            event = getattr(call.args[0], "value", None)
            if isinstance(event, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", event):
                level = call.func.attr.replace("exception", "error")
                fields = {one.arg for one in call.keywords if one.arg} - {"exc_info"}
                yield Logged(event, level, frozenset(fields))


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Levels and fields by event."""
    return {
        event: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", fields)))
        for events, levels, fields in ROW.findall(PAGES["log-events.md"].read_text())
        for event in re.findall(r"\w+", events)
    }


def test_the_page_lists_each_event() -> None:
    events = {one.event for one in logged()}
    assert len(events) > 30
    assert events | BY_VARIABLE == set(documented())


def test_the_page_lists_level_and_fields_of_each_event() -> None:
    page = documented()
    for one in logged():
        levels, fields = page[one.event]
        assert one.level in levels, one
        assert one.fields <= fields, one


def test_the_page_lists_no_field_that_no_event_has() -> None:
    found: dict[str, set[str]] = {}
    for one in logged():
        found.setdefault(one.event, set()).update(one.fields)
    groups = ROW.findall(PAGES["log-events.md"].read_text())
    for events, _, fields in groups:
        names = re.findall(r"\w+", events)
        if BY_VARIABLE.isdisjoint(names):
            known = set().union(*(found[name] for name in names)) | SPREAD
            assert set(re.findall(r"`(\w+)`", fields)) <= known, names

"""The annotations of a job that name the receivers of its events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.notifications import MOST_RECEIVERS, EventType, JobNotifications
from queuectl.objects import keys
from queuectl.objects.kinds.notify import EVENTS, read_notify

EIGHT = tuple(f"r{number}" for number in range(8))
AT, AT_EVENTS = (
    f"metadata.annotations: {keys.NOTIFY}: ",
    f"metadata.annotations: {keys.NOTIFY_EVENTS}: ",
)
KNOWN = ", ".join(EVENTS)


def test_receivers_and_events_are_read_and_wrong_ones_are_left_out() -> None:
    table: dict[tuple[str, str | None], JobNotifications] = {
        ("ops", None): JobNotifications(("ops",)),
        (" ops , chat,ops,", ""): JobNotifications(("ops", "chat")),
        ("", None): JobNotifications(),
        (",".join(EIGHT), None): JobNotifications(EIGHT),
        (",".join((*EIGHT, "r0")), None): JobNotifications(EIGHT),
        (",".join((*EIGHT, "r8")), None): JobNotifications(
            EIGHT, error=f"{AT}a job can name at most 8 receivers"
        ),
        ("Ops,chat", None): JobNotifications(
            ("chat",), error=f"{AT}\"'Ops'\" is not the name of a receiver".replace('"', "")
        ),
        ("ops", "failed, evicted"): JobNotifications(
            ("ops",), (EventType.EVICTED, EventType.FAILED)
        ),
        ("ops", "failed,lost"): JobNotifications(
            ("ops",), (EventType.FAILED,), f"{AT_EVENTS}'lost' is none of {KNOWN}"
        ),
        ("ops", "workload.failed"): JobNotifications(
            ("ops",), (), f"{AT_EVENTS}'workload.failed' is none of {KNOWN}"
        ),
        ("ops", "budget.spent"): JobNotifications(
            ("ops",), (), f"{AT_EVENTS}'budget.spent' is none of {KNOWN}"
        ),
    }
    found = {}
    for names, events in table:
        given_keys = {keys.NOTIFY: names}
        found[names, events] = read_notify(
            given_keys if events is None else given_keys | {keys.NOTIFY_EVENTS: events}
        )
    assert found == table
    assert read_notify(None) is None
    assert read_notify({keys.NOTIFY_EVENTS: "failed"}) is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(",".join(f"r{n}" for n in range(20_000)), id="20,000 names"),
        pytest.param("x" * 262_144, id="one long name"),
        pytest.param("," * 262_144 + "ops", id="commas"),
        pytest.param("a\0b,\x1b[31m,\u202e,ops\r\nBcc: x", id="control characters"),
        pytest.param(json.dumps(["ops"]), id="a list as text"),
    ],
)
def test_a_hostile_value_is_bounded_and_harmless(value: str) -> None:
    request = read_notify({keys.NOTIFY: value, keys.NOTIFY_EVENTS: value})
    assert request is not None
    assert len(request.receivers) <= MOST_RECEIVERS
    assert 0 < len(request.error) < 1000
    assert request.error.isprintable()


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_read(names: str, events: str) -> None:
    request = read_notify({keys.NOTIFY: names, keys.NOTIFY_EVENTS: events})
    assert request is not None
    assert all(name.isascii() and len(name) <= 63 for name in request.receivers)
    assert set(request.events) <= set(EVENTS.values())
    assert request.error.isprintable()

"""The annotations of a job that name the receivers of its events."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import State
from queuectl.domain.notifications import MOST_RECEIVERS, EventType, JobNotifications
from queuectl.domain.records import Upserted
from queuectl.lifecycle.observations import Observer
from queuectl.objects import keys
from queuectl.objects.kinds.notify import EVENTS, read_notify
from queuectl.state.mirror import Mirror
from tests.unit.test_objects_kinds import CASES, load, read
from tests.unit.test_rosters import pod
from tests.unit.test_state import CONFIG, JOB, World

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


def test_each_kind_has_the_request_of_its_object() -> None:
    request = JobNotifications(("ops", "chat"), (EventType.FAILED,))
    names = {keys.NOTIFY: "ops,chat", keys.NOTIFY_EVENTS: "failed"}
    wrong = {keys.NOTIFY: "No"}
    for kind, case in {path.parent.name: path for path in CASES}.items():
        body, _ = load(case)
        metadata = body["metadata"]
        own = metadata.get("annotations") or {}
        metadata["annotations"] = own | names
        assert read(body).notify == request, kind
        metadata["annotations"] = own | wrong
        record = read(body)
        assert record.notify is not None, kind
        assert (record.notify.receivers, record.error) == ((), None), kind


def test_a_group_of_pods_has_the_request_of_its_first_pod() -> None:
    mirror = Mirror({})
    mirror.apply([Upserted(pod(0, 2, 1, annotations={keys.NOTIFY: "ops"}))])
    mirror.apply([Upserted(pod(1, 2, 1))])
    (group,) = mirror.jobs.values()
    assert (group.name, group.notify) == ("g", JobNotifications(("ops",)))
    mirror.apply([Upserted(pod(0, 2, 2, annotations={keys.NOTIFY: "chat"}))])
    (group,) = mirror.jobs.values()
    assert group.notify == JobNotifications(("chat",))


def test_a_job_is_observed_with_its_request_and_a_wrong_value_has_its_own_line() -> None:
    wrong = JobNotifications(("ops",), error="metadata.annotations: no")
    world = World()
    observer = Observer(world.mirror, world.ledger, world.usage, 30.0)
    codes: list[str] = []

    def observe(job: JobRecord) -> None:
        world.mirror.apply([Upserted(job)])
        for _ in range(3):
            made = observer.observe(CONFIG, 100.0).changes
            world.ledger.apply(made)
            codes.extend(change.note.event if change.note is not None else "" for change in made)

    observe(replace(JOB, notify=wrong))
    entry = world.ledger.get(JOB.uid)
    assert entry is not None
    assert (codes, entry.notify, entry.state) == (["Queued", "InvalidNotify"], wrong, State.PENDING)
    observe(replace(JOB, notify=JobNotifications(("ops",)), version=8))
    observe(replace(JOB, notify=None, version=9))
    entry = world.ledger.get(JOB.uid)
    assert entry is not None
    assert (codes[2:], entry.notify) == (["", ""], None)

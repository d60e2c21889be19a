"""The fixed messages, and how each transport writes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from email import message_from_bytes
from email.policy import SMTP
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import validate

from queuectl.domain.notifications import EventType, Mode, Progress
from queuectl.notify.mail import mail
from queuectl.notify.messages import MAX_LINES, TITLES, Digest, Message, Messages
from queuectl.notify.receivers import InvalidReceiver
from queuectl.notify.slack import MAX_BLOCK, WORD_JOINER, escaped, payload, unmarked
from queuectl.notify.webhook import cloud_event, secrets_of, signature
from tests.notify.parts import event, message

HOSTILE = st.text(max_size=300) | st.sampled_from(
    [
        "<!channel> <https://evil.example|click> <@U1> &lt; `x` *b* _i_ @all https://evil.example",
        "a\r\nBcc: x@evil.example\r\n\r\nbody",
        "\u202e\u2066\x1b[31m\x00",
        ".\r\n.\r\nQUIT",
        "é" * 300,
    ]
)
CLOUD_EVENT = {
    "type": "object",
    "required": ["id", "source", "specversion", "type"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "format": "uri-reference", "minLength": 1},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "datacontenttype": {"const": "application/json"},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "data": {"type": "object"},
    },
    "propertyNames": {"pattern": "^[a-z0-9]+$"},
}


def test_each_type_has_a_title() -> None:
    assert set(TITLES) == set(EventType)
    assert all(len(title) < 40 and title.isascii() for title in TITLES.values())


def test_the_id_is_that_of_the_row_of_one_database() -> None:
    messages = Messages("lab")
    first = messages.of_event(event(7))
    assert first.id == messages.of_event(event(7, message="other")).id
    other_ids = {messages.of_event(event(8)).id, messages.of_event(event(7, at=5.0)).id}
    assert first.id not in other_ids | {Messages("other").of_event(event(7)).id}
    for name in ("", "a b", "a\n", "-a", "a" * 64, "a@b"):
        with pytest.raises(ValueError, match="installation"):
            Messages(name)


@given(HOSTILE, HOSTILE)
def test_a_cloud_event_holds_any_text_of_users(text: str, name: str) -> None:
    body = cloud_event(message(message=text, name=name, details={name: text, "n": 1.5}), "lab")
    parsed = json.loads(body)
    validate(parsed, CLOUD_EVENT)
    assert parsed["source"] == "/queuectl/lab"
    assert parsed["type"] == "dev.queuectl.workload.evicted"
    assert body.isascii()
    assert not re.search(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069]", parsed["data"]["text"])


def test_details_that_json_cannot_hold_are_refused() -> None:
    for detail in (float("nan"), float("inf"), 10**400, [1], None, {"a": 1}):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            message(details={"lost": detail})


def test_text_is_bounded() -> None:
    details: dict[str, Any] = {f"k{n}": "v" * 5000 for n in range(500)}
    big = message(message="x" * 10**6, name="n" * 10**6, user="u" * 10**6, details=details)
    assert len(cloud_event(big, "lab")) < 60_000
    assert len(payload(big)) < 60_000
    assert len(bytes(mail(big, "a@b.example", "c@d.example"))) < 120_000


# ---- Signatures


def test_the_signature_is_that_of_the_standard() -> None:
    """The example in the specification of Standard Webhooks."""
    (secret,) = secrets_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    header = signature(
        (secret,), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert header == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_secret_signs() -> None:
    secrets = secrets_of("\n".join(base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)))
    signed = signature(secrets, "id", 5, b"{}").split(" ")
    assert signed == [
        "v1,"
        + base64.b64encode(hmac.new(bytes([n]) * 32, b"id.5.{}", hashlib.sha256).digest()).decode()
        for n in (1, 2)
    ]


def test_faulty_secrets_are_refused() -> None:
    good = base64.b64encode(b"x" * 32).decode()
    for text in (
        "",
        "\n",
        "whsec_",
        "nonsense!",
        base64.b64encode(b"x" * 8).decode(),
        "\n".join([good] * 5),
    ):
        with pytest.raises(InvalidReceiver) as error:
            secrets_of(text)
        assert not text.strip() or text not in str(error.value)


# ---- Slack


@given(HOSTILE)
@example("<!channel>")
def test_slack_reads_no_control_sequence(text: str) -> None:
    content = json.loads(payload(message(message=text, user=text)))
    parts = [content["text"], *(block["text"]["text"] for block in content["blocks"])]
    for part in parts:
        assert "<" not in part
        assert ">" not in part
        assert not re.search(r"&(?!amp;|lt;|gt;)", part)
    assert all(block["text"]["type"] == "plain_text" for block in content["blocks"])
    assert all(len(block["text"]["text"]) <= MAX_BLOCK for block in content["blocks"])
    assert (content["mrkdwn"], content["parse"], content["link_names"]) == (False, "none", False)


@given(HOSTILE)
@example("@channel @here `a` *b* [x](https://evil.example) https://evil.example //evil ![i](x)")
def test_servers_that_read_markdown_read_none(text: str) -> None:
    safe = unmarked(text)
    assert not re.search(r"[@#`*_~|\[\]()!\\](?!\u2060)", safe)
    assert "://" not in safe
    assert "//" not in safe
    assert safe.replace(WORD_JOINER, "") == escaped(text.replace(WORD_JOINER, ""))


# ---- Mail


@given(HOSTILE, HOSTILE)
def test_text_of_users_adds_no_header_and_no_line_that_is_too_long(text: str, name: str) -> None:
    sent = bytes(mail(message(message=text, name=name), "q@lab.example", "ada@lab.example"))
    assert all(len(line) <= 998 for line in sent.split(b"\r\n"))
    assert b"\n" not in sent.replace(b"\r\n", b"")
    read = message_from_bytes(sent, policy=SMTP)
    assert sorted(read.keys()) == sorted(
        [
            "From",
            "To",
            "Subject",
            "Date",
            "Message-ID",
            "Auto-Submitted",
            "X-Auto-Response-Suppress",
            "Content-Type",
            "Content-Transfer-Encoding",
            "MIME-Version",
        ]
    )
    assert read["Subject"] == "queuectl: Workload evicted"
    assert read["To"] == "ada@lab.example"
    assert read["Auto-Submitted"] == "auto-generated"
    assert read["Message-ID"] == f"<{message(name=name).id}@lab.example>"
    assert read.get_content_type() == "text/plain"


def test_a_mail_states_the_event() -> None:
    sent = mail(
        message(message="Kilo é", details={"lostGpuHours": 3}), "q@a.example", "b@c.example"
    )
    assert sent.get_content().splitlines() == [
        "Kilo é",
        "",
        "Object: Job/team/train-7",
        "ClusterQueue: gpus",
        "User: ada",
        "Time: 2026-09-21T14:13:20Z",
        "lostGpuHours: 3",
    ]


def test_mail_has_one_plain_address() -> None:
    for to in ("", "a@b.example, c@d.example", "a@b.example\nBcc: c@d.example", "A <a@b.example>"):
        with pytest.raises(InvalidReceiver):
            mail(message(), "q@lab.example", to)


# ---- Digests and dropped events


def digest(number: int) -> Message:
    made = Digest()
    for each in range(1, number + 1):
        kind = EventType.STARTED if each % 3 else EventType.FAILED
        made.add(event(each, at=1_790_000_000.0 + each, type=kind, message=f"<b>{each}</b>"))
    return Messages("lab").of_digest("ops", made)


def test_a_digest_counts_all_events_and_lists_the_first() -> None:
    made = digest(250)
    assert made.text == "250 events from 2026-09-21T14:13:21Z to 2026-09-21T14:17:30Z"
    assert made.lines[:3] == ("Workload failed: 83", "Workload started: 167", "")
    assert len(made.lines) == MAX_LINES + 4
    assert made.lines[3] == "2026-09-21T14:13:21Z Workload started: <b>1</b>"
    assert made.lines[-1] == "150 further events"
    assert made.id == digest(250).id != digest(251).id
    for body in (
        cloud_event(made, "lab"),
        payload(made),
        bytes(mail(made, "q@a.example", "b@c.example")),
    ):
        assert len(body) < 30_000
    with pytest.raises(ValueError, match="no event"):
        Messages("lab").of_digest("ops", Digest())


def test_a_message_states_how_many_events_were_dropped() -> None:
    progress = Progress("ops", Mode.IMMEDIATE, 70, 0, 5000, 1_790_000_000.0, 1_790_000_600.0)
    made = Messages("lab").of_dropped(progress, 0.0)
    assert made.text == (
        "5000 events from 2026-09-21T14:13:20Z to 2026-09-21T14:23:20Z could not be delivered in time and will not be sent"
    )
    assert made.id == "lab-dropped-ops-70"
    assert json.loads(cloud_event(made, "lab"))["data"]["dropped"] == 5000

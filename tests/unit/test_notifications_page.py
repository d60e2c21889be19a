"""The code, the configuration and the events that the pages about notifications show."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import yaml

from queuectl.domain.notifications import Event, EventType
from queuectl.notify.messages import Messages
from queuectl.notify.receivers_file import read_receivers
from queuectl.notify.webhook import cloud_event, secrets_of, signature

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "how-to" / "notifications.md"
SECRET = base64.b64encode(b"k" * 32).decode()


def _code() -> dict[str, Any]:
    names: dict[str, Any] = {}
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, names)
    return names


is_genuine = _code()["is_genuine"]
"""The function of the page."""


def test_the_code_of_the_page_accepts_signatures_and_nothing_else() -> None:
    now, body = int(time.time()), b'{"id":"1"}'
    secrets = secrets_of(f"{base64.b64encode(b'n' * 32).decode()}\n{SECRET}")
    sent = {
        "webhook-id": "a-1",
        "webhook-timestamp": str(now),
        "webhook-signature": signature(secrets, "a-1", now, body),
    }
    assert is_genuine(sent, body, SECRET)
    assert not is_genuine(sent, body + b" ", SECRET)
    assert not is_genuine({**sent, "webhook-id": "a-2"}, body, SECRET)
    assert not is_genuine({**sent, "webhook-timestamp": str(now + 1)}, body, SECRET)
    assert not is_genuine(sent, body, base64.b64encode(b"x" * 32).decode())
    old = now - 3600
    late = {
        **sent,
        "webhook-timestamp": str(old),
        "webhook-signature": signature(secrets, "a-1", old, body),
    }
    assert not is_genuine(late, body, SECRET)


def test_the_event_of_the_reference_is_the_one_that_is_sent() -> None:
    [block] = re.findall(
        r"```json\n(.*?)```", (DOCS / "reference" / "events.md").read_text(), re.DOTALL
    )
    cluster = "0b5f4f0e-1d57-4f3c-8a52-3f1f0f6f9d11"
    event = Event(
        at=1_795_773_600.0,
        type=EventType.EVICTED,
        kind="Job",
        namespace="team-a",
        name="train",
        uid="6c1b6a52-8f0f-4a5f-9d0a-0b0f2f1a7a01",
        cluster_queue="team-a",
        user="oidc:alice",
        message="Job team-a/train was evicted, and loses 1.5 GPU-hours of work: preempted for another team",
        details={"reason": "Preempted", "queue": "main", "attempt": 2, "pods": 2, "gpus": 16, "lostGpuHours": 1.5},
        id=4711,
    )  # fmt: skip
    sent = json.loads(cloud_event(Messages(cluster).of_event(event), cluster))
    assert json.loads(block) == sent


def test_the_reference_lists_each_type() -> None:
    text = (DOCS / "reference" / "events.md").read_text()
    assert [kind for kind in EventType if f"`{kind}`" not in text] == []


def test_the_receivers_of_the_page_are_accepted(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    listed = [block for block in blocks if "kind:" in block]
    assert len(listed) == 4
    names = []
    for block in listed:
        whole = (
            block if block.startswith("notifications") else f"notifications:\n  receivers:\n{block}"
        )
        file = tmp_path / "receivers.yaml"
        receivers = yaml.safe_load(whole)["notifications"]["receivers"]
        file.write_text(yaml.safe_dump({"receivers": receivers}))
        names += [receiver.name for receiver in read_receivers(file)]
    assert names == ["hook", "chat", "mail", "on-call"]

"""Receivers and subscriptions: what a caller can use and create, and what others see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.domain.identity import Right
from queuectl.domain.notifications import (
    MOST_SUBSCRIPTIONS,
    Audience,
    Event,
    EventType,
    Mode,
    Scope,
    Subscription,
)
from queuectl.notify.receivers import Receiver, SlackTarget, SmtpTarget, WebhookTarget
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.signed import ADMIN, asking
from tests.api.support import CLUSTER_QUEUE, LOCAL_QUEUE, FixedHealth
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

ALICE, BOB, NOBODY = "of-alice", "of-bob", "of-nobody"
RECEIVERS, SUBSCRIPTIONS = "/api/v1/receivers", "/api/v1/subscriptions"
SECRET = Path("/run/secrets/hidden")
ALL = (
    Receiver(
        Audience("hook"), WebhookTarget("https://hidden.example/path", SECRET), digest_seconds=60
    ),
    Receiver(Audience("chat-b", frozenset({"team-b"})), SlackTarget(SECRET)),
    Receiver(Audience("mail", personal=True), SmtpTarget("hidden.example", "q@hidden.example")),
)


@pytest.fixture
def receivers() -> ReceiverList:
    return ReceiverList(Path("receivers.yaml"), ALL)


@pytest.fixture
async def app(memory: MemoryStore, receivers: ReceiverList) -> FastAPI:
    """Alice may subscribe in team-a, Bob in team-b, and an administrator everything."""
    access = MemoryAccess()
    access.know(ADMIN, "admin", master=True)
    for token, name, namespace in ((ALICE, "alice", "team-a"), (BOB, "bob", "team-b")):
        rights = (
            Right("list", "receivers", namespace),
            Right("create", "subscriptions", namespace),
        )
        access.know(token, name, *rights)
        queue = {**LOCAL_QUEUE, "metadata": {"name": "q", "namespace": namespace}}
        await memory.put_config(queue)
    access.know(NOBODY, "nobody")
    await memory.put_config({**CLUSTER_QUEUE, "metadata": {"name": "gpus"}})
    layer = AuthenticationLayer(access, secure=True, open_paths=OpenPaths())
    registry = MetricsRecorder().registry
    return create_app(memory, FixedHealth(), registry, authenticated=layer, receivers=receivers)


async def sent(app: FastAPI, token: str, method: str, path: str, **body: Any) -> httpx2.Response:
    async with asking(app, token) as client:
        return await client.request(method, path, json=body or None)


async def names(app: FastAPI, token: str) -> list[str]:
    answer = await sent(app, token, "GET", RECEIVERS)
    assert answer.status_code == 200, answer.text
    assert "hidden" not in answer.text  # neither addresses nor credentials
    return [each["name"] for each in answer.json()["items"]]


async def test_a_caller_sees_the_receivers_for_its_namespaces(app: FastAPI) -> None:
    assert await names(app, ALICE) == ["hook", "mail"]
    assert await names(app, BOB) == ["chat-b", "hook", "mail"]
    assert await names(app, NOBODY) == []
    assert await names(app, ADMIN) == ["chat-b", "hook", "mail"]


async def test_only_administrators_see_the_status_of_receivers(
    app: FastAPI, memory: MemoryStore, receivers: ReceiverList
) -> None:
    receivers.error = "receivers.yaml: wrong"
    await memory.notifications.claim([("hook", Mode.IMMEDIATE)], "one", 60.0)
    await memory.notifications.announce_test(event_of("hook"))
    await memory.notifications.claim([("hook", Mode.IMMEDIATE)], "one", 60.0)
    await memory.notifications.postpone("hook", Mode.IMMEDIATE, "one", 30.0, "no answer")
    seen = (await sent(app, ADMIN, "GET", RECEIVERS)).json()
    [status] = next(each for each in seen["items"] if each["name"] == "hook")["status"]
    assert (status["waiting"], status["failures"], status["error"]) == (1, 1, "no answer")
    assert seen["error"] == "receivers.yaml: wrong"
    own = (await sent(app, ALICE, "GET", RECEIVERS)).json()
    assert own["error"] is None
    assert {each["status"] for each in own["items"]} == {None}


def event_of(receiver: str) -> Event:
    return Event(at=1.0, type=EventType.RECEIVER_TEST, receivers=(receiver,))


TABLE: list[tuple[str, dict[str, Any], int, str]] = [
    (ALICE, {"receiver": "hook"}, 200, ""),
    (ALICE, {"receiver": "hook", "mode": "digest", "events": ["workload.failed"]}, 200, ""),
    (ALICE, {"receiver": "hook", "scope": "namespace", "target": "team-a"}, 200, ""),
    (ADMIN, {"receiver": "hook", "scope": "queue", "target": "gpus"}, 200, ""),
    (BOB, {"receiver": "chat-b", "scope": "namespace", "target": "team-b"}, 200, ""),
    (NOBODY, {"receiver": "hook"}, 403, "may not create subscriptions"),
    (NOBODY, {"broken": 1}, 403, "may not create subscriptions"),
    (ALICE, {"receiver": "hook", "target": "bob"}, 422, "your own jobs only"),
    (ALICE, {"receiver": "hook", "scope": "user", "target": "alice"}, 422, "your own jobs only"),
    (ALICE, {"receiver": "hook", "scope": "namespace"}, 422, "is required"),
    (ALICE, {"receiver": "hook", "scope": "namespace", "target": "team-b"}, 403, "team-b"),
    (ALICE, {"receiver": "hook", "scope": "queue", "target": "gpus"}, 403, "all namespaces"),
    (ADMIN, {"receiver": "hook", "scope": "queue", "target": "other"}, 404, "ClusterQueue other"),
    (ALICE, {"receiver": "chat-b"}, 404, "does not exist, or is not for your namespaces"),
    (ALICE, {"receiver": "none"}, 404, "does not exist, or is not for your namespaces"),
    (ADMIN, {"receiver": "chat-b", "scope": "namespace", "target": "team-a"}, 403, "is not for"),
    (BOB, {"receiver": "chat-b", "mode": "digest"}, 422, "sends no digests"),
    (ALICE, {"receiver": "hook", "events": ["receiver.test"]}, 422, "cannot be selected"),
    (ADMIN, {"receiver": "hook", "events": ["controller.leader-changed"]}, 422, "cannot be selected"),
    (ALICE, {"receiver": "hook", "events": ["workload.x"]}, 422, "events.0"),
    (ALICE, {"receiver": "hook", "events": ["workload.failed"] * 400}, 422, "events"),
    (ALICE, {"receiver": "hook", "url": "https://elsewhere.example"}, 422, "url"),
    (ALICE, {"receiver": "x" * 64}, 422, "receiver"),
    (ALICE, {"receiver": ["hook"]}, 422, "receiver"),
    (ALICE, {"receiver": "hook", "scope": "namespace", "target": "a\r\nb"}, 422, "target"),
]  # fmt: skip


async def test_what_a_caller_can_subscribe_to(app: FastAPI) -> None:
    wrong = []
    for token, body, status, text in TABLE:
        answer = await sent(app, token, "POST", SUBSCRIPTIONS, **body)
        if answer.status_code != status or text not in answer.text:
            wrong.append((token, body, answer.status_code, answer.text))
    assert not wrong


async def test_a_repeated_subscription_is_one(app: FastAPI) -> None:
    first = (await sent(app, ALICE, "POST", SUBSCRIPTIONS, receiver="hook")).json()
    second = (await sent(app, ALICE, "POST", SUBSCRIPTIONS, receiver="hook", mode="digest")).json()
    assert second == {**first, "mode": "digest"}
    [kept] = (await sent(app, ALICE, "GET", SUBSCRIPTIONS)).json()["items"]
    assert kept == second
    assert (kept["owner"], kept["scope"], kept["target"]) == ("alice", "user", "alice")


async def test_a_user_has_a_bounded_number_of_them(app: FastAPI, memory: MemoryStore) -> None:
    for number in range(MOST_SUBSCRIPTIONS):
        await memory.notifications.subscribe(Subscription("alice", Scope.NAMESPACE, f"n{number}", "hook"))  # fmt: skip
    answer = await sent(app, ALICE, "POST", SUBSCRIPTIONS, receiver="hook")
    assert answer.status_code == 409
    assert "delete one of them" in answer.text


async def test_users_see_and_delete_their_own_and_administrators_all(
    app: FastAPI, memory: MemoryStore
) -> None:
    made = (await sent(app, ALICE, "POST", SUBSCRIPTIONS, receiver="hook")).json()
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    assert (await sent(app, BOB, "GET", SUBSCRIPTIONS)).json()["items"] == []
    assert (await sent(app, BOB, "GET", f"{SUBSCRIPTIONS}?all=true")).status_code == 403
    assert (await sent(app, BOB, "DELETE", path)).status_code == 403
    assert (await sent(app, BOB, "DELETE", f"{SUBSCRIPTIONS}/999")).status_code == 403
    page = (await sent(app, ADMIN, "GET", f"{SUBSCRIPTIONS}?all=true&limit=1")).json()
    assert ([each["id"] for each in page["items"]], page["nextAfter"]) == ([made["id"]], made["id"])
    rest = (await sent(app, ADMIN, "GET", f"{SUBSCRIPTIONS}?all=true&after={made['id']}")).json()
    assert rest == {"items": [], "nextAfter": None}
    for token, status in ((BOB, 403), (ALICE, 204), (ALICE, 204)):  # a dry run changes nothing
        answer = await sent(app, token, "DELETE", f"{path}?dry_run=true")
        assert answer.status_code == status
    assert (await sent(app, ALICE, "DELETE", path)).status_code == 204
    assert (await sent(app, ADMIN, "DELETE", path)).status_code == 404
    assert (await sent(app, ADMIN, "DELETE", f"{path}?dry_run=true")).status_code == 404
    lines = [line.detail for line in memory.database.audit if line.status in (200, 204)]
    assert lines == [
        f"subscription {made['id']}: all events of user alice to hook, immediate",
        "deleted: all events of user alice to hook, immediate of alice",
    ]


async def test_a_subscription_without_effect_has_a_warning(
    app: FastAPI, memory: MemoryStore, receivers: ReceiverList
) -> None:
    made = (await sent(app, ALICE, "POST", SUBSCRIPTIONS, receiver="mail")).json()
    assert "no verified email address" in made["warning"]
    await memory.notifications.keep_address("alice", "alice@example.org")
    page = (await sent(app, ALICE, "GET", RECEIVERS)).json()
    assert page["address"] == "alice@example.org"
    [kept] = (await sent(app, ALICE, "GET", SUBSCRIPTIONS)).json()["items"]
    assert kept["warning"] is None
    receivers.current = ()
    [kept] = (await sent(app, ALICE, "GET", SUBSCRIPTIONS)).json()["items"]
    assert kept["warning"] == "receiver mail no longer exists"


async def test_a_test_event_is_for_one_receiver_or_for_the_administrators_own_address(
    app: FastAPI, memory: MemoryStore
) -> None:
    assert (await sent(app, ALICE, "POST", f"{RECEIVERS}/hook/test")).status_code == 403
    assert (await sent(app, ADMIN, "POST", f"{RECEIVERS}/none/test")).status_code == 404
    assert (await sent(app, ADMIN, "POST", f"{RECEIVERS}/mail/test")).status_code == 409
    await memory.notifications.keep_address("admin", "admin@example.org")
    for name, to in (("hook", None), ("mail", "admin@example.org")):
        answer = await sent(app, ADMIN, "POST", f"{RECEIVERS}/{name}/test")
        assert (answer.status_code, answer.json()) == (202, {"receiver": name, "to": to})
    stored = await memory.notifications.events(0, 10)
    assert [(each.type, each.receivers, each.user) for each in stored] == [
        (EventType.RECEIVER_TEST, ("hook",), ""),
        (EventType.RECEIVER_TEST, ("mail",), "admin"),
    ]

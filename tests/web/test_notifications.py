"""The page of notifications: a user subscribes and deletes with forms, and only administrators see the delivery."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import PROOF
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.domain.identity import Right
from queuectl.domain.notifications import Mode, Scope, Subscription
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.signed import ADMIN, asking
from tests.api.support import LOCAL_QUEUE, FixedHealth
from tests.api.test_subscriptions import ALICE, ALL
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

PAGE = "/ui/notifications"


def app_with(store: MemoryStore, receivers: ReceiverList) -> FastAPI:
    access = MemoryAccess()
    access.know(ADMIN, "admin", master=True)
    verbs = (("list", "workloads"), ("list", "receivers"), ("create", "subscriptions"))
    access.know(ALICE, "alice", *(Right(verb, resource, "team-a") for verb, resource in verbs))
    layer = AuthenticationLayer(access, secure=True)
    registry = MetricsRecorder().registry
    app = create_app(store, FixedHealth(), registry, authenticated=layer, receivers=receivers)
    add_dashboard(app, store, app.state.guard, signs_in=True)
    return app


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def app(memory: MemoryStore) -> FastAPI:
    await memory.put_config({**LOCAL_QUEUE, "metadata": {"name": "q", "namespace": "team-a"}})
    return app_with(memory, ReceiverList(Path("receivers.yaml"), ALL))


async def shown(app: FastAPI, token: str) -> str:
    async with asking(app, token) as client:
        answer = await client.get(PAGE)
    assert answer.status_code == 200
    return answer.text


async def sent(app: FastAPI, token: str, path: str = PAGE, **fields: str) -> httpx2.Response:
    headers = {"Content-Type": "application/x-www-form-urlencoded", PROOF: "1"}
    async with asking(app, token) as client:
        return await client.post(path, content=urlencode(fields), headers=headers)


async def test_a_user_subscribes_and_deletes_it(app: FastAPI, memory: MemoryStore) -> None:
    answer = await sent(app, ALICE, receiver="hook", scope="namespace", target="team-a", digest="on", **{"workload.failed": "on"})  # fmt: skip
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    [kept] = await memory.notifications.subscriptions_of("alice")
    assert (kept.scope, kept.target, kept.mode) == (Scope.NAMESPACE, "team-a", Mode.DIGEST)
    assert kept.events == {"workload.failed"}
    page = await shown(app, ALICE)
    assert "namespace team-a" in page
    assert f'action="{PAGE}/{kept.id}"' in page
    assert (await sent(app, ALICE, f"{PAGE}/{kept.id}")).status_code == 303
    assert await memory.notifications.subscriptions_of("alice") == ()
    lines = [(line.operation, line.status) for line in memory.database.audit]
    assert lines == [("createSubscription", 303), ("deleteSubscription", 303)]


async def test_a_refusal_keeps_what_was_typed(app: FastAPI, memory: MemoryStore) -> None:
    for fields, status, text in (
        ({"receiver": "none", "scope": "user"}, 404, "does not exist, or is not for your namespaces"),
        ({"receiver": "hook", "scope": "x"}, 422, "scope: must be"),
        ({"receiver": "hook", "scope": "namespace", "target": "<b>"}, 422, "target: "),
        ({"receiver": "hook", "scope": "namespace"}, 422, "is required"),
        ({"receiver": "hook", "scope": "namespace", "target": "team-b"}, 403, "may not create"),
    ):  # fmt: skip
        answer = await sent(app, ALICE, **fields)
        assert answer.status_code == status, fields
        assert text in answer.text, fields
        assert "<b>" not in answer.text
    assert await memory.notifications.subscriptions_of("alice") == ()


async def test_a_subscription_of_another_user_cannot_be_deleted(
    app: FastAPI, memory: MemoryStore
) -> None:
    other = await memory.notifications.subscribe(Subscription("bob", Scope.USER, "bob", "hook"))
    assert other is not None
    for number in (other.id, 999, "x", "9" * 400):
        assert (await sent(app, ALICE, f"{PAGE}/{number}")).status_code == 403
    assert await memory.notifications.subscription(other.id) == other
    assert (await sent(app, ADMIN, f"{PAGE}/999")).status_code == 404


async def test_only_administrators_see_the_delivery_and_no_page_has_an_address(
    app: FastAPI,
) -> None:
    admin, alice = await shown(app, ADMIN), await shown(app, ALICE)
    assert "Last error" in admin
    assert "Last error" not in alice
    for address in ("hidden.example", "/run/secrets"):
        assert address not in admin + alice
    assert "chat-b" in admin
    assert "chat-b" not in alice
    assert "You have no verified email address" in alice


async def test_the_navigation_has_the_page_only_with_receivers(
    app: FastAPI, memory: MemoryStore
) -> None:
    entry = f'<a href="{PAGE}"'
    for application, expected in ((app, True), (app_with(memory, ReceiverList()), False)):
        async with asking(application, ALICE) as client:
            assert (entry in (await client.get("/ui/mine")).text) is expected

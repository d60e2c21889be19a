"""``subscribe``, ``sendtest``, and the lists of receivers and subscriptions, against a running API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.api.access import ANONYMOUS
from queuectl.domain.notifications import EventType, Scope, Subscription
from queuectl.notify.receivers_file import ReceiverList
from tests.api.serving import serving
from tests.api.support import CLUSTER_QUEUE
from tests.api.test_subscriptions import ALL
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli, Result, queuectl_with

NAME = CLUSTER_QUEUE["metadata"]["name"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[MemoryStore, str]]:
    store = MemoryStore()
    with serving(store, receivers=ReceiverList(Path("receivers.yaml"), ALL)) as address:
        yield store, address


@pytest.fixture
def store(running: tuple[MemoryStore, str]) -> MemoryStore:
    store = running[0]
    fresh = MemoryDatabase()
    store.database = fresh
    store.notifications._tables = fresh.notifications
    return store


@pytest.fixture
def queuectl(
    running: tuple[MemoryStore, str],
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    monkeypatch.setenv("QUEUECTL_SERVER", running[1])
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    def call(*arguments: str) -> Result:
        return queuectl_with(monkeypatch, capsys, *arguments)

    return call


def test_a_subscription_is_made_listed_and_deleted(queuectl: Cli) -> None:
    made = queuectl(
        "subscribe", "hook", "-n", "team-a", "--events", "workload.failed,workload.evicted"
    )
    assert (
        made.out
        == "subscription/1: workload.evicted, workload.failed of namespace team-a to hook immediately\n"
    )
    assert (made.code, made.err) == (0, "")
    listed = queuectl("get", "subscriptions")
    assert listed.out.split()[:6] == ["ID", "SCOPE", "TARGET", "RECEIVER", "MODE", "EVENTS"]
    assert "team-a" in listed.out
    body = json.loads(queuectl("get", "subscriptions", "-o", "json").out)
    assert [each["id"] for each in body["items"]] == [1]
    dry = queuectl("delete", "subscription", "1", "--dry-run")
    assert (dry.code, dry.out) == (0, "subscription/1 would be deleted\n")
    assert queuectl("delete", "subscription", "1").out == "subscription/1 deleted\n"
    assert queuectl("delete", "subscription", "1").code == 3
    assert queuectl("delete", "subscription", "1", "--dry-run").code == 3
    assert queuectl("delete", "subscription", "1", "--ignore-not-found").code == 0
    assert "no objects found" in queuectl("get", "subscription").err


def test_a_subscription_to_the_own_jobs_and_to_a_queue(queuectl: Cli, store: MemoryStore) -> None:
    own = queuectl("subscribe", "hook", "--digest")
    assert own.out == "subscription/1: all events of your jobs to hook in digests\n"
    assert own.err.startswith("warning: queuectl does not authenticate callers here")
    missing = queuectl("subscribe", "hook", "--queue", "none")
    assert (missing.code, missing.err) == (3, "error: ClusterQueue none does not exist\n")
    store.database.documents.clear()
    made = json.loads(queuectl("subscribe", "mail", "-n", "team-a", "-o", "json").out)
    assert (made["scope"], made["target"], made["owner"]) == ("namespace", "team-a", ANONYMOUS.name)


def test_subscriptions_of_all_users_are_listed_page_by_page(
    queuectl: Cli, store: MemoryStore
) -> None:
    rows = store.database.notifications.subscriptions
    for number in range(1, 151):
        rows[number] = Subscription(f"u{number}", Scope.USER, f"u{number}", "hook", id=number)
    assert json.loads(queuectl("get", "subscriptions", "-o", "json").out)["items"] == []
    body = json.loads(queuectl("get", "subscriptions", "--all", "-o", "json").out)
    assert [each["id"] for each in body["items"]] == list(range(1, 151))


def test_receivers_are_listed_and_tested(queuectl: Cli, store: MemoryStore) -> None:
    assert queuectl("get", "receivers", "-o", "name").out.split() == [
        "receiver/chat-b",
        "receiver/hook",
        "receiver/mail",
    ]
    assert "immediate,digest" in queuectl("get", "receivers").out
    assert queuectl("sendtest", "hook").out == "receiver/hook: a test event is sent\n"
    assert [each.type for each in store.database.notifications.events] == [EventType.RECEIVER_TEST]
    assert queuectl("sendtest", "none").err == "error: receiver 'none' does not exist\n"


def test_wrong_usage_is_named(queuectl: Cli) -> None:
    for arguments, text in (
        (("subscribe", "hook", "-n", "a", "--queue", "b"), "--namespace excludes --queue"),
        (("subscribe", "none"), "receiver 'none' does not exist"),
        (("subscribe", "chat-b", "--digest"), "sends no digests"),
        (("subscribe", "hook", "--events", "x"), "events"),
        (("get", "receivers", "hook"), "omit the name"),
        (("get", "subscriptions", "--queue", "x"), "--queue is for lists of workloads"),
        (("get", "receivers", "--all"), "--all is for lists of workloads and subscriptions"),
        (("delete", "subscription", "x"), "'x' is not the id of a subscription"),
        (("delete", "subscription", "1", "-n", "x"), "the only options are --ignore-not-found"),
        (("delete", "subscription"), "give the ids"),
    ):
        refused = queuectl(*arguments)
        assert refused.code != 0, arguments
        assert text in refused.err, (arguments, refused.err)

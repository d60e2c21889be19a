"""Expensive reads: a caller without rights causes no reads of rows, and the cost of each read is bounded.

The routes are taken from the application, as in test_expensive.py: a new one is covered, or fails here until it declares what it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import pytest

from queuectl.api.routes import pastuse
from queuectl.domain.pastuse import PastUseAccount, Used
from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.usage_reports import MOST_ROWS
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.configuration.queue_config import read
from tests.api.signed import ADMIN, NO_RIGHTS, asking
from tests.api.support import CLUSTER_QUEUE, LOCAL_QUEUE
from tests.doubles.access import MemoryAccess
from tests.support.work import lines_run
from tests.web.test_expensive import ALL, APP, SAMPLE, access, filled

__all__ = ["access"]  # the fixture

READING: Final = [path for method, path in ALL if method == "GET"]
OPEN: Final = {"/healthz", "/readyz", "/api/v1/openapi.json", "/ui/signin"}
MOST_LINES: Final = 500


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the store and of the cluster reader that are called while the test runs."""
    seen: list[str] = []

    def recorded(owner: object, name: str) -> Callable[..., Any]:
        function = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            return function(*arguments, **named)

        return called

    for owner in (
        SAMPLE.store,
        SAMPLE.store.usage,
        SAMPLE.store.notifications,
        SAMPLE.cluster_reader,
    ):
        for name, function in inspect.getmembers(type(owner), inspect.iscoroutinefunction):
            if not name.startswith("_") and function is not None:
                monkeypatch.setattr(owner, name, recorded(owner, name))
    return seen


def address(path: str) -> str:
    return filled(path) + ("?follow=false" if path == "/api/v1/events" else "")


async def asked(token: str | None, path: str) -> Any:
    async with asking(APP, token) as client:
        return await client.get(address(path))


async def test_without_credentials_nothing_is_read(access: MemoryAccess, reads: list[str]) -> None:
    for path in READING:
        answer = await asked(None, path)
        assert answer.status_code == (200 if path in OPEN else 401), path
        assert not reads, path
        assert not access.asked, path


FEW: Final = {"namespaces", "get_workload", "find_workload", "command", "newest_line"}
"""The names of namespaces, one row, one number."""
OF_NO_NAMESPACE: Final = {
    "newest_commands", "list_workloads", "waiting", "evictions", "report", "list_config",
    "tallies", "config_changes", "past_use", "current_snapshot", "users", "subscriptions_of",
}  # fmt: skip
"""Reads of lists that are empty for no namespaces, and those that every caller shares."""


async def test_without_rights_no_rows_are_read(access: MemoryAccess, reads: list[str]) -> None:
    for path in READING:
        reads.clear()
        answer = await asked(NO_RIGHTS, path)
        pages = path.startswith("/ui/")
        assert answer.status_code in (200, 204, 303, 307, 403, 404), path
        allowed: Collection[str] = FEW | OF_NO_NAMESPACE if pages else FEW | LISTS.get(path, set())
        assert set(reads) <= set(allowed), path


LISTS: Final[dict[str, set[str]]] = {
    "/api/v1/commands": {"newest_commands"},
    "/api/v1/workloads": {"list_workloads"},
    "/api/v1/localqueues": {"list_config"},
    "/api/v1/subscriptions": {"subscriptions_of"},
    **{f"/api/v1/reports/{one}": {"report"} for one in ("usage", "waste", "waits")},
    "/api/v1/reports/cost": {"report", "config_changes"},
}
"""REST routes that answer a caller without rights with an empty list, and what they read for it."""

BOUNDED_BY: Final = {
    **{path: "the number of documents, which only writers of configuration make" for path in READING if path.count("/") == 3 and path.rpartition("/")[2] in (
        "admissionchecks", "budgets", "budgettopups", "clusterqueues", "cohorts", "configurations", "localqueues", "priorityclasses", "provisioningrequestconfigs", "quotaoverrides", "reservations", "resourceflavors", "topologies")},
    "/api/v1/namespaces/{namespace}/localqueues": "the same",
    "/api/v1/pastuse": "the number of queues and users",
    "/api/v1/domains": "the number of nodes",
    "/api/v1/nodesummary": "the number of flavors and GPU models",
    "/api/v1/queueuse": "the number of ClusterQueues",
    "/api/v1/clustermap": "the number of nodes",
    "/api/v1/invariants": "the number of invariants",
    "/api/v1/refusedplans": "the 20 plans that are kept",
    "/api/v1/setasideobjects": "the 20 objects that are kept",
    "/api/v1/decisions/{number}": "one cycle's steps, a page of them",
    "/api/v1/session": "one caller",
    "/api/v1/receivers": "the 100 receivers of the file",
    "/api/v1/configurationowner": "200 objects of each list",
    "/api/v1/reports/history": "168 hours",
    "/api/v1/reports/budgets": "the number of Budgets",
    "/api/v1/reports/shadow": "the hours of 366 days, and 100 gangs",
    "/api/v1/reports/shadow/page": "100 gangs",
    "/api/v1/reports/efficiency": "the number of values of a node label",
    **{f"/api/v1/reports/{one}": f"{MOST_ROWS} rows" for one in ("usage", "cost", "waste", "waits")},
}  # fmt: skip
"""The bounds of responses of routes without a limit."""


async def test_every_list_has_a_limit_or_another_bound(access: MemoryAccess) -> None:
    one = (
        "{name}",
        "{uid}",
        "{number}",
        "explain",
        "efficiency",
    )  # one object, its explanation or its use
    for path in READING:
        if not path.startswith("/api/v1/") or path in OPEN or path == "/api/v1/events":
            continue
        async with asking(APP, ADMIN) as client:
            answer = await client.get(address(path), params={"limit": MOST_LINES + 1})
        if answer.status_code == 422 and "limit" in answer.text:
            continue
        assert path in BOUNDED_BY or path.endswith(one), f"{path}: {answer.status_code}"


async def test_the_configuration_is_read_once_for_all_who_ask(
    access: MemoryAccess, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only what was written since."""
    read: list[str] = []
    follow = Catalog.follow

    def followed(catalog: Any, changes: Any) -> None:
        read.extend(document["metadata"]["name"] for document in changes.written)
        follow(catalog, changes)

    monkeypatch.setattr(Catalog, "follow", followed)
    await asked(ADMIN, "/api/v1/reports/cost")
    read.clear()
    reads.clear()
    await SAMPLE.store.put_config(
        {**LOCAL_QUEUE, "metadata": {"namespace": "team-b", "name": "late"}}
    )
    for path in ("/api/v1/reports/cost", "/api/v1/pastuse", "/ui/queues", "/ui/usage", "/ui/"):
        answer = await asked(ADMIN, path)
        assert answer.status_code == 200, path
    assert read == ["late"]
    assert "configuration" not in reads


def test_the_work_of_past_use_grows_with_the_number_of_queues() -> None:
    def shown(number: int) -> None:
        names = [f"queue-{n}" for n in range(number)]
        rules = Rules(usage_fairness=UsageFairness(half_life=100.0))
        local = {("team-b", name): LocalQueue("team-b", name, "main") for name in names}
        queues = {"main": read(CLUSTER_QUEUE).content}
        config = QueueConfig(cluster_queues=queues, local_queues=local, rules=rules)
        used = [
            Used(PastUseAccount.of_local_queue("team-b", name), 1.0, {"x": 1.0}) for name in names
        ]
        view = pastuse._view(used, config, None)
        assert [item.share for item in view.items] == [1 / number] * number

    few, many = (lines_run(partial(shown, number)) for number in (50, 200))
    assert many < 5 * few

"""The aggregated API over a ledger in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest

from queuectl.control.questions.throttle import MOST_OF_ONE, MOST_WAITING, PlannerThrottle
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.errors import TookTooLong
from queuectl.domain.identity import Caller, Right
from queuectl.domain.ledger import State
from queuectl.domain.selectors import Selector, matches
from queuectl.visibility import requests
from queuectl.visibility.app import VisibilityApp
from queuectl.visibility.discovery import AGGREGATED_TYPE
from queuectl.visibility.identity import NotIdentified
from queuectl.visibility.objects import GROUP
from queuectl.visibility.rows import LastKnown
from tests.api.conftest import live
from tests.api.support import LIVES, FixedDiagnoser, entry
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

ROOT = "/apis/visibility.queuectl.dev/v1"
JOBS = f"{ROOT}/namespaces/team-a/queuedjobs"
TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


class NamedCaller:
    """The user of the header ``user``; no user without it."""

    def caller_of(self, scope: Mapping[str, Any]) -> Caller:
        name = dict(scope["headers"]).get(b"user", b"").decode()
        if not name:
            raise NotIdentified("nobody")
        return Caller(name)


@dataclass
class Served:
    """An application over a ledger with a workload in every state."""

    store: MemoryStore = field(default_factory=MemoryStore)
    access: MemoryAccess = field(default_factory=MemoryAccess)
    diagnoser: FixedDiagnoser = field(default_factory=FixedDiagnoser)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.access.know("", "admin", master=True)
        self.rows = LastKnown(self.store, lambda: self.now)
        self.app = VisibilityApp(NamedCaller(), self.access, self.rows, self.diagnoser)

    @asynccontextmanager
    async def client(self, user: str = "admin") -> AsyncIterator[httpx2.AsyncClient]:
        transport = httpx2.ASGITransport(app=self.app)
        headers = {"user": user} if user else {}
        async with httpx2.AsyncClient(
            transport=transport, base_url="https://queuectl", headers=headers
        ) as client:
            yield client

    async def get(self, path: str, user: str = "admin", **headers: str) -> httpx2.Response:
        async with self.client(user) as client:
            return await client.get(path, headers=headers)

    def change(self, name: str, **fields: Any) -> None:
        """Another state of a workload, as of the next read."""
        entries = self.store.database.entries
        before = entries[f"uid-job-{name}"]
        entries[before.uid] = replace(before, version=before.version + 1, **fields)
        self.now += 1.5


@pytest.fixture
async def served() -> Served:
    made = Served()
    await live(made.store)
    return made


def names(answer: httpx2.Response) -> list[str]:
    return [item["metadata"]["name"] for item in answer.json()["items"]]


async def test_a_list_has_all_workloads_that_are_not_finished_without_explanations(served: Served):
    answer = await served.get(JOBS)
    assert names(answer) == [f"job-{name}" for name in sorted(LIVES) if name != "finished"]
    assert served.diagnoser.asked == []
    pending = answer.json()["items"][names(answer).index("job-pending")]
    assert pending["kind"] == "QueuedJob"
    assert pending["explanation"] is None
    assert pending["metadata"]["labels"]["visibility.queuectl.dev/state"] == "Pending"
    expected = (await served.store.positions(["uid-job-pending"]))["uid-job-pending"]
    assert pending["status"]["positionInClusterQueue"] == expected.cluster_queue
    assert pending["status"]["reason"]["code"] == "WaitingForQuota"


async def test_one_object_is_explained_but_not_in_a_table(served: Served):
    answer = (await served.get(f"{JOBS}/job-pending", **TABLE)).json()
    assert (answer["kind"], len(answer["rows"])) == ("Table", 1)
    assert served.diagnoser.asked == []
    one = (await served.get(f"{JOBS}/job-pending")).json()
    assert one["explanation"]["conflict"][0]["message"].startswith("quota")
    assert served.diagnoser.asked == ["uid-job-pending"]


class Throttled(FixedDiagnoser):
    """Answers in turn, once it is asked a number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times
        self._throttle, self._begin = PlannerThrottle(1.0), asyncio.Event()

    async def diagnose(self, uid: str) -> Diagnosis | None:
        self.asked.append(uid)
        if len(self.asked) == self._times:
            self._begin.set()
        try:
            async with self._throttle.turn():
                await self._begin.wait()
                return self.known
        except TookTooLong:
            return None


async def test_a_user_who_asks_for_many_explanations_leaves_room_for_others():
    users = ["tenant"] * MOST_WAITING + ["admin"]
    served = Served(diagnoser=Throttled(len(users)))
    await live(served.store)
    served.access.know("", "tenant", master=True)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(served.get(f"{JOBS}/job-pending", u) for u in users))
    explained = [bool(answer.json()["explanation"]["conflict"]) for answer in answers]
    assert explained == [True] * MOST_OF_ONE + [False] * (MOST_WAITING - MOST_OF_ONE) + [True]


async def test_a_table_has_what_kubectl_prints(served: Served):
    answer = (await served.get(f"{JOBS}?includeObject=None", **TABLE)).json()
    heads = [column["name"] for column in answer["columnDefinitions"] if not column["priority"]]
    assert heads == ["Name", "State", "Queue", "Position", "Expected Start", "Reason"]
    assert all(len(row["cells"]) == len(answer["columnDefinitions"]) for row in answer["rows"])
    assert "object" not in answer["rows"][0]
    kinds = {
        include: (await served.get(f"{JOBS}?includeObject={include}", **TABLE)).json()["rows"][0]
        for include in ("Metadata", "Object")
    }
    assert [row["object"]["kind"] for row in kinds.values()] == [
        "PartialObjectMetadata",
        "QueuedJob",
    ]


async def test_pages_together_are_the_list(served: Served):
    whole, path, seen = names(await served.get(JOBS)), f"{JOBS}?limit=4", []
    for remaining in (7, 3, None):
        page = await served.get(path)
        seen += names(page)
        metadata = page.json()["metadata"]
        assert metadata.get("remainingItemCount") == remaining
        path = f"{JOBS}?limit=4&continue={metadata.get('continue')}"
    assert seen == whole


async def test_selectors_choose(served: Served):
    by_field = await served.get(f"{JOBS}?fieldSelector=status.state%3DRunning")
    assert names(by_field) == ["job-running", "job-unready"]
    label = "visibility.queuectl.dev/state%20in%20(Pending,Held)"
    assert names(await served.get(f"{JOBS}?labelSelector={label}")) == [
        "job-held",
        "job-pending",
        "job-requeued",
    ]
    await served.get(f"{JOBS}?fieldSelector=metadata.name%3Djob-held")
    asked = [right for _, right in served.access.asked]
    assert Right("list", "queuedjobs", "team-a", "job-held", GROUP) in asked


async def test_unknown_parameters_are_ignored_as_by_the_api_server(served: Served):
    whole = names(await served.get(JOBS))
    assert names(await served.get(f"{JOBS}?pretty=true&timeout=32s&fieldManager=a")) == whole


async def test_every_refusal_is_a_status(served: Served):
    table: dict[tuple[str, str], int] = {
        ("GET", f"{JOBS}/job-nothing"): 404,
        ("GET", f"{JOBS}/job-finished"): 404,
        ("GET", f"{JOBS}/job%2Fpending"): 404,
        ("GET", f"{ROOT}/namespaces/team-a%2Fqueuedjobs"): 404,
        ("GET", f"{JOBS}/job-pending/status"): 404,
        ("GET", f"{ROOT}/namespaces/{'x' * 300}/queuedjobs"): 404,
        ("GET", f"{ROOT}/workloads"): 404,
        ("GET", "/metrics"): 404,
        ("GET", f"{JOBS}?fieldSelector=status.color%3Dred"): 400,
        ("GET", f"{JOBS}?labelSelector={'x' * 60_000}"): 400,
        ("GET", f"{JOBS}?limit=-1"): 400,
        ("GET", f"{JOBS}?limit={'9' * 400}"): 400,
        ("GET", f"{JOBS}?limit=1&limit=2"): 400,
        ("GET", f"{JOBS}?{'&'.join(f'a{n}=1' for n in range(100))}"): 400,
        ("GET", f"{JOBS}?continue=nonsense"): 400,
        ("GET", f"{JOBS}?continue=WzFd"): 400,
        ("GET", f"{JOBS}?watch=perhaps"): 400,
        ("GET", f"{JOBS}?includeObject=All"): 400,
        ("GET", "/apis/%FF"): 400,
        ("DELETE", f"{JOBS}/job-pending"): 405,
        ("POST", JOBS): 405,
        ("PATCH", f"{JOBS}/job-pending"): 405,
        ("HEAD", JOBS): 405,
    }
    found = {}
    async with served.client() as client:
        for method, path in table:
            answer = await client.request(method, path)
            found[method, path] = answer.status_code
            if method != "HEAD":
                status = answer.json()
                assert (status["kind"], status["code"]) == ("Status", answer.status_code), path
    assert found == table
    assert (await served.get(JOBS, user="")).status_code == 401
    assert (await served.get(JOBS, accept="text/html")).status_code == 406
    missing = (await served.get(f"{JOBS}/pending")).json()["message"]
    assert missing.endswith("the name begins with the kind of the job: job-pending")


async def test_the_cluster_decides_and_silence_is_a_refusal(served: Served):
    member = Right("list", "queuedjobs", "team-a", group=GROUP)
    served.access.know("m", "member", member)
    assert (await served.get(JOBS, user="member")).status_code == 200
    assert (await served.get(f"{ROOT}/queuedjobs", user="member")).status_code == 403
    assert (await served.get(f"{JOBS}/job-held", user="member")).status_code == 403
    served.access.know("w", "other", Right("list", "workloads", "team-a"))
    assert (await served.get(JOBS, user="other")).status_code == 403
    assert (await served.get("/apis", user="other")).status_code == 200
    served.access.down = True
    assert (await served.get(JOBS, user="member")).status_code == 503


async def test_gangs_of_other_namespaces_are_not_named(served: Served):
    text = "waits for team-b/secret"
    pending = entry("pending")
    served.store.database.entries["uid-b"] = replace(
        pending, uid="uid-b", namespace="team-b", name="secret"
    )
    served.change("pending", reason=replace(pending.reason, message=text))
    served.access.know("m", "member", Right("list", "queuedjobs", "team-a", group=GROUP))
    assert "team-b/secret" in (await served.get(JOBS)).text
    answer = (await served.get(JOBS, user="member")).text
    assert "another team" in answer
    assert "team-b/secret" not in answer


async def test_the_last_known_workloads_stay_with_a_warning_while_the_database_is_down(
    served: Served,
):
    before = await served.get(JOBS)
    assert "warning" not in before.headers
    served.store.database.down = True
    served.now += 42.0
    after = await served.get(JOBS)
    assert names(after) == names(before)
    assert (after.headers["age"], after.headers["warning"]) == (
        "42",
        '299 - "queuectl\'s database does not answer: this is what was known 42 s ago"',
    )
    one = await served.get(f"{JOBS}/job-pending")
    assert one.json()["explanation"]["sentence"]
    served.store.database.down = False
    served.now += 2.0
    # No request waits for a database that failed before: a read in the background notices that it works.
    async with asyncio.timeout(30):
        while "warning" in (await served.get(JOBS)).headers:  # noqa: ASYNC110 - each look is a request
            await asyncio.sleep(0.01)


async def test_a_replica_that_never_read_anything_is_unavailable(served: Served):
    served.store.database.down = True
    answer = await served.get(JOBS)
    assert (answer.status_code, answer.json()["reason"]) == (503, "ServiceUnavailable")


async def test_discovery_names_one_resource_that_is_read_only(served: Served):
    resources = (await served.get(ROOT)).json()["resources"]
    assert [(r["name"], r["verbs"]) for r in resources] == [
        ("queuedjobs", ["get", "list", "watch"])
    ]
    aggregated = await served.get("/apis", accept=AGGREGATED_TYPE)
    assert aggregated.json()["kind"] == "APIGroupDiscoveryList"
    assert (await served.get("/apis")).json()["kind"] == "APIGroupList"
    group = f"/apis/{GROUP}"
    assert (await served.get(group)).json()["preferredVersion"]["version"] == "v1"


async def test_each_reference_of_the_schemas_leads_to_a_schema(served: Served):
    for path, prefix in (
        (f"/openapi/v3{ROOT}", "#/components/schemas/"),
        ("/openapi/v2", "#/definitions/"),
    ):
        document = (await served.get(path)).json()
        schemas = document.get("definitions") or document["components"]["schemas"]
        text = json.dumps(document)
        found = {part.partition('"')[0] for part in text.split(f'"$ref": "{prefix}')[1:]}
        assert found
        assert found <= set(schemas)
        assert "anyOf" not in text


# ---- watches


async def events(served: Served, query: str, seconds: int = 1) -> list[dict[str, Any]]:
    """The events of a watch of a few seconds."""
    answer = await served.get(f"{JOBS}?watch=1&timeoutSeconds={seconds}&{query}")
    return [json.loads(line) for line in answer.text.splitlines()]


def summary(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (e["type"], e["object"]["metadata"]["name"], e["object"]["status"]["state"]) for e in found
    ]


async def test_a_watch_begins_at_a_version_and_shows_what_changes(served: Served):
    version = (await served.get(JOBS)).json()["metadata"]["resourceVersion"]
    running = "fieldSelector=status.state%3DRunning"
    first, second, third = (
        asyncio.create_task(events(served, f"resourceVersion={version}{more}", 2))
        for more in ("", f"&{running}", "&fieldSelector=metadata.name%3Djob-held")
    )
    await asyncio.sleep(0.1)
    served.change("running", state=State.EVICTING)
    served.change("starting", state=State.RUNNING)
    gone = served.store.database.entries["uid-job-held"]
    served.store.database.entries["uid-job-held"] = replace(gone, state=State.FINISHED)
    assert sorted(summary(await first)) == [
        ("DELETED", "job-held", "Held"),
        ("MODIFIED", "job-running", "Evicting"),
        ("MODIFIED", "job-starting", "Running"),
    ]
    assert sorted(summary(await second)) == [
        ("ADDED", "job-starting", "Running"),
        ("DELETED", "job-running", "Evicting"),
    ]
    assert summary(await third) == [("DELETED", "job-held", "Held")]


async def test_a_watch_continues_on_another_replica(served: Served):
    other = Served(store=MemoryStore(served.store.database))
    await other.get(JOBS)
    version = (await served.get(JOBS)).json()["metadata"]["resourceVersion"]
    served.change("running", state=State.EVICTING)
    other.now += 2.0
    found = await events(other, f"resourceVersion={version}")
    assert summary(found) == [("MODIFIED", "job-running", "Evicting")]
    after = found[0]["object"]["metadata"]["resourceVersion"]
    assert int(after) >= int(version)


async def test_no_list_or_watch_matches_its_selector_on_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    threads: list[int] = []

    def noted(selector: Selector, labels: Mapping[str, str]) -> bool:
        threads.append(threading.get_ident())
        return matches(selector, labels)

    monkeypatch.setattr(requests, "matches", noted)
    answer = await served.get(f"{JOBS}?labelSelector=none")
    version = answer.json()["metadata"]["resourceVersion"]
    served.change("running", state=State.EVICTING)
    await served.get(JOBS)
    assert await events(served, "labelSelector=none") == []
    listed = len(threads)
    assert await events(served, f"resourceVersion={version}&labelSelector=none") == []
    assert len(threads) > listed > 0
    assert threading.get_ident() not in threads


async def test_a_watch_without_a_version_begins_with_all_objects(served: Served):
    found = await events(served, "fieldSelector=status.state%3DRunning")
    assert summary(found) == [
        ("ADDED", "job-running", "Running"),
        ("ADDED", "job-unready", "Running"),
    ]


async def test_the_objects_that_exist_end_with_a_bookmark_where_a_client_asks_for_it(
    served: Served,
):
    query = "fieldSelector=status.state%3DRunning&sendInitialEvents=true&allowWatchBookmarks=true"
    *found, last = await events(served, f"{query}&resourceVersionMatch=NotOlderThan")
    assert [event["type"] for event in found] == ["ADDED", "ADDED"]
    assert last["type"] == "BOOKMARK"
    assert last["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_version_that_is_not_known_is_expired(served: Served):
    await served.get(JOBS)
    for version in ("1", "9" * 15):
        [event] = await events(served, f"resourceVersion={version}")
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_watch_needs_its_right_and_there_are_not_too_many(served: Served):
    served.access.know("m", "member", Right("list", "queuedjobs", "team-a", group=GROUP))
    refused = await served.get(f"{JOBS}?watch=1", user="member")
    assert refused.status_code == 403
    answers = await asyncio.gather(
        *(served.get(f"{JOBS}?watch=1&timeoutSeconds=1&resourceVersion=1") for _ in range(3))
    )
    assert [answer.status_code for answer in answers] == [200] * 3
    async with served.client() as client:
        watches = [
            asyncio.create_task(client.get(f"{JOBS}?watch=1&timeoutSeconds=1")) for _ in range(130)
        ]
        found = [(await watch).status_code for watch in watches]
    assert sorted(set(found)) == [200, 429]
    assert found.count(200) == 100

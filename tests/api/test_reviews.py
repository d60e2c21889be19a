"""How many access reviews of the API server callers of the REST API can cause."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from queuectl.cluster import access
from queuectl.cluster.access import REVIEWS_PER_SECOND, KubernetesAccess
from tests.api.conftest import commit
from tests.api.signed import asking, signed_app
from tests.api.support import LIVES, LOCAL_QUEUE, job, live_through
from tests.doubles.store import MemoryStore

WORKLOADS = "/api/v1/workloads"
BURST = 300
"""Reviews in a burst, instead of those of the product."""


class Reviewer:
    """Answers reviews as an API server: every token is valid, and contains its user and the namespaces whose workloads the user may list."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.given: set[str] = set()  # namespaces in which every caller has the right

    async def request(self, method: str, path: str, *, body: Any, **_: Any) -> bytes:
        self.asked[body["kind"]] += 1
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            user = {"username": spec["token"], "groups": []}
            return orjson.dumps({"status": {"authenticated": True, "user": user}})
        namespace = spec["resourceAttributes"]["namespace"]
        allowed = namespace == spec["user"] or namespace in self.given
        return orjson.dumps({"status": {"allowed": allowed}})

    @property
    def reviews(self) -> int:
        return self.asked["SubjectAccessReview"]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def crowded(store: MemoryStore, namespaces: int) -> None:
    for number in range(namespaces):
        metadata = {"name": "default", "namespace": f"team-{number}"}
        await store.put_config({**LOCAL_QUEUE, "metadata": metadata})
    await commit(store, live_through(job("own", namespace="team-7"), *LIVES["pending"]))


async def test_a_dashboard_of_a_restricted_caller_causes_few_reviews(memory: MemoryStore) -> None:
    server, clock = Reviewer(), Clock()
    await crowded(memory, 300)
    app = signed_app(memory, KubernetesAccess(server, clock))  # type: ignore[arg-type]  # all that it uses
    async with asking(app, "team-7") as client:
        for _ in range(120):  # ten minutes
            listed = await client.get(WORKLOADS)
            assert [one["name"] for one in listed.json()["items"]] == ["own"]
            clock.now += 5.0
    # Each namespace at the start, and after 30, 90, 210 and 450 s; our own every 30 s, the whole cluster every 5 s.
    assert server.reviews <= 5 * 300 + 20 + 120


async def test_a_right_given_a_moment_ago_is_seen(memory: MemoryStore) -> None:
    server, clock = Reviewer(), Clock()
    await crowded(memory, 20)
    app = signed_app(memory, KubernetesAccess(server, clock))  # type: ignore[arg-type]  # as above
    async with asking(app, "team-3") as client:
        assert (await client.get(WORKLOADS)).json()["items"] == []
        server.given = {"team-7"}
        clock.now += 30.0
        assert len((await client.get(WORKLOADS)).json()["items"]) == 1


async def test_the_reviews_of_one_caller_are_bounded(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "REVIEW_BURST", BURST)
    server, clock = Reviewer(), Clock()
    await crowded(memory, 10)
    app = signed_app(memory, KubernetesAccess(server, clock), burst=10**6)  # type: ignore[arg-type]  # as above
    async with asking(app, "team-7") as client:
        answers: Counter[int] = Counter()
        for number in range(BURST + 50):
            asked = await client.get(f"{WORKLOADS}?namespace=made-up-{number}")
            answers[asked.status_code] += 1
        assert answers == {403: BURST, 429: 50}
        assert int(asked.headers["retry-after"]) >= 1
        assert server.reviews == BURST
        clock.now += 1.0
        assert (await client.get(WORKLOADS)).status_code == 200
        assert server.reviews <= BURST + REVIEWS_PER_SECOND
    async with asking(app, "team-8") as other:
        assert (await other.get(WORKLOADS)).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/localqueues", "/api/v1/reports/usage", WORKLOADS])
async def test_a_caller_that_sees_all_namespaces_causes_one_review(
    memory: MemoryStore, path: str
) -> None:
    server, clock = Reviewer(), Clock()
    await crowded(memory, 50)
    server.given = {""}
    app = signed_app(memory, KubernetesAccess(server, clock))  # type: ignore[arg-type]  # as above
    async with asking(app, "admin") as client:
        for _ in range(5):
            assert (await client.get(path)).status_code == 200
    assert server.reviews == 1

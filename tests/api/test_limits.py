"""Rate limits for each caller, security headers of every answer, and request ids."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from queuectl.api.auth.authentication import SESSION_PATH
from queuectl.api.body import MAX_BYTES, MAX_LIST_BYTES
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.identity import Caller, Session
from queuectl.domain.pacing import Buckets
from tests.api.conftest import commit, talking_to
from tests.api.serving import running
from tests.api.signed import ADMIN, NO_RIGHTS, SELDOM, asking, bearer, people, signed_app
from tests.api.support import job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

COHORTS = "/api/v1/cohorts"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# ---- rates


def test_a_burst_is_accepted_and_then_a_fixed_rate_per_second() -> None:
    clock = Clock()
    buckets = Buckets(2.0, 3, clock)
    assert [buckets.take("a") for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert buckets.take("b") == 0.0
    clock.now = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0.0, 0.5]
    clock.now = 100.0
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@given(
    per_second=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 10), max_size=200),
)
def test_no_caller_gets_more_than_its_share(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    buckets = Buckets(per_second, burst, clock)
    let = 0
    for pause in pauses:
        clock.now += pause
        wait = buckets.take("a")
        let += not wait
        assert 0 <= wait <= 1 / per_second + 1e-9
        assert let <= burst + clock.now * per_second + 1e-6


async def test_a_caller_over_its_limit_learns_when_to_retry_and_others_are_not_limited(
    memory: MemoryStore,
) -> None:
    app = signed_app(memory, people(), per_second=0.001, burst=3)
    async with asking(app, ADMIN) as busy, asking(app, NO_RIGHTS) as other:
        assert [(await busy.get(COHORTS)).status_code for _ in range(3)] == [200] * 3
        refused = await busy.get(COHORTS)
        assert refused.status_code == 429
        assert refused.json()["type"].endswith("/too-many-requests")
        assert 900 < int(refused.headers["retry-after"]) <= 1000
        assert (await other.get(COHORTS)).status_code == 403
        assert (await busy.put(f"{COHORTS}/all", json={})).status_code == 429
        assert not memory.database.audit


async def test_attempts_with_wrong_tokens_are_limited(memory: MemoryStore) -> None:
    app = signed_app(memory, people(), per_second=SELDOM, burst=3)
    async with asking(app) as client:
        guesses = [
            (await client.post("/api/v1/session", json={"token": f"guess-{n}"})).status_code
            for n in range(5)
        ]
    assert guesses == [401, 401, 401, 429, 429]
    assert not memory.database.audit


class Counting(MemoryAccess):
    """Counts what the API server is asked."""

    reviews = 0

    async def who(self, token: str) -> Caller | None:
        self.reviews += 1
        return await super().who(token)


def counting() -> Counting:
    access = Counting()
    access.know(ADMIN, "admin", master=True)
    return access


async def test_a_flood_of_bad_tokens_causes_few_token_reviews(memory: MemoryStore) -> None:
    access = counting()
    app = signed_app(memory, access, failures_per_second=SELDOM)
    async with asking(app) as client:
        bad = [client.get(COHORTS, headers=bearer(f"guess-{n}")) for n in range(300)]
        answers = Counter(answer.status_code for answer in await asyncio.gather(*bad))
        reviews = access.reviews
        # Signing in tries credentials as well.
        assert (await client.post(SESSION_PATH, json={"token": "guess"})).status_code == 429
    assert reviews == access.reviews == 100
    assert answers == {401: 100, 429: 200}


async def test_a_flood_of_bad_cookies_causes_few_lookups(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = 0
    find = memory.sessions.find

    async def counted(key: str) -> Session | None:
        nonlocal looked_up
        looked_up += 1
        return await find(key)

    monkeypatch.setattr(memory.sessions, "find", counted)
    app = signed_app(memory, counting(), failures_per_second=SELDOM)
    async with asking(app) as client:
        for n in range(300):
            await client.get(COHORTS, headers={"Cookie": f"__Host-queuectl=guess-{n}"})
    assert looked_up == 100


async def test_good_credentials_do_not_count_as_failures(memory: MemoryStore) -> None:
    app = signed_app(memory, counting(), failures_per_second=SELDOM, failure_burst=2)
    async with asking(app, ADMIN) as client:
        assert {(await client.get(COHORTS)).status_code for _ in range(10)} == {200}
        access_down = signed_app(memory, down := counting(), failure_burst=2)
        down.down = True
        async with asking(access_down, ADMIN) as other:
            assert {(await other.get(COHORTS)).status_code for _ in range(10)} == {503}


async def test_callers_that_are_known_are_served_during_a_flood_of_their_address(
    memory: MemoryStore,
) -> None:
    access = counting()
    app = signed_app(memory, access, failures_per_second=SELDOM)
    async with asking(app) as client:
        assert (await client.get(COHORTS, headers=bearer(ADMIN))).status_code == 200
        opened = await client.post(SESSION_PATH, json={"token": ADMIN})
        cookie = {"Cookie": opened.headers["set-cookie"].partition(";")[0]}
        for n in range(150):
            answer = await client.get(COHORTS, headers=bearer(f"guess-{n}"))
        assert answer.status_code == 429
        assert answer.headers["connection"] == "close"
        assert (await client.get(COHORTS, headers=bearer(ADMIN))).status_code == 200
        assert (await client.get(COHORTS, headers=cookie)).status_code == 200


async def test_credentials_that_were_withdrawn_are_tried_once(memory: MemoryStore) -> None:
    access = counting()
    app = signed_app(memory, access, failures_per_second=SELDOM, failure_burst=5)
    async with asking(app) as client:
        assert (await client.get(COHORTS, headers=bearer(ADMIN))).status_code == 200
        for n in range(5):
            await client.get(COHORTS, headers=bearer(f"guess-{n}"))
        del access.callers[ADMIN]
        before = access.reviews
        answers = [(await client.get(COHORTS, headers=bearer(ADMIN))).status_code for _ in range(3)]
        assert (answers, access.reviews - before) == ([401, 429, 429], 1)


async def test_the_addresses_of_callers_are_counted(memory: MemoryStore) -> None:
    seen: list[tuple[str, str]] = []
    app = signed_app(memory, people(), note_caller=lambda *found: seen.append(found))
    async with asking(app) as client:
        await client.get(COHORTS, headers=bearer(ADMIN))
        await client.get(COHORTS, headers=bearer("guess"))
    assert seen == [("admin", "127.0.0.1")]


@pytest.mark.parametrize(
    ("trusted", "headers", "alike"),
    [
        ((), ("10.0.0.1", "10.0.0.2"), True),  # any client can send the header
        (("127.0.0.1",), ("10.0.0.1", "10.0.0.2"), False),
        (("127.0.0.0/8",), ("10.0.0.1, 10.0.0.9", "10.0.0.2, 10.0.0.9"), True),  # the proxy saw .9
        (("127.0.0.1",), ("2001:db8::1", "2001:db8::2"), True),  # one host can have a /64
        (("127.0.0.1",), ("2001:db8::1", "2001:db8:0:1::1"), False),
    ],
)
async def test_the_address_is_the_peers_unless_a_trusted_proxy_names_another(
    memory: MemoryStore, trusted: tuple[str, ...], headers: tuple[str, str], alike: bool
) -> None:
    app = signed_app(memory, counting(), failures_per_second=SELDOM, failure_burst=1, secure=False)
    server = WebServer(app, ListenAddress("127.0.0.1", 0), None, trusted)
    async with running(server), httpx2.AsyncClient(base_url=server.url) as client:
        first, second = [
            await client.get(COHORTS, headers=bearer("guess") | {"X-Forwarded-For": header})
            for header in headers
        ]
    assert first.status_code == 401
    assert second.status_code == (429 if alike else 401)


# ---- sizes


@pytest.fixture(params=["with authentication", "without"])
def either(request: pytest.FixtureRequest, memory: MemoryStore, app: FastAPI) -> FastAPI:
    return app if request.param == "without" else signed_app(memory, people())


@pytest.fixture
async def client(either: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with talking_to(either) as made:
        made.headers.update(bearer(ADMIN))
        yield made


async def in_pieces(size: int, piece: int = 1 << 16) -> AsyncIterator[bytes]:
    """A body without a stated size."""
    for _ in range(-(-size // piece)):
        yield b" " * piece


@pytest.mark.parametrize("pieces", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{COHORTS}/all"),
        ("POST", "/api/v1/workloads/uid-job-a/hold"),
        ("POST", "/api/v1/workloads/uid-job-a/priority"),
        ("POST", "/api/v1/session"),
    ],
)
async def test_a_body_that_is_too_large_is_refused_on_every_route(
    client: httpx2.AsyncClient, memory: MemoryStore, method: str, path: str, pieces: bool
) -> None:
    await commit(memory, live_through(job("a")))
    body = in_pieces(MAX_BYTES + 1) if pieces else b" " * (MAX_BYTES + 1)
    json = {"Content-Type": "application/json"}
    answer = await client.request(method, path, content=body, headers=json)
    assert answer.status_code == 413
    assert answer.json()["type"].endswith("/body-too-large")


async def test_a_body_that_no_route_reads_is_not_parsed(client: httpx2.AsyncClient) -> None:
    assert (await client.request("DELETE", f"{COHORTS}/all", content=b" " * (1 << 26))).is_error
    answer = await client.request("DELETE", f"{COHORTS}/all", content=in_pieces(1 << 26))
    assert answer.status_code == 404


async def test_a_list_of_documents_has_a_higher_limit(client: httpx2.AsyncClient) -> None:
    json = {"Content-Type": "application/json"}
    body = b'{"items": []' + b" " * (MAX_LIST_BYTES // 2) + b"}"
    assert len(body) > MAX_BYTES
    answer = await client.post("/api/v1/dryrun", content=body, headers=json)
    assert answer.status_code == 200
    more = await client.post("/api/v1/dryrun", content=in_pieces(1 << 26), headers=json)
    assert more.status_code == 413


# ---- ids


@pytest.mark.parametrize("given", ["abc", "01J9Z3", "a.b:c/d+e=f_g-h", "x" * 128])
async def test_a_valid_request_id_is_kept(client: httpx2.AsyncClient, given: str) -> None:
    answer = await client.get(COHORTS, headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given", ["", " ", "-a", "a b", "x" * 129, "a\tb", '"quoted"', "a;b", "caf\xe9", "{}"]
)
async def test_an_invalid_request_id_is_replaced(client: httpx2.AsyncClient, given: str) -> None:
    answer = await client.get(COHORTS, headers={b"X-Request-Id": given.encode("latin-1")})
    assert UUID.fullmatch(answer.headers["x-request-id"])


async def test_each_request_has_its_own_id(client: httpx2.AsyncClient) -> None:
    ids = {(await client.get(COHORTS)).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_a_defect_is_logged_with_the_id_that_its_answer_has(
    client: httpx2.AsyncClient, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(memory, "get_workload", broken)
    with capture_logs() as logs:
        answer = await client.get(f"/api/v1/workloads/{job('a').uid}")
    assert answer.status_code == 500
    [line] = [line for line in logs if line["event"] == "api_defect"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"


# ---- headers

ANSWERS: dict[str, Callable[[httpx2.AsyncClient], object]] = {
    "data": lambda client: client.get(COHORTS),
    "refused": lambda client: client.put(f"{COHORTS}/all", json={}),
    "unknown": lambda client: client.get("/api/v1/nothing"),
    "unauthenticated": lambda client: client.get(COHORTS, headers={"Authorization": "Bearer x"}),
    "misdirected": lambda client: client.get(COHORTS, headers={"Host": "evil.example"}),
    "too large": lambda client: client.put(f"{COHORTS}/all", content=b" " * (MAX_BYTES + 1)),
}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS.keys())
async def test_every_answer_has_security_headers_for_browsers(
    client: httpx2.AsyncClient, ask: Callable[[httpx2.AsyncClient], object]
) -> None:
    answer: httpx2.Response = await ask(client)  # type: ignore[misc]  # a table
    headers = answer.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert UUID.fullmatch(headers["x-request-id"])


async def test_pages_load_only_own_resources_and_nothing_inline(client: httpx2.AsyncClient) -> None:
    policy = (await client.get("/elsewhere")).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in policy

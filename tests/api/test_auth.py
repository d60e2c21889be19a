"""Authentication: tokens, sessions of browsers, and requests that a hostile page makes a browser send."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.auth.authentication import LONGEST, OpenPaths, expiry
from queuectl.db.engine import DatabaseSettings
from queuectl.telemetry.logs import LogFormat, configure
from tests.api.conftest import talking_to
from tests.api.signed import ADMIN, HOST, asking, bearer, people, signed_app
from tests.api.support import COHORT
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore
from tests.support.logs import restored_logs
from tests.support.stores import PostgresStore

__all__ = ["restored_logs"]

COHORTS, SESSION = "/api/v1/cohorts", "/api/v1/session"
OWN_PAGE = {"Origin": HOST, "Sec-Fetch-Site": "same-origin", "X-Queuectl-Session": "1"}


@pytest.fixture
def access() -> MemoryAccess:
    return people()


@pytest.fixture
def signed(memory: MemoryStore, access: MemoryAccess) -> FastAPI:
    return signed_app(memory, access)


@pytest.fixture
async def client(signed: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without a token; it keeps cookies."""
    async with asking(signed) as made:
        yield made


# ---- tokens


async def test_a_token_opens_a_session_that_names_its_user(client: httpx2.AsyncClient) -> None:
    answer = await client.get(SESSION, headers=bearer(ADMIN))
    assert answer.json() == {
        "name": "admin",
        "groups": ["system:authenticated"],
        "authenticated": True,
        "expiresAt": None,
    }


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Bearer unknown-token", f"Basic {ADMIN}", ADMIN, "Bearer caf\xe9"],
)
async def test_a_header_without_a_good_token_opens_nothing(
    client: httpx2.AsyncClient, header: str
) -> None:
    answer = await client.get(COHORTS, headers={b"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="queuectl"'
    assert "unknown-token" not in answer.text


async def test_the_scheme_of_the_header_is_case_insensitive(client: httpx2.AsyncClient) -> None:
    answer = await client.get(COHORTS, headers={"Authorization": f"bEARER  {ADMIN} "})
    assert answer.status_code == 200


async def test_a_bad_token_is_refused_even_with_a_good_session(client: httpx2.AsyncClient) -> None:
    await sign_in(client)
    answer = await client.get(COHORTS, headers=bearer("unknown-token"))
    assert answer.status_code == 401


async def test_with_authentication_any_host_name_is_answered(client: httpx2.AsyncClient) -> None:
    answer = await client.get(COHORTS, headers={**bearer(ADMIN), "Host": "another.example"})
    assert answer.status_code == 200


# ---- sessions


async def sign_in(client: httpx2.AsyncClient, token: str = ADMIN) -> httpx2.Response:
    answer = await client.post(SESSION, json={"token": token})
    assert answer.status_code == 201
    return answer


def cookie_of(answer: httpx2.Response) -> tuple[str, dict[str, str]]:
    """Name and attributes of the one cookie that is set."""
    [[name, morsel]] = SimpleCookie(answer.headers["set-cookie"]).items()
    return name, {key: str(value) for key, value in morsel.items() if value}


async def test_a_session_replaces_the_token(client: httpx2.AsyncClient) -> None:
    opened = await sign_in(client)
    assert opened.json()["name"] == "admin"
    assert (await client.get(COHORTS)).status_code == 200
    assert (await client.get(SESSION)).json()["name"] == "admin"


async def test_the_cookie_is_for_this_host_by_tls_and_out_of_reach_of_scripts(
    client: httpx2.AsyncClient,
) -> None:
    name, attributes = cookie_of(await sign_in(client))
    assert name == "__Host-queuectl"
    assert attributes.pop("max-age") == str(int(LONGEST))
    assert {key.lower(): value.lower() for key, value in attributes.items()} == {
        "path": "/",
        "secure": "true",
        "httponly": "true",
        "samesite": "strict",
    }


async def test_without_tls_on_loopback_the_cookie_is_not_secure(
    memory: MemoryStore, access: MemoryAccess
) -> None:
    async with talking_to(signed_app(memory, access, secure=False)) as client:
        name, attributes = cookie_of(await sign_in(client))
        assert name == "queuectl"
        assert "secure" not in attributes
        assert (await client.get(COHORTS)).status_code == 200


async def test_an_unknown_token_opens_no_session(
    client: httpx2.AsyncClient, memory: MemoryStore
) -> None:
    answer = await client.post(SESSION, json={"token": "unknown-token"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert not memory.database.sessions


async def test_signing_out_ends_the_session_wherever_the_cookie_was_copied_to(
    client: httpx2.AsyncClient, signed: FastAPI
) -> None:
    await sign_in(client)
    copied = dict(client.cookies)
    assert (await client.delete(SESSION, headers=OWN_PAGE)).status_code == 204
    assert not client.cookies
    async with asking(signed) as other_browser:
        other_browser.cookies.update(copied)
        assert (await other_browser.get(COHORTS)).status_code == 401


async def test_a_session_ends_with_its_token_and_after_eight_hours_at_most(
    signed: FastAPI, access: MemoryAccess, memory: MemoryStore
) -> None:
    now = time.time()
    for ends, longest in ((now + 60, 61), (now + 10 * LONGEST, LONGEST + 1)):
        claims = base64.urlsafe_b64encode(json.dumps({"exp": int(ends)}).encode()).decode()
        token = f"e30.{claims.rstrip('=')}.sig"
        access.know(token, "brief", master=True)
        async with asking(signed) as client:
            await sign_in(client, token)
            assert (await client.get(COHORTS)).status_code == 200
            [key] = memory.database.sessions
            session = memory.database.sessions.pop(key)
            assert session.until - session.since <= longest
            assert (await client.get(COHORTS)).status_code == 401


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.c", "a.!!.c", "a.e30.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c", "a.é.c"]
)
def test_a_token_without_an_expiry_has_none(token: str) -> None:
    assert expiry(token) is None


async def test_the_rights_of_a_session_are_those_of_now(
    client: httpx2.AsyncClient, access: MemoryAccess
) -> None:
    await sign_in(client)
    access.masters.clear()
    assert (await client.get(COHORTS)).status_code == 403


async def test_what_the_database_keeps_opens_no_session(
    client: httpx2.AsyncClient, signed: FastAPI, memory: MemoryStore
) -> None:
    await sign_in(client)
    [key] = memory.database.sessions
    assert key not in client.cookies.values()
    assert ADMIN not in repr(memory.database.sessions)
    async with asking(signed) as other_browser:
        other_browser.cookies.set("__Host-queuectl", key)
        assert (await other_browser.get(COHORTS)).status_code == 401


async def test_another_replica_knows_the_session(database_url: str, access: MemoryAccess) -> None:
    stores = [await PostgresStore.connect(DatabaseSettings(database_url)) for _ in range(2)]
    one, other = [signed_app(store, access) for store in stores]
    async with asking(one) as here, asking(other) as there:
        await sign_in(here)
        there.cookies.update(dict(here.cookies))
        assert (await there.get(SESSION)).json()["name"] == "admin"
        await there.delete(SESSION, headers=OWN_PAGE)
        assert (await here.get(SESSION)).status_code == 401
    for store in stores:
        await store.close()


async def test_without_authentication_there_is_nothing_to_sign_in_to(
    memory: MemoryStore, app: FastAPI
) -> None:
    async with talking_to(app) as client:
        assert (await client.get(SESSION)).json()["authenticated"] is False
        refused = await client.post(SESSION, json={"token": ADMIN})
        assert refused.status_code == 409
        assert (await client.delete(SESSION)).status_code == 204


# ---- other sites


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        (OWN_PAGE, True),
        ({"Origin": HOST, "X-Queuectl-Session": "1"}, True),  # a browser without Sec-Fetch
        ({"Sec-Fetch-Site": "same-origin", "X-Queuectl-Session": "1"}, True),
        ({"Origin": HOST, "Sec-Fetch-Site": "same-origin"}, False),  # a form of ours, no script
        ({"X-Queuectl-Session": "1"}, False),  # no browser is so silent
        ({}, False),
        ({**OWN_PAGE, "Sec-Fetch-Site": "cross-site"}, False),
        ({**OWN_PAGE, "Sec-Fetch-Site": "same-site"}, False),
        ({**OWN_PAGE, "Origin": "https://evil.example"}, False),
        ({**OWN_PAGE, "Origin": "https://queuectl.example.evil.example"}, False),
        ({**OWN_PAGE, "Origin": "https://queuectl.example:444"}, False),
        ({**OWN_PAGE, "Origin": "null"}, False),
        ({**OWN_PAGE, "Origin": "https://["}, False),
    ],
)
async def test_a_session_changes_something_only_for_our_own_page(
    client: httpx2.AsyncClient, memory: MemoryStore, headers: dict[str, str], allowed: bool
) -> None:
    await sign_in(client)
    answer = await client.put(f"{COHORTS}/all", json=COHORT, headers=headers)
    assert answer.status_code == (201 if allowed else 403)
    assert bool(memory.database.documents) is allowed
    if not allowed:
        assert answer.json()["type"].endswith("/foreign-origin")


async def test_a_request_with_a_token_needs_no_proof_of_its_origin(
    client: httpx2.AsyncClient,
) -> None:
    foreign = {**bearer(ADMIN), "Origin": "https://evil.example"}
    answer = await client.put(f"{COHORTS}/all", json=COHORT, headers=foreign)
    assert answer.status_code == 201


async def test_another_site_cannot_sign_its_visitor_in(client: httpx2.AsyncClient) -> None:
    foreign = {"Origin": "https://evil.example"}
    answer = await client.post(SESSION, json={"token": ADMIN}, headers=foreign)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_without_authentication_another_site_changes_nothing(
    app: FastAPI, memory: MemoryStore, headers: dict[str, str]
) -> None:
    """Any page that is open in a browser on this machine could send simple POSTs."""
    async with talking_to(app) as client:
        refused = await client.put(f"{COHORTS}/all", json=COHORT, headers=headers)
        assert refused.status_code == 403
        assert (await client.get(COHORTS, headers=headers)).status_code == 200
        own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
        assert (await client.put(f"{COHORTS}/all", json=COHORT, headers=own)).status_code == 201


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
async def test_no_answer_grants_another_origin_anything(
    client: httpx2.AsyncClient, method: str
) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
    answer = await client.request(method, f"{COHORTS}/all", headers={**bearer(ADMIN), **asked})
    assert not [name for name in answer.headers if name.startswith("access-control")]


# ---- pages


async def test_a_browser_is_redirected_to_sign_in_and_a_program_gets_a_problem(
    memory: MemoryStore, access: MemoryAccess
) -> None:
    open_paths = OpenPaths(below=("/ui/static/", "/ui/signin"), sign_in="/ui/signin")
    page = {"Accept": "text/html,*/*;q=0.8"}
    async with asking(signed_app(memory, access, open_paths=open_paths)) as client:
        shown = await client.get("/ui/queues?sort=a&b=//c", headers=page)
        assert shown.status_code == 303
        assert (
            shown.headers["location"] == "/ui/signin?next=%2Fui%2Fqueues%3Fsort%3Da%26b%3D%2F%2Fc"
        )
        assert (await client.get("/ui/queues")).status_code == 401
        assert (await client.post("/ui/queues", headers=page)).status_code == 401
        for path in ("/ui/signin", "/ui/static/app.css"):
            assert (
                await client.get(path, headers=page)
            ).status_code == 404  # no authentication needed
        assert (await client.post("/ui/static/app.css")).status_code == 401
        assert (await client.get("/ui/static/../../api/v1/cohorts")).status_code == 401


# ---- logs


async def test_no_token_and_no_cookie_is_in_the_log(
    client: httpx2.AsyncClient,
    access: MemoryAccess,
    memory: MemoryStore,
    capsys: pytest.CaptureFixture[str],
    restored_logs: None,
) -> None:
    configure(LogFormat.JSON, "debug")
    opened = await sign_in(client)
    name = client.cookies["__Host-queuectl"]
    await client.put(f"{COHORTS}/all", json=COHORT, headers=bearer(ADMIN))
    await client.put(f"{COHORTS}/all", json=COHORT, headers=OWN_PAGE)
    memory.database.down = True
    await client.get(COHORTS, headers=bearer(ADMIN))
    memory.database.down = False
    access.down = True
    await client.get(COHORTS, headers=bearer(ADMIN))
    await client.get(COHORTS)
    logged = capsys.readouterr().err
    assert opened.headers["x-request-id"]
    assert "api_write" in logged
    assert "cluster_unavailable" in logged
    assert "store_unavailable" in logged
    assert ADMIN not in logged
    assert name not in logged
    lines = [json.loads(line) for line in logged.splitlines()]
    written = [line for line in lines if line["event"] == "api_write"]
    assert {line["caller"] for line in written} == {"admin"}
    assert all(line["request_id"] for line in written)

"""Logins in the browser: what completes one, and attacks, one row each."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from queuectl.api.oidc import browser as login
from queuectl.telemetry.logs import LogFormat, configure
from tests.api.signed import ADMIN, HOST, SELDOM, asking, bearer
from tests.api.test_auth import OWN_PAGE
from tests.doubles.store import MemoryStore
from tests.oidc.issuers import ISSUER, KEY, FakeIssuer, browser_of, claims, signed
from tests.support.logs import restored_logs

__all__ = ["restored_logs"]

SESSION, START, BACK = "/api/v1/session", "/ui/signin/oidc", "/ui/signin/callback"
COOKIE, KEPT = "__Host-queuectl", "__Host-queuectl-login"


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


@pytest.fixture
def app(issuer: FakeIssuer, memory: MemoryStore) -> FastAPI:
    return issuer.app(memory)


@pytest.fixture
async def browser(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with browser_of(app) as made:
        yield made


async def started(browser: httpx2.AsyncClient, page: str = "/ui/queues") -> str:
    """The address at the issuer to which a browser is sent."""
    answer = await browser.get(START, params={"next": page})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def back(browser: httpx2.AsyncClient, given: dict[str, str]) -> httpx2.Response:
    return await browser.get(f"{BACK}?{urlencode(given)}")


async def refusal(browser: httpx2.AsyncClient, answer: httpx2.Response) -> str:
    """The sign-in page after a login that is refused; its address has no parameter of the issuer."""
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/signin"), answer.text
    text = (await browser.get("/ui/signin")).text
    assert 'role="alert" data-bad' in text
    return text


async def signed_in(browser: httpx2.AsyncClient) -> bool:
    return (await browser.get(SESSION)).status_code == 200


def app_of(browser: httpx2.AsyncClient) -> Any:
    """Where its requests go."""
    transport = browser._transport
    assert isinstance(transport, httpx2.ASGITransport)
    return transport.app


# ---- what completes one


async def test_a_login_opens_a_session_and_leads_to_the_wanted_page(
    browser: httpx2.AsyncClient, issuer: FakeIssuer
) -> None:
    form = await browser.get("/ui/signin?next=/ui/queues")
    assert "Sign in with issuer.example" in form.text
    assert "Use a token" in form.text
    answer = await back(browser, issuer.authorize(await started(browser)))
    assert answer.status_code == 303
    shown = await browser.get(answer.headers["location"])
    assert 'content="0; url=/ui/queues"' in shown.text
    assert (await browser.get(SESSION)).json()["name"] == "oidc:alice"


async def test_it_asks_for_a_code_with_pkce_state_and_nonce(browser: httpx2.AsyncClient) -> None:
    asked = [parse_qs(urlsplit(await started(browser)).query) for _ in range(2)]
    for one in asked:
        assert one["response_type"] == ["code"]
        assert one["code_challenge_method"] == ["S256"]
        assert one["redirect_uri"] == [f"{HOST}{BACK}"]
        assert one["scope"] == ["openid profile email"]
        secrets = [one[name][0] for name in ("state", "nonce", "code_challenge")]
        assert len(set(secrets)) == 3
        assert min(map(len, secrets)) >= 43
    assert not {asked[0][n][0] for n in ("state", "nonce")} & {asked[1]["state"][0]}


async def test_scripts_and_other_hosts_cannot_read_the_cookies(
    browser: httpx2.AsyncClient, issuer: FakeIssuer
) -> None:
    first = await browser.get(START)
    kept = SimpleCookie(first.headers["set-cookie"])[KEPT]
    assert (kept["httponly"], kept["secure"], kept["samesite"], kept["path"]) == (True, True, "lax", "/")  # fmt: skip
    assert int(kept["max-age"]) == login.LOGIN_SECONDS
    assert parse_qs(urlsplit(first.headers["location"]).query)["state"][0] not in kept.value
    answer = await back(browser, issuer.authorize(first.headers["location"]))
    given = [SimpleCookie(text) for text in answer.headers.get_list("set-cookie")]
    [session] = [one[COOKIE] for one in given if COOKIE in one]
    assert (session["httponly"], session["secure"], session["samesite"]) == (True, True, "strict")
    assert int(session["max-age"]) <= 300
    assert KEPT not in browser.cookies


async def test_another_replica_completes_the_login(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, memory: MemoryStore
) -> None:
    given = issuer.authorize(await started(browser))
    async with browser_of(issuer.app(memory)) as other:
        other.cookies.update(dict(browser.cookies))
        assert (await back(other, given)).status_code == 303
        assert await signed_in(other)


# ---- attacks

Attack = Callable[[httpx2.AsyncClient, FakeIssuer], Awaitable[httpx2.Response]]


def with_token(**changed: Any) -> Attack:
    """The issuer answers with such an ID token."""

    async def attack(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
        issuer.token = changed
        return await back(browser, issuer.authorize(await started(browser)))

    return attack


def with_answer(**changed: str) -> Attack:
    """The browser is sent back with such parameters."""

    async def attack(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
        given = issuer.authorize(await started(browser)) | changed
        return await back(browser, {name: value for name, value in given.items() if value})

    return attack


async def replayed(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    given = issuer.authorize(await started(browser))
    await back(browser, given)
    browser.cookies.delete(COOKIE)
    return await back(browser, given)


async def replayed_with_its_cookie(
    browser: httpx2.AsyncClient, issuer: FakeIssuer
) -> httpx2.Response:
    given = issuer.authorize(await started(browser))
    cookies = dict(browser.cookies)
    await back(browser, given)
    browser.cookies.clear()
    browser.cookies.update(cookies)
    return await back(browser, given)


async def login_csrf(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    """The answer to an attacker's own login, in the browser of a victim that has started a login too."""
    async with browser_of(app_of(browser)) as attacker:
        given = issuer.authorize(await started(attacker))
    await started(browser)
    return await back(browser, given)


async def without_a_start(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    given = issuer.authorize(await started(browser))
    browser.cookies.clear()
    return await back(browser, given)


async def code_injected(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    """The code of a victim, stolen, in the attacker's own login: its PKCE challenge is another."""
    async with browser_of(app_of(browser)) as victim:
        stolen = issuer.authorize(await started(victim))["code"]
    given = issuer.authorize(await started(browser))
    return await back(browser, {**given, "code": stolen})


async def downgraded(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    """An attacker changes the challenge of the request."""
    address = await started(browser)
    given = issuer.authorize(address)
    issuer.granted[given["code"]]["code_challenge"] = "plain"
    return await back(browser, given)


async def too_late(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    given = issuer.authorize(await started(browser))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(login, "LOGIN_SECONDS", -1)
        return await back(browser, given)


async def older_start(browser: httpx2.AsyncClient, issuer: FakeIssuer) -> httpx2.Response:
    """The time in the cookie is changed: state, nonce and verifier follow from it."""
    given = issuer.authorize(await started(browser))
    number, _, rest = browser.cookies[KEPT].partition(".")
    browser.cookies.clear()
    browser.cookies.set(KEPT, f"{int(number) + 99}.{rest}")
    return await back(browser, given)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "wrong nonce": (with_token(nonce="another"), "nonce"),
    "missing nonce": (with_token(nonce=None), "nonce"),
    "nonce of another type": (with_token(nonce=["another"]), "nonce"),
    "wrong issuer in the token": (with_token(iss="https://evil.example"), "another issuer"),
    "wrong audience": (with_token(aud="another-app"), "another audience"),
    "audience of kubectl": (with_token(aud="kubernetes"), "another audience"),
    "another authorized party": (with_token(azp="another-app"), "azp"),
    "expired": (with_token(exp=int(time.time()) - 60), "expired"),
    "system: user": (with_token(sub="system:admin"), "reserves"),
    "system: group": (with_token(groups=["system:masters"]), "reserves"),
    "missing user name": (with_token(sub=None), "no claim sub"),
    "wrong state": (with_answer(state="another"), "another sign-in"),
    "missing state": (with_answer(state=""), "another sign-in"),
    "missing code": (with_answer(code=""), "no authorization code"),
    "huge code": (with_answer(code="c" * 5000), "no authorization code"),
    "made-up code": (with_answer(code="made-up"), "invalid_grant"),
    "answer of another issuer": (with_answer(iss="https://evil.example"), "another issuer"),
    "refused by the user": (with_answer(error="access_denied", code=""), "access_denied"),
    "error with markup": (with_answer(error="<script>", code=""), "an error"),
    "replayed state": (replayed, "did not start a sign-in"),
    "replayed state and cookie": (replayed_with_its_cookie, "invalid_grant"),
    "login CSRF": (login_csrf, "another sign-in"),
    "no login was started": (without_a_start, "did not start a sign-in"),
    "stolen code": (code_injected, "invalid_grant"),
    "PKCE downgrade": (downgraded, "invalid_grant"),
    "after ten minutes": (too_late, "longer than"),
    "changed cookie": (older_start, "another sign-in"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_attack_opens_a_session(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, memory: MemoryStore, attack: str
) -> None:
    make, why = ATTACKS[attack]
    answer = await make(browser, issuer)
    text = await refusal(browser, answer)
    assert why in text
    assert "<script>" not in text
    assert not await signed_in(browser)
    given = [SimpleCookie(one) for one in answer.headers.get_list("set-cookie")]
    assert [one[KEPT]["max-age"] for one in given if KEPT in one] == ["0"]
    assert "data-bad" not in (await browser.get("/ui/signin")).text


@pytest.mark.parametrize("named", ["", "https://evil.example"])
async def test_an_issuer_that_names_itself_in_its_answers_must_do_so(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, named: str
) -> None:
    issuer.discovery = {"authorization_response_iss_parameter_supported": True}
    answer = await with_answer(iss=named)(browser, issuer)
    assert "another issuer" in await refusal(browser, answer)
    assert (await with_answer(iss=ISSUER)(browser, issuer)).status_code == 303


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/ui//evil.example",
        "/ui/../..//evil.example",
        "/ui/\nhttps://evil.example",
        "javascript:alert(1)",
        "/api/v1/session",
        "x" * 5000,
    ],
)
async def test_a_login_leads_to_pages_of_the_dashboard_alone(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, page: str
) -> None:
    answer = await back(browser, issuer.authorize(await started(browser, page)))
    assert answer.headers["location"] == "/ui/signin/done?next=%2Fui%2Fhome"
    shown = await browser.get("/ui/signin/done", params={"next": page})
    assert 'content="0; url=/ui/home"' in shown.text


# ---- how sessions end


async def test_the_session_ends_with_its_token(
    browser: httpx2.AsyncClient, issuer: FakeIssuer, memory: MemoryStore
) -> None:
    issuer.token = {"exp": int(time.time()) + 2}
    await back(browser, issuer.authorize(await started(browser)))
    copied = dict(browser.cookies)
    assert await signed_in(browser)
    [session] = memory.database.sessions.values()
    assert session.until == issuer.token["exp"]
    for key, known in memory.database.sessions.items():
        memory.database.sessions[key] = replace(known, until=time.time() - 1)
    async with browser_of(app_of(browser)) as other:  # whatever its browser does with it
        other.cookies.update(copied)
        assert not await signed_in(other)
        page = await other.get("/ui/queues", headers={"Accept": "text/html"})
        assert page.headers["location"] == "/ui/signin?next=%2Fui%2Fqueues"


async def test_signing_out_ends_the_session(
    browser: httpx2.AsyncClient, issuer: FakeIssuer
) -> None:
    await back(browser, issuer.authorize(await started(browser)))
    copied = dict(browser.cookies)
    assert (await browser.delete(SESSION, headers=OWN_PAGE)).status_code == 204
    browser.cookies.update(copied)
    assert not await signed_in(browser)


# ---- outages and limits


async def test_an_issuer_that_is_down_is_named_on_the_page(
    browser: httpx2.AsyncClient, issuer: FakeIssuer
) -> None:
    address = await started(browser)
    given = issuer.authorize(address)
    issuer.down = True
    answer = await back(browser, given)
    assert "does not answer" in await refusal(browser, answer)
    issuer.now += 1e6
    answer = await browser.get(START)
    assert "connection refused" in await refusal(browser, answer)


async def test_a_client_secret_that_cannot_be_read_is_an_error_of_the_administrator(
    issuer: FakeIssuer, memory: MemoryStore, tmp_path: Path
) -> None:
    app = issuer.app(memory, client_secret_file=tmp_path / "missing")
    async with browser_of(app) as browser:
        with capture_logs() as logged:
            answer = await back(browser, issuer.authorize(await started(browser)))
        assert "client secret" in await refusal(browser, answer)
    assert ("login_failed", "error") in {(one["event"], one["log_level"]) for one in logged}


async def test_an_address_that_fails_too_often_is_refused(
    issuer: FakeIssuer, memory: MemoryStore
) -> None:
    async with browser_of(issuer.app(memory, failures_per_second=SELDOM)) as browser:
        answers = [await back(browser, {"code": "x", "state": "y"}) for _ in range(101)]
        assert "too many invalid credentials" in await refusal(browser, answers[-1])


async def test_without_an_issuer_there_is_the_token_alone(memory: MemoryStore) -> None:
    from tests.api.signed import people, signed_app

    async with asking(signed_app(memory, people())) as client:
        assert (await client.get(START, headers=bearer(ADMIN))).status_code == 404


# ---- logs


async def test_neither_code_nor_token_nor_cookie_is_in_the_log(
    browser: httpx2.AsyncClient,
    issuer: FakeIssuer,
    capsys: pytest.CaptureFixture[str],
    restored_logs: None,
) -> None:
    configure(LogFormat.JSON, "debug")
    address = await started(browser)
    secret = browser.cookies[KEPT]
    given = issuer.authorize(address)
    await back(browser, given)
    session = browser.cookies[COOKIE]
    await back(browser, given)
    token = signed(claims(aud="another-app"), KEY)
    await browser.get(SESSION, headers=bearer(token))
    issuer.down = True
    issuer.now += 1e6
    await browser.get(SESSION, headers=bearer(token))
    logged = capsys.readouterr().err
    events = [json.loads(line)["event"] for line in logged.splitlines()]
    assert {"signed_in", "login_refused", "issuer_unavailable"} <= set(events)
    for hidden in (given["code"], given["state"], secret, session, token):
        assert hidden not in logged

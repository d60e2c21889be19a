"""Sign-in against a certified provider: by httpx, in a real browser, and by an exec plugin of a kubeconfig."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from playwright.async_api import Browser, expect
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.oidc.access import with_issuer
from queuectl.api.oidc.browser import CALLBACK
from queuectl.api.oidc.issuer import CodeRefused, Issuer
from queuectl.api.routes import events
from queuectl.api.server import WebServer
from queuectl.cli.errors import Exit
from queuectl.control.listen_address import ListenAddress
from queuectl.control.oidc_settings import OidcSettings
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.signed import bearer, people, signed_app
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore
from tests.oidc.certified import CLIENT, LOCAL_CALLBACK, OTHER, PUBLIC, SECRET, authorize, provider
from tests.oidc.plugin import id_token
from tests.support.cli import queuectl_with
from tests.support.logs import restored_logs
from tests.support.node import NoPackages
from tests.web.browser import NoBrowser, running

__all__ = ["restored_logs"]

ROOT = Path(__file__).parents[2]
SESSION = "/api/v1/session"


@dataclass
class Dashboard:
    """A dashboard on ``localhost`` and its issuer on ``127.0.0.1``: two sites, as a browser sees them."""

    url: str
    settings: OidcSettings
    access: MemoryAccess
    app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)

    @property
    def issuer(self) -> str:
        return self.settings.issuer

    def client(self, **given: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, timeout=30, trust_env=False, **given)


@contextmanager
def dashboard(id_token_seconds: int = 3600, **given: Any) -> Iterator[Dashboard]:
    """It runs in its own thread until the block ends."""
    access = people()
    access.masters.add("oidc:alice")
    made = Dashboard("", OidcSettings(), access)
    server = WebServer(made, ListenAddress("127.0.0.1", 0))
    made.url = f"http://localhost:{server.address.port}"
    ready = threading.Event()

    async def serve() -> None:
        async with with_issuer(access, made.settings) as (known, login):
            store = MemoryStore()
            app = signed_app(
                store, known, secure=False, open_paths=OpenPaths(OPEN, SIGN_IN), login=login
            )
            add_dashboard(app, store, app.state.guard, signs_in=True)
            made.app = app
            ready.set()
            await server.run()

    try:
        callbacks = [f"{made.url}{CALLBACK}", LOCAL_CALLBACK]
        with provider(callbacks, id_token_seconds=id_token_seconds) as issuer:
            usual = {
                "client_id": PUBLIC,
                "scopes": "openid,email,groups",
                "dashboard_url": made.url,
            }
            made.settings = OidcSettings(**{**usual, "issuer": issuer, **given})
            thread = threading.Thread(target=lambda: asyncio.run(serve()), name="dashboard")
            thread.start()
            try:
                assert ready.wait(30)
                yield made
            finally:
                server.stop()
                thread.join()
    except NoPackages as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def confidential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    secret = tmp_path_factory.mktemp("oidc") / "secret"
    secret.write_text(f"{SECRET}\n")
    with dashboard(client_id=CLIENT, client_secret_file=secret) as made:
        yield made


@pytest.fixture(scope="module")
def public() -> Iterator[Dashboard]:
    with dashboard(audiences=f"{PUBLIC},kubernetes") as made:
        yield made


async def logged_in(http: httpx2.AsyncClient, login: str) -> httpx2.Response:
    """The answer to the browser that the provider sends back."""
    started = await http.get("/ui/signin/oidc")
    return await http.get(await authorize(http, started.headers["location"], login))


@pytest.mark.parametrize("kind", ["confidential", "public"])
@pytest.mark.parametrize(("login", "groups"), [("alice", ["gpu-ops", "ml"]), ("bob", ["ml"])])
async def test_a_user_of_the_provider_signs_in(
    request: pytest.FixtureRequest, kind: str, login: str, groups: list[str]
) -> None:
    made: Dashboard = request.getfixturevalue(kind)
    async with made.client() as http:
        answer = await logged_in(http, login)
        assert answer.headers["location"] == "/ui/signin/done?next=%2Fui%2Fhome"
        session = (await http.get(SESSION)).json()
        assert session["name"] == f"oidc:{login}"
        assert session["groups"] == [*(f"oidc:{group}" for group in groups), "system:authenticated"]
        allowed = (await http.get("/api/v1/cohorts")).status_code
        assert allowed == (200 if login == "alice" else 403)


@pytest.mark.parametrize("login", ["system:admin", "eve"])
async def test_a_user_with_a_name_that_kubernetes_reserves_is_not_signed_in(
    public: Dashboard, login: str
) -> None:
    async with public.client() as http:
        answer = await logged_in(http, login)
        assert "Kubernetes reserves names" in (await http.get(answer.headers["location"])).text
        assert (await http.get(SESSION)).status_code == 401


async def test_an_id_token_is_a_bearer_token_for_its_own_audience(public: Dashboard) -> None:
    async with public.client() as http:
        token = await id_token(public.issuer, PUBLIC, "alice")
        assert (await http.get(SESSION, headers=bearer(token))).json()["name"] == "oidc:alice"
        other = await id_token(public.issuer, OTHER, "alice")
        answer = await http.get(SESSION, headers=bearer(other))
        assert answer.status_code == 401
        assert "another audience" in answer.json()["detail"]


async def test_the_provider_refuses_a_code_with_another_verifier(public: Dashboard) -> None:
    async with public.client() as http, Issuer.connect(public.settings) as issuer:
        started = await http.get("/ui/signin/oidc")
        back = await authorize(http, started.headers["location"], "alice")
        code = httpx2.URL(back).params["code"]
        with pytest.raises(CodeRefused, match="invalid_grant"):
            await issuer.exchange(code, "v" * 43, f"{public.url}{CALLBACK}")


async def test_the_provider_refuses_a_code_that_is_used_up(public: Dashboard) -> None:
    async with public.client() as http:
        started = await http.get("/ui/signin/oidc")
        back = await authorize(http, started.headers["location"], "alice")
        kept = http.cookies["queuectl-login"]
        assert (await http.get(back)).status_code == 303
        answer = await http.get(back, headers={"Cookie": f"queuectl-login={kept}"})
        assert "invalid_grant" in (await http.get(answer.headers["location"])).text


async def test_the_provider_refuses_a_login_without_a_challenge(public: Dashboard) -> None:
    async with public.client() as http:
        started = httpx2.URL((await http.get("/ui/signin/oidc")).headers["location"])
        back = await http.get(started.copy_remove_param("code_challenge"))
        answer = await http.get(back.headers["location"])
        assert "invalid_request" in (await http.get(answer.headers["location"])).text


async def test_a_session_and_its_event_stream_end_with_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "KNOWN_SECONDS", 0.05)
    with dashboard(id_token_seconds=3) as made:
        async with made.client() as http:
            await logged_in(http, "alice")
            async with asyncio.timeout(30), http.stream("GET", events.PATH) as stream:
                assert stream.status_code == 200
                text = "".join([text async for text in stream.aiter_text()])
            assert "your session or token has ended" in text
            assert (await http.get(SESSION)).status_code == 401


# ---- the command line


@pytest.mark.parametrize(("login", "code"), [("alice", 0), ("bob", Exit.NOT_ALLOWED)])
def test_the_command_line_signs_in_by_the_exec_plugin_of_a_kubeconfig(
    public: Dashboard,
    login: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-m", "tests.oidc.plugin", public.issuer, PUBLIC, login],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "interactiveMode": "IfAvailable",
    }
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"user": "me", "cluster": "c"}}],
        "users": [{"name": "me", "user": {"exec": plugin}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://c.example"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("QUEUECTL_SERVER", public.url)
    result = partial(queuectl_with, monkeypatch, capfd)("get", "cohorts", "-o", "json")
    assert result.code == code, result.err
    assert ('"items": []' if code == 0 else f"oidc:{login} may not") in result.out + result.err


# ---- a real browser


@pytest.fixture
async def chromium() -> Any:
    try:
        async with running() as started:
            yield started
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.mark.browser
async def test_a_person_signs_in_and_out_in_a_browser(public: Dashboard, chromium: Browser) -> None:
    page = await chromium.new_page(base_url=public.url)
    visited: list[str] = []
    page.on("framenavigated", lambda frame: visited.append(frame.url))
    await page.goto("/ui/queues?sort=name")
    await page.get_by_role("link", name="Sign in with 127.0.0.1").click()
    await page.get_by_placeholder("Enter any login").fill("alice")
    await page.get_by_placeholder("and password").fill("any")
    await page.get_by_role("button", name="Sign-in").click()
    await page.wait_for_url("**/ui/queues?sort=name")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await expect(page.get_by_text("oidc:alice")).to_be_visible()
    assert not [address for address in visited if "code=" in address]
    kept = {one["name"]: one for one in await page.context.cookies(public.url)}
    assert kept.keys() == {"queuectl"}
    assert (kept["queuectl"]["httpOnly"], kept["queuectl"]["sameSite"]) == (True, "Strict")
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/ui/signin")
    await page.goto("/ui/queues")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.goto(f"{CALLBACK}?code=secret&state=secret")
    await expect(page.get_by_role("alert").first).to_contain_text("did not start a sign-in")
    assert page.url == f"{public.url}/ui/signin"
    await page.get_by_text("Use a token").click()
    await expect(page.get_by_label("Token")).to_be_visible()

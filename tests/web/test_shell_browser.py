"""The search, the keyboard, and the notice of a page that cannot be refreshed, in a real Chromium."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, expect

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.routes import events
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.localcluster.layout import free_ports
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.conftest import commit
from tests.api.signed import ADMIN, people, signed_app
from tests.api.support import FixedHealth, job, live_through
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore
from tests.web.browser import open_page, scanner, served
from tests.web.sample import Sample
from tests.web.serve_sample import submit

pytestmark = pytest.mark.browser
NOTICED_MS = 5_000
BUSY_MS = 10_000
"""A busy machine delays the browser: the time that the page itself measures has the limit of five seconds."""
MEASURE = """void (window.staleAfter = since => new Promise(done => {
  const banner = document.getElementById('stale');
  const seen = () => !banner.classList.contains('hidden') && done(Date.now() - since);
  new MutationObserver(seen).observe(banner, {attributes: true});
  seen();
}))"""


async def stale_after(page: Page, fault: Callable[[], Awaitable[None] | None]) -> float:
    """Milliseconds from a fault to the banner, by the clock of the page."""
    await page.evaluate(MEASURE)
    began = time.time() * 1000
    outcome = fault()
    if outcome is not None:
        await outcome
    shown: float = await page.evaluate("since => window.staleAfter(since)", began)
    return shown


@asynccontextmanager
async def sample_process(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The sample, served by a process that a test can stop or kill."""
    arguments = ("-m", "tests.web.serve_sample", str(port), "--small")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline(), "it does not serve"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_page_shows_that_the_server_hangs_or_has_ended_until_it_returns(
    browser: Browser,
) -> None:
    banner = "#stale"
    (port,) = free_ports(1)
    async with sample_process(port) as process:
        page = await open_page(browser, f"http://127.0.0.1:{port}")
        await page.goto("/ui/")
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator(banner)).to_be_hidden()

        delay = await stale_after(page, lambda: os.kill(process.pid, signal.SIGSTOP))
        assert delay < BUSY_MS
        await expect(page.locator(banner)).to_contain_text("Not refreshed since ")
        await expect(page.locator(banner)).to_contain_text(" UTC ")
        await expect(page.locator(banner)).to_contain_text("the server does not respond")
        await expect(page.locator("#live")).to_have_text("not refreshed")
        os.kill(process.pid, signal.SIGCONT)
        await expect(page.locator(banner)).to_be_hidden()
        await expect(page.locator("#live")).to_have_text("live")

        delay = await stale_after(page, process.kill)
        assert delay < NOTICED_MS
        await expect(page.locator(banner)).to_contain_text("s ago")
    async with sample_process(port):
        await expect(page.locator(banner)).to_be_hidden()
        await expect(page.locator("#live")).to_have_text("live")
        await page.context.close()


async def test_a_page_shows_that_the_database_has_stopped_until_it_returns(
    browser: Browser,
) -> None:
    with server_directory() as directory:
        server = EmbeddedServer(directory, durable=False)
        await server.start()
        await upgrade(server.url())
        store = await PostgresStore.connect(DatabaseSettings(server.url()))
        app = create_app(store, FixedHealth(), MetricsRecorder().registry)
        add_dashboard(app, store, app.state.guard)
        async with served(app) as address:
            page = await open_page(browser, address)
            await page.goto("/ui/workloads")
            await expect(page.locator("#live")).to_have_text("live")
            delay = await stale_after(page, lambda: server.stop(immediate=True))
            assert delay < BUSY_MS
            banner = page.locator("#stale")
            await expect(banner).to_contain_text("the database does not respond")
            await expect(banner).to_contain_text("Running gangs are not affected")
            # A page that is opened meanwhile keeps navigation and search, and appears by itself.
            other = await page.context.new_page()
            await other.goto("/ui/evictions")
            await expect(other.get_by_role("heading")).to_have_text("Temporarily unavailable")
            await expect(other.get_by_role("link", name="All jobs")).to_have_count(0)
            await expect(other.get_by_role("link", name="Jobs")).to_be_visible()
            await expect(other.get_by_label("Find a job")).to_be_visible()
            await server.start()
            await page.bring_to_front()
            await expect(banner).to_be_hidden()
            await other.bring_to_front()
            await expect(other.get_by_role("heading", name="Evictions")).to_be_visible()
            await expect(other.locator("#stale")).to_be_hidden()
            await page.context.close()
        await store.close()
        await server.stop(immediate=True)


async def test_a_page_that_appears_after_an_outage_has_its_commands(
    browser: Browser, address: str, sample: Sample
) -> None:
    page = await open_page(browser, address)
    sample.database.down = True
    await page.goto("/ui/workloads/wait-00001")
    await expect(page.get_by_role("heading")).to_have_text("Temporarily unavailable")
    sample.database.down = False
    await page.locator("#actions > summary").click()
    await page.locator('#actions [data-action="hold"]').click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.context.close()


async def test_a_list_that_finds_one_job_by_a_refresh_opens_its_page(
    browser: Browser, address: str, sample: Sample
) -> None:
    page = await open_page(browser, address)
    await page.goto("/ui/workloads?q=team-vision/new-0001")
    await expect(page.locator("#live")).to_have_text("live")
    await submit(sample, 1)
    await expect(page.locator("h1")).to_have_text("team-vision/new-0001")
    await expect(page).to_have_url(re.compile("/ui/workloads/"))
    await page.context.close()


async def test_a_page_shows_that_the_session_has_ended(browser: Browser, sample: Sample) -> None:
    app = signed_app(sample.store, people(), secure=False, open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with served(app) as address:
        page = await open_page(browser, address, dark=True, width=390)
        await page.goto("/ui/queues")
        await page.get_by_label("Token").fill(ADMIN)
        await page.keyboard.press("Enter")
        await expect(page.locator("#live")).to_have_text("live")
        sessions = dict(sample.database.sessions)
        delay = await stale_after(page, sample.database.sessions.clear)
        assert delay < BUSY_MS
        await expect(page.locator("#stale")).to_contain_text("your session has ended")
        link = page.get_by_role("link", name="Sign in again")
        await expect(link).to_have_attribute("href", "/ui/signin?next=%2Fui%2Fqueues")
        axe = scanner()
        await page.evaluate(axe)
        violations = (await page.evaluate("axe.run()"))["violations"]
        assert [(v["id"], v["nodes"][0]["html"][:160]) for v in violations] == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await (
            page.get_by_role("button", name="Color theme").or_(page.locator("#theme")).first.focus()
        )
        sample.database.sessions.update(sessions)  # signed in again in another tab
        await expect(page.locator("#stale")).to_be_hidden()
        await page.context.close()


async def test_a_sign_out_ends_the_session_or_shows_that_it_is_open(
    browser: Browser, sample: Sample
) -> None:
    app = signed_app(sample.store, people(), secure=False, open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with served(app) as address:
        page = await open_page(browser, address)
        for ended in (False, True):
            await page.goto("/ui/signin?next=%2Fui%2Fconfig%2Fnew")
            await page.get_by_label("Token").fill(ADMIN)
            await page.keyboard.press("Enter")
            button = page.get_by_role("button", name="Sign out")
            await expect(button).to_be_visible()
            sample.database.down = True
            await button.click()
            await expect(page.locator("#signed-in")).to_contain_text("You are still signed in: the database does not answer")  # fmt: skip
            sample.database.down = False
            if ended:  # in another tab
                sample.database.sessions.clear()
            await button.click()
            await expect(page).to_have_url(f"{address}/ui/signin")
            assert not sample.database.sessions
        await page.context.close()


async def test_a_page_shows_that_the_cluster_does_not_respond_until_it_returns(
    browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "TRUST_SECONDS", 0.0)
    access = people()
    app = signed_app(sample.store, access, secure=False, open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with served(app) as address:
        page = await open_page(browser, address)
        await page.goto("/ui/workloads")
        await page.get_by_label("Token").fill(ADMIN)
        await page.keyboard.press("Enter")
        await expect(page.locator("#live")).to_have_text("live")
        access.down = True
        await commit(sample.store, live_through(job("another")))
        banner = page.locator("#stale")
        await expect(banner).to_contain_text("the API server of the cluster does not respond")
        for _ in range(10):  # no other sign hides this
            await asyncio.sleep(0.5)
            await expect(banner).to_contain_text("the API server", timeout=1)
        access.down = False
        await expect(banner).to_be_hidden()
        await expect(page.get_by_role("link", name="another")).to_be_visible()
        await page.context.close()


async def test_a_page_that_was_hidden_or_frozen_shows_that_its_figures_are_old(
    browser: Browser, address: str
) -> None:
    """A laptop that slept: no script ran, and the connection has ended without an error."""
    page = await open_page(browser, address)
    await page.clock.install()
    await page.goto("/ui/")
    await page.clock.run_for(1_000)
    await page.context.set_offline(True)
    await page.clock.fast_forward(3_600_000)
    await expect(page.locator("#stale")).to_contain_text("min ago): the server does not respond")
    await page.context.set_offline(False)
    for _ in range(20):
        await page.clock.run_for(1_000)
    await expect(page.locator("#stale")).to_be_hidden()


HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
  return getComputedStyle(document.getElementById('stale')).display !== 'none';
}"""
"""Makes a page hidden or visible, as a change of the tab does. Whether it shows then that it is not refreshed."""


async def test_more_tabs_than_a_browser_has_connections_are_each_recent_while_they_are_visible(
    browser: Browser, address: str
) -> None:
    first = await open_page(browser, address)
    await first.clock.install()
    for number in range(7):  # a browser has six connections to a host
        page = first if number == 0 else await first.context.new_page()
        await page.goto("/ui/workloads")
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate(HIDE, True)
    await first.clock.fast_forward(60_000)
    async with first.expect_response("**/ui/workloads"):
        async with first.expect_request("**/api/v1/events**"):
            assert not await first.evaluate(HIDE, False), "it asks the server first"
        await first.clock.run_for(1_000)
    await expect(first.locator("#live")).to_have_text("live")
    await expect(first.locator("#stale")).to_be_hidden()
    await first.context.close()


async def _reach(page: Page, selector: str) -> None:
    """Move the focus to an element with the keyboard, through menus that are closed."""
    for _ in range(80):
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        closed = await page.evaluate("document.activeElement.matches('main details:not([open]) > summary')")  # fmt: skip
        await page.keyboard.press("Enter" if closed else "Tab")
    pytest.fail(f"{selector} is not reached")


async def test_the_keyboard_alone_searches_navigates_and_commands(
    browser: Browser, address: str, sample: Sample
) -> None:
    page = await open_page(browser, address)
    await page.goto("/ui/")
    keyboard = page.keyboard
    await keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to main content")).to_be_focused()

    # The groups, then the pages of the group.
    for name in ("queuectl", "Jobs", "Capacity"):
        await keyboard.press("Tab")
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    await keyboard.press("Enter")
    await expect(page.get_by_role("link", name="Overview", exact=True)).to_have_attribute("aria-current", "page")  # fmt: skip
    await page.get_by_role("link", name="Reservations", exact=True).focus()
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Reservations")).to_be_visible()

    # The search.
    await keyboard.press("/")
    field = page.get_by_role("combobox", name="Find a job")
    await expect(field).to_be_focused()
    await keyboard.type("un-00")
    await expect(page.get_by_role("listbox", name="Jobs")).to_have_count(0)
    await expect(page.locator("#find-options")).to_contain_text("No job that you may see has un-00")
    await keyboard.press("Escape")
    await expect(page.locator("#find-options")).to_be_hidden()
    await expect(field).to_have_value("un-00")
    await keyboard.press("Escape")
    await expect(field).to_have_value("")
    entry = sample.database.entries["run-00001"]
    await keyboard.type(entry.name[2:])
    options = page.get_by_role("option")
    await expect(options.filter(has_text=entry.ref)).to_be_visible()
    await expect(field).to_have_attribute("aria-expanded", "true")
    await keyboard.press("ArrowUp")
    await keyboard.press("ArrowDown")
    chosen = page.locator("[aria-selected=true]")
    await expect(chosen).to_have_count(1)
    assert await field.get_attribute("aria-activedescendant") == await chosen.get_attribute("id")
    axe = scanner()
    await page.evaluate(axe)
    violations = (await page.evaluate("axe.run()"))["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:160]) for v in violations] == []
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(entry.ref)

    # A command.
    await _reach(page, "[data-action=hold]")
    await keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    await keyboard.press("/")
    assert await page.evaluate("document.activeElement.closest('dialog') !== null")
    await keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#actions > summary")).to_be_focused()
    await _reach(page, "[data-action=hold]")
    await keyboard.press("Enter")
    await page.locator("dialog button.go").focus()
    await keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    assert [command.uid for command in sample.database.commands.values()] == ["run-00001"]


async def test_the_search_and_the_navigation_need_no_script(
    browser: Browser, address: str, sample: Sample
) -> None:
    context = await browser.new_context(base_url=address, java_script_enabled=False)
    page = await context.new_page()
    await page.goto("/ui/")
    await page.get_by_role("link", name="Admin").click()
    await page.get_by_role("link", name="Audit", exact=True).click()
    await expect(page.get_by_role("heading", name="Audit")).to_be_visible()
    await page.get_by_label("Find a job").fill("tts")
    await page.keyboard.press("Enter")
    matching = [e.ref for e in sample.database.entries.values() if "tts" in e.name]
    await expect(page.locator("tbody tr")).to_have_count(len(matching))

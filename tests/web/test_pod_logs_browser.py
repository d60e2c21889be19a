"""The page of a log in Chromium: text is text, it is followed by keyboard alone, and leaving the page closes the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, expect

from queuectl.api.auth.authentication import SESSION_PATH
from queuectl.web.log_streams import CLOSING, ENDED, LogLimits
from tests.api.signed import ADMIN
from tests.web.browser import NoBrowser, open_page, running, scanner
from tests.web.pod_log_pages import PATH, QUICK, WORKLOAD, LogPages, limited, log_pages

pytestmark = pytest.mark.browser
FAST = limited(bytes_per_second=1e9, all_bytes_per_second=1e9)


@asynccontextmanager
async def opened(
    limits: LogLimits = QUICK, *, dark: bool = False, width: int = 1280
) -> AsyncIterator[tuple[LogPages, Page]]:
    """The dashboard, and a page of a signed-in user that reports each error of a script or of the policy."""
    async with log_pages(limits) as pages:
        try:
            async with running() as browser:
                page = await open_page(browser, str(pages.client.base_url), dark=dark, width=width)
                await page.goto("/ui/signin")
                await page.evaluate(
                    "([path, token]) => fetch(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({token})})",
                    [SESSION_PATH, ADMIN],
                )
                errors: list[str] = []
                page.on("pageerror", lambda error: errors.append(str(error)))
                page.on("dialog", lambda dialog: errors.append(dialog.message))
                yield pages, page
                assert errors == []
        except NoBrowser as error:
            pytest.skip(str(error))


async def test_markup_in_a_log_is_text() -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script></pre><b>bold</b>\n"
    async with opened() as (pages, page):
        pages.log.written = hostile.encode() + b"\x1b]8;;javascript:alert(3)\x07link\n"
        await page.goto(PATH)
        log = page.locator("#log")
        await expect(log).to_contain_text("link")
        text = await log.evaluate("element => element.textContent")
        assert text == hostile + "\\u001b]8;;javascript:alert(3)\\u0007link\n"
        assert await log.evaluate("element => element.children.length") == 0
        policy = (await page.goto(PATH)).headers["content-security-policy"]  # type: ignore[union-attr]
        assert policy.startswith("default-src 'self';")


@pytest.mark.parametrize(("dark", "width"), [(False, 1440), (True, 390)])
async def test_the_page_is_accessible_and_stays_in_its_width(dark: bool, width: int) -> None:
    axe = scanner()
    async with opened(dark=dark, width=width) as (pages, page):
        pages.log.write(b"x" * 500 + b"\n")
        await page.goto(PATH)
        await expect(page.locator("#log")).to_contain_text("two")
        await page.evaluate(axe)
        result = await page.evaluate("axe.run({resultTypes: ['violations']})")
        assert [
            (v["id"], [n["html"][:160] for n in v["nodes"]]) for v in result["violations"]
        ] == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.locator("#log").get_attribute("aria-live") == "off"


async def test_the_log_is_opened_and_followed_by_keyboard_alone() -> None:
    async with opened() as (pages, page):
        await page.goto(f"/ui/workloads/{WORKLOAD}")
        await page.get_by_role("link", name="Read the log of train-0").focus()
        await page.keyboard.press("Enter")
        log, state = page.locator("#log"), page.locator("#log-state")
        await expect(log).to_have_text("one\ntwo\n")
        await expect(state).to_have_text("Following")
        pages.log.write(b"three\n")
        await expect(log).to_have_text("one\ntwo\nthree\n")
        await page.get_by_label("Container").focus()
        await page.keyboard.press("ArrowDown")
        await expect(log).to_have_text("side\n")
        assert "-c side" in await page.locator("#log-command").inner_text()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Space")
        await expect(log).to_have_text("before\n")
        await expect(state).to_have_text(ENDED)
        assert "--previous" in await page.locator("#log-command").inner_text()
        await page.get_by_role("button", name="Read again").focus()
        await page.keyboard.press("Enter")
        await expect(log).to_have_text("before\n")


async def test_a_reading_ends_with_its_page_its_switch_and_its_server() -> None:
    async with opened() as (pages, page):
        await page.goto(PATH)
        state = page.locator("#log-state")
        await expect(state).to_have_text("Following")
        await page.get_by_label("Follow").uncheck()
        await pages.until_closed()
        await expect(page.locator("#log")).to_have_text("one\ntwo\n")
        await page.get_by_label("Follow").check()
        await expect(state).to_have_text("Following")
        pages.pod_logs.close()
        await expect(state).to_have_text(CLOSING)
        pages.pod_logs.closing.clear()
        await page.get_by_role("button", name="Read again").click()
        await expect(state).to_have_text("Following")
        await page.goto("/ui/workloads")
        await pages.until_closed()


async def test_the_end_of_the_session_is_shown() -> None:
    async with opened() as (pages, page):
        await page.goto(PATH)
        state = page.locator("#log-state")
        await expect(state).to_have_text("Following")
        pages.store.database.sessions.clear()
        await expect(state).to_contain_text("Your session has ended")
        await page.get_by_role("button", name="Read again").click()
        await expect(state).to_contain_text("Sign in again")


async def test_the_page_keeps_the_last_lines_and_its_place() -> None:
    async with opened(FAST) as (pages, page):
        pages.log.written = b""
        await page.goto(PATH)
        await expect(page.locator("#log-state")).to_have_text("Following")
        pages.log.write(b"".join(b"line %d\n" % number for number in range(20_000)))
        log = page.locator("#log")
        await expect(log).to_contain_text("line 19999")
        lines = (await log.evaluate("element => element.textContent")).splitlines()
        # It drops whole blocks, and a slow page adds blocks of up to 5,000 lines.
        assert 5000 <= len(lines) < 10_000
        at_end = "element => element.scrollHeight - element.scrollTop - element.clientHeight < 8"
        assert await log.evaluate(at_end)
        await log.focus()
        await page.keyboard.press("Home")
        await log.evaluate("element => element.scrollTop = 0")
        pages.log.write(b"newest\n")
        await expect(log).to_contain_text("newest")
        await asyncio.sleep(0.1)
        assert not await log.evaluate(at_end)

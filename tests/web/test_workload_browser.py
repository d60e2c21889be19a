"""The page of a job in a real Chromium: its menu by keyboard and during a refresh, the color of the confirmation, and its lives."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from queuectl.domain.ledger import State
from tests.web.browser import open_page, scanner
from tests.web.lives import DELETED, DONE, FAILED, REQUEUED
from tests.web.sample import Sample
from tests.web.serve_sample import submit

pytestmark = pytest.mark.browser


async def focused(page: Page) -> str:
    return str(await page.evaluate("document.activeElement.dataset.label ?? document.activeElement.innerText"))  # fmt: skip


async def test_the_menu_works_by_keyboard_alone(browser: Browser, address: str) -> None:
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    menu, summary = page.locator("#actions"), page.locator("#actions > summary")
    await summary.focus()
    await page.keyboard.press("ArrowDown")
    await expect(menu).to_have_attribute("open", "")
    assert await focused(page) == "Hold"
    for key, label in (("ArrowDown", "Release"), ("End", "Move to another queue"), ("ArrowDown", "Hold"),
                       ("ArrowUp", "Move to another queue"), ("Home", "Hold"), ("ArrowDown", "Release")):  # fmt: skip
        await page.keyboard.press(key)
        assert await focused(page) == label
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(menu).to_have_attribute("open", "")
    await expect(page.get_by_role("button", name="Release")).to_contain_text("not held")
    await page.keyboard.press("Escape")
    assert await menu.get_attribute("open") is None
    assert (await focused(page)).startswith("Actions")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("8 pods are stopped")
    await expect(dialog.locator("button.go")).to_have_class("go danger")
    await page.keyboard.press("Escape")
    assert (await focused(page)).startswith("Actions")
    await page.locator("#actions > summary").click()
    await page.get_by_role("button", name="Set priority").click()
    await expect(dialog.locator("button.go")).to_have_class("go")


async def test_a_refresh_keeps_the_menu_open_and_a_click_elsewhere_closes_it(
    browser: Browser, address: str, sample: Sample
) -> None:
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    await page.locator("#actions > summary").click()
    await page.keyboard.press("ArrowDown")
    async with page.expect_response("**/ui/workloads/run-00001"):
        await submit(sample, 1)
    await page.wait_for_timeout(200)
    await expect(page.locator("#actions")).to_have_attribute("open", "")
    assert await focused(page) == "Hold"
    await page.get_by_role("heading", name="Reason").click()
    assert await page.locator("#actions").get_attribute("open") is None


@pytest.mark.parametrize(("dark", "width"), [(False, 1440), (True, 390)], ids=["desk", "phone"])
async def test_each_life_of_a_job_is_accessible_and_fits(
    browser: Browser, address: str, sample: Sample, dark: bool, width: int
) -> None:
    axe = scanner()
    held = next(e.uid for e in sample.database.entries.values() if e.state is State.HELD)
    for uid in ("run-00001", "wait-00000", DONE, FAILED, DELETED, REQUEUED, held):
        page = await open_page(browser, address, dark=dark, width=width)
        await page.goto(f"/ui/workloads/{uid}")
        await page.locator("#actions > summary").click()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, uid
        await page.evaluate(axe)
        result = await page.evaluate("axe.run()")
        assert [each["id"] for each in result["violations"]] == [], uid
        await page.context.close()

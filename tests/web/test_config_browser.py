"""Writing configuration in a real Chromium: signed in and with the keyboard, without scripts, and in an outage."""

from __future__ import annotations

import copy

import pytest
from playwright.async_api import Browser, Page, expect

from queuectl.api.auth.authentication import OpenPaths
from queuectl.domain.queries import DocumentKey
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.signed import ADMIN, people, signed_app
from tests.web.browser import open_page, scanner, served
from tests.web.sample import Sample

pytestmark = pytest.mark.browser
QUEUE = DocumentKey("ClusterQueue", "", "vision")
PAGE = "/ui/config/clusterqueues/vision"
PHONE = 390


def policy(sample: Sample) -> str:
    spec = sample.database.documents[QUEUE].document["spec"]
    return str(spec["preemption"]["withinClusterQueue"])


async def type_over(page: Page, old: str, new: str) -> str:
    """Change a word of the text in the editor; the whole text."""
    editor = page.get_by_label("The object as YAML")
    text = (await editor.input_value()).replace(old, new)
    await editor.fill(text)
    return text


async def fits_and_is_accessible(page: Page, axe: str) -> None:
    await page.evaluate(axe)
    violations = (await page.evaluate("axe.run()"))["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:160]) for v in violations] == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE


async def test_a_signed_in_admin_checks_meets_a_conflict_and_applies_on_a_phone(
    browser: Browser, sample: Sample
):
    axe = scanner()
    sample.diagnoser.running = sample.cluster_reader.snapshot
    access = people()
    how = {"secure": False, "open_paths": OpenPaths(OPEN, SIGN_IN)}
    app = signed_app(sample.store, access, sample.diagnoser, **how)
    guard = app.state.guard
    add_dashboard(app, sample.store, guard, sample.cluster_reader, sample.diagnoser, signs_in=True)
    async with served(app) as address:
        page = await open_page(browser, address, dark=True, width=PHONE)
        await page.goto(PAGE)
        await page.get_by_label("Token").fill(ADMIN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="vision", exact=True)).to_be_visible()
        text = await type_over(page, "h100", "h200")
        await page.get_by_role("button", name="Check").press("Enter")
        await expect(page.get_by_role("heading", name="fields would change")).to_be_visible()
        await expect(page.locator("[data-first]")).to_be_focused()
        await fits_and_is_accessible(page, axe)

        document = copy.deepcopy(dict(sample.database.documents[QUEUE].document))
        document["spec"]["queueingStrategy"] = "StrictFIFO"
        await sample.store.put_config(document)
        await page.get_by_role("button", name="Apply").press("Enter")
        await expect(page.get_by_role("alert").first).to_contain_text("The object was changed")
        assert await page.get_by_label("The object as YAML").input_value() == text
        await fits_and_is_accessible(page, axe)

        await page.get_by_role("button", name="Replace it").press("Enter")
        await expect(page.locator("main").get_by_role("status")).to_have_text(
            "The object is changed."
        )
        await expect(page.get_by_role("heading", name="Latest changes")).to_be_visible()
        await expect(page.locator(".life")).to_contain_text("admin")
    line = sample.database.audit[-1]
    assert (line.caller, line.operation, line.status) == ("admin", "putClusterQueue", 303)


async def test_configuration_is_written_without_scripts(
    browser: Browser, address: str, sample: Sample
):
    context = await browser.new_context(base_url=address, java_script_enabled=False)
    page = await context.new_page()
    await page.goto(PAGE)
    await type_over(page, "LowerPriority", "Sometimes")
    await page.get_by_role("button", name="Check").click()
    await expect(page.get_by_role("alert").first).to_contain_text("withinClusterQueue")
    await type_over(page, "Sometimes", "Never")
    await page.get_by_role("button", name="Check").click()
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator("main").get_by_role("status")).to_have_text("The object is changed.")
    assert policy(sample) == "Never"
    await page.get_by_role("link", name="Delete …").click()
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator(".note")).to_have_text("The object is deleted.")
    assert QUEUE not in sample.database.documents


@pytest.mark.parametrize("lost", ["database", "server"])
async def test_typed_text_is_kept_without_a_response(
    browser: Browser, address: str, sample: Sample, lost: str
):
    page = await open_page(browser, address)
    await page.goto(PAGE)
    text = await type_over(page, "LowerPriority", "Never")
    sample.database.down = lost == "database"
    if lost == "server":
        await page.route("**/ui/config/check**", lambda route: route.abort())
    await page.get_by_role("button", name="Check").click()
    alert = page.get_by_role("alert").filter(has_text="does not respond" if lost == "database" else "fetch")  # fmt: skip
    await expect(alert).to_be_visible()
    assert await page.get_by_label("The object as YAML").input_value() == text

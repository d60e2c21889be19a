"""Commands for workloads and queues in a real Chromium, and pages during an outage and after the session."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from playwright.async_api import Browser, Page, expect

from queuectl.api.auth.authentication import OpenPaths
from queuectl.domain.commands import DONE, Action
from queuectl.domain.events import CommandReceived
from queuectl.domain.ledger import State
from queuectl.domain.plan import Cost
from queuectl.domain.queries import DocumentKey
from queuectl.domain.rules import Rules
from queuectl.domain.what_if import DrainCost, Preview
from queuectl.lifecycle.machine import handle
from queuectl.web.app import OPEN, SIGN_IN, add_dashboard
from tests.api.signed import ADMIN, people, signed_app
from tests.web.browser import open_page, served
from tests.web.sample import NOW, Sample
from tests.web.serve_sample import answer, submit

pytestmark = pytest.mark.browser


async def test_a_command_is_sent_only_when_it_is_confirmed(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    await _choose(page, "hold")
    await expect(page.get_by_role("dialog")).to_contain_text("Work since the last checkpoint")
    await page.get_by_role("button", name="Cancel").click()
    assert sample.database.commands == {}
    await _choose(page, "hold")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("the data is wrong")
    await dialog.get_by_role("button", name="Hold").click()
    await expect(dialog).to_be_hidden()
    assert [(c.uid, c.action, c.why) for c in sample.database.commands.values()] == [
        ("run-00001", "hold", "the data is wrong")
    ]


async def test_a_gang_that_starts_while_the_dialog_is_open_is_not_evicted(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/wait-00001")
    await _choose(page, "hold")
    dialog = page.get_by_role("dialog")
    await expect(dialog).not_to_contain_text("pods are stopped")
    entry = sample.database.entries["wait-00001"]
    sample.database.entries["wait-00001"] = replace(
        entry, state=State.STARTING, attempt=entry.attempt + 1
    )
    await dialog.get_by_role("button", name="Hold").click()
    await expect(dialog.get_by_role("alert")).to_have_text(
        f"{entry.ref} has started in the meantime"
    )
    assert sample.database.commands == {}


async def test_steps_that_come_while_a_dialog_is_open_are_shown_after_it(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/wait-00001")
    await expect(page.locator("#live")).to_have_text("live")
    await _choose(page, "hold")
    entry = sample.database.entries["wait-00001"]
    sample.database.entries["wait-00001"] = replace(entry, state=State.STARTING)
    events = page.expect_event("console", lambda message: message.text == "a step arrived")
    await page.evaluate(
        """() => new Promise(follows => {
          const stream = new EventSource(document.body.dataset.events);
          stream.addEventListener('step', () => console.log('a step arrived'));
          stream.addEventListener('alive', () => follows());
        })"""
    )
    async with events:
        await submit(sample, 1)
    await page.keyboard.press("Escape")
    await expect(page.locator(".head-line .state")).to_contain_text("Starting", timeout=10_000)


async def test_a_cost_that_is_not_known_yet_is_requested_again(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    await _choose(page, "preempt")
    price = page.get_by_role("dialog").get_by_role("status")
    await expect(price).to_contain_text("not known yet")
    sample.diagnoser.previews["run-00001", Action.PREEMPT] = Preview(
        Cost(1, 7200, Fraction(16)), 0.0
    )
    await expect(price).to_have_text("About 2.0 GPU-hours of work would be lost.")
    assert sample.database.commands == {}


async def test_the_dialog_shows_an_outage_instead_of_the_cost(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    sample.database.down = True
    await _choose(page, "preempt")
    price = page.get_by_role("dialog").get_by_role("status")
    await expect(price).to_contain_text("The cost is not known: ")


async def test_a_queue_is_stopped_drained_and_resumed_after_a_confirmation(
    browser: Browser, address: str, sample: Sample
):
    queue = DocumentKey("ClusterQueue", "", "vision")
    sample.diagnoser.drains[queue] = DrainCost(2, 20, 160, 7200)
    page = await open_page(browser, address)
    await page.goto("/ui/queues/vision")
    dialog = page.get_by_role("dialog")

    async def policy() -> object:
        stored = await sample.store.get_config(queue)
        assert stored is not None
        return stored.document["spec"].get("stopPolicy")

    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(dialog).to_contain_text("Gangs that run continue.")
    confirm = dialog.locator("button.go")
    await expect(confirm).to_have_class("go")
    await dialog.get_by_role("button", name="Cancel").click()
    assert await policy() is None
    await page.get_by_role("button", name="Stop", exact=True).click()
    await dialog.get_by_label("Reason").fill("new racks")
    await dialog.get_by_role("button", name="Stop", exact=True).click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator(".head-line")).to_contain_text("stopped")
    assert await policy() == "Hold"
    assert "reason: new racks" in sample.database.audit[-1].detail
    trigger = page.get_by_role("button", name="Stop and drain")
    assert not await trigger.get_attribute("class"), "only the confirmation is red"
    await trigger.click()
    await expect(confirm).to_have_class("go danger")
    await expect(dialog.get_by_role("status")).to_have_text(
        "2 gangs are evicted, and 160 GPUs are freed. About 2.0 GPU-hours of work would be lost."
    )
    await dialog.get_by_role("button", name="Stop and drain").click()
    await expect(page.locator(".head-line")).to_contain_text("draining")
    assert await policy() == "HoldAndDrain"
    await page.get_by_role("button", name="Resume").click()
    await expect(confirm).to_have_class("go")
    await dialog.get_by_role("button", name="Resume").click()
    await expect(page.locator(".head-line")).not_to_contain_text("stopped")
    assert await policy() is None


async def _choose(page: Page, action: str) -> None:
    """Choose a command in the menu of a workload."""
    await page.locator("#actions > summary").click()
    await page.locator(f'#actions [data-action="{action}"]').click()


async def _ask(page: Page, label: str) -> None:
    """Choose a command of a workload and confirm it."""
    await _choose(page, label.lower())
    await page.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_a_command_is_followed_until_it_is_done(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/wait-00001")
    await _ask(page, "Hold")
    status = page.get_by_role("status").filter(has_text="Hold")
    await expect(status).to_contain_text("requested")
    entry = sample.database.entries["wait-00001"]
    change = handle(entry, CommandReceived(*sample.database.commands.values()), NOW, Rules())
    assert change is not None
    await answer(sample, DONE, change)
    await expect(status).to_contain_text("done")
    await expect(page.locator(".head-line .state")).to_contain_text("Held")
    await page.locator("#actions > summary").click()
    await expect(page.locator('#actions [data-action="release"]')).to_be_enabled()


async def test_the_reason_of_a_refused_command_is_shown(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/run-00001")
    await _ask(page, "Preempt")
    status = page.get_by_role("status").filter(has_text="Preempt")
    await expect(status).to_contain_text("requested")
    await answer(sample, "it is over already")
    await expect(status).to_contain_text("refused: it is over already")


async def test_a_page_keeps_its_content_during_an_outage(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads/wait-00001")
    name = sample.database.entries["wait-00001"].ref
    for down in (True, False):
        sample.database.down = down
        async with page.expect_response("**/ui/workloads/wait-00001") as response:
            await page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
        assert (await response.value).ok is not down
        await expect(page.get_by_role("heading", name=name)).to_be_visible()


async def test_a_user_who_is_signed_out_elsewhere_returns_after_signing_in(
    browser: Browser, sample: Sample
):
    access = people()
    app = signed_app(sample.store, access, secure=False, open_paths=OpenPaths(OPEN, SIGN_IN))
    add_dashboard(app, sample.store, app.state.guard, sample.cluster_reader, signs_in=True)
    async with served(app) as address:
        page = await open_page(browser, address)
        await page.goto("/ui/workloads?namespace=team-vision")
        await page.get_by_label("Token").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="All jobs")).to_be_visible()
        sample.database.sessions.clear()
        await expect(page.locator("#stale")).to_contain_text("your session has ended")
        await page.get_by_role("link", name="Sign in again").click()
        await expect(page.get_by_label("Token")).to_be_visible()
        assert page.url.endswith("/ui/signin?next=%2Fui%2Fworkloads%3Fnamespace%3Dteam-vision")

"""One command for a selection of workloads in a real Chromium: by keyboard, over a refresh, and with partial failure."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from playwright.async_api import Browser, Page, expect

from queuectl.db.ports import Commit
from queuectl.domain.commands import DONE, Action, Answer
from queuectl.domain.ledger import State
from queuectl.domain.plan import Cost
from queuectl.domain.what_if import Preview
from tests.web.browser import open_page, scanner
from tests.web.sample import Sample
from tests.web.serve_sample import submit

pytestmark = pytest.mark.browser
RUNNING = "run-00001"


async def refresh(page: Page) -> None:
    async with page.expect_response(re.compile(r"/ui/workloads(\?.*)?$")):
        await page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")


async def test_a_command_for_a_selection_is_sent_once_and_shows_the_result_of_each(
    browser: Browser, address: str, sample: Sample
):
    entries = sample.database.entries
    sample.diagnoser.previews[RUNNING, Action.PREEMPT] = Preview(Cost(1, 7200, Fraction(64)), 0.0)
    page = await open_page(browser, address)
    await page.goto("/ui/workloads")
    for uid in (RUNNING, "wait-00001", "aside-2"):
        await page.locator(f'input[value="{uid}"]').focus()
        await page.keyboard.press("Space")
    await expect(page.locator("#selected")).to_have_text("3 selected")

    held = page.locator('details.choices input[value="Held"]')
    await page.locator("details.choices summary").click()
    await held.check()
    await page.get_by_label("User", exact=True).focus()
    await expect(page.locator("#known-users option")).not_to_have_count(0)

    # A refresh moves rows, and a selected workload leaves the list.
    for number in (1, 2):
        await submit(sample, number)
    entries["wait-00001"] = replace(entries["wait-00001"], state=State.FINISHED, finished_at=1.0)
    await refresh(page)
    await expect(page.locator("#selected")).to_contain_text("3 selected, 1 of them no longer")
    await expect(held).to_be_checked()
    await expect(page.locator("#known-users option")).not_to_have_count(0)
    await page.keyboard.press("Escape")
    checked = page.locator('input[name="workload"]:checked')
    assert {await box.get_attribute("value") for box in await checked.all()} == {RUNNING, "aside-2"}

    await page.locator("#bulk-action").focus()
    await page.keyboard.press("h")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Hold: 3 workloads")
    cost = dialog.get_by_role("status")
    await expect(cost).to_contain_text("1 of 3 workloads can get this command. 1 gang with")
    await expect(cost).to_contain_text("About 2.0 GPU-hours of work would be lost.")
    await expect(dialog).to_contain_text(f"{entries['aside-2'].ref}: ")
    await expect(dialog).to_contain_text("is Finished")
    assert sample.database.commands == {}
    await page.evaluate(scanner())
    found = await page.evaluate("axe.run('dialog').then((r) => r.violations.map((v) => v.id))")
    assert found == []

    await dialog.get_by_label("Reason").fill("the data is wrong")
    await dialog.get_by_role("button", name="Hold").dblclick()
    await expect(cost).to_have_text("1 requested, 2 refused")
    (command,) = sample.database.commands.values()
    assert (command.uid, command.action, command.why) == (RUNNING, "hold", "the data is wrong")
    done = Commit([], answers=[Answer(command.id, DONE)])
    await sample.store.commit(done, epoch=sample.database.epoch, cycle=7)
    await expect(cost).to_have_text("1 done, 2 refused")
    await page.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#selected")).to_contain_text("2 selected")
    await page.reload()
    await expect(page.locator("#selected")).to_have_text("None selected")
    assert len(sample.database.commands) == 1


async def test_all_workloads_of_a_page_are_selected_and_an_outage_gives_none_a_second_command(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address, width=390)
    await page.goto("/ui/mine?user=&namespace=team-vision")
    await page.get_by_label("Select all on this page").check()
    number = await page.locator('input[name="workload"]').count()
    await expect(page.locator("#selected")).to_have_text(f"{number} selected")
    await page.get_by_role("button", name="Continue").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("status")).to_contain_text("can get this command")
    sample.database.down = True
    await dialog.get_by_role("button", name="Hold").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("none gets it twice")
    sample.database.down = False
    await dialog.get_by_role("button", name="Hold").click()
    await expect(dialog.get_by_role("status")).to_contain_text("requested")
    commands = list(sample.database.commands.values())
    assert len(commands) == len({command.uid for command in commands}) > 3


async def test_the_first_workload_of_an_empty_list_can_be_selected(
    browser: Browser, address: str, sample: Sample
):
    sample.database.entries.clear()
    page = await open_page(browser, address)
    await page.goto("/ui/mine?user=&namespace=team-vision")
    await expect(page.locator("#live")).to_have_text("live")
    await submit(sample, 1)
    await page.get_by_label("Select team-vision/new-0001").check()
    await expect(page.locator("#selected")).to_have_text("1 selected")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("dialog")).to_contain_text(
        "1 of 1 workload can get this command."
    )

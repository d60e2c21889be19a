"""The pages in a real Chromium: nothing breaks, nothing is out of reach, and what happens shows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Route,
    async_playwright,
    expect,
)

from queuectl.api.server import Address, WebServer
from queuectl.web.vendor import fetch
from tests.web.browser import ARGUMENTS, NoBrowser, find
from tests.web.sample import Sample, make
from tests.web.serve_sample import dashboard, submit

pytestmark = pytest.mark.browser
AXE = ("axe-core", "4.14.1", "axe.min.js")
PAGES = (
    "/ui/",
    "/ui/queues",
    "/ui/queues/vision",
    "/ui/workloads",
    "/ui/workloads/run-00001",
    "/ui/workloads/wait-00000",
    "/ui/nodes?q=gpu-00",
    "/ui/evictions",
    "/ui/whatif",
    "/ui/signin",
)


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility scanner."""
    try:
        return fetch(*AXE).decode()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def sample() -> Sample:
    return make()


@pytest.fixture
async def address(sample: Sample) -> AsyncIterator[str]:
    server = WebServer(dashboard(sample), Address("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    yield server.url
    server.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    try:
        chromium = await asyncio.to_thread(find)
    except NoBrowser as error:
        pytest.skip(str(error))
    async with async_playwright() as tools:
        started = await tools.chromium.launch(
            executable_path=chromium.executable,
            env={**os.environ, **chromium.environment},
            args=list(ARGUMENTS),
        )
        yield started
        await started.close()


async def _open(browser: Browser, address: str, *, dark: bool = False, width: int = 1280) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme="dark" if dark else "light",
        base_url=address,
    )
    return await context.new_page()


def _complaints(page: Page) -> list[str]:
    """What the browser complains of from now on."""
    found: list[str] = []

    def erred(error: Error) -> None:
        found.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            found.append(message.text)

    page.on("pageerror", erred)
    page.on("console", said)
    return found


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)], ids=["desk", "phone"])
async def test_every_page_is_accessible_fits_and_breaks_nothing(
    browser: Browser, address: str, axe: str, dark: bool, width: int
):
    page = await _open(browser, address, dark=dark, width=width)
    complaints = _complaints(page)
    found = []
    for path in PAGES:
        await page.goto(path)
        await page.wait_for_timeout(250)
        await page.evaluate(axe)  # past the policy on scripts, as only a tool may
        result = await page.evaluate("axe.run()")
        found += [
            (path, v["id"], [node["html"][:160] for node in v["nodes"][:3]])
            for v in result["violations"]
        ]
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert found == []
    assert complaints == []


async def test_a_new_gang_shows_without_a_reload(browser: Browser, address: str, sample: Sample):
    page = await _open(browser, address)
    await page.goto("/ui/workloads?namespace=team-vision&state=Pending")
    await expect(page.locator("#live")).to_have_text("live")
    await submit(sample, 1)
    await expect(page.get_by_role("link", name="team-vision/new-0001")).to_be_visible(timeout=30_000)  # fmt: skip


async def test_an_action_is_asked_for_only_when_it_is_confirmed(
    browser: Browser, address: str, sample: Sample
):
    page = await _open(browser, address)
    await page.goto("/ui/workloads/run-00001")
    await page.get_by_role("button", name="Hold", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("work since the last checkpoint")
    await page.get_by_role("button", name="Cancel").click()
    assert sample.database.commands == {}
    await page.get_by_role("button", name="Hold", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why").fill("the data is wrong")
    await dialog.get_by_role("button", name="Hold").click()
    await expect(dialog).to_contain_text("will be carried out")
    assert [(c.uid, c.action, c.why) for c in sample.database.commands.values()] == [
        ("run-00001", "hold", "the data is wrong")
    ]


async def test_the_map_is_walked_by_keys_and_searched(browser: Browser, address: str):
    page = await _open(browser, address)
    await page.goto("/ui/nodes")
    await expect(page.locator("#map-key li").first).to_be_visible()
    await page.locator("#map").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#map-said")).to_contain_text("gpu-00-00-01")
    await page.keyboard.press("Enter")
    await expect(page.locator("#node-list")).to_contain_text("1 node with gpu-00-00-01")


async def test_the_theme_that_was_chosen_stays(browser: Browser, address: str):
    page = await _open(browser, address)
    await page.goto("/ui/")
    await page.locator("#theme").click()
    await page.goto("/ui/queues")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_a_question_what_if_is_answered_in_tables(browser: Browser, address: str):
    """The API is played here: its answer is tested where it is made."""
    counts = {"starts": 1, "gpusStarted": 8, "waits": 2, "leaves": 1, "lostGpuSeconds": 7200}
    fate: dict[str, object] = {
        "workload": "team-vision/<b>new</b>", "uid": None, "gpus": 8, "submitted": True, "before": None,
        "placement": None, "reason": None, "cost": {"lostGpuSeconds": 7200}, "ways": [], "givesWayTo": None,
    }  # fmt: skip
    told = {"before": counts, "after": counts, "starts": [fate], "leaves": [fate], "waits": []}
    page = await _open(browser, address)
    asked: list[object] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(json=told)

    await page.route("**/api/v1/plans", answer)
    await page.goto("/ui/whatif")
    await page.get_by_label("these nodes are drained").fill("gpu-00-00-00, gpu-00-00-01")
    await page.get_by_role("button", name="Plan").click()
    await expect(page.locator("#answer")).to_contain_text("team-vision/<b>new</b>")
    assert asked == [
        {"submit": [], "config": [], "drain": ["gpu-00-00-00", "gpu-00-00-01"], "add": []}
    ]

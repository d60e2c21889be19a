"""The pages in a real Chromium: no errors, no accessibility violations, and live updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Route, expect

from queuectl.domain.commands import DONE, Action, Command
from queuectl.domain.fleet import Fleet
from queuectl.domain.ledger import State
from tests.web.browser import open_page, scanner
from tests.web.kept import PLANNED
from tests.web.sample import EVIDENCE, NOW, UNHEALTHY, Sample
from tests.web.serve_sample import answer, submit

pytestmark = pytest.mark.browser
PAGES = (
    "/ui/",
    "/ui/queues",
    "/ui/queues/vision",
    "/ui/cohorts",
    "/ui/localqueues",
    "/ui/reservations",
    "/ui/localqueues/team-vision/default",
    "/ui/mine",
    "/ui/mine?user=ann",
    "/ui/mine?user=nobody",
    "/ui/workloads",
    "/ui/workloads?sort=-gpus",
    "/ui/workloads/run-00001",
    "/ui/workloads/wait-00000",
    f"/ui/workloads/{PLANNED}",
    "/ui/nodes?q=gpu-00",
    "/ui/timeline",
    "/ui/evictions",
    "/ui/decisions",
    "/ui/decisions/3",
    "/ui/usage",
    "/ui/usage?by=user&span=days&from=2026-11-17&to=2026-11-18",
    "/ui/budgets",
    "/ui/notifications",
    "/ui/audit",
    "/ui/config",
    "/ui/config/clusterqueues/vision",
    "/ui/config/budgets/vision",
    "/ui/config/reservations/planned",
    "/ui/config/delete?of=clusterqueues/vision",
    "/ui/whatif",
    "/ui/search?q=tts",
    "/ui/search?q=nothing-has-this-name",
    "/ui/workloads/nowhere",
    "/ui/signin",
)
CUT = """[...document.querySelectorAll('.stats dd')]
  .filter(figure => figure.scrollWidth > figure.clientWidth).map(figure => figure.innerText)"""
"""The figures that are wider than their tile, whose ends are therefore hidden."""


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility scanner."""
    return scanner()


def _complaints(page: Page) -> list[str]:
    """The errors that the browser reports from now on."""
    found: list[str] = []

    def erred(error: Error) -> None:
        found.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            found.append(message.text)

    page.on("pageerror", erred)
    page.on("console", said)
    return found


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_page_is_accessible_fits_and_breaks_nothing(
    browser: Browser, address: str, axe: str, sample: Sample, dark: bool, width: int
):
    for number, outcome in enumerate((DONE, "it was so already", None)):
        asked = Command(0, "run-00001", Action.HOLD, "ann", str(number), NOW, why="bad data")
        await sample.store.add_command(asked)
        if outcome is not None:
            await answer(sample, outcome)
    page = await open_page(browser, address, dark=dark, width=width)
    complaints = _complaints(page)
    found = []
    for path in PAGES:
        await page.goto(path)
        await page.wait_for_timeout(250)
        await page.evaluate(axe)  # past the policy on scripts, as only a tool may
        result = await page.evaluate("axe.run({resultTypes: ['violations']})")
        found += [
            (path, v["id"], [node["html"][:160] for node in v["nodes"][:3]])
            for v in result["violations"]
        ]
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert await page.evaluate(CUT) == [], path
    assert found == []
    assert [each for each in complaints if "404" not in each] == []


async def test_a_new_gang_shows_without_a_reload(browser: Browser, address: str, sample: Sample):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads?namespace=team-vision&state=Pending")
    await expect(page.locator("#live")).to_have_text("live")
    await submit(sample, 1)
    await expect(page.get_by_role("link", name="team-vision/new-0001")).to_be_visible(timeout=30_000)  # fmt: skip


async def test_the_map_works_with_keys_and_has_a_search(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.goto("/ui/nodes")
    await expect(page.locator("#map-key li").first).to_be_visible()
    await page.locator("#map").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#map-said")).to_contain_text("gpu-00-00-01")
    await page.keyboard.press("Enter")
    await expect(page.locator("#node-list")).to_contain_text("1 node for gpu-00-00-01")


async def test_a_refresh_keeps_the_search_results_and_the_selected_node_of_the_map(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    await page.goto("/ui/nodes")
    await expect(page.locator("#map-key li").first).to_be_visible()
    await page.locator("#map").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    said = page.locator("#map-said")
    await expect(said).to_contain_text("gpu-00-00-01")
    await page.get_by_label("Find", exact=True).fill("gpu-00-00-02")
    found = page.locator("#node-list")
    await expect(found).to_contain_text("1 node for gpu-00-00-02")
    await page.locator("#map").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text("gpu-00-00-01")

    snapshot = sample.cluster_reader.snapshot
    assert snapshot is not None
    first, *others = snapshot.fleet.nodes
    added = replace(first, name=f"{first.name}-b")
    fleet = Fleet((first, added, *others))
    sample.cluster_reader.snapshot = replace(snapshot, fleet=fleet)
    sample.cluster_reader._cluster_map = None
    async with (
        page.expect_response("**/ui/nodes/data**"),
        page.expect_response("**/ui/nodes/list**"),
        page.expect_response("**/ui/nodes"),
    ):
        await page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
    await expect(found).to_contain_text("1 node for gpu-00-00-02")
    await expect(said).to_contain_text("gpu-00-00-01")
    await page.locator("#map").press("Enter")
    await expect(found).to_contain_text("1 node for gpu-00-00-01")


async def test_the_map_appears_when_the_nodes_are_listed(
    browser: Browser, address: str, sample: Sample
):
    page = await open_page(browser, address)
    snapshot, sample.cluster_reader.snapshot = sample.cluster_reader.snapshot, None
    await page.goto("/ui/nodes")
    await expect(page.locator("#main")).to_contain_text("has not read the cluster yet")
    sample.cluster_reader.snapshot = snapshot
    await page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
    await expect(page.locator("#map-key li").first).to_be_visible()


@pytest.mark.parametrize("dark", [False, True])
async def test_the_map_shows_why_a_node_takes_no_gang(
    browser: Browser, address: str, dark: bool
) -> None:
    page = await open_page(browser, address, dark=dark)
    await page.goto("/ui/nodes")
    legend = page.locator("#map-key li")
    await expect(legend.filter(has_text="unhealthy: its hardware fails")).to_be_visible()
    await expect(legend.filter(has_text="cordoned or not ready")).to_be_visible()
    await page.locator("#map").focus()
    for _ in range(3):
        await page.keyboard.press("ArrowRight")
    await expect(page.locator("#map-said")).to_contain_text(f"{UNHEALTHY}: ")
    await expect(page.locator("#map-said")).to_contain_text(f"unschedulable: unhealthy: {EVIDENCE}")
    await page.keyboard.press("Enter")
    await expect(page.locator("#node-list")).to_contain_text(f"no: unhealthy: {EVIDENCE}")


async def test_usage_is_of_the_days_that_are_chosen(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.goto("/ui/usage")
    form = page.get_by_role("search", name="Choose the report")
    groupings = page.get_by_role("navigation", name="Group by")
    await groupings.get_by_role("link", name="By user").click()
    await form.get_by_label("From", exact=True).fill("2026-11-17")
    await form.get_by_label("To", exact=True).fill("2026-11-18")
    await form.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("heading", name="By user")).to_be_visible()
    await expect(page.locator(".lead")).to_contain_text("to 2026-11-19 00:00 UTC")
    await expect(form.get_by_label("To", exact=True)).to_have_value("2026-11-18")
    await page.get_by_role("navigation", name="Period").get_by_role("link", name="7 days").click()
    await expect(page.get_by_role("heading", name="By user")).to_be_visible()
    await expect(form.get_by_label("To", exact=True)).to_have_value("")


async def test_usage_is_followed_to_a_job_and_downloaded_with_the_keyboard(
    browser: Browser, address: str
):
    page = await open_page(browser, address)
    await page.goto("/ui/usage?span=168h")
    for name in ("team-vision", "ann"):
        await page.get_by_role("link", name=name, exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.locator('[aria-current="page"]', has_text=name)).to_be_visible()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download CSV").focus()
        await page.keyboard.press("Enter")
    assert (await download.value).suggested_filename.startswith("usage-by-workload-2026-11-1")
    job = page.get_by_role("region", name="Usage: table").get_by_role("link").first
    ref = await job.inner_text()
    await job.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name=ref)).to_be_visible()


async def test_a_report_is_not_made_with_every_event(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.goto("/ui/usage")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(3):
        await page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
        await page.wait_for_timeout(200)
    # The stream may open only now.
    assert [url.rpartition("/")[2] for url in asked if "/ui/" in url] == ["usage"]


async def test_the_chosen_theme_is_remembered(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.goto("/ui/")
    await page.locator("#theme").click()
    await page.goto("/ui/queues")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_a_what_if_plan_is_shown_in_tables(browser: Browser, address: str):
    """With a fixed response: tests/api tests the response itself."""
    counts = {"starts": 1, "gpusStarted": 8, "waits": 2, "leaves": 1, "lostGpuSeconds": 7200}
    gang: dict[str, object] = {
        "workload": "team-vision/<b>new</b>", "uid": None, "gpus": 8, "submitted": True, "before": None,
        "placement": None, "reason": None, "cost": {"lostGpuSeconds": 7200}, "suggestedFixes": [], "preemptor": None,
    }  # fmt: skip
    ignored = {"object": "batch/v1 Job <b>old</b>", "reason": "it names no queue"}
    plan = {
        "before": counts, "after": counts, "starts": [gang], "leaves": [gang], "waits": [gang],
        "omitted": 1250, "overQuota": [], "warnings": [], "ignored": [ignored],
    }  # fmt: skip
    page = await open_page(browser, address)
    asked: list[object] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(json=plan)

    await page.route("**/api/v1/plans", answer)
    await page.goto("/ui/whatif")
    await page.get_by_label("Nodes to drain").fill("gpu-00-00-00, gpu-00-00-01")
    await page.get_by_role("button", name="Plan").click()
    await expect(page.locator("#answer")).to_contain_text("team-vision/<b>new</b>")
    note = "batch/v1 Job <b>old</b> has no effect: it names no queue"
    await expect(page.locator("#answer .note")).to_have_text(note)
    pending = page.locator("#answer section", has_text="Pending gangs").last
    await expect(pending).to_contain_text("1\u202f250 more pending gangs are not listed.")
    manifest = "apiVersion: batch/v1\nkind: Job\n"
    await page.get_by_label("Manifests").fill(manifest)
    await page.get_by_role("button", name="Plan").click()
    await expect(page.get_by_role("button", name="Plan")).to_be_enabled()
    drained = ["gpu-00-00-00", "gpu-00-00-01"]
    assert asked == [
        {"manifests": "", "drain": drained, "add": []},
        {"manifests": manifest, "drain": drained, "add": []},
    ]


async def test_a_command_of_a_pod_is_copied(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto("/ui/workloads/run-00001")
    button = page.get_by_role("button", name="Copy: kubectl logs").first
    await button.click()
    await expect(button).to_have_text("Copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("kubectl logs -n team-")


async def test_a_column_is_sorted_from_the_keyboard(browser: Browser, address: str, sample: Sample):
    page = await open_page(browser, address)
    await page.goto("/ui/workloads?state=Running")
    await page.get_by_role("link", name="GPUs").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("columnheader", name="GPUs")).to_have_attribute(
        "aria-sort", "descending"
    )
    assert "sort=-gpus" in page.url
    assert "state=Running" in page.url
    most = max(e.gpus for e in sample.database.entries.values() if e.state is State.RUNNING)
    await expect(page.locator("tbody tr").first.locator('[data-h="GPUs"]')).to_have_text(str(most))


async def test_a_search_is_possible_on_a_phone(browser: Browser, address: str, sample: Sample):
    page = await open_page(browser, address, width=390)
    await page.goto("/ui/nodes")
    entry = sample.database.entries["run-00001"]
    await page.get_by_label("Find a job").fill(entry.ref)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name=entry.ref)).to_be_visible()
